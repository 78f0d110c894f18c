// The tasks of the page, and which of them a model has.

/** Task -> its name, its file, and what it asks for. query: whether there is one; ids, vectors:
 * whether it takes such too; prompts: whether the reader chooses them. */
export const TASKS = {
  embed: { name: "Similarity", file: "embed", query: "optional", ids: true, prompts: true },
  rerank: { name: "Rerank", file: "scores", query: "needed" },
  classify: { name: "Classify", file: "scores" },
  tag: { name: "Entities", file: "entities" },
  fill_mask: { name: "Fill masks", file: "words" },
  sparse: { name: "Weighted words", file: "words" },
  complete: { name: "Log-probabilities", file: "tokens", ids: true },
  multi_vector: { name: "Token matches", file: "matches", query: "needed" },
  attention: { name: "Attention", file: "attention", ids: true },
  tensors: { name: "Tensors", file: "tensors", ids: true, vectors: true },
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
  tensors: { lines: ABOUT },
};

export const takesTexts = (entry) => entry.inputs.includes("texts");

/** What stands in the lines of a request. */
export function kindsOf(entry) {
  if (entry.limits.input_width) return ["vectors"];
  return takesTexts(entry) ? ["texts", "ids"] : ["ids"];
}

/** Its graph is its authors' own: it answers with their tensors. */
export const asWritten = (entry) => !Object.keys(entry.config).length;

/** The tasks of a model, its own first. A reranker's label says what its scores say. */
export function tasksOf(entry) {
  const own = entry.tasks.filter((task) => task !== "classify" || !entry.tasks.includes("rerank"));
  const seen = entry.outputs.includes("attentions") ? ["attention"] : [];
  const vectors = entry.outputs.includes("pooled") ? ["embed"] : [];
  const all = [...new Set([...own, ...vectors, ...seen, "tensors"])];
  const [kind] = kindsOf(entry);
  return all.filter((task) => TASKS[task] && (kind === "texts" || TASKS[task][kind]));
}
