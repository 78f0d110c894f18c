// The tasks of the page: what each needs, and what a model without it lacks.

const head = (what) => `It needs a checkpoint with ${what}.`;
const CHECKPOINT = "addnorm export --checkpoint FOLDER --name NAME";

/** Task -> its name, its file, what it asks for, and how a bundle comes to have it. query: whether
 * there is one; ids, vectors: whether it takes such too; prompts: whether the reader chooses them. */
export const TASKS = {
  embed: {
    name: "Similarity",
    file: "embed",
    query: "optional",
    ids: true,
    prompts: true,
    lacks: head("a vector for each text"),
  },
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

const NO_TOKENIZER = "This bundle has no tokenizer, so it takes token ids only. Export it again with" +
  " its tokenizer.json.";

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

/** Why a model lacks a task, and the command for it. */
export function missing(entry, task) {
  if (asWritten(entry) && !entry.tasks.includes(task))
    return {
      why: "It is served as its authors wrote it: “Tensors” shows its answer. An export says what that is for.",
      command: `export_bundle(model, "bundles", "${entry.id}", tokenizer=FOLDER, labels=[...])`,
    };
  const isHere = entry.tasks.includes(task);
  return {
    why: isHere && !takesTexts(entry) ? NO_TOKENIZER : TASKS[task].lacks,
    command: TASKS[task].command ?? CHECKPOINT,
  };
}
