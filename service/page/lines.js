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

/** texts: each a text or a pair. -> the tokens of each, and Map of index -> {tokens, limit, at}: the
 * texts that are too long, and at which character each is cut. */
export async function tokensOf({ entry, prompt }, texts) {
  const asked = { model: entry.id, ...(prompt && { prompt_name: prompt }) };
  const read = async (some, truncate) =>
    (await post("v1/tokenize", { ...asked, texts: some, truncate }, ["input_ids", "tokens"])).data;
  const whole = await read(texts, false);
  const tokens = whole.input_ids.map((ids, index) => ({
    ids,
    tokens: whole.tokens[index],
    types: whole.token_type_ids?.[index],
  }));
  const long = [...whole.num_tokens.keys()].filter((at) => whole.num_tokens[at] > whole.limit);
  const cuts = new Map();
  if (!long.length) return { tokens, cuts };
  const cut = await read(long.map((index) => texts[index]), true);
  const before = [...(entry.prompts[prompt ?? entry.default_prompt_name] ?? "")].length;
  long.forEach((index, place) => {
    const last = Array.isArray(texts[index]) ? 1 : 0;
    const ends = cut.offsets[place].map(([, end], at) =>
      cut.sequence_ids[place][at] === last ? end : 0,
    );
    const at = Math.max(0, ends.reduce((most, end) => Math.max(most, end), 0) - before);
    cuts.set(index, { tokens: whole.num_tokens[index], limit: whole.limit, at });
  });
  return { tokens, cuts };
}

const SHOWN = 3; // texts whose cut is shown
const AROUND = 48; // characters on each side of it

/** Where texts were cut. Places count characters, not UTF-16 units. */
export function cutNotes({ texts, cuts }) {
  const notes = [...cuts].slice(0, SHOWN).map(([index, { tokens, limit, at }]) => {
    const characters = [...texts[index]];
    const [read, dropped] = [characters.slice(0, at), characters.slice(at)];
    return element(
      "p",
      { class: "cut-note" },
      `Text ${index + 1} was cut: it has ${count(tokens, "token")}, the model reads ${limit}. Here: `,
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
