"""Every field of the authors' files has a place: it is read, it has no effect, or it is refused."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from addnorm.model.checkpoints import (
    CheckpointError,
    fields,
    load_checkpoint,
    look,
    read_config,
    sentence_transformers,
)  # fmt: skip
from addnorm.model.checkpoints.families import FAMILIES
from addnorm.model.checkpoints.family import Family
from tests.support.families import CONFIGS, made, save, sequences
from tests.support.sentence_transformers import tell, write_modules, write_settings
from tests.support.texts import checkpoint

POOLED = {"Transformer": "", "Pooling": "1_Pooling"}
SETTINGS, PROGRAM = "sentence_bert_config.json", "config_sentence_transformers.json"


def config_of(name: str, **changed: Any) -> dict[str, Any]:
    """config.json as transformers saves it."""
    config = getattr(transformers, f"{name}Config")(**{**CONFIGS[name], **changed})
    return json.loads(config.to_json_string(use_diff=False))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_field_that_transformers_saves_has_a_place(name: str) -> None:
    config = config_of(name)
    family = FAMILIES[config["model_type"]]
    known_fields = fields.Fields(family.fields, family.no_effect)
    assert fields.CONFIG.list_unread(known_fields.list_unread(config)) == []
    fields.CONFIG.refuse("config.json", config)


class Heard(dict[str, Any]):
    """Notes the names that it is asked for."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        super().__init__(known)
        self.names = set[str]()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)


@pytest.mark.parametrize("name", CONFIGS)
def test_what_a_family_reads_stands_in_its_table(name: str) -> None:
    config = config_of(name)
    family = FAMILIES[config["model_type"]]
    raw = Heard(family.raw(config))
    read_config(family, raw)
    family.position_offset(raw)
    for head in family.heads:
        head.derived(raw)
    assert raw.names <= {*family.fields, *fields.CONFIG.read}


def tables(family: Family) -> Iterator[str]:
    yield from family.no_effect
    yield from family.fields


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_no_field_stands_in_two_lists(family: Family) -> None:
    refused = [*fields.CONFIG.refused]
    assert not {*family.fields} & {*family.no_effect}
    assert fields.Fields(read=tuple(tables(family))).list_unread(refused) == refused


SAME = {  # class, what config.json says otherwise than its weights' model
    "heads by another name": ("DistilBertModel", {"num_attention_heads": 2}),
    "heads of GPT-2 by another name": ("GPT2Model", {"num_attention_heads": 2}),
    "positions of GPT-2 by another name": ("GPT2Model", {"max_position_embeddings": 40}),
    "half a window": ("ModernBertModel", {"sliding_window": 3}),
    "angles of both kinds": (
        "ModernBertModel", {"rope_parameters": None, "rope_scaling": {"rope_theta": 50.0}},
    ),
    "the former name of a kind of layers": ("Qwen3Model", {"layer_types": ["attention"] * 3}),
    "an activation by another name": ("BertModel", {"hidden_act": "gelu_accurate"}),
}  # fmt: skip


@pytest.mark.parametrize("case", SAME)
def test_a_field_is_read_as_transformers_reads_it(tmp_path: Path, case: str) -> None:
    name, changes = SAME[case]
    as_saved = made(name)
    tell(save(as_saved, tmp_path), "config.json", **changes)
    original = getattr(transformers, name).from_pretrained(tmp_path).eval()
    ours = load_checkpoint(tmp_path).model
    differs = []
    for ids, types in sequences(original):
        rows, mask = torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.int64)
        kinds = torch.tensor([types]) if ours.config.type_vocab_size > 1 else None
        typed = {} if kinds is None else {"token_type_ids": kinds}
        with torch.no_grad():
            expected = original(input_ids=rows, **typed)[0]
            before = as_saved(input_ids=rows, **typed)[0]
            torch.testing.assert_close(ours(rows, mask, kinds)[0], expected, rtol=1e-4, atol=1e-4)
        differs.append(bool((expected - before).abs().max() > 1e-3))
    assert any(differs) or "former" in case or "positions" in case or "activation" in case


def test_empty_values_are_as_none(tmp_path: Path) -> None:
    tell(checkpoint(tmp_path), "config.json", quantization_config=None, per_layer_config={})
    tell(tmp_path, PROGRAM, truncate_dim=None)
    assert load_checkpoint(tmp_path).unread == ()


def test_unknown_fields_are_reported_with_their_file(tmp_path: Path) -> None:
    tell(checkpoint(tmp_path), "config.json", my_field=1)
    tell(tmp_path, PROGRAM, its_own=1)
    tell(tmp_path, SETTINGS, new=1)
    (pooling,) = tmp_path.glob("*_Pooling")
    tell(pooling, "config.json", shade="blue")
    expected = {
        "config.json: my_field", f"{PROGRAM}: its_own", f"{SETTINGS}: new",
        f"{pooling.name}/config.json: shade",
    }  # fmt: skip
    assert {*load_checkpoint(tmp_path).unread} == expected


