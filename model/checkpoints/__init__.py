"""Folders as transformers and sentence-transformers write them -> Config and weights.

Each family of models is a table in `families/`. What does not fit is refused.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from addnorm.model.checkpoints import fields as lists
from addnorm.model.checkpoints import json_files, sentence_transformers
from addnorm.model.checkpoints.families import FAMILIES, name_of
from addnorm.model.checkpoints.family import ACTIVATIONS, Family, HeadTable, Raw
from addnorm.model.checkpoints.reader import (
    CheckpointError,
    Reader,
    fill,
    fill_head,
    head_config,
    tie,
)
from addnorm.model.checkpoints.sentence_transformers import (
    SCORE_HEAD,
    SentenceTransformers,
    dense_head,
    fill_dense,
)
from addnorm.model.checkpoints.weights import other_formats
from addnorm.model.checkpoints.weights import read as read_weights
from addnorm.model.config import MAX_LAYERS, SIZES, Config, HeadConfig, refuse_large
from addnorm.model.transformer import Transformer
from addnorm.model.weight_files import BESIDE, FILES

__all__ = ["Checkpoint", "CheckpointError", "load_checkpoint", "look"]
ADAPTER = "adapter_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SCORED = ("Sigmoid", "Identity")  # what the server makes scores of pairs with
PROBLEMS = ("regression", "single_label_classification", "multi_label_classification")
DEFAULT_ACTIVATION = "sbert_ce_default_activation_function"
UNSUPPORTED_HEADS = ("ForMultipleChoice", "ForNextSentencePrediction")  # ends of classes
PARALLEL = "its attention and feed-forward run in parallel"
T5 = "its scores are not divided by the root of a head's dimensions, and it has a decoder"
UNSUPPORTED = {  # families: model_type -> reason, the nearest that can be exported
    "deberta": ("its queries and values alone have a bias", "deberta-v2"),
    "esm": ("embeddings are scaled by the share of masked tokens in their sequence", "bert"),
    "xlm-roberta-xl": ("its norms stand before attention, after an embedding", "xlm-roberta"),
    "roberta-prelayernorm": ("its norms stand before attention", "roberta"),
    "gpt_neo": ("its scores are not divided by the root of a head's dimensions", "gpt2"),
    "gpt_neox": (PARALLEL, "gpt2"),
    "gptj": (PARALLEL, "gpt2"),
    "phi": (PARALLEL, "gpt2"),
    "bloom": ("its positions are a bias that falls with distance (ALiBi)", "gpt2"),
    "gpt_bigcode": ("its heads share keys and values", "gpt2"),
    "xlnet": ("its positions are relative within attention", "bert"),
    "longformer": ("its attention is sparse", "roberta"),
    "big_bird": ("its attention is sparse", "roberta"),
    "clip": ("it has a tower of images", "bert"),
    "t5": (T5, "bert"),
    "mt5": (T5, "xlm-roberta"),
    "bart": ("it has an encoder and a decoder", "roberta"),
    "mbart": ("it has an encoder and a decoder", "xlm-roberta"),
    "mistral": ("there is no table of its weights", "llama"),
    "gemma3_text": ("its blocks have norms after attention and feed-forward too", "qwen3"),
}
ELSEWHERE = ("gemma3_text", "mistral")
NO_FOLDER = (
    "there is no folder {}; a model of the Hugging Face hub is named ORG/NAME, and a preset needs"
    " `addnorm export --preset`"
)


@dataclass(frozen=True)
class Checkpoint:
    """A folder's model and settings, read."""

    model: Transformer
    authors: SentenceTransformers  # the settings around the model
    model_type: str
    head: str | None  # the class of transformers that it is of
    labels: tuple[str, ...] | None  # of the logits, in order; None: they have no names
    problem_type: str | None  # of PROBLEMS: what follows the logits
    unused: list[str]  # keys, and prefixes ending in ".", that the forward does not use
    files: tuple[Path, ...]  # of weights, that were read
    dtypes: tuple[str, ...]  # of the stored weights
    folder: Path  # of config.json and the weights: that given, or one in it
    fields: Raw  # of config.json, and what sentence-transformers sets in them
    activation: str = SCORED[0]  # of SCORED: what its authors make the scores of pairs with
    unread: tuple[str, ...] = ()  # fields of its files that are not known, as FILE: NAME
    beside: tuple[str, ...] = ()  # files that are not served, with what they are


