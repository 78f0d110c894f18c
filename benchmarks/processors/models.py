"""Tiny bundles: every preset and family, two layers each. Needs the extra `export`.

Families are those that the reader of checkpoints knows: a new one is tried at once.
"""

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from transformers import PretrainedConfig, PreTrainedModel

from addnorm.export import sources
from addnorm.export.certificate.served import CertificationError
from addnorm.export.exporting import export
from addnorm.export.sources import Source
from addnorm.export.wishes import Wishes
from addnorm.model.checkpoints.families import FAMILIES
from addnorm.model.presets import PRESETS
from addnorm.model.transformer import Transformer, randomize
from addnorm.service.engine.manifest import Limits
from benchmarks.stress.requests import texts

# others are earlier names of these
FAMILY_NAMES = [name for name in FAMILIES if name in transformers.CONFIG_MAPPING]
VOCABULARY, POSITIONS, SEED = 200, 160, 0
NUM_WORDS = 150  # fewer: transformers adds special tokens to those of some families
WIDTH, NUM_HEADS, NUM_LAYERS = 128, 4, 2  # int8 does not pay for narrower ones
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": NUM_HEADS, "max_position_embeddings": POSITIONS + 8,
    "num_key_value_heads": 2,  # shared by heads of queries, in families that have such
    "local_attention": 32,  # windows shorter than its sequences, in families that have any
    "relative_attention": True, "position_buckets": 32, "pos_att_type": "c2p|p2c",
    "share_att_key": True, "norm_rel_ebd": "layer_norm",  # of the family with distances
}  # fmt: skip
# families whose feed-forward has a name of its own ignore the first
FEED_FORWARD = ("intermediate_size", "hidden_dim", "ffn_dim")
LANGUAGE_MODELS = (transformers.AutoModelForMaskedLM, transformers.AutoModelForCausalLM)
PAD, MASK = texts.SPECIAL[0], "[MASK]"
LABELS = ("contradiction", "neutral", "entailment")
# what the family with most heads has besides: name -> class, and what its configuration says
HEADED_FAMILY, EMBEDDER = "bert", "embedder"
HEADS: dict[str, tuple[Any, dict[str, Any]]] = {
    EMBEDDER: (transformers.AutoModel, {}),
    "reranker": (transformers.AutoModelForSequenceClassification, {"num_labels": 1}),
    "classifier": (
        transformers.AutoModelForSequenceClassification,
        {"id2label": dict(enumerate(LABELS))},
    ),
    "tagger": (transformers.AutoModelForTokenClassification, {"num_labels": 5}),
}
LATE_INTERACTION = "late-interaction"  # its queries are filled with tokens that no other sees
PRECISIONS = ("fp32", "int8")
# every order; a bias; windows; distances
WITH_LENS = (*PRESETS, HEADED_FAMILY, "mpnet", "modernbert", "deberta-v2")


def names() -> list[str]:
    return [*PRESETS, *FAMILY_NAMES, *HEADS, LATE_INTERACTION]


def export_all(
    wanted: Sequence[str],
    root: Path,
    checkpoints: Path,
    write: Callable[[Source, Path, str, int], object] = export,
    precisions: Sequence[str] = PRECISIONS,
) -> None:
    """Bundles of the wanted names under `root`, certified on this machine. RuntimeError names one
    that is refused."""
    for name, make in _makers(checkpoints):
        if name in wanted:
            source = make()
            try:
                write(replace(source, wishes=_wishes(name, source, precisions)), root, name, 1)
            except CertificationError as error:
                raise RuntimeError(f"{name} is not certified: {error}") from error


def _wishes(name: str, source: Source, precisions: Sequence[str]) -> Wishes:
    """int8 where it pays, and where random weights leave it certified: it moves words of a tagger
    that nobody trained from one label to another."""
    has_int8 = source.model.config.d_model >= WIDTH and name != "tagger"
    if not has_int8:
        precisions = [precision for precision in precisions if precision != "int8"]
    return Wishes(precisions=tuple(precisions), lens=name in WITH_LENS)


def _makers(checkpoints: Path) -> Iterator[tuple[str, Callable[[], Source]]]:
    """Names, and what reads or writes the source of each."""
    for name in PRESETS:
        yield name, partial(_preset, name)
    for family in FAMILY_NAMES:
        yield family, partial(_language_model, family, checkpoints / family)
    for name, (kind, fields) in HEADS.items():
        yield name, partial(_head_model, kind, fields, checkpoints / name)
    yield LATE_INTERACTION, partial(_late_interaction, checkpoints / LATE_INTERACTION)