def test_heads_in_files_of_their_own_are_named(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    for name in ("model_head.pkl", "gliner_config.json"):
        (tmp_path / name).write_bytes(b"not read")
    assert load_checkpoint(tmp_path).beside == (
        "model_head.pkl (SetFit's classifier)",
        "gliner_config.json (GLiNER's settings)",
    )


@pytest.mark.parametrize("name", ["config_args", "config_kwargs"])
def test_settings_of_its_author_win_over_config_json(tmp_path: Path, name: str) -> None:
    fields = {"hidden_act": "relu", "is_causal": True, "unheard_of": 3, "revision": "main"}
    tell(checkpoint(tmp_path), SETTINGS, **{name: fields})
    loaded = load_checkpoint(tmp_path)
    assert loaded.model.config.activation == "relu"
    assert not {"is_causal", "unheard_of", "revision"} & {*loaded.fields}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"bert": 40, "albert": 4}, 40),
        ({"bert": None, "roberta": 4}, 4),
        ({"xlm-roberta": 5, "camembert": 6}, 6),
        ({"other": 7}, None),
    ],
)
def test_the_first_settings_that_are_not_empty_count(
    tmp_path: Path, files: dict[str, int | None], expected: int | None
) -> None:
    for name, limit in files.items():
        settings = {} if limit is None else {"max_seq_length": limit}
        write_settings(tmp_path, f"sentence_{name}_config.json", **settings)
    assert sentence_transformers.read(tmp_path).settings.get("max_seq_length") == expected


@pytest.mark.parametrize(
    ("modules", "told", "normalizes"),
    [
        ({**POOLED, "Normalize": "2"}, {}, True),
        ({**POOLED, "Normalize": "2", "Normalize_again": "2"}, {}, True),
        ({"Transformer": "", "Normalize": "2", "Pooling": "1_Pooling"}, {}, False),
        ({**POOLED, "Normalize": "2"}, {"module_input_name": "nothing"}, False),
        ({**POOLED, "Normalize": "2"}, {"module_output_name": "other"}, False),
    ],
)
def test_normalize_does_nothing_to_vectors_that_are_not_there(
    tmp_path: Path, modules: dict[str, str], told: dict[str, str], normalizes: bool
) -> None:
    write_modules(tmp_path, **modules)
    write_settings(tmp_path / "1_Pooling", pooling_mode="mean")
    write_settings(tmp_path / "2", **told)
    assert sentence_transformers.read(tmp_path).normalize == normalizes


def labelled(**told: Any) -> Callable[[Path], Path]:
    name = "BertForSequenceClassification"
    return lambda folder: tell(save(made(name, num_labels=3), folder), "config.json", **told)


def test_as_many_labels_as_num_labels_says(tmp_path: Path) -> None:
    labelled(id2label={"0": "no", "1": "yes"}, num_labels=3)(tmp_path)
    assert load_checkpoint(tmp_path).labels == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_the_number_of_entailment_must_be_that_of_its_name(tmp_path: Path) -> None:
    names = {"0": "contradiction", "1": "neutral", "2": "ENTAILMENT"}
    labelled(id2label=names, label2id={"ENTAILMENT": 2, "neutral": 0})(tmp_path)
    assert load_checkpoint(tmp_path).labels == tuple(names.values())
    tell(tmp_path, "config.json", label2id={"ENTAILMENT": 0})
    with pytest.raises(CheckpointError, match="label2id has 'ENTAILMENT': 0"):
        load_checkpoint(tmp_path)


IDENTITY, SIGMOID, TANH = (
    f"torch.nn.modules.{name}"
    for name in ("linear.Identity", "activation.Sigmoid", "activation.Tanh")
)


@pytest.mark.parametrize(
    ("config", "program", "expected"),
    [
        ({}, {}, "Sigmoid"),
        ({"sbert_ce_default_activation_function": IDENTITY}, {}, "Identity"),
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, {}, "Identity"),
        ({"sentence_transformers": {"activation_fn": IDENTITY},
          "sbert_ce_default_activation_function": SIGMOID}, {}, "Identity"),
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, {"activation_fn": SIGMOID},
         "Sigmoid"),
        ({}, {"activation_fn": TANH}, None),
        ({}, {"activation_fn": "my.own.Identity"}, None),
    ],
)  # fmt: skip
def test_scores_of_pairs_are_made_as_the_first_of_three_places_says(
    tmp_path: Path, config: dict[str, Any], program: dict[str, Any], expected: str | None
) -> None:
    save(made("BertForSequenceClassification", num_labels=1), tmp_path)
    tell(tmp_path, "config.json", **config)
    tell(tmp_path, PROGRAM, **program)
    if expected:
        assert load_checkpoint(tmp_path).activation == expected
    else:
        with pytest.raises(CheckpointError, match="served are Sigmoid and Identity"):
            load_checkpoint(tmp_path)


FORMATS = {
    "model-q8_0.gguf": "GGUF",
    "onnx/model.onnx": "a graph of ONNX",
    "tf_model.h5": "weights of TensorFlow",
    "flax_model.msgpack": "weights of Flax",
    "model.fp16.safetensors": "a variant",
    "consolidated.00.pth": "Mistral's or Meta's own format",
}


@pytest.mark.parametrize("file", FORMATS)
def test_other_formats_are_named_as_what_they_are(tmp_path: Path, file: str) -> None:
    save(made("BertModel"), tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.unlink()
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_bytes(b"other")
    words = f"{file} is .*{FORMATS[file]}"
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=words):
        look(tmp_path, ["config.json", file])
    look(tmp_path, ["config.json", file, weights.name])


def test_shards_of_a_distributed_training_are_refused(tmp_path: Path) -> None:
    save(made("BertModel"), tmp_path)
    (tmp_path / "shard-00001-model-00001-of-00001.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="belongs to a distributed training"):
        load_checkpoint(tmp_path)


def test_settings_are_looked_at_without_weights(tmp_path: Path) -> None:
    write_settings(tmp_path, model_type="t5")
    with pytest.raises(CheckpointError, match="'t5' is not supported"):
        look(tmp_path, ["config.json", "model.safetensors"])
    write_modules(tmp_path, Transformer="", Router="1")
    with pytest.raises(CheckpointError, match="Router is not supported: it has one path"):
        look(tmp_path, ["config.json", "model.safetensors"])