def load_checkpoint(
    folder: Path, ignore: tuple[str, ...] = (), labels: Sequence[str] | None = None
) -> Checkpoint:
    """The folder's model in evaluation mode.

    ignore: what the keys of weights begin with that are left out. labels: in place of config.json's
    names, in the order of the logits; empty for none.
    CheckpointError if anything is missing, unexpected or misshaped.
    """
    authors = sentence_transformers.read(folder)
    body = authors.transformer
    if problem := _problem(body):
        raise CheckpointError(problem)
    fields = config_fields(authors)
    _family(fields)  # before any weights are read
    weights = read_weights(body)
    family = _family(fields).spelled_as(weights.tensors)
    raw = family.raw(fields)
    reader = Reader.open(family, weights.tensors, ignore)
    config, table = read_config(family, raw), _head(family, raw, reader, ignore)
    if authors.is_embedder:  # of which sentence-transformers loads the body, whatever head it has
        table, reader.without_head = None, True
    if table:
        try:
            table = replace(table, **table.derived(raw))
        except ValueError as error:
            raise CheckpointError(f"config.json: {error}") from None
        tie(table, reader, raw)
    config = replace(config, heads=_heads(table, reader, config, authors))
    names = _labels(table, fields, config, labels, reader) if table else None
    filled = partial(_fill_model, config, raw=raw, table=table, authors=authors)
    shapes = reader.of_shapes()
    try:
        with torch.device("meta"):  # what does not fit is refused before any memory is taken
            filled(shapes)
    except RuntimeError:  # more than 2**63 bytes
        sizes = ", ".join(f"{name} {getattr(config, name)}" for name in SIZES)
        raise CheckpointError(f"config.json: its sizes are too large: {sizes}") from None
    unused = shapes.finish(body)
    model = filled(reader)
    for output, head in model.named_heads():
        is_tied = table and output == "logits" and table.tied and not authors.score
        if is_tied and torch.equal(head.linear.weight, model.tokens.weight):
            head.linear.weight = model.tokens.weight  # one copy in memory
    family_fields = lists.Fields(family.fields, family.no_effect)
    unread = lists.CONFIG.list_unread(family_fields.list_unread(fields))
    stored = [weights, *authors.stored]
    return Checkpoint(
        model=model.eval(),
        authors=authors,
        model_type=str(name_of(fields)),
        head=table.classes[0] if table else None,
        labels=names,
        problem_type=problem_type_of(fields),
        unused=unused,
        files=tuple(file for part in stored for file in part.files),
        dtypes=tuple(sorted({dtype for part in stored for dtype in part.dtypes})),
        folder=body,
        fields=fields,
        activation=_activation(authors, fields, config),
        unread=(*(f"config.json: {name}" for name in unread), *authors.unread),
        beside=tuple(f"{file} ({BESIDE[file]})" for file in BESIDE if (folder / file).is_file()),
    )


def look(folder: Path, files: Iterable[str]) -> None:
    """CheckpointError if the settings of a folder are not of a model that can be exported, or if
    there are no weights among its files. They need not be there yet."""
    body = sentence_transformers.transformer_of(folder)
    if problem := _problem(body, files := [*files]):
        raise CheckpointError(problem)
    fields = json_files.settings(body / "config.json")
    family = _family(fields)
    read_config(family, family.raw(fields))
    place = body.relative_to(folder).as_posix()
    here = [name for name in files if place == "." or name.startswith(f"{place}/")]
    if not any(name.rpartition("/")[2] in FILES for name in here) and (
        advice := other_formats(here)
    ):
        raise CheckpointError(f"there is no {FILES[0]} in {folder.name}: {advice}")


