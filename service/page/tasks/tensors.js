// Every tensor of an answer, by its name and shape: of models whose answers have no other view. And
// vectors, which some of these models take.

import { count, element, short } from "../dom.js";
import { firstOf, headline, panel, scrolling, thead } from "../panel.js";
import { Refused, post } from "../server.js";

const MOST_ROWS = 40; // of a tensor
const MOST_TOKENS = 12; // of a sequence
const MOST_NUMBERS = 8; // of a row

/** [[0.1, 0.2], [0.3, 0.4]]: the vectors of a sequence. */
export function vectorsOf(line) {
  let vectors = null;
  try {
    vectors = JSON.parse(line);
  } catch {} // said below
  const isVector = (one) => Array.isArray(one) && one.length && one.every(Number.isFinite);
  if (Array.isArray(vectors) && vectors.length && vectors.every(isVector)) return vectors;
  throw new Refused(`${line.slice(0, 40)} is no list of vectors: write [[0.1, 0.2], [0.3, 0.4]], a sequence a line.`, 400);
}

/** Two sequences of tenths from -0.9 to 0.9, as lines. */
export function sample({ max_positions: longest, input_width: width }) {
  const vector = (at) => Array.from({ length: width }, (_, axis) => ((7 * axis + 3 * at) % 19 - 9) / 10);
  const sequence = (length, first) => Array.from({ length: Math.min(length, longest) }, (_, at) => vector(first + at));
  return [sequence(2, 0), sequence(3, 2)].map((one) => JSON.stringify(one)).join("\n");
}

/** The outputs that are sent by default -> [[name, numbers nested as the tensor's axes]]. */
async function ask({ entry, texts, ids, vectors, precision, cuts }) {
  const body = {
    model: entry.id,
    ...(vectors ? { inputs: vectors } : ids ? { input_ids: ids } : { texts }),
    ...(precision && { precision }),
    ...(cuts.size && { truncate: true }),
  };
  const { data } = await post("v1/infer", body, ["usage"]);
  const { model, version, usage, ...outputs } = data;
  const parts = ([name, value]) =>
    Array.isArray(value) ? [[name, value]] : Object.entries(value).map(([part, own]) => [`${name}.${part}`, own]);
  return Object.entries(outputs).flatMap(parts);
}

/** "[2, S, 5]", S where sequences differ in their length. */
function shapeOf(value) {
  const sizes = [value.length];
  for (let level = value; Array.isArray(level[0]); level = level.flat())
    sizes.push(new Set(level.map((row) => row.length)).size > 1 ? "S" : level[0].length);
  return `[${sizes.join(", ")}]`;
}

/** [where it stands, its numbers] of each row. */
const rowsOf = (value) =>
  value.flatMap((own, index) =>
    Array.isArray(own?.[0])
      ? own.slice(0, MOST_TOKENS).map((row, at) => [`${index + 1}, token ${at + 1}`, row])
      : [[String(index + 1), [own].flat()]],
  );

function table(name, value) {
  const rows = rowsOf(value).slice(0, MOST_ROWS);
  const cells = (row) => [...row.slice(0, MOST_NUMBERS).map(short), ...(row.length > MOST_NUMBERS ? ["…"] : [])];
  const written = rows.map(([where, row]) =>
    element("tr", {}, element("th", { scope: "row" }, where), ...cells(row).map((cell) => element("td", {}, cell))),
  );
  const widest = Math.max(0, ...rows.map(([, row]) => cells(row).length));
  const head = thead(["sequence", ...Array.from({ length: widest }, (_, at) => String(at + 1))]);
  return scrolling(name, element("table", { class: "numbers" }, head, element("tbody", {}, ...written)));
}

export const tensors = {
  ask,
  show: (found, asked) => [
    headline(`${count(found.length, "tensor")}: ${found.map(([name, value]) => `${name} ${shapeOf(value)}`).join(", ")}.`),
    ...found.map(([name, value]) => panel(name, `${shapeOf(value)}${firstOf(asked.texts, MOST_ROWS)}`, table(name, value))),
  ],
  facts: (found) => ({
    numbers: found.flatMap(([name, value]) => value.flat(2).map((number, at) => [`${name}, number ${at + 1}`, number])),
    said: [],
  }),
};
