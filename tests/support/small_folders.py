"""Small folders of models that no table describes, their bundles, and a change in one."""

import json
from pathlib import Path
from typing import Any

import torch
from onnx import numpy_helper
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch import nn
from transformers import MegatronBertConfig, MegatronBertForMaskedLM, PreTrainedModel

from addnorm.export import command
from addnorm.export.graphs import model_file
from addnorm.service.engine import bundle as bundles
from tests.support.bundles import hashed_anew
from tests.support.mutation import whole
from tests.support.sentence_transformers import write_settings
from tests.support.texts import MAX_TEXT_TOKENS, WORDS, library, tokenizer

WIDTH = 32  # of static vectors
SIZES: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 40,
    "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip


def saved(model: PreTrainedModel, folder: Path) -> Path:
    """The folder of a model, with the tokenizer that all of them have."""
    model.eval().save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep")}
    fields = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": MAX_TEXT_TOKENS}
    (folder / "tokenizer_config.json").write_text(json.dumps({**special, **fields}))
    return folder


def masked(folder: Path) -> Path:
    torch.manual_seed(0)
    sizes = {**SIZES, "vocab_size": len(WORDS), "num_key_value_heads": 2}
    saved(MegatronBertForMaskedLM(MegatronBertConfig(**sizes)), folder)
    fields = json.loads((folder / "tokenizer_config.json").read_text())
    write_settings(folder, "tokenizer_config.json", **fields, mask_token="[MASK]")
    return folder


def static(folder: Path, *modules: nn.Module, **prompts: str) -> Path:
    torch.manual_seed(0)
    table = StaticEmbedding(library(), embedding_weights=torch.randn(len(WORDS), WIDTH))
    model = SentenceTransformer(modules=[table, *modules], prompts=prompts, device="cpu")
    model.save_pretrained(str(folder))
    return folder


def exported(folder: Path, out: Path, *options: str, precision: str = "fp32") -> bundles.Bundle:
    command.export([f"{folder}@{precision}", "--out", str(out), *options])
    return bundles.read(out / folder.name / "1")


def change_a_weight(bundle: bundles.Bundle, file: Path) -> None:
    """A number by a millionth, with hashes made anew."""
    graph = whole(model_file.load(file))
    item = max(graph.proto.graph.initializer, key=lambda item: len(item.raw_data))
    array = numpy_helper.to_array(item).copy()
    array.flat[0] *= 1 + 2.0**-20
    item.CopyFrom(numpy_helper.from_array(array, item.name))
    model_file.save(graph, file)
    hashed_anew(bundle)
