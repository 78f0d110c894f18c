"""Folders of sentence-transformers: modules, poolings, Dense layers and prompts."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from addnorm.model.checkpoints import CheckpointError, load_checkpoint, sentence_transformers
from addnorm.model.checkpoints.sentence_transformers import Mask
from tests.support.families import made, save
from tests.support.sentence_transformers import (
    write_dense,
    write_layer_norm,
    write_modules,
    write_settings,
)

WIDTH = 36  # of the tiny models
PROGRAM = "config_sentence_transformers.json"
POOLED = {"Transformer": "", "Pooling": "any"}
GELU, IDENTITY = "torch.nn.modules.activation.GELU", "torch.nn.modules.linear.Identity"


@pytest.mark.parametrize(
    ("settings", "pooling"),
    [
        ({}, "mean"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_cls_token": True}, "first"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_lasttoken": True, "include_prompt": True}, "last"),
        ({"pooling_mode_weightedmean_tokens": True}, "weighted_mean"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt"),
        ({"pooling_mode": "cls"}, "first"),
        ({"pooling_mode": ["max"]}, "max"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": "weightedmean"}, "weighted_mean"),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, "mean_sqrt"),
        ({"pooling_mode": "mean", "pooling_mode_cls_token": True}, "mean"),
    ],
)
def test_poolings_are_read_in_both_spellings(
    tmp_path: Path, settings: dict[str, Any], pooling: str
) -> None:
    package = "sentence_transformers.sentence_transformer.modules.pooling"
    write_modules(tmp_path, package, **POOLED, Dropout="2_Dropout", Normalize="3_Normalize")
    write_settings(tmp_path / "any", **settings)
    modules = sentence_transformers.read(tmp_path)
    assert (modules.pooling, modules.normalize) == (pooling, True)


def test_a_folder_without_modules_is_one_transformer(tmp_path: Path) -> None:
    found = sentence_transformers.read(tmp_path)
    assert (found.transformer, found.pooling, found.normalize) == (tmp_path, "mean", False)


TOKENS = {"Transformer": "", "Dense": "2_Dense", "MultiVectorMask": "3_Mask"}
DENSE = {**POOLED, "Dense": "2_Dense"}
OF_TOKENS = {"module_input_name": "token_embeddings"}
SCORES = {"module_output_name": "scores"}
LAYERS = {"2_Dense": nn.Linear(WIDTH, 4), "unbiased": nn.Linear(WIDTH, 4, bias=False)}


def write(folder: Path, modules: dict[str, str], files: dict[str, dict[str, Any]]) -> Path:
    """files: settings by folder. Those that LAYERS names have the layer's weights."""
    write_modules(folder, **modules)
    for name, settings in files.items():
        if name.endswith(".json"):
            write_settings(folder, name, **settings)
        elif name in LAYERS:
            write_dense(folder / name, LAYERS[name], **settings)
        else:
            write_settings(folder / name, **settings)
    return folder


