// Words of the vocabulary: what fits a mask, and what a sparse vector weighs.

import { element, short } from "../dom.js";
import { bars, byText, firstOf, headline, panel, percent } from "../panel.js";
import { post, resultsOf } from "../server.js";

const MOST_WORDS = 12; // of a text

export const fill_mask = {
  ask: (asked) => resultsOf("v1/fill-mask", asked, { top_k: 5 }),
  show(results, asked) {
    const best = results[0][0][0];
    const fits = (masks) =>
      masks.map((found) => bars(found.map((one) => [one.token_str, one.score])));
    return [
      headline(`Text 1: ${best.token_str}, ${percent(best.score)}.`),
      panel(
        "Words that fit",
        `for each mask in turn${firstOf(asked.texts)}`,
        ...byText(asked, (index) => element("div", { class: "masks" }, ...fits(results[index]))),
      ),
    ];
  },
  facts: (results) => ({
    numbers: results.flatMap((masks, index) =>
      masks.flatMap((found, mask) =>
        found.map((one) => [`${place(index, mask)}: ${one.token_str}`, one.score]),
      ),
    ),
    said: results.flatMap((masks, index) =>
      masks.map(([best], mask) => [place(index, mask), best.token_str]),
    ),
  }),
};

const place = (index, mask) => `text ${index + 1}, mask ${mask + 1}`;

export const sparse = {
  async ask({ entry, precision, texts, cuts }) {
    const body = {
      model: entry.id,
      texts,
      outputs: ["sparse"],
      sparse: { top_k: Math.min(MOST_WORDS, entry.limits.vocab_size) },
      ...(precision && { precision }),
      ...(cuts.size && { truncate: true }),
    };
    const { data } = await post("v1/infer", body, ["sparse"]);
    const ids = [...new Set(data.sparse.flatMap(({ indices }) => indices))];
    const words = ids.length ? await wordsOf(entry, ids) : new Map();
    return data.sparse.map(({ indices, values }) =>
      indices
        .map((id, at) => ({ id, word: words.get(id), weight: values[at] }))
        .sort((one, other) => other.weight - one.weight),
    );
  },
  show(results, asked) {
    const most = Math.max(1e-9, ...results.map(([best]) => best?.weight ?? 0));
    const own = ({ id, word }, index) =>
      asked.tokens[index].ids.includes(id)
        ? word
        : element("span", {}, word, element("small", {}, " added"));
    return [
      headline(results[0].length ? `Text 1: ${results[0][0].word}, ${short(results[0][0].weight)}.` : "No words."),
      panel(
        "Heaviest words",
        `of each sparse vector; “added” are not in the text${firstOf(asked.texts)}`,
        ...byText(asked, (index) =>
          bars(results[index].map((one) => [own(one, index), one.weight]), short, most),
        ),
      ),
    ];
  },
  facts: (results) => ({
    numbers: results.flatMap((found, index) =>
      found.map((one) => [`text ${index + 1}, ${one.word}`, one.weight]),
    ),
    said: results.map((found, index) => [`text ${index + 1}, heaviest`, found[0]?.word ?? "none"]),
  }),
};

/** Token ids -> Map of id -> token. */
async function wordsOf(entry, ids) {
  const { data } = await post("v1/tokenize", { model: entry.id, input_ids: [ids] }, ["tokens"]);
  return new Map(ids.map((id, at) => [id, data.tokens[0][at]]));
}
