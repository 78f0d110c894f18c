// Scores of whole texts: documents sorted for a query, and labels.

import { element, short } from "../dom.js";
import { MOST_TEXTS, bars, byText, firstOf, headline, panel, percent, textOf } from "../panel.js";
import { post, resultsOf } from "../server.js";

export const rerank = {
  async ask({ entry, precision, query, texts }) {
    const body = { model: entry.id, query, documents: texts, ...(precision && { precision }) };
    return (await post("v1/rerank", body, ["results"])).data.results;
  },
  show(results, asked) {
    const found = results.map(({ index, relevance_score: score }) => [
      element("span", {}, element("b", {}, `${index + 1} `), textOf(asked, index)),
      score,
    ]);
    return [
      headline(`Best: text ${results[0].index + 1}, ${short(results[0].relevance_score)}.`),
      panel("Best first", `scores of 0 to 1${firstOf(asked.texts)}`, bars(found.slice(0, MOST_TEXTS), short)),
    ];
  },
  facts: (results) => ({
    numbers: results.map((one) => [`text ${one.index + 1}`, one.relevance_score]),
    said: results.map((one, place) => [`place ${place + 1}`, `text ${one.index + 1}`]),
  }),
};

export const classify = {
  ask: (asked) => resultsOf("v1/classify", asked),
  show(results, asked) {
    const [{ label, score }] = results[0];
    return [
      headline(results.length > 1 ? `Text 1: ${label}, ${percent(score)}.` : `${label}, ${percent(score)}.`),
      panel(
        "Labels",
        `likeliest first${firstOf(asked.texts)}`,
        ...byText(asked, (index) =>
          bars(results[index].slice(0, 8).map((one) => [one.label, one.score])),
        ),
      ),
    ];
  },
  facts: (results) => ({
    numbers: results.flatMap((found, index) =>
      found.map((one) => [`text ${index + 1}, ${one.label}`, one.score]),
    ),
    said: results.map(([best], index) => [`text ${index + 1}`, best.label]),
  }),
};
