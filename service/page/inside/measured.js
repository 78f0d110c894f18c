// What the model computed of one row: activations, norms, and what it cost.

import { count, element, styled } from "../dom.js";
import { activations, cutNote, firstTokens, shaded } from "./heat.js";
import { fact, panel } from "../panel.js";

/** entry: of the model; rows: as sent; row: which one is shown; given: {data, fingerprint, stages}.
 * -> the parts of each tab, by its name. */
export function measured(entry, rows, row, given) {
  const { data } = given;
  const cells = rows[row];
  const few = firstTokens(cells);
  const cut = cutNote(cells);
  const none = (what) => [element("p", { class: "help" }, what)];
  return {
    activations: data.activations
      ? [
          panel(
            "Activations",
            `${entry.config.d_model ?? data.activations[row][0]?.length} numbers a token${cut}`,
            ...activations(few, data.activations[row]),
          ),
        ]
      : none("This model gives no activations."),
    norms: data.norm_stats
      ? [norms(entry, few, row, data.norm_stats, cut)]
      : none("This model gives no statistics of its norms."),
    cost: [cost(given)],
  };
}

function cost({ data, fingerprint, stages, requestId }) {
  const { real_tokens: real, pad_tokens: pads } = data.usage;
  const total = stages.reduce((sum, [, ms]) => sum + ms, 0);
  const held = real && isHeld(stages) ? ", from its cache" : "";
  const bar = stages.map(([name, ms]) =>
    styled(element("i", { class: `stage ${name}` }), { "flex-grow": ms / (total || 1) }),
  );
  const times = stages.map(([name, ms]) =>
    element(
      "li",
      {},
      element("i", { class: `dot ${name}` }),
      `${name} `,
      element("b", {}, `${ms.toFixed(2)} ms`),
    ),
  );
  return element(
    "div",
    { class: "cost" },
    element(
      "dl",
      {},
      fact("Real tokens", String(real)),
      fact("Pads dropped", String(pads)),
      stages.length ? fact("Server time", `${total.toFixed(2)} ms${held}`) : null,
      fact("Fingerprint", element("code", {}, fingerprint ?? "none")),
      fact("Request id", element("code", {}, requestId ?? "none")),
    ),
    ...(stages.length
      ? [
          element("div", { class: "stages", "aria-hidden": "true" }, ...bar),
          element("ul", { class: "times", "aria-label": "Time of each stage" }, ...times),
        ]
      : []),
  );
}

/** Nothing was computed: the server had the results of all sequences, or there was no token. */
const isHeld = (stages) => stages.some(([name, ms]) => name === "infer" && ms === 0);

/** In the order in which a token passes the norms; see the `block` of the configuration. */
export function normNames(
  { embedding_norm: first, n_layers: layers, block, final_norm: last },
  number,
) {
  const each = block === "single" ? [""] : [" attn", " ffn"];
  const names = [
    ...(first ? ["emb"] : []),
    ...Array.from({ length: layers ?? 0 }, (_, layer) =>
      each.map((part) => `L${layer}${part}`),
    ).flat(),
    ...(last ? ["final"] : []),
  ];
  return names.length === number
    ? names
    : Array.from({ length: number }, (_, index) => `norm ${index}`);
}

function norms(entry, cells, row, { mean, rstd }, cut) {
  const names = normNames(entry.config, mean[row][0]?.length ?? 0);
  return panel(
    "Every LayerNorm",
    `${count(names.length, "norm")}, in the order in which a token passes them${cut}`,
    element(
      "div",
      { class: "pair" },
      shaded("Mean", cells, mean[row], names),
      shaded("1 / standard deviation", cells, rstd[row], names),
    ),
  );
}