def config_fields(authors: SentenceTransformers) -> Raw:
    """The fields of config.json. Where the author had sentence-transformers set some that its class
    of transformers has, these win. CheckpointError for one that is not supported."""
    config = json_files.settings(authors.transformer / "config.json")
    family = FAMILIES.get(name_of(config) or "")
    field_names = {*config, *lists.CONFIG.read, *(family.fields if family else ())}
    if "is_causal" not in config:
        field_names.discard("is_causal")  # no class has it by itself
    overrides = authors.arguments("config_kwargs")
    fields = {**config, **{name: value for name, value in overrides.items() if name in field_names}}
    lists.CONFIG.refuse("config.json", fields)
    lists.TOKENIZER.refuse(
        TOKENIZER_CONFIG, json_files.settings(authors.transformer / TOKENIZER_CONFIG)
    )
    return fields


def _activation(authors: SentenceTransformers, fields: Raw, config: Config) -> str:
    """CrossEncoder's activation of one logit. CheckpointError if the server has another."""
    logits = config.heads.get("logits")
    if logits is None or logits.width > 1 or logits.pick == "every":
        return SCORED[0]
    nested = fields.get("sentence_transformers")
    activations = {
        "config_sentence_transformers.json: activation_fn": authors.activation,
        "config.json: sentence_transformers.activation_fn": nested.get("activation_fn")
        if isinstance(nested, dict)
        else None,
        f"config.json: {DEFAULT_ACTIVATION}": fields.get(DEFAULT_ACTIVATION),
    }
    source, name = next(
        ((w, n) for w, n in activations.items() if n is not None), ("", "torch.Sigmoid")
    )
    package, _, kind = str(name).rpartition(".")
    if package.partition(".")[0] != "torch" or kind not in SCORED:
        raise CheckpointError(
            f"{source} is {name!r}, served are {' and '.join(SCORED)} of torch.nn: name one of them"
            " there, and make of raw scores what you need"
        )
    return kind


def _fill_model(
    config: Config, reader: Reader, raw: Raw, table: HeadTable | None, authors: SentenceTransformers
) -> Transformer:
    """The model with what the reader has."""
    model = Transformer(config)
    with torch.no_grad():
        fill(model, reader, raw)
        for output, head in model.named_heads():
            if output in authors.dense:
                fill_dense(head, authors.dense[output])
            elif table and authors.score:
                authors.score.fill(head, table, reader, config)
            elif table:
                fill_head(head, table, reader)
    return model


def problem_type_of(fields: Raw) -> str | None:
    """CheckpointError if it is none of transformers'."""
    problem_type = fields.get("problem_type")
    if problem_type is not None and problem_type not in PROBLEMS:
        choices = ", ".join(PROBLEMS)
        raise CheckpointError(f"config.json: problem_type is {problem_type!r}, known are {choices}")
    return problem_type


def _problem(folder: Path, files: Iterable[str] | None = None) -> str | None:
    """The reason why the folder cannot be read at all. None if it is one that has a config.json.
    files: that it will have."""
    if folder.is_file():
        return f"{folder} is a file: name the folder that it lies in"
    if not folder.is_dir():
        return NO_FOLDER.format(folder)
    if (folder / ADAPTER).is_file():
        return (
            f"{folder / ADAPTER} belongs to an adapter, which transformers adds to the weights of"
            " its base model: merge it with peft's merge_and_unload(), and export the folder of its"
            " save_pretrained()"
        )
    if not (folder / "config.json").is_file():
        if files is None:
            files = [path.relative_to(folder).as_posix() for path in folder.glob("**/*")]
        advice = other_formats(files) or "name the folder that holds it beside the weights"
        return f"there is no config.json in {folder}: {advice}"
    return None


def _heads(
    table: HeadTable | None, reader: Reader, config: Config, authors: SentenceTransformers
) -> dict[str, HeadConfig]:
    """Heads by output: the head that came with the transformer, and those made of Dense modules."""
    if authors.score:
        authors.score.check(table, config)
    stored_head = SCORE_HEAD if authors.score else table and head_config(table, reader, config)
    heads = {"logits": stored_head} if table and stored_head else {}
    for output, layers in authors.dense.items():
        if output in heads:
            raise CheckpointError(f"{layers[0].folder}: the weights have a head for {output} too")
        pick = authors.pooling if output in ("pooled", "logits") else "every"
        heads[output] = dense_head(layers, pick)
        if output == "logits" and (width := heads[output].width) > 1:
            raise CheckpointError(
                f"{layers[-1].folder}: it makes {width} scores of each pair, supported is 1"
            )
    return heads


