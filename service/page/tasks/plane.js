// A map of vectors: their two principal components, and the points with their texts.

import { count, element, short } from "../dom.js";
import { panel } from "../panel.js";

const [WIDTH, HEIGHT, MARGIN] = [640, 360, 28];
const STEPS = 60; // of the power iteration
const NUMBERED = 40; // up to so many points have their number beside them
const SVG = "http://www.w3.org/2000/svg";

export function shape(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Centred vectors [n][d] -> their inner products [n][n]: its eigenvectors are the components'
 * coordinates, and n is smaller than d. */
function products(vectors) {
  const width = vectors[0].length;
  const mean = new Float64Array(width);
  for (const vector of vectors) vector.forEach((value, at) => (mean[at] += value / vectors.length));
  const centred = vectors.map((vector) => vector.map((value, at) => value - mean[at]));
  return productsOf(centred);
}

/** Inner product. A loop: vectors are long, and there are many. */
export function along(row, vector) {
  let sum = 0;
  for (let at = 0; at < row.length; at++) sum += row[at] * vector[at];
  return sum;
}

/** All inner products [n][n]. */
export function productsOf(vectors) {
  const rows = vectors.map(() => new Float64Array(vectors.length));
  vectors.forEach((one, at) => {
    for (let other = 0; other <= at; other++) rows[at][other] = rows[other][at] = along(one, vectors[other]);
  });
  return rows;
}

/** The largest eigenvalue and its eigenvector, orthogonal to those found before. */
function component(rows, before) {
  let vector = Float64Array.from(rows, (_, at) => Math.sin(at + 1));
  let size = 0;
  for (let step = 0; step < STEPS; step++) {
    let next = Float64Array.from(rows, (row) => along(row, vector));
    for (const { vector: other } of before) {
      const share = along(next, other);
      next = next.map((value, at) => value - share * other[at]);
    }
    size = Math.hypot(...next);
    if (size < 1e-12) break; // all the rest is one point
    vector = next.map((value) => value / size);
  }
  return { vector, size };
}

/** -> {points: [[x, y]], share of the variance that the map shows}. */
export function plane(vectors) {
  const rows = products(vectors);
  const first = component(rows, []);
  const second = component(rows, [first]);
  const all = rows.reduce((sum, row, at) => sum + row[at], 0) || 1;
  const points = vectors.map((_, at) =>
    [first, second].map(({ vector, size }) => vector[at] * Math.sqrt(size)),
  );
  return { points, share: Math.min(1, (first.size + second.size) / all) };
}

export function mapOf(vectors, query, { texts, query: asked }) {
  const all = query ? [...vectors, query] : vectors;
  const { points, share } = plane(all);
  const place = placed(points);
  const said = element("p", { class: "help on-map" }, "Point at a text, or use the arrow keys.");
  const marks = points.map(([x, y], index) => {
    const isQuery = index === vectors.length;
    const name = isQuery ? `Query: ${asked}` : `${index + 1}: ${texts[index]}`;
    return mark(place(x, y), isQuery ? null : index + 1, name, points.length <= NUMBERED, said);
  });
  const map = shape(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "map", role: "group", "aria-label": "Map of the texts" },
    ...marks,
  );
  marks[0].setAttribute("tabindex", 0);
  map.addEventListener("keydown", (event) => move(event, marks));
  return panel("Map", `two principal components, ${short(100 * share)} % of the variance of ${count(all.length, "vector")}`, map, said);
}

/** From coordinates to places in the picture, both axes in one scale. */
function placed(points) {
  const ranges = [0, 1].map((axis) => {
    const values = points.map((point) => point[axis]);
    return [Math.min(...values), Math.max(...values)];
  });
  const spans = ranges.map(([from, to]) => to - from || 1e-9);
  const scale = Math.min((WIDTH - 2 * MARGIN) / spans[0], (HEIGHT - 2 * MARGIN) / spans[1]);
  const middle = ranges.map(([from, to]) => (from + to) / 2);
  return (x, y) => [WIDTH / 2 + scale * (x - middle[0]), HEIGHT / 2 - scale * (y - middle[1])];
}

function mark([x, y], number, name, isNumbered, said) {
  const point = number
    ? shape("circle", { cx: x, cy: y, r: 6 })
    : shape("path", { d: `M${x} ${y - 9}L${x + 9} ${y}L${x} ${y + 9}L${x - 9} ${y}Z`, class: "query" });
  const label = number && isNumbered ? [shape("text", { x: x + 9, y: y - 7 }, String(number))] : [];
  const words = [...name].length > 200 ? `${name.slice(0, 200)}…` : name;
  const made = shape("g", { tabindex: -1, role: "img", "aria-label": words }, point, ...label);
  for (const event of ["pointerenter", "focus"])
    made.addEventListener(event, () => (said.textContent = words));
  return made;
}

function move(event, marks) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const at = marks.indexOf(document.activeElement);
  const next = marks.at((at + step) % marks.length);
  for (const one of marks) one.setAttribute("tabindex", one === next ? 0 : -1);
  next.focus();
}
