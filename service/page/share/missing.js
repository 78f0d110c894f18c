// Why a model lacks a task of the page, and the command that exports one with it.

import { asWritten, takesTexts } from "../tasks/catalog.js";

const COMMAND = "addnorm export FOLDER --name NAME";
const NEEDS = {
  embed: "a vector for each text",
  rerank: "one label for a pair of texts, as cross-encoders have",
  classify: "labels for whole texts",
  tag: "labels for tokens, such as B-PER",
  fill_mask: "a masked language model",
  sparse: "a masked language model",
  complete: "a causal language model",
  multi_vector: "a vector for each token, as ColBERT's have",
};
const NO_TOKENIZER =
  "This bundle has no tokenizer, so it takes token ids only. Export it again with its tokenizer.json.";

export function missing(entry, task) {
  if (entry.tasks.includes(task) && !takesTexts(entry)) return { why: NO_TOKENIZER, command: COMMAND };
  if (asWritten(entry))
    return {
      why: "It is served as its authors wrote it: “Tensors” shows its answer. An export says what that is for.",
      command: `export_bundle(model, "bundles", "${entry.id}", tokenizer=FOLDER, labels=[...])`,
    };
  if (task === "attention")
    return {
      why: "Attention needs a bundle with a lens: export the model again with --lens.",
      command: `${COMMAND} --lens`,
    };
  return { why: `It needs a checkpoint with ${NEEDS[task]}.`, command: COMMAND };
}
