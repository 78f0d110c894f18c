"""Folders that the package gliner saves, served: its own answers of 200 texts."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import torch
from transformers import BertConfig, DebertaV2Config, ModernBertConfig, PreTrainedConfig

from addnorm.export import command
from benchmarks.findings import BUILD
from tests.conftest import client_of, inference_of
from tests.support import gliner_folders
from tests.support.gliner_folders import KEPT, WORDS

pytestmark = [pytest.mark.gliner, pytest.mark.filterwarnings("ignore")]
SIZES: dict[str, Any] = {
    "vocab_size": len(WORDS) + 3, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 128,
}  # fmt: skip
SPECIAL = dict(zip(("pad", "unk", "cls", "sep"), range(4), strict=True))
IDS = {f"{name}_token_id": SPECIAL[name] for name in ("pad", "cls", "sep")}
DEBERTA = {
    "relative_attention": True, "position_buckets": 32, "norm_rel_ebd": "layer_norm",
    "share_att_key": True, "pos_att_type": "p2c|c2p", "position_biased_input": False,
    "type_vocab_size": 0,
}  # fmt: skip
KINDS: dict[str, tuple[PreTrainedConfig, dict[str, Any]]] = {
    "bert": (BertConfig(**SIZES), {"hidden_size": 32, "num_rnn_layers": 1}),
    "deberta": (
        DebertaV2Config(**SIZES, **DEBERTA),
        {"hidden_size": 64, "num_rnn_layers": 0, "embed_ent_token": False, "max_width": 5},
    ),
    "modernbert": (
        ModernBertConfig(**SIZES, **IDS, bos_token_id=2, eos_token_id=3, local_attention=16),
        {"hidden_size": 32, "num_rnn_layers": 1, "span_mode": "token_level"},
    ),
}
LABELS = (["person", "organization", "place"], ["date"], ["city", "time", "train", "email address"])
DRAWS = random.Random(0)
TEXTS = [" ".join(DRAWS.choices(WORDS[5:], k=DRAWS.randint(1, 25))) for _ in range(200)]


class Names(NamedTuple):
    """The package's models by name, and a client of a server of their folders."""

    models: dict[str, Any]
    client: httpx.Client


def saved(folder: Path, encoder: PreTrainedConfig, fields: dict[str, Any]) -> Any:
    """The package's model with random weights, whose scores lie far apart."""
    from gliner import GLiNERConfig
    from gliner.model import UniEncoderSpanGLiNER, UniEncoderTokenGLiNER

    base = gliner_folders.write(folder.with_name(f"{folder.name}-base"), "spans")
    (base / "config.json").write_text(json.dumps(encoder.to_dict()))
    is_token = fields.get("span_mode") == "token_level"
    config = GLiNERConfig(
        model_name=str(base), class_token_index=-1, vocab_size=-1, max_len=60, **fields
    )
    kind = UniEncoderTokenGLiNER if is_token else UniEncoderSpanGLiNER
    model = kind.load_from_config(config, backbone_from_pretrained=False)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.model.named_parameters():
            if weight.dim() > 1:
                gain = 1.0 if "token_rep_layer.bert" in name else 1.1
                weight.normal_(0, gain / weight.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Names]:
    root, models = tmp_path_factory.mktemp("gliner"), dict[str, Any]()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BUILD / "gliner"))
        for name, (encoder, fields) in KINDS.items():
            models[name] = saved(root / name, encoder, fields)
            command.export(["--checkpoint", str(root / name), "--out", str(root / "bundles")])
        with client_of(inference_of(root / "bundles"), timeout=120) as client:
            yield Names(models, client)


@pytest.mark.parametrize("name", KINDS)
def test_names_are_the_packages(names: Names, name: str) -> None:
    num_names = 0
    for labels in LABELS:
        body = {"model": name, "texts": TEXTS, "labels": labels}
        results = names.client.post("/v1/extract", json=body).raise_for_status().json()["results"]
        for text, served in zip(TEXTS, results, strict=True):
            expected = names.models[name].predict_entities(text, labels)
            keys = [
                [(n["start"], n["end"], n["label"]) for n in side] for side in (served, expected)
            ]
            assert keys[0] == keys[1], text
            scores = [[n["score"] for n in side] for side in (served, expected)]
            assert scores[0] == pytest.approx(scores[1], abs=1e-5)
            alone = names.client.post("/v1/extract", json={**body, "texts": [text]})
            assert alone.json()["results"] == [served]
            num_names += len(served)
    assert num_names > 100


def test_kept_answers_are_the_packages(names: Names) -> None:
    from tests.golden import gliner

    now, kept = gliner.answers(), json.loads(KEPT.read_text())
    for kind in gliner_folders.FIELDS:
        assert now[kind].keys() == kept[kind].keys()
        for question, rows in now[kind].items():
            assert [row[:3] for row in rows] == [row[:3] for row in kept[kind][question]]
            scores = [[row[3] for row in side] for side in (rows, kept[kind][question])]
            assert scores[0] == pytest.approx(scores[1], abs=1e-5)
