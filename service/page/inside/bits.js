// One sequence sent alone, padded three ways and in company; its answers compared bit by bit.

import { count, element, short, styled } from "../dom.js";
import { get } from "../server.js";
import { asWritten } from "../tasks/catalog.js";
import { columns } from "./grid.js";
import { postForTensors } from "./tensors.js";

const OTHERS = 32;
const OUTPUTS = ["activations", "pooled", "norm_stats"];

/** The outputs that are compared: of an authors' graph all of its tensors. */
export const outputsOf = (entry) =>
  asWritten(entry) ? entry.outputs : OUTPUTS.filter((name) => entry.outputs.includes(name));

const below = (limit) => Math.floor(Math.random() * limit);
const drawn = (length, limit) => Array.from({ length }, () => below(limit));

/** The five requests. sequence: {ids, types}; limits: the model's. A way names itself, says what is
 * sent, and where in the answer the sequence stands: its row, and its columns where there is a mask. */
export function fiveWays({ ids, types }, limits) {
  const typed = types.some(Boolean);
  const alone = { name: "Alone", fields: { input_ids: [ids] }, row: 0 };
  if (typed) alone.fields.token_type_ids = [types];
  const padded = [
    ["left", "Pads left"],
    ["right", "Pads right"],
    ["holes", "Pads in holes"],
  ];
  return [
    { ...alone, said: count(ids.length, "token"), picture: stripOf(ids.map(() => true)) },
    ...padded.map(([place, name]) => paddedWay(name, place, ids, types, limits.vocab_size, typed)),
    companyWay(ids, types, limits, typed),
  ];
}

function paddedWay(name, place, ids, types, vocabulary, typed) {
  const width = ids.length + Math.max(3, Math.ceil(ids.length / 2));
  const stand = columns(ids.length, width, place);
  const row = drawn(width, vocabulary); // what stands under a pad has no effect
  const mask = Array(width).fill(0);
  const kinds = Array(width).fill(0);
  stand.forEach((column, index) => {
    row[column] = ids[index];
    kinds[column] = types[index];
    mask[column] = 1;
  });
  const fields = { input_ids: [row], attention_mask: [mask] };
  if (typed) fields.token_type_ids = [kinds];
  const said = count(width - ids.length, "pad");
  return { name, said, fields, row: 0, columns: stand, picture: stripOf(mask.map(Boolean)) };
}

function companyWay(ids, types, limits, typed) {
  const longest = Math.min(limits.max_positions, 2 * ids.length + 4);
  const rows = Array.from({ length: OTHERS }, () => drawn(1 + below(longest), limits.vocab_size));
  const row = below(OTHERS + 1);
  rows.splice(row, 0, ids);
  const fields = { input_ids: rows };
  if (typed) fields.token_type_ids = rows.map((one, at) => (at === row ? types : one.map(() => 0)));
  const tokens = rows.flat().length - ids.length;
  const said = `${OTHERS} others, ${tokens} tokens`;
  return { name: "In company", said, fields, row, picture: crowdOf(rows, row) };
}

function stripOf(mask) {
  const cells = mask.map((real) => element("i", { class: real ? "real" : "pad" }));
  const kind = mask.length > 32 ? "strip long" : "strip";
  return element("div", { class: kind, "aria-hidden": "true" }, ...cells);
}

function crowdOf(rows, own) {
  const longest = Math.max(...rows.map((row) => row.length));
  const bars = rows.map((row, index) =>
    styled(element("i", { class: index === own ? "own" : "" }), {
      height: `${(100 * row.length) / longest}%`,
    }),
  );
  return element("div", { class: "crowd", "aria-hidden": "true" }, ...bars);
}

/** Sends one way. -> {words: every float32 of the sequence, parts, strays, stages}. strays: how many
 * numbers at pads are not zero, of which there should be none. */
