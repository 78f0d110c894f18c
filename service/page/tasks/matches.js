// Token matches: for each token of the query, the token of a document that is nearest to it.

import { element, short } from "../dom.js";
import { MOST_TEXTS, bars, firstOf, headline, panel, textOf } from "../panel.js";
import { post } from "../server.js";

async function ask(asked) {
  const [[query], documents] = await Promise.all([
    tokensOf(asked, [asked.query], "query"),
    tokensOf(asked, asked.texts, "document"),
  ]);
  const scored = documents.map((document, index) => matched(query, document, index));
  return scored.sort((one, other) => other.score - one.score);
}

/** -> for each text [{name, vector}] of the tokens that the model compares. */
async function tokensOf({ entry, precision }, texts, type) {
  const options = {
    model: entry.id, outputs: ["token_vectors"], normalize: entry.normalize,
    ...(precision && { precision }),
  };
  const sent = { input_type: type, truncate: true };
  const [compared, { data: named }] = await Promise.all([
    post("v1/infer", { ...options, texts, ...sent }, ["token_vectors"]),
    post("v1/tokenize", { model: entry.id, texts, ...sent }, ["tokens"]),
  ]);
  const { data: all } = await post("v1/infer", { ...options, input_ids: named.input_ids }, ["token_vectors"]);
  return compared.data.token_vectors.map((vectors, index) =>
    namesOf(vectors, all.token_vectors[index], named.tokens[index]),
  );
}

/** The model leaves out some tokens. The others have the same bits among all, and so their names. */
function namesOf(vectors, all, tokens) {
  let at = 0;
  return vectors.map((vector, place) => {
    const found = all.findIndex((one, index) => index >= at && one.every((x, i) => x === vector[i]));
    if (found >= 0) at = found + 1;
    return { name: found < 0 ? `token ${place + 1}` : tokens[found], vector };
  });
}

const product = (one, other) => one.reduce((sum, value, at) => sum + value * other[at], 0);

function matched(query, document, index) {
  const pairs = query.map((token) => {
    const found = document.map((other) => product(token.vector, other.vector));
    const best = found.indexOf(Math.max(...found));
    return { token: token.name, match: document[best]?.name ?? "none", score: found[best] ?? 0 };
  });
  return { index, pairs, score: pairs.reduce((sum, { score }) => sum + score, 0) };
}

function show(results, asked) {
  const most = Math.max(1e-9, ...results.flatMap(({ pairs }) => pairs.map(({ score }) => score)));
  const arrow = ({ token, match }) =>
    element("span", { class: "match" }, element("b", {}, token), " → ", match);
  const [best] = results;
  return [
    headline(`Best: text ${best.index + 1}, ${short(best.score)}.`),
    panel(
      "Which token matches which",
      `best text first; a score is the sum of its matches${firstOf(asked.texts)}`,
      ...results.slice(0, MOST_TEXTS).map(({ index, pairs, score }) =>
        element(
          "div",
          { class: "of-text" },
          element("h4", {}, element("b", {}, `${index + 1}: ${short(score)} `), textOf(asked, index)),
          bars(pairs.map((pair) => [arrow(pair), pair.score]), short, most),
        ),
      ),
    ),
  ];
}

const facts = (results) => ({
  numbers: results.flatMap(({ index, pairs }) =>
    pairs.map(({ token, score }, at) => [`text ${index + 1}, ${at + 1} ${token}`, score]),
  ),
  said: [
    ...results.map(({ index }, place) => [`place ${place + 1}`, `text ${index + 1}`]),
    ...results.flatMap(({ index, pairs }) =>
      pairs.map(({ token, match }, at) => [`text ${index + 1}, match of ${at + 1} ${token}`, match]),
    ),
  ],
});

export const multi_vector = { ask, show, facts };
