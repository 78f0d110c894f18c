"""Families whose positions are rotated, beside transformers: long sequences in ragged grids, and
every way in which config.json says which angles and windows they have."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from addnorm.model.checkpoints import load_checkpoint, read_config
from addnorm.model.checkpoints.families import FAMILIES
from tests.support.families import CLASSES, ENCODER, ROTARY, family_of, made, save
from tests.support.ragged_grids import gaps_of
from tests.support.sentence_transformers import tell

LINEAR = {"rope_type": "linear", "rope_theta": 50.0, "factor": 1.7}
LONG = {"max_position_embeddings": 256}


@pytest.mark.parametrize("class_name", [name for name in CLASSES if family_of(name) in ROTARY])
def test_long_sequences_in_ragged_grids_equal_those_of_transformers(
    class_name: str, tmp_path: Path
) -> None:
    original = made(class_name, **LONG)
    gaps = gaps_of(load_checkpoint(save(original, tmp_path)).model, original)
    print(class_name, *(f"{gap:.1e}" for gap in gaps))
    assert max(gaps) <= 1e-5


NO_WINDOWS = {"layer_types": ["full_attention"] * 3}
BEFORE = {"layer_types": ..., "rope_parameters": ...}  # transformers 5


@pytest.mark.parametrize(
    ("made_with", "written_before"),
    [
        ({}, BEFORE),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 160_000.0}}},
         {**BEFORE, "local_rope_theta": 160_000.0}),
        ({"rope_parameters": {"full_attention": {"rope_theta": 900.0}}},
         {**BEFORE, "global_rope_theta": 900.0, "position_embedding_type": "absolute"}),
        ({"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
         {**BEFORE, "global_attn_every_n_layers": 2}),
        (NO_WINDOWS, {**BEFORE, "global_attn_every_n_layers": 1}),
    ],
)  # fmt: skip
def test_earlier_fields_of_config_json_give_the_same_model(
    tmp_path: Path, made_with: dict[str, Any], written_before: dict[str, Any]
) -> None:
    folder = save(made("ModernBertModel", **made_with), tmp_path)
    new = load_checkpoint(folder).model.config
    assert load_checkpoint(tell(folder, **written_before)).model.config == new
    assert new.window == (0 if made_with == NO_WINDOWS else 4)


@pytest.mark.parametrize(
    "model_type",
    [
        "modernbert",
        "nomic_bert",
        "gte",
        "jina_embeddings_v3",
        "qwen3",
        "qwen2",
        "llama",
        "eurobert",
    ],
)
def test_fields_that_config_json_leaves_out_are_those_of_transformers(model_type: str) -> None:
    sizes = {**ENCODER, "pad_token_id": 0, "num_key_value_heads": 1, "head_dim": 12}
    every = AutoConfig.for_model(model_type, **sizes).to_dict()
    family = FAMILIES[model_type]
    assert read_config(family, family.raw(every)) == read_config(family, family.raw(sizes))


NOMIC, JINA = "NomicBertModel", "JinaEmbeddingsV3Model"


@pytest.mark.parametrize("class_name", ["NomicBertForMaskedLM", "GteForMaskedLM", JINA])
def test_keys_as_in_memory_give_the_same_model(class_name: str, tmp_path: Path) -> None:
    original = made(class_name)
    original.save_pretrained(tmp_path / "own", save_original_format=False)
    named, own = (
        load_checkpoint(folder).model for folder in (save(original, tmp_path), tmp_path / "own")
    )
    assert named.config == own.config
    for name, tensor in named.state_dict().items():
        assert torch.equal(tensor, own.state_dict()[name]), name


NOMICS_OWN = {  # names before transformers had the family -> those of transformers
    "n_embd": "hidden_size", "n_head": "num_attention_heads", "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers", "layer_norm_epsilon": "layer_norm_eps",
    "n_positions": "max_position_embeddings",
}  # fmt: skip


def test_nomics_own_config_gives_the_same_model(tmp_path: Path) -> None:
    folder = save(made(NOMIC, rope_parameters={"rope_theta": 700.0}), tmp_path)
    new, fields = (
        load_checkpoint(folder).model.config,
        json.loads((folder / "config.json").read_text()),
    )
    renamed = {old: fields[name] for old, name in NOMICS_OWN.items()}
    absent = [*NOMICS_OWN.values(), "hidden_act", "rope_parameters", "head_dim"]
    tell(
        folder,
        **dict.fromkeys(absent, ...),
        **renamed,
        activation_function="swiglu",
        rotary_emb_base=700,
    )
    assert load_checkpoint(folder).model.config == new


@pytest.mark.parametrize(
    ("fields", "longest"),
    [
        ({"max_position_embeddings": 60}, 60),
        ({"max_position_embeddings": 60, "rope_parameters": {"rope_type": "dynamic"}}, 60),
        ({"n_positions": 80, "max_trained_positions": 50, "rotary_scaling_factor": ...}, 80),
        ({"n_positions": 80, "max_trained_positions": 50, "rotary_scaling_factor": 2}, 50),
        ({"n_positions": 80, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, 2048),
    ],
)
def test_sequences_are_as_long_as_angles_are_fixed(
    tmp_path: Path, fields: dict[str, Any], longest: int
) -> None:
    folder = save(made(NOMIC), tmp_path)
    tell(folder, **{"max_position_embeddings": ..., **fields})
    assert load_checkpoint(folder).model.config.max_positions == longest


def test_gtes_own_config_and_keys_give_the_angles_of_transformers(tmp_path: Path) -> None:
    """transformers writes these angles as linear, with another base."""
    theta, factor = 500.0, 2.0
    linear = {"rope_type": "linear", "rope_theta": theta * factor, "factor": factor ** (2 / 12)}
    original = made("GteForSequenceClassification", rope_parameters=linear, **LONG)
    folder = save(original, tmp_path / "new")
    weights = load_file(folder / "model.safetensors")
    renamed = {key.replace("gte.", "new."): tensor for key, tensor in weights.items()}
    save_file(renamed, folder / "model.safetensors")
    ntk = {"rope_theta": theta, "rope_scaling": {"type": "ntk", "factor": factor}}
    names = {"model_type": "new", "architectures": ["NewForSequenceClassification"]}
    tell(folder, rope_parameters=..., position_embedding_type="rope", **names, **ntk)
    assert max(gaps_of(load_checkpoint(folder).model, original)) <= 1e-5


def test_one_type_for_all_is_added_to_tokens_and_not_to_a_tied_head(tmp_path: Path) -> None:
    original = made("JinaEmbeddingsV3ForMaskedLM")
    ours = load_checkpoint(save(original, tmp_path)).model
    stored = original.roberta.embeddings
    types = stored.token_type_embeddings.weight[0]
    assert types.abs().max() > 0.01
    torch.testing.assert_close(ours.tokens.weight, stored.word_embeddings.weight + types)
    assert torch.equal(ours.heads["logits"].linear.weight, stored.word_embeddings.weight)


BANDS = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 100,
}  # fmt: skip


@pytest.mark.parametrize(
    ("class_name", "changed"),
    [
        ("EuroBertForSequenceClassification", {"classifier_pooling": "bos"}),
        ("EuroBertForMaskedLM", {"mlp_bias": True, "attention_bias": True}),
        ("EuroBertModel", {"num_key_value_heads": None}),
        ("Qwen3ForCausalLM", {"attention_bias": True, "tie_word_embeddings": True}),
        ("Qwen2ForCausalLM", {"head_dim": 10, "tie_word_embeddings": True}),
        ("LlamaModel", {"mlp_bias": True, "attention_bias": True, "num_key_value_heads": None}),
        ("LlamaModel", {"rope_parameters": LINEAR}),
        ("LlamaForSequenceClassification", {"rope_parameters": BANDS, "is_causal": False}),
        ("LlamaModel", {"rope_parameters": BANDS, "original_max_position_embeddings": 50}),
    ],
)
def test_other_settings_of_rms_families(
    class_name: str, changed: dict[str, Any], tmp_path: Path
) -> None:
    original = made(class_name, **LONG, **changed)
    assert max(gaps_of(load_checkpoint(save(original, tmp_path)).model, original)) <= 1e-5
