// Inside the model: the attention of one head, and the hidden states that enter a layer. Only of
// models that were exported with a lens.

import { element } from "./dom.js";
import { MOST_TOKENS, activations, cutNote, firstTokens, nameOf, shaded } from "./heat.js";
import { panel } from "./panel.js";
import { inWords, post } from "./server.js";

/** cells: of the row that is shown. Asks again whenever another layer or head is chosen. */
export function lensPanel(entry, cells) {
  const real = cells.filter((cell) => cell.real);
  const { n_layers: layers, n_heads: heads } = entry.config;
  const layer = choice("Layer", layers);
  const head = choice("Head", heads);
  const shown = element("div", { class: "results" });
  let last = 0;
  const show = async () => {
    const asked = ++last;
    shown.classList.add("outdated");
    const made = await inside(entry, real, Number(layer.field.value), Number(head.field.value));
    if (asked !== last) return; // another one was chosen meanwhile
    shown.classList.remove("outdated");
    shown.replaceChildren(...made);
  };
  for (const one of [layer, head]) one.field.addEventListener("change", show);
  if (real.length) show();
  const fields = element("div", { class: "fields" }, layer.whole, head.whole);
  return panel("Inside a layer", "asked of the sequence alone, in fp32", fields, shown);
}

function choice(name, number) {
  const options = Array.from({ length: number }, (_, index) =>
    element("option", { value: index }, String(index)),
  );
  const field = element("select", { id: `lens-${name.toLowerCase()}` }, ...options);
  const label = element("label", { for: field.id }, name);
  return { field, whole: element("div", { class: "narrow" }, label, field) };
}

async function inside(entry, cells, layer, head) {
  const ids = cells.map((cell) => cell.id);
  const body = {
    model: entry.id,
    input_ids: [ids],
    ...(cells.some((cell) => cell.type) && { token_type_ids: [cells.map((cell) => cell.type)] }),
    outputs: ["attentions", "hidden_states"].filter((name) => entry.outputs.includes(name)),
    attentions: { layers: [layer], heads: [head] },
    hidden_states: { layers: [layer] },
    precision: "fp32",
  };
  try {
    const { data } = await post("v1/infer", body, body.outputs);
    return [
      attention(cells, data.attentions[0][0][0], `layer ${layer}, head ${head}`),
      ...states(cells, data.hidden_states, layer),
    ];
  } catch (error) {
    return [element("p", { class: "found", role: "alert" }, inWords(error, "POST v1/infer").message)];
  }
}

/** weights: [S][S], queries before keys. */
function attention(cells, weights, place) {
  const few = firstTokens(cells);
  const values = weights.slice(0, MOST_TOKENS).map((row) => row.slice(0, MOST_TOKENS));
  const said = "what each token, a row, takes of each token, in percent";
  const caption = `Attention of ${place}: ${said}${cutNote(cells)}`;
  return shaded(
    caption,
    few,
    values,
    few.map(nameOf),
    (share) => String(Math.round(100 * share)),
    "square",
  );
}

const states = (cells, hidden, layer) =>
  hidden
    ? [
        element(
          "div",
          {},
          element("h4", {}, `Hidden states that enter layer ${layer}${cutNote(cells)}`),
          ...activations(firstTokens(cells), hidden[0][0]),
        ),
      ]
    : [];
