// What the model's heads are for, asked of the texts themselves: rerank, labels, entities, masks.

import { element, short } from "./dom.js";
import { bars, panel } from "./panel.js";
import { inWords, post } from "./server.js";

/** Task -> {path, body, shown}: shown(data, texts) makes elements. */
const TASKS = {
  rerank: {
    title: "Rerank",
    path: "v1/rerank",
    body: (texts, query) => ({ query, documents: texts }),
    shown: ({ results }, texts) => [
      bars(results.slice(0, MOST_TEXTS).map((one) => [texts[one.index], one.relevance_score])),
    ],
  },
  classify: {
    title: "Classify",
    path: "v1/classify",
    body: (texts) => ({ texts, top_k: 5 }),
    shown: ({ results }, texts) =>
      each(texts, results, (found) => bars(found.map((one) => [one.label, one.score]))),
  },
  tag: {
    title: "Entities",
    path: "v1/tag",
    body: (texts) => ({ texts, aggregation_strategy: "simple" }),
    shown: ({ results }, texts) =>
      texts.slice(0, MOST_TEXTS).map((text, index) => tagged(text, results[index])),
  },
  fill_mask: {
    title: "Fill masks",
    path: "v1/fill-mask",
    body: (texts) => ({ texts, top_k: 5 }),
    shown: ({ results }, texts) =>
      each(texts, results, (masks) =>
        element(
          "div",
          {},
          ...masks.map((found) => bars(found.map((one) => [one.token_str, one.score]))),
        ),
      ),
  },
};

const MOST_TEXTS = 8; // that are shown

const each = (texts, results, shown) =>
  texts.slice(0, MOST_TEXTS).flatMap((text, index) => [element("p", { class: "said" }, text), shown(results[index])]);

/** The text with its entities marked. Places count characters, not UTF-16 units. */
function tagged(text, entities) {
  const characters = [...text];
  const parts = [];
  let done = 0;
  for (const { start, end, entity_group: label, score } of entities) {
    parts.push(characters.slice(done, start).join(""));
    parts.push(
      element(
        "mark",
        {},
        characters.slice(start, end).join(""),
        element("small", {}, ` ${label} ${short(score)}`),
      ),
    );
    done = end;
  }
  parts.push(characters.slice(done).join(""));
  return element(
    "p",
    { class: "said" },
    ...parts,
    entities.length ? null : element("small", {}, " no entities"),
  );
}

/** A panel for each task that the model has, of the texts as they were typed. */
export async function tasksOf(entry, precision, texts, query) {
  const wanted = entry.tasks.filter((task) => TASKS[task]);
  // a reranker has one label, which says nothing that its scores do not
  const asked = wanted.filter((task) => task !== "classify" || !wanted.includes("rerank"));
  return Promise.all(asked.map((task) => panelOf(TASKS[task], entry, precision, texts, query)));
}

async function panelOf({ title, path, body, shown }, entry, precision, texts, query) {
  const sent = { model: entry.id, precision, ...body(texts, query) };
  try {
    const { data } = await post(path, sent, ["results"]);
    const cut = texts.length > MOST_TEXTS ? `; the first ${MOST_TEXTS} of ${texts.length} texts` : "";
    return panel(title, `POST /${path}${cut}`, ...shown(data, texts));
  } catch (error) {
    return panel(title, `POST /${path}`, element("p", { class: "found" }, inWords(error, `POST ${path}`).message));
  }
}