def _family(fields: Raw) -> Family:
    """CheckpointError for a family that is not supported, with the reason."""
    model_type = name_of(fields)
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    is_said = "missing" if model_type is None else repr(model_type)
    message = f"model_type is {is_said}; supported are {', '.join(sorted(FAMILIES))}"
    if model_type in UNSUPPORTED:
        reason, nearest = UNSUPPORTED[model_type]
        served = ". text-embeddings-inference serves it" if model_type in ELSEWHERE else ""
        message = (
            f"model_type {model_type!r} is not supported: {reason}. The nearest that is:"
            f" {nearest!r}{served}"
        )
    raise CheckpointError(f"config.json: {message}")


def read_config(family: Family, raw: Raw) -> Config:
    """The fields of config.json, with the family's defaults -> Config, without heads."""
    for name, supported in family.only.items():
        value = raw.get(name)
        equal = [option for option in supported if option == value]
        if not any(
            isinstance(option, bool) == isinstance(value, bool) for option in equal
        ):  # 1 == True
            choices = " or ".join(map(repr, supported))
            raise CheckpointError(f"config.json: {name} is {value!r}, supported is {choices}")
    try:
        fields = {field_name: raw[config_key] for field_name, config_key in family.config.items()}
        refuse_large(family.config["n_layers"], fields["n_layers"], MAX_LAYERS)  # before lists
        fields |= {**family.fixed, **family.derived(raw)}
        # a decoder may see both sides of a token. Of an encoder that sees one, transformers masks
        # what follows only where a batch has no pads
        is_causal = raw.get("is_causal")
        if is_causal and not fields.get("causal"):
            message = "is_causal is true, and this family's tokens see both sides: not supported"
            raise ValueError(message)
        if is_causal is not None and not is_causal:
            fields["causal"] = False
    except KeyError as error:
        raise CheckpointError(f"config.json: {error.args[0]} is missing") from None
    except (TypeError, ValueError) as error:  # such as a text where a number is needed
        raise CheckpointError(f"config.json: {error}") from None
    activation = fields["activation"]
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        name = family.config["activation"]
        activations = ", ".join(ACTIVATIONS)
        raise CheckpointError(f"config.json: {name} is {activation!r}, supported are {activations}")
    try:
        return Config(**{**fields, "activation": ACTIVATIONS[activation]})
    except ValueError as error:
        names = ", ".join(
            f"{field_name} is {config_key}"
            for field_name, config_key in family.config.items()
            if field_name != config_key and re.search(rf"\b{field_name}\b", str(error))
        )
        there = f"; there {names}" if names else ""
        raise CheckpointError(f"config.json: {error}{there}") from None


def _head(family: Family, raw: Raw, reader: Reader, ignore: tuple[str, ...]) -> HeadTable | None:
    """The head that the class in config.json has; if it names no head, the one whose keys the
    weights have."""
    candidates = [
        head for head in family.heads if not (ignore and f"{head.linear}.weight".startswith(ignore))
    ]
    for name in architectures(raw):
        if name.endswith(UNSUPPORTED_HEADS):
            raise CheckpointError(
                f"config.json: the head of {name} is not supported. For the body alone, remove"
                " architectures there, and leave the head's weights out with --ignore"
            )
        matches = [head for head in family.heads if name.endswith(head.classes)]
        if matches:  # two where releases of transformers keep it in two ways
            head = next((head for head in matches if _is_stored(head, reader)), matches[0])
            is_there = _is_stored(head, reader) or not head.may_be_absent
            return head if head in candidates and is_there else None
    stored = [head for head in candidates if _is_stored(head, reader)]
    if len(stored) > 1:
        key, classes = f"{stored[0].linear}.weight", [head.classes[0] for head in stored]
        raise CheckpointError(
            f"config.json: architectures is {raw.get('architectures')}, so {key} may be the head"
            f" of {' or '.join(classes)}: name the class there, or leave it out with"
            f" --ignore {stored[0].linear}"
        )
    return stored[0] if stored else None


