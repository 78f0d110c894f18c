// What the reader typed, a sequence a line: texts, or token ids in any common spelling; and where
// the server cuts texts that are too long.

import { count, element } from "./dom.js";
import { Refused, post } from "./server.js";

/** Lines with something in them. Lists of lists of ids may stand in one line: [[101, 102], [103]]. */
export const linesOf = (typed, areIds = false) =>
  typed
    .split(areIds ? /\n|\][\s,]*(?=\[)/ : "\n")
    .map((line) => (areIds ? line.replaceAll(/[[\],;]/g, " ") : line))
    .filter((line) => line.trim());

export function sequenceOf(line) {
  const words = line.trim().split(/\s+/);
  const wrong = words.find((word) => !/^\d{1,15}$/.test(word));
  if (wrong !== undefined)
    throw new Refused(`${wrong} is no token id: write numbers, with spaces or commas between.`, 400);
  return words.map(Number);
}

/** texts: each a text or a pair. -> the tokens that the model reads of each, and Map of index ->
 * {limit, at}: the texts that are too long, and at which character each is cut. */
export async function tokensOf({ entry, prompt, texts: typed }, texts) {
  const body = { model: entry.id, texts, truncate: true, ...(prompt && { prompt_name: prompt }) };
  const { data } = await post("v1/tokenize", body, ["input_ids", "tokens", "offsets"]);
  const before = [...(entry.prompts[prompt ?? entry.default_prompt_name] ?? "")].length;
  const cuts = new Map();
  const tokens = data.input_ids.map((ids, index) => {
    const own = Array.isArray(texts[index]) ? 1 : 0; // of a pair the second was typed
    const ends = data.offsets[index].map(([, end], at) =>
      data.sequence_ids[index][at] === own ? end : 0,
    );
    const at = Math.max(0, ends.reduce((most, end) => Math.max(most, end), 0) - (own ? 0 : before));
    const isFull = ids.length === data.limit;
    if (isFull && [...typed[index]].slice(at).join("").trim()) cuts.set(index, { limit: data.limit, at });
    return { ids, tokens: data.tokens[index], types: data.token_type_ids?.[index] };
  });
  return { tokens, cuts };
}

const SHOWN = 3; // texts whose cut is shown
const AROUND = 48; // characters on each side of it

/** Where texts were cut. Places count characters, not UTF-16 units. */
export function cutNotes({ texts, cuts }) {
  const notes = [...cuts].slice(0, SHOWN).map(([index, { limit, at }]) => {
    const characters = [...texts[index]];
    const [read, dropped] = [characters.slice(0, at), characters.slice(at)];
    return element(
      "p",
      { class: "cut-note" },
      `Text ${index + 1} was cut: the model reads ${count(limit, "token")}. Here: `,
      element(
        "q",
        {},
        `…${read.slice(-AROUND).join("")}`,
        element("s", {}, `${dropped.slice(0, AROUND).join("")}…`),
      ),
    );
  });
  const more = cuts.size - notes.length;
  return more > 0 ? [...notes, element("p", {}, `${count(more, "more text")} cut.`)] : notes;
}