def _preset(name: str) -> Source:
    """The smallest is as it is; the others are cut to the size of the families."""
    source = sources.preset(name)
    config = source.model.config
    if config.d_model < WIDTH:
        return source
    small = replace(
        config,
        n_layers=NUM_LAYERS,
        d_model=WIDTH,
        n_heads=NUM_HEADS,
        d_ff=4 * WIDTH,
        vocab_size=VOCABULARY,
        max_positions=POSITIONS,
        heads={output: replace(head, width=VOCABULARY) for output, head in config.heads.items()},
    )
    return replace(source, model=randomize(Transformer(small), SEED).eval())


def _language_model(family: str, folder: Path) -> Source:
    config = _config(family)
    kind = next(kind for kind in LANGUAGE_MODELS if type(config) in kind._model_mapping)
    # else transformers calls the special tokens of some families by other names
    _declare_tokens(folder, pad_token=PAD)
    return _checkpoint(_build(kind, config), folder)


def _head_model(kind: Any, fields: dict[str, Any], folder: Path) -> Source:
    return _checkpoint(_build(kind, _config(HEADED_FAMILY, **fields)), folder)


def _late_interaction(folder: Path) -> Source:
    """A folder as MultiVectorEncoder writes it: vectors of tokens, and MaxSim."""
    kinds = {
        "": "sentence_transformers.base.modules.transformer.Transformer",
        "1": "sentence_transformers.base.modules.dense.Dense",
        "2": "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
        "3": "sentence_transformers.base.modules.normalize.Normalize",
    }
    tokens = {"module_input_name": "token_embeddings"}
    files = {
        "modules.json": [
            {"idx": number, "name": str(number), "path": path, "type": kind}
            for number, (path, kind) in enumerate(kinds.items())
        ],
        "1/config.json": {
            "activation_function": "torch.nn.modules.linear.Identity",
            "in_features": WIDTH,
            "out_features": WIDTH // 2,
            **tokens,
        },
        "2/config.json": {"skiplist_words": ["."]},
        "3/config.json": tokens,
        "sentence_bert_config.json": {
            "query_expansion": {"strategy": "min", "attend": False, "length": 24}
        },
        "config_sentence_transformers.json": {"model_type": "MultiVectorEncoder"},
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    _declare_tokens(folder)
    layer = torch.nn.Linear(WIDTH, WIDTH // 2)
    torch.nn.init.normal_(layer.weight, 0.0, WIDTH**-0.5)
    torch.nn.init.normal_(layer.bias)
    weights = {f"linear.{name}": tensor.detach() for name, tensor in layer.named_parameters()}
    save_file(weights, folder / "1" / "model.safetensors")
    return _checkpoint(_build(transformers.AutoModel, _config(HEADED_FAMILY)), folder)


def _declare_tokens(folder: Path, **tokens: str) -> None:
    content = {"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": MASK, **tokens}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer_config.json").write_text(json.dumps(content))


def _config(family: str, **fields: Any) -> PretrainedConfig:
    sizes = {**SIZES, **dict.fromkeys(FEED_FORWARD, 4 * WIDTH), **fields}
    config = transformers.AutoConfig.for_model(family, **sizes)
    if (config.pad_token_id or 0) >= VOCABULARY:  # transformers makes no such model
        config.pad_token_id = 0
    return config


def _build(kind: Any, config: PretrainedConfig) -> PreTrainedModel:
    """Weights as wide as trained ones: transformers' own are so small that attention is flat."""
    torch.manual_seed(SEED)
    model: PreTrainedModel = kind.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def _checkpoint(model: PreTrainedModel, folder: Path) -> Source:
    transformers.utils.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
    words = texts.tokenizer(Limits(vocab_size=NUM_WORDS, max_positions=POSITIONS))
    words.add_special_tokens([MASK])
    words.enable_truncation(POSITIONS)
    tokenizer = json.loads(words.to_str())
    ids, pad_id = tokenizer["model"]["vocab"], model.config.pad_token_id or 0
    # the positions of some families count all tokens but the pad, so it must be no other one
    word_there = next(word for word, number in ids.items() if number == pad_id)
    ids[word_there], ids[PAD] = ids[PAD], pad_id
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return sources.checkpoint(folder)