# modules, settings by folder, the words of the refusal
REFUSED: list[tuple[dict[str, str], dict[str, dict[str, Any]], str]] = [
    (POOLED, {"any": {"pooling_mode": ["cls", "mean"]}},
     "any/config.json: one pooling at a time is supported, these are cls, mean"),
    (POOLED, {"any": {"pooling_mode_median_tokens": True}},
     "the pooling 'pooling_mode_median_tokens' is not supported"),
    (POOLED, {"any": {"include_prompt": False}},
     "include_prompt is false, and every token of a text is pooled"),
    ({"Transformer": "", "WeightedLayerPooling": "1", "Pooling": "any"}, {},
     "WeightedLayerPooling is not supported: it needs the activations of every layer"),
    ({**POOLED, "Whitening": "2"}, {},
     "Whitening is not supported: known are Transformer, MLMTransformer, Pooling, Dense"),
    ({**POOLED, "Pooling_2": "any"}, {}, "Pooling is not supported: it is listed twice"),
    ({"StaticEmbedding": ""}, {}, "its vectors come from a table, without a transformer"),
    ({"BoW": ""}, {}, "the first module must be Transformer"),
    ({"Transformer": "", "Normalize": "1"}, {"1": OF_TOKENS},
     "Normalize is not supported: there is no Dense before it that makes vectors of tokens"),
    ({**POOLED, "Normalize": "2"}, {"2": {**OF_TOKENS, "module_output_name": "sentence_embedding"}},
     "module_output_name is 'sentence_embedding'"),
    ({"Transformer": "", "MultiVectorMask": "1"}, {"1": {}},
     "MultiVectorMask is not supported: there is no Dense before it"),
    (TOKENS, {"2_Dense": {}, "3_Mask": {"keep_only_token_ids": [7]}},
     "config.json: keep_only_token_ids is for images, which are not served"),
    (TOKENS, {"2_Dense": {}, "3_Mask": {"skiplist_tasks": ["document", "title"]}},
     "config.json: skiplist_tasks has 'title', supported are query, document"),
    ({"Transformer": "", "Dense": "2_Dense", "Normalize": "3", "Dense_2": "2_Dense"},
     {"2_Dense": {}, "3": OF_TOKENS},
     "2_Dense is not supported: a Dense of vectors of tokens comes after Normalize"),
    ({"Transformer": "", "SpladePooling": "1"}, {"1": {"pooling_strategy": "sum"}},
     "config.json: pooling_strategy is 'sum', supported is 'max'"),
    ({"MLMTransformer": "", "SpladePooling": "1"}, {"1": {"activation_function": "gelu"}},
     "config.json: activation_function is 'gelu', supported is 'relu' and 'log1p_relu'"),
    ({"Transformer": "", "Pooling": "../any"}, {}, "the path '../any' leads out of"),
    ({**POOLED, "Normalize": "2", "Dense": "2_Dense"}, {"2_Dense": {}},
     "2_Dense is not supported: a Dense of pooled vectors comes after Normalize"),
    ({"Transformer": "", "Dense": "2_Dense", "Pooling": "any"}, {"2_Dense": {}},
     "Pooling is not supported: it pools what a Dense makes of every token"),
    (DENSE, {"2_Dense": {"activation_function": "torch.nn.modules.activation.PReLU"}},
     "activation_function is 'torch.nn.modules.activation.PReLU', supported are Identity"),
    (DENSE, {"2_Dense": {"activation_function": "mine.Tanh"}}, "activation_function is 'mine.Tan"),
    (DENSE, {"2_Dense": {"use_residual": True}}, "use_residual is true, which is not supported"),
    ({**POOLED, "Dense": "unbiased"}, {"unbiased": {"bias": True}},
     "weights do not fit: they are linear.weight, expected are linear.bias, linear.weight"),
    ({**POOLED, "Dense": "2"}, {"2": {}}, "there is no model.safetensors in "),
    (DENSE, {"2_Dense": {"module_output_name": "half"}},
     "module_output_name is 'half', supported is module_input_name's, and 'scores' of pooled"),
    (DENSE, {"2_Dense": {"module_output_name": "scores", **OF_TOKENS}},
     "module_output_name is 'scores', supported is module_input_name's, and 'scores' of pooled"),
    (DENSE, {"2_Dense": SCORES}, "has the model_type None, which answers without them: 'CrossEnc"),
    ({**DENSE, "Dense_2": "2_Dense"}, {"2_Dense": SCORES},
     "2_Dense is not supported: it follows the module that makes 'scores'"),
    ({"Transformer": "", "Dense": "2_Dense"}, {"2_Dense": SCORES},
     "2_Dense is not supported: a Dense of pooled vectors comes before Pooling"),
    ({**POOLED, "LayerNorm": "2_Dense"}, {"2_Dense": {}},
     "they are linear.bias, linear.weight, expected are norm.bias, norm.weight"),
    (POOLED, {PROGRAM: {"prompts": {"query": "q: "}, "default_prompt_name": "doc"}},
     "default_prompt_name is 'doc', prompts are query"),
]  # fmt: skip


