// Similarity: which texts are near each other, and which are nearest to a query.

import { count, element, short, styled } from "../dom.js";
import { bars, firstOf, headline, panel, scrolling, textOf, thead } from "../panel.js";
import { post } from "../server.js";
import { along, mapOf, productsOf } from "./plane.js";

const MOST = 200; // texts that are compared
const WRITTEN = 16; // up to so many texts every similarity is written out
const PAIRS = 20; // that are listed where there are more

/** The body of a request for vectors. */
export const bodyOf = ({ entry, precision, cuts }, input, prompt) => ({
  model: entry.id,
  input,
  ...(prompt && { prompt_name: prompt }),
  ...(precision && { precision }),
  ...(cuts.size && { truncate: true }),
});

/** Vectors of length 1. */
export async function vectorsOf(asked, input, prompt) {
  const { data } = await post("v1/embeddings", bodyOf(asked, input, prompt), ["data"]);
  return data.data.map(({ embedding }) => {
    const length = Math.hypot(...embedding) || 1;
    return Float64Array.from(embedding, (number) => number / length);
  });
}

async function ask(asked) {
  const input = (asked.ids ?? asked.texts).slice(0, MOST);
  const [vectors, query] = await Promise.all([
    vectorsOf(asked, input, asked.prompt),
    asked.query ? vectorsOf(asked, [asked.query], asked.queryPrompt) : [],
  ]);
  const near = query.length
    ? vectors.map((vector, index) => [index, along(query[0], vector)]).sort(highest)
    : null;
  return { vectors, query: query[0], near, rows: productsOf(vectors) };
}

const highest = (one, other) => other[1] - one[1];

/** [[first, second], cosine] of each pair, nearest first. */
const pairsOf = (rows) =>
  rows
    .flatMap((row, one) =>
      Array.from(row.subarray(0, one), (value, other) => [[other, one], value]),
    )
    .sort(highest);

function show({ vectors, query, near, rows }, asked) {
  const pairs = pairsOf(rows);
  const made = [];
  if (near) {
    const [[best, value]] = near;
    made.push(headline(`Nearest to the query: text ${best + 1}, ${short(value)}.`), nearest(near, asked));
  }
  if (pairs.length) made.push(...compared(pairs, rows, asked));
  else made.push(headline("Type a second text, and the two are compared."));
  if (!near && !asked.ids) made.push(element("p", { class: "help" }, "Type a query to sort the texts by it."));
  if (vectors.length > 2) made.push(mapOf(vectors, query, asked));
  return made;
}

function nearest(near, asked) {
  const found = near
    .slice(0, PAIRS)
    .map(([index, value]) => [
      element("span", {}, element("b", {}, `${index + 1} `), textOf(asked, index)),
      value,
    ]);
  const said = near.length > PAIRS ? `the first ${PAIRS} of ${near.length}` : "cosine";
  return panel("Nearest to the query", said, bars(found, short));
}

function compared(pairs, rows, asked) {
  const [[one, other], value] = pairs[0];
  const said = `Nearest: texts ${one + 1} and ${other + 1}, cosine ${short(value)}.`;
  const both = element("p", { class: "pair-of" }, textOf(asked, one), textOf(asked, other));
  const few = rows.length <= WRITTEN;
  return [
    headline(said),
    both,
    panel(
      "Every pair",
      `cosines of ${count(rows.length, "text")}${firstOf(asked.texts, MOST)}`,
      few ? table(rows, asked) : picture(rows),
      ...(few ? [] : [listed(pairs, asked)]),
    ),
  ];
}

const listed = (pairs, asked) =>
  element(
    "div",
    {},
    element("h4", {}, `The ${PAIRS} nearest pairs`),
    bars(
      pairs.slice(0, PAIRS).map(([[one, other], value]) => [
        element("span", {}, `${one + 1} and ${other + 1}: `, textOf(asked, one, 30), " / ", textOf(asked, other, 30)),
        value,
      ]),
      short,
    ),
  );

function table(rows, asked) {
  const cell = (value) =>
    styled(element("td", { class: "shade" }, value.toFixed(2)), {
      "--share": `${Math.round(45 * Math.max(0, value))}%`,
    });
  const head = rows.map((_, index) => String(index + 1));
  const body = rows.map((row, index) =>
    element(
      "tr",
      {},
      element(
        "th",
        { scope: "row" },
        element("b", {}, String(index + 1)),
        element("span", {}, textOf(asked, index, 40)),
      ),
      ...Array.from(row, cell),
    ),
  );
  const whole = element(
    "table",
    { class: "numbers similar" },
    thead(["text", ...head]),
    element("tbody", {}, ...body),
  );
  return scrolling("Cosines", whole);
}

/** A pixel for each pair; the page stretches it. */
function picture(rows) {
  const size = rows.length;
  const canvas = element("canvas", {
    class: "similar", width: size, height: size, role: "img",
    "aria-label": `Cosines of ${size} texts; the nearest pairs are listed below`,
  });
  const image = new ImageData(size, size);
  rows.forEach((row, y) =>
    row.forEach((value, x) => {
      image.data.set([88, 104, 232, Math.round(255 * Math.min(1, Math.max(0, value)) ** 2)], 4 * (y * size + x));
    }),
  );
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** What can be compared between two answers: numbers by name, and what they decide. */
function facts({ near, rows }) {
  const pairs = pairsOf(rows);
  const numbers = pairs.map(([[one, other], value]) => [`texts ${one + 1} and ${other + 1}`, value]);
  const said = pairs.length ? [["nearest pair", numbers[0][0]]] : [];
  for (const [place, [index, value]] of (near ?? []).entries()) {
    numbers.push([`query and text ${index + 1}`, value]);
    said.push([`place ${place + 1} for the query`, `text ${index + 1}`]);
  }
  return { numbers, said };
}

export const embed = { ask, show, facts };
