// The tasks of the page: what each needs, and what a model without it lacks.

import { ROOT } from "../server.js";

const head = (what) => `It needs a checkpoint with ${what}.`;
const CHECKPOINT = "addnorm export --checkpoint FOLDER --name NAME";

/** Task -> its name, its file, what it asks for, and how a bundle comes to have it. query: whether
 * there is one; ids: whether it takes token ids too; prompts: whether the reader chooses them. */
export const TASKS = {
  embed: { name: "Similarity", file: "embed", query: "optional", ids: true, prompts: true },
  rerank: {
    name: "Rerank",
    file: "scores",
    query: "needed",
    lacks: head("one label for a pair of texts, as cross-encoders have"),
  },
  classify: { name: "Classify", file: "scores", lacks: head("labels for whole texts") },
  tag: { name: "Entities", file: "entities", lacks: head("labels for tokens, such as B-PER") },
  fill_mask: { name: "Fill masks", file: "words", lacks: head("a masked language model") },
  sparse: { name: "Weighted words", file: "words", lacks: head("a masked language model") },
  complete: {
    name: "Log-probabilities",
    file: "tokens",
    ids: true,
    lacks: head("a causal language model"),
  },
  multi_vector: {
    name: "Token matches",
    file: "matches",
    query: "needed",
    lacks: head("a vector for each token, as ColBERT's have"),
  },
  attention: {
    name: "Attention",
    file: "attention",
    ids: true,
    lacks: "Attention needs a bundle with a lens: export the model again with --lens.",
    command: `${CHECKPOINT} --lens`,
  },
};

const ABOUT = `Where can I change my password?
I forgot my login and need a new one.
The train to Berlin leaves at nine.
Our office closes at six.`;

/** What stands in the fields before the reader types. */
export const SAMPLES = {
  embed: { lines: ABOUT },
  rerank: { lines: ABOUT, query: "How do I reset my password?" },
  classify: { lines: "I love this, it works.\nIt broke after two days." },
  tag: { lines: "Ada Lovelace lived in London.\nGrace Hopper served in the Navy." },
  fill_mask: { lines: "Paris is the [MASK] of France.\nBread is [MASK] in the morning." },
  sparse: { lines: ABOUT },
  complete: { lines: "The same text gives the same answer." },
  multi_vector: { lines: ABOUT, query: "change my password" },
  attention: { lines: "The cat sat on the mat because it was tired." },
};

const NO_TOKENIZER = "This bundle has no tokenizer, so it takes token ids only. Export it again with" +
  " its tokenizer.json.";

export const takesTexts = (entry) => entry.inputs.includes("texts");

/** The tasks of a model, its own first. A reranker's label says what its scores say. */
export function tasksOf(entry) {
  const own = entry.tasks.filter((task) => task !== "classify" || !entry.tasks.includes("rerank"));
  const seen = entry.outputs.includes("attentions") ? ["attention"] : [];
  const vectors = entry.outputs.includes("pooled") ? ["embed"] : [];
  const all = [...new Set([...own, ...vectors, ...seen])];
  return all.filter((task) => TASKS[task] && (TASKS[task].ids || takesTexts(entry)));
}

/** Why a model lacks a task, and the command for it. */
export function missing(entry, task) {
  if (entry.outputs.includes("output"))
    return {
      why: "Served as it is, it answers with `output` alone.",
      command: `curl ${ROOT}v1/infer -d '{"model": "${entry.id}", "${entry.inputs[0]}": [...]}'`,
    };
  const isHere = entry.tasks.includes(task);
  return {
    why: isHere && !takesTexts(entry) ? NO_TOKENIZER : TASKS[task].lacks,
    command: TASKS[task].command ?? CHECKPOINT,
  };
}
