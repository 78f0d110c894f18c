// What the reader typed, a sequence a line: texts, or token ids in any common spelling.

import { Refused } from "./server.js";

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
    throw new Refused(`${wrong} is no token id: write numbers, with spaces or commas between.`, 0);
  return { ids: words.map(Number), types: words.map(() => 0) };
}

/** Why a text can be sent only as ids, or not at all: in words, for the first that is too long. */
export function lengthsOf(sequences, texts, { max_text_tokens: ofTexts, max_positions: most }) {
  const what = texts ? "Text" : "Sequence";
  const longest = texts ? Math.min(ofTexts, most) : most;
  const at = sequences.findIndex(({ ids }) => ids.length > longest);
  if (at < 0) return "";
  const length = sequences[at].ids.length;
  const said = `${what} ${at + 1} has ${length} tokens`;
  if (length > most) return `${said}; the model takes ${most} at most. The server will refuse it.`;
  return `${said}; requests with texts take ${ofTexts} at most. The page sends token ids.`;
}