@pytest.mark.parametrize(("modules", "files", "words"), REFUSED, ids=[row[2] for row in REFUSED])
def test_what_is_not_served_is_refused_by_name(
    tmp_path: Path, modules: dict[str, str], files: dict[str, Any], words: str
) -> None:
    with pytest.raises(CheckpointError, match=re.escape(words)):
        sentence_transformers.read(write(tmp_path, modules, files))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, Mask()),
        ({"skiplist_words": [".", ","]}, Mask((".", ","), ("document",))),
        ({"skiplist_words": ["."], "skiplist_tasks": "query"}, Mask((".",), ("query",))),
        ({"skiplist_tasks": ["document", "query"]}, Mask((), ("query", "document"))),
    ],
)
def test_a_mask_names_words_and_where_they_are_skipped(
    tmp_path: Path, settings: dict[str, Any], expected: Mask
) -> None:
    folder = write(tmp_path, TOKENS, {"2_Dense": {}, "3_Mask": settings})
    assert sentence_transformers.read(folder).mask == expected


def test_code_of_the_folder_is_refused(tmp_path: Path) -> None:
    write_modules(tmp_path, "custom_pooling", Transformer="")
    with pytest.raises(
        CheckpointError, match=r"custom_pooling\.Transformer is code that is not run"
    ):
        sentence_transformers.read(tmp_path)


@pytest.mark.parametrize(
    ("prompts", "default", "expected"),
    [
        ({"query": "q: ", "document": ""}, "query", ({"query": "q: "}, "query")),
        ({"query": "q: ", "document": ""}, "document", ({"query": "q: "}, None)),
        ({}, None, ({}, None)),
    ],
)
def test_prompts_are_read_and_empty_ones_are_none(
    tmp_path: Path, prompts: dict[str, str], default: str | None, expected: object
) -> None:
    write_settings(tmp_path, PROGRAM, prompts=prompts, default_prompt_name=default)
    found = sentence_transformers.read(tmp_path)
    assert (found.prompts, found.default_prompt_name) == expected


Layers = dict[str, nn.Linear]


@pytest.fixture(scope="module", params=["CamembertModel", "ModernBertModel"])
def stored(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Layers]:
    """A transformer in a folder of its own, and layers that modules.json may name."""
    root = tmp_path_factory.mktemp("folder")
    save(made(request.param), root / "body")
    torch.manual_seed(0)
    layers = {
        "tanh": nn.Linear(WIDTH, 20),
        "gelu": nn.Linear(WIDTH, 20, bias=False),
        "second": nn.Linear(20, 7),
        "every": nn.Linear(WIDTH, 5, bias=False),
    }
    write_settings(root / "1_Pooling", pooling_mode="max")
    write_dense(root / "tanh", layers["tanh"], pickled=True)
    write_dense(root / "gelu", layers["gelu"], activation_function=GELU)
    write_dense(root / "second", layers["second"], activation_function=IDENTITY)
    settings = {"activation_function": IDENTITY, "module_input_name": "token_embeddings"}
    write_dense(root / "every", layers["every"], **settings)
    write_dense(root / "every_pooled", layers["every"])
    write_layer_norm(root / "norm", NORM)
    for name, width in (("score", 1), ("scores", 2)):
        layers[name] = nn.Linear(20, width)
        write_dense(root / name, layers[name], activation_function=IDENTITY, **SCORES)
    return root, layers


NORM = nn.LayerNorm(20)  # its eps is not that of every body
nn.init.normal_(NORM.weight, 1.0, 0.3, torch.Generator().manual_seed(1))
nn.init.normal_(NORM.bias, 0.0, 0.3, torch.Generator().manual_seed(2))
MAX = {"Transformer": "body", "Pooling": "1_Pooling"}


