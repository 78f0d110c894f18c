// The examples of @huggingface/inference's README, and the same with words that the models know.

import { MODEL, QUERY, TEXTS } from "./calls.js";
import { huggingFace } from "./clients.js";
import { mustEqual, posted, vectors } from "./plain.js";

// What the native route of a task gives for the first text.
const native = (path, options) => async (at, model, { inputs, parameters }) => {
  const body = { model, texts: [inputs].flat(), ...parameters, ...options };
  return (await posted(at, path, body)).results[0];
};
const fillMask = native("/v1/fill-mask");

// task -> its model, what the README sends, the same in known words, and the plain route
const EXAMPLES = {
  featureExtraction: [
    MODEL,
    { inputs: "That is a happy person" },
    { inputs: QUERY },
    (at, model, { inputs }) => vectors(at, model, [inputs]),
  ],
  fillMask: [
    "masked-lm",
    { inputs: "[MASK] world!" },
    { inputs: "the [MASK] text" },
    async (...asked) => (await fillMask(...asked))[0], // of the first mask
  ],
  textClassification: [
    "classifier",
    { inputs: "I like you. I love you." },
    { inputs: QUERY },
    native("/v1/classify"),
  ],
  tokenClassification: [
    "tagger",
    { inputs: "My name is Sarah Jessica Parker but you can call me Jessica" },
    { inputs: "pads are dropped", parameters: { ignore_labels: [] } }, // else no token has a label
    native("/v1/tag", { aggregation_strategy: "simple" }),
  ],
  zeroShotClassification: [
    "classifier",
    {
      inputs: [
        "Hi, I recently bought a device from your company but it is not working as advertised and" +
          " I would like to get reimbursed!",
      ],
      parameters: { candidate_labels: ["refund", "legal", "faq"] },
    },
    { inputs: [QUERY], parameters: { candidate_labels: TEXTS } },
    native("/v1/zero-shot"),
  ],
  sentenceSimilarity: [
    MODEL,
    {
      inputs: {
        source_sentence: "That is a happy person",
        sentences: ["That is a happy dog", "That is a very happy person", "Today is a sunny day"],
      },
    },
    { inputs: { source_sentence: QUERY, sentences: TEXTS } },
    (at, model, sent) => posted(at, "/similarity", sent),
  ],
};

const example = (task, isRoot) => async (at) => {
  const [model, printed, known, plain] = EXAMPLES[task];
  const client = huggingFace(at, isRoot ? "" : `/hf/${model}`);
  for (const sent of [printed, known])
    mustEqual(await client[task](sent), await plain(at, model, sent), task);
  return "as the plain route";
};
const named = (isRoot) =>
  Object.keys(EXAMPLES).map((task) => [
    `@huggingface/inference ${task}${isRoot ? ", root" : ""}`,
    example(task, isRoot),
  ]);

export const README = Object.fromEntries(named(false));
// of a server that has one model
export const README_AT_ROOT = Object.fromEntries(named(true));