export async function send(way, entry, precision) {
  const body = { model: entry.id, ...way.fields, outputs: outputsOf(entry), ...(precision && { precision }) };
  const { tensors, stages } = await postForTensors("v1/infer", body);
  const shapes = asWritten(entry) ? await (entry.shapes ??= shapesOf(entry)) : {};
  for (const [name, tensor] of Object.entries(tensors)) {
    const shape = shapes[name] ?? (name === "pooled" ? [-1, tensor.shape.at(-1)] : [-1, -1, tensor.shape.at(-1)]);
    tensor.isByToken = shape[1] === -1;
    tensor.width = shape.filter((size) => size > 0).at(-1) ?? 1;
  }
  const parts = Object.entries(tensors).map(([name, tensor]) => partOf(name, tensor, way));
  const words = new Uint32Array(parts.flatMap((part) => [...part.words]));
  return { words, parts, strays: straysOf(tensors, way), stages };
}

/** Name -> shape of its tensors, -1 for sequences and for tokens. */
async function shapesOf({ id }) {
  const { outputs } = await get(`v2/models/${encodeURIComponent(id)}`, ["outputs"]);
  return Object.fromEntries(outputs.map(({ name, shape }) => [name, shape]));
}

function straysOf(tensors, { columns: real, fields }) {
  if (!real) return 0;
  const pads = fields.attention_mask[0]
    .map((_, column) => column)
    .filter((column) => !real.includes(column));
  return Object.values(tensors)
    .filter(({ isByToken }) => isByToken)
    .flatMap(({ width, words }) =>
      pads.flatMap((column) => [...words.slice(column * width, (column + 1) * width)]),
    )
    .filter(Boolean).length;
}

/** What of a tensor belongs to the way's sequence: a vector, or its tokens' rows. */
function partOf(name, { isByToken, width, words }, way) {
  const { input_ids: ids } = way.fields;
  if (!isByToken)
    return { name, isByToken, width, words: words.slice(way.row * width, (way.row + 1) * width) };
  const before = ids.slice(0, way.row).reduce((sum, row) => sum + row.length, 0);
  const places = way.columns ?? ids[way.row].map((_, index) => before + index);
  const rows = places.map((place) => [...words.slice(place * width, (place + 1) * width)]);
  return { name, isByToken, width, words: Uint32Array.from(rows.flat()) };
}

const scratch = new DataView(new ArrayBuffer(4));
export function asFloat(word) {
  scratch.setUint32(0, word);
  return scratch.getFloat32(0);
}

/** null if all bits are equal; else how many numbers differ, and the first one's place. */
export function difference(one, other) {
  if (other.strays) return { said: `${count(other.strays, "number")} at pads, which should be 0` };
  if (one.words.length !== other.words.length)
    return { said: `${other.words.length} numbers in place of ${one.words.length}` };
  let differing = 0;
  let largest = 0;
  let first = -1;
  one.words.forEach((word, index) => {
    if (word === other.words[index]) return;
    if (first < 0) first = index;
    differing += 1;
    largest = Math.max(largest, Math.abs(asFloat(word) - asFloat(other.words[index])));
  });
  if (!differing) return null;
  const bits = `${hex(one.words[first])} here, ${hex(other.words[first])} there`;
  const size = `largest difference ${short(largest)}`;
  return {
    said: `${count(differing, "number")} of ${one.words.length}, first ${placeOf(first, one.parts)}: ${bits}; ${size}`,
  };
}

function placeOf(index, parts) {
  for (const { name, isByToken, width, words } of parts) {
    if (index < words.length) {
      const column = `number ${(index % width) + 1}`;
      return isByToken
        ? `${name} of token ${Math.floor(index / width) + 1}, ${column}`
        : `${name}, ${column}`;
    }
    index -= words.length;
  }
  return "nowhere";
}

export const hex = (word) => word.toString(16).padStart(8, "0");

/** FNV-1a of 64 bits over the words: for the eye. Verdicts compare the words themselves. */
export function digest(words) {
  let hash = 0xcbf29ce484222325n;
  for (const word of words) hash = BigInt.asUintN(64, (hash ^ BigInt(word)) * 0x100000001b3n);
  return hash.toString(16).padStart(16, "0");
}
