// The answer to one request: what it cost, and for one row its activations, norms and predictions.

import { count, element, styled } from "./dom.js";
import { lensPanel } from "./lens.js";
import {
  activations,
  cutNote,
  firstTokens,
  nameOf,
  padRow,
  runs,
  scrolling,
  shaded,
} from "./heat.js";
import { bars, fact, panel, percent } from "./panel.js";

/** entry: of the model; rows: as sent; row: which one is shown; given: {data, fingerprint, stages}. */
export function answerOf(entry, rows, row, given) {
  const { data } = given;
  return [cost(given), element("div", { class: "results" }, ...parts(entry, rows[row], row, data))];
}

function parts(entry, cells, row, data) {
  const made = [];
  const few = firstTokens(cells);
  const cut = cutNote(cells);
  if (data.activations)
    made.push(
      panel(
        "Activations",
        `${entry.config.d_model ?? data.activations[row][0]?.length} numbers a token${cut}`,
        ...activations(few, data.activations[row]),
      ),
    );
  const predicted = data.logits && predictions(entry, few, row, data.logits, cut);
  if (predicted) made.push(predicted);
  if (data.norm_stats) made.push(norms(entry, few, row, data.norm_stats, cut));
  if (entry.outputs.includes("attentions")) made.push(lensPanel(entry, cells));
  return made;
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

/** {token_ids, logprobs} of the likeliest: of the whole sequence, or of each token. */
function predictions(entry, cells, row, { token_ids: ids, logprobs }, cut) {
  // of a row of pads there are none, and a single label is always the likeliest
  if (ids[row].every((id) => id === null) || entry.labels?.length === 1) return null;
  const name = (id) => entry.labels?.[id] ?? String(id);
  if (!Array.isArray(ids[row]?.[0] ?? ids[row]?.find(Boolean)))
    return panel(
      "Labels",
      "of the sequence",
      bars(ids[row].map((id, at) => [name(id), Math.exp(logprobs[row][at])])),
    );
  const width = ids[row].find(Boolean).length;
  const what = entry.labels ? "Labels of tokens" : "Likeliest ids";
  const rows = runs(cells).map(({ cell, index, pads }) => {
    if (pads) return padRow(pads, width);
    const found = ids[row][index].map(
      (id, at) => `${name(id)} ${percent(Math.exp(logprobs[row][index][at]))}`,
    );
    const label = element("th", { scope: "row" }, nameOf(cell));
    return element("tr", {}, label, ...found.map((text) => element("td", {}, text)));
  });
  const table = element("table", { class: "numbers wide" }, element("tbody", {}, ...rows));
  return panel(what, `the ${width} likeliest at each token${cut}`, scrolling(what, table));
}