def architectures(fields: Raw) -> Sequence[str]:
    """The classes of transformers that config.json names. CheckpointError if they are no names."""
    classes = fields.get("architectures") or ()
    classes = (classes,) if isinstance(classes, str) else classes
    if not isinstance(classes, list | tuple) or not all(isinstance(name, str) for name in classes):
        raise CheckpointError(
            f"config.json: architectures is {classes!r}: a list of names is needed"
        )
    return classes


def _is_stored(head: HeadTable, reader: Reader) -> bool:
    """True if the weights have its dense layer, if it needs one, and its linear layer, unless that
    may be tied."""
    dense = [head.dense] if head.dense and not head.dense_is_optional else []
    linear = [] if head.may_be_absent else [head.linear]
    return all(f"{key}.weight" in reader for key in dense + linear)


def _labels(
    table: HeadTable, fields: Raw, config: Config, chosen: Sequence[str] | None, reader: Reader
) -> tuple[str, ...] | None:
    """CheckpointError if there is not one for each logit."""
    width, key = config.heads["logits"].width, table.linear
    if chosen is not None:
        names: Sequence[str] = chosen
        origin = "--labels names"
    elif table.labels is True:
        names = _names_of(fields, width)
        origin = "config.json: id2label names"
    else:
        names = table.labels or ()
        origin = f"{table.classes[0]} has"
    if not names:
        return None
    # of a head that the weights lack the width is not known; that it is missing is said later
    if len(names) != width and f"{key}.weight" in reader:
        raise CheckpointError(
            f"{origin} {len(names)} labels, the head ({key}) has {width}: name a file of {width}"
            " lines with --labels FILE, or go without with --labels none"
        )
    return tuple(names)


def labels_of(fields: Raw, width: int, chosen: Sequence[str] | None) -> tuple[str, ...] | None:
    """The labels of logits that no table describes. chosen: in place of config.json's; empty for
    none. CheckpointError if there is not one for each logit."""
    names = _names_of(fields, width) if chosen is None else chosen
    if names and len(names) != width:
        origin = "config.json: id2label names" if chosen is None else "--labels names"
        raise CheckpointError(
            f"{origin} {len(names)} labels, the program answers with {width} logits: name a file of"
            f" {width} lines with --labels FILE, or go without with --labels none"
        )
    return tuple(names) or None


def _names_of(fields: Raw, width: int) -> Sequence[str]:
    """The labels that config.json names, or LABEL_0 and so on."""
    id2label = fields.get("id2label")
    if id2label and fields.get("num_labels") not in (None, len(id2label)):
        id2label = None  # as many labels as num_labels says, without names
    names = _in_order(id2label) if id2label else [f"LABEL_{i}" for i in range(width)]
    # for zero-shot classification transformers takes label2id's number, and the server the
    # place among the names
    numbers = fields.get("label2id")
    for name, number in numbers.items() if isinstance(numbers, dict) else ():
        is_asked = isinstance(name, str) and name.lower().startswith("entail")
        if is_asked and [label for at, label in enumerate(names) if at == number] != [name]:
            raise CheckpointError(
                f"config.json: label2id has {name!r}: {number!r}, and id2label has another name"
                " there: make the two agree"
            )
    return names


def _in_order(id2label: Any) -> list[str]:
    """The labels of `id2label`, which has one for each logit's number, as a text."""
    keys = map(str, range(len(id2label)))
    names = [id2label.get(key) for key in keys] if isinstance(id2label, dict) else [None]
    labels = [name for name in names if isinstance(name, str)]
    if len(labels) != len(names):
        raise CheckpointError(
            f"config.json: id2label is {id2label!r}: a name for each logit is needed, as in"
            ' {"0": "no", "1": "yes"}; name a file of labels with --labels FILE, or go without with'
            " --labels none"
        )
    return labels
