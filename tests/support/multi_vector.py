"""Folders of models with a vector for each token: as MultiVectorEncoder writes one, and as bge-m3
is, whose vectors are of three kinds."""

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
    save(made("BertModel", vocab_size=len(WORDS), num_hidden_layers=1), folder)
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


def three_kinds(folder: Path) -> Path:
    """Pooled and sparse vectors, and those of tokens: the last two by FlagEmbedding's heads."""
    save(made("BertModel", vocab_size=len(WORDS), num_hidden_layers=1), folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    special = {f"{kind}_token": f"[{kind.upper()}]" for kind in ("pad", "unk", "cls", "sep")}
    classes = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 40}
    write_settings(folder, "tokenizer_config.json", **special, **classes)
    write_modules(folder, Transformer="", Pooling="1", Normalize="2")
    write_settings(folder / "1", pooling_mode="cls", embedding_dimension=D_MODEL)
    write_settings(folder / "2")
    for name, layer in flag_layers().items():
        torch.save(layer.state_dict(), folder / name)
    return folder


def flag_layers() -> dict[str, nn.Linear]:
    """FlagEmbedding's heads, by the files that have them."""
    torch.manual_seed(0)
    widths = {"colbert_linear.pt": D_MODEL, "sparse_linear.pt": 1}
    return {name: nn.Linear(D_MODEL, width) for name, width in widths.items()}
