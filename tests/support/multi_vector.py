"""A folder as MultiVectorEncoder writes it: queries, documents, and the vectors of their tokens."""

import string
from pathlib import Path

import torch
from torch import nn

from tests.support.families import made, save
from tests.support.sentence_transformers import write_dense, write_modules, write_settings
from tests.support.texts import WORDS, tokenizer

D_MODEL, WIDTH, QUERY_LENGTH, DOCUMENT_LENGTH = 36, 7, 6, 30
TYPES = {"document": ("a ", (".", ",")), "query": ("the text ", ())}  # prompt, skipped tokens
IDENTITY = "torch.nn.modules.linear.Identity"


def layers() -> dict[str, nn.Linear]:
    """Linear layers for the vectors of tokens, and for pooled ones."""
    torch.manual_seed(0)
    return {name: nn.Linear(D_MODEL, WIDTH, bias=False) for name in ("tokens", "pooled")}


def checkpoint(folder: Path) -> Path:
    save(made("BertModel", vocab_size=len(WORDS)), folder)
    words = tokenizer()
    words.enable_truncation(40)
    words.save(str(folder / "tokenizer.json"))
    write_modules(
        folder, Transformer="", Pooling="1", Dense_tokens="2", Dense_pooled="3",
        MultiVectorMask="4", Normalize="5",
    )  # fmt: skip
    own, inputs = layers(), {"tokens": "token_embeddings", "pooled": "sentence_embedding"}
    for place, name in (("2", "tokens"), ("3", "pooled")):
        settings = {"activation_function": IDENTITY, "module_input_name": inputs[name]}
        write_dense(folder / place, own[name], **settings)
    write_settings(folder / "1", pooling_mode="mean", embedding_dimension=D_MODEL)
    write_settings(folder / "4", skiplist_words=list(string.punctuation))
    write_settings(folder / "5", module_input_name="token_embeddings")
    lengths = {"query_length": QUERY_LENGTH, "document_length": DOCUMENT_LENGTH}
    write_settings(folder, "sentence_bert_config.json", **lengths)
    prompts = {input_type: prompt for input_type, (prompt, _) in TYPES.items()}
    file = "config_sentence_transformers.json"
    write_settings(folder, file, prompts=prompts, model_type="MultiVectorEncoder")
    return folder