@pytest.mark.parametrize("names", [["tanh"], ["gelu"], ["gelu", "second"]])
def test_dense_layers_make_the_pooled_vectors(
    stored: tuple[Path, Layers], names: list[str]
) -> None:
    folder, layers = stored
    write_modules(folder, **MAX, **{f"Dense_{name}": name for name in names})
    model, rows = load_checkpoint(folder).model, torch.randn(3, WIDTH)
    activation = torch.tanh if names == ["tanh"] else nn.functional.gelu
    with torch.no_grad():
        expected = activation(layers[names[0]](rows))
        for name in names[1:]:
            expected = layers[name](expected)
        assert torch.equal(model.heads["pooled"](rows), expected)
    assert list(model.heads) == ["pooled"]
    assert model.config.heads["pooled"].pick == "max"


@pytest.mark.parametrize("names", [["gelu", "norm", "score"], ["gelu", "norm"], ["gelu", "score"]])
def test_a_norm_follows_the_first_layer_and_the_last_one_may_make_scores(
    stored: tuple[Path, Layers], names: list[str]
) -> None:
    folder, layers = stored
    kinds = ("LayerNorm" if name == "norm" else f"Dense_{name}" for name in names)
    write_modules(folder, **MAX, **dict(zip(kinds, names, strict=True)))
    write_settings(folder, PROGRAM, model_type="CrossEncoder")
    model, rows = load_checkpoint(folder).model, torch.randn(3, WIDTH)
    output = "logits" if "score" in names else "pooled"
    with torch.no_grad():
        expected = nn.functional.gelu(layers["gelu"](rows))
        for name in names[1:]:
            expected = NORM(expected) if name == "norm" else layers[name](expected)
        assert torch.equal(model.heads[output](rows), expected)
    assert [*model.heads] == [output]
    assert model.config.heads[output].pick == "max"


@pytest.mark.parametrize(
    "modules",
    [
        {"Transformer": "body", "Dense": "every"},
        {"Transformer": "body", "Dense": "gelu"},  # names no input, and nothing was pooled
        {**MAX, "Dense": "every"},
    ],
)
def test_a_dense_layer_of_tokens_makes_token_vectors(
    stored: tuple[Path, Layers], modules: dict[str, str]
) -> None:
    folder, layers = stored
    write_modules(folder, **modules)
    head, rows = load_checkpoint(folder).model.config.heads["token_vectors"], torch.randn(3, WIDTH)
    width = layers[modules["Dense"]].out_features
    assert (head.pick, head.width, head.linear) == ("every", width, False)
    with torch.no_grad():
        made_of = load_checkpoint(folder).model.heads["token_vectors"](rows)
        expected = layers[modules["Dense"]](rows)
    assert torch.equal(made_of, expected if width == 5 else nn.functional.gelu(expected))


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["gelu", "tanh"], "gelu, tanh are not supported together"),
        (["gelu", "second", "second"], "gelu, second, second are not supported together"),
        (["second"], "second: linear.weight takes 20 numbers, 36 come"),
        (["norm", "second"], "norm, second are not supported together"),
        (["gelu", "norm", "norm"], "gelu, norm, norm are not supported together"),
        (["every_pooled", "norm"], "norm: norm.weight takes 20 numbers, 5 come"),
        (["gelu", "scores"], "scores: it makes 2 scores of each pair, supported is 1"),
    ],
)
def test_layers_that_do_not_fit_are_refused(
    stored: tuple[Path, Layers], names: list[str], words: str
) -> None:
    folder, _ = stored
    kinds = ("LayerNorm" if name == "norm" else "Dense" for name in names)
    paths = {f"{kind}_{i}": name for i, (kind, name) in enumerate(zip(kinds, names, strict=True))}
    write_modules(folder, **MAX, **paths)
    write_settings(folder, PROGRAM, model_type="CrossEncoder")
    with pytest.raises(CheckpointError, match=re.escape(words)):
        load_checkpoint(folder)
