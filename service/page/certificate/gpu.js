// What a certificate says of a GPU: whether bits are equal in company there, and where nodes run.

import { card, count, element, folded, short } from "../dom.js";
import { fact, scrolling } from "../panel.js";

/** The section "cuda" of a certificate, but for its checks. */
export function onGpu({ gpu, holds, onnxruntime, tf32, nodes, bits }) {
  const facts = [
    fact("onnxruntime", onnxruntime),
    fact("TF32", tf32 ? "on" : "off"),
    fact("nodes of the graphs", placed(nodes)),
  ];
  return card(
    `On ${gpu}`,
    ...Object.entries(holds).map(([precision, found]) => holding(precision, found)),
    element("dl", { class: "facts" }, ...facts),
    element("p", { class: "help sideways" }, "The table scrolls sideways."),
    scrolling("Bits alone and in company", bitsOf(bits)),
  );
}

function holding(precision, { bits, largest_difference: largest, of_largest_value: share }) {
  const isEqual = bits === "equal";
  const said = isEqual
    ? "equal bits alone, co-batched and padded, in all that was compared."
    : `bits differ in company, by at most ${short(largest)}, ${short(share)} of the largest value.`;
  return element("p", { class: `holds ${isEqual ? "same" : "found"}` }, `${precision}: ${said}`);
}

function bitsOf(bits) {
  const head = ["case", "precision", "compared", "unequal", "largest difference"].map((name) =>
    element("th", { scope: "col" }, name),
  );
  return element(
    "table",
    { class: "numbers wide bits-in-company" },
    element("thead", {}, element("tr", {}, ...head)),
    element(
      "tbody",
      {},
      ...bits.map((one) =>
        element(
          "tr",
          {},
          element("th", { scope: "row" }, `${one.case}, ${one.output}`),
          element("td", {}, one.precision),
          element("td", {}, one.compared.toLocaleString("en")),
          element("td", {}, one.unequal.toLocaleString("en")),
          element("td", {}, short(one.largest_difference)),
        ),
      ),
    ),
  );
}

/** Precision -> graph -> provider -> operator -> number of nodes. */
export function placed(nodes) {
  const rows = Object.entries(nodes).flatMap(([precision, graphs]) =>
    Object.entries(graphs).flatMap(([graph, providers]) =>
      Object.entries(providers).map(([provider, operators]) => {
        const found = Object.entries(operators);
        const total = found.reduce((sum, [, number]) => sum + number, 0);
        const each = found.map(([operator, number]) => `${number} ${operator}`).join(", ");
        return [`${precision} ${graph}: ${count(total, "node")} on ${provider}`, each];
      }),
    ),
  );
  return element("div", {}, ...rows.map(([title, each]) => folded(title, each)));
}
