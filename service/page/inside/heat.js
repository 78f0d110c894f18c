// Pictures of numbers: a strip of activations for each token, and tables shaded by value.

import { count, element, short, styled } from "../dom.js";
import { scrolling, thead } from "../panel.js";

export const MOST_TOKENS = 32; // of a row that are drawn

const isReal = (cell) => cell.real;

/** The row up to its last token that is drawn. */
export function firstTokens(cells) {
  let drawn = 0;
  const end = cells.findIndex((cell) => cell.real && ++drawn > MOST_TOKENS);
  return end < 0 ? cells : cells.slice(0, end);
}

/** "; the first 32 of 510 tokens", where the row has more than are drawn. */
export function cutNote(cells) {
  const number = cells.filter(isReal).length;
  return number > MOST_TOKENS ? `; the first ${MOST_TOKENS} of ${count(number, "token")}` : "";
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** "#3451d1" -> [52, 81, 209] */
const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/** One row of numbers as a strip, a pixel each; the page stretches it. */
function paint(canvas, values, limit) {
  const [zero, plus, minus] = ["--panel", "--plus", "--minus"].map((name) =>
    channels(colour(name)),
  );
  canvas.width = values.length;
  canvas.height = 1;
  const image = new ImageData(values.length, 1);
  values.forEach((value, index) => {
    const share = Math.min(1, Math.abs(value) / limit) ** 0.7; // small ones stay visible
    const end = value > 0 ? plus : minus;
    zero.forEach(
      (from, channel) => (image.data[4 * index + channel] = from + share * (end[channel] - from)),
    );
    image.data[4 * index + 3] = 255;
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

const painted = new Map(); // canvas -> paints it
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const [canvas, again] of painted) canvas.isConnected ? again() : painted.delete(canvas);
});

/** cells: of the row; activations: [S][d]. The picture and its scale. */
export function activations(cells, values) {
  const real = values.filter((_, index) => cells[index]?.real);
  const limit = Math.max(1e-12, quantile(real.flat().map(Math.abs), 0.995));
  const rows = runs(cells).map(({ cell, index, pads }) => {
    const label = element("span", { class: "token" }, pads ? "" : nameOf(cell));
    if (pads)
      return element(
        "li",
        { class: "pad" },
        label,
        element("span", { class: "hatch" }, `${count(pads, "pad")}, not computed`),
      );
    const canvas = element("canvas", { role: "img", "aria-label": summary(values[index]) });
    painted.set(canvas, () => paint(canvas, values[index], limit));
    painted.get(canvas)();
    return element("li", {}, label, canvas);
  });
  return [element("ul", { class: "strips" }, ...rows), scale(limit)];
}

export const nameOf = (cell) => cell.token ?? String(cell.id);

/** {cell, index, pads}: each real cell, and pads that stand side by side as one. */
export function runs(cells) {
  const found = [];
  cells.forEach((cell, index) => {
    if (!cell.real && found.at(-1)?.pads) found.at(-1).pads += 1;
    else found.push({ cell, index, pads: cell.real ? 0 : 1 });
  });
  return found;
}

const quantile = (values, share) =>
  values.sort((a, b) => a - b)[Math.floor(share * (values.length - 1))] ?? 1;

function summary(values) {
  const [lowest, highest] = [Math.min(...values), Math.max(...values)];
  return `${values.length} numbers from ${short(lowest)} to ${short(highest)}`;
}

const scale = (limit) =>
  element(
    "p",
    { class: "scale help" },
    short(-limit),
    element("span", { class: "ramp", "aria-hidden": "true" }),
    short(limit),
  );

export const padRow = (pads, width) =>
  element("tr", { class: "pad" }, element("td", { colspan: width + 1 }, count(pads, "pad")));

/** values: [S][n]; names: of the n columns. Shaded from the lowest to the highest. */
export function shaded(caption, cells, values, names, written = short, kind = "") {
  const real = values.filter((_, index) => cells[index]?.real).flat();
  const [lowest, highest] = [Math.min(...real), Math.max(...real)];
  const shade = (value) => (highest > lowest ? (value - lowest) / (highest - lowest) : 0);
  const rows = runs(cells).map(({ cell, index, pads }) => {
    if (pads) return padRow(pads, names.length);
    const label = element("th", { scope: "row" }, nameOf(cell));
    const tds = values[index].map((value) =>
      styled(element("td", { class: "shade" }, written(value)), {
        "--share": `${Math.round(55 * shade(value))}%`,
      }),
    );
    return element("tr", {}, label, ...tds);
  });
  const table = element(
    "table",
    { class: `numbers ${kind || (names.length > 4 ? "wide" : "")}` },
    thead(["token", ...names]),
    element("tbody", {}, ...rows),
  );
  return element("div", {}, element("h4", {}, caption), scrolling(caption, table));
}
