"""Checkpoints read wrongly on purpose, one thing at a time: what the comparison with the authors'
program must refuse."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import torch

from addnorm.export import sources
from addnorm.export.certificate import authors
from addnorm.export.certificate.forward import refuse_unlike
from addnorm.export.certificate.served import CertificationError
from addnorm.export.checking import served_by_torch
from addnorm.export.sources import Source
from addnorm.export.wishes import UsageError
from addnorm.export.words.folder_tokenizer import NoTexts
from addnorm.export.words.texts import Texts
from addnorm.model.config import Config
from addnorm.model.transformer import Transformer
from addnorm.service.errors import StartupError

LAYER = "blocks.1."  # of the blocks, one is changed: a table has one entry for all
NO_OTHER = 5e-5  # half of the limit; a scale before a norm changes less, by its eps
LIMITED = ("vocab_size", "max_positions")  # no answer changes with these, but which are refused
POOLINGS = ("mean", "first", "last", "max", "weighted_mean", "mean_sqrt")


class Misread(NamedTuple):
    """kind: what was changed. source: None where such a model cannot be made."""

    kind: str
    words: str
    source: Source | None


def misread(source: Source) -> Iterator[Misread]:
    """Every change of a checkpoint that was read rightly, and has its program."""
    yield from _configs(source)
    yield from _weights(source)
    yield from _facts(source)
    if not isinstance(source.texts, NoTexts):
        yield from _texts(source, source.texts)


def verdict(mutant: Misread, source: Source) -> str:
    """ "refused", "cannot be made", "no other answer" or "SURVIVED"."""
    if mutant.source is None:
        return "cannot be made"
    if mutant.kind in ("config", "weights") and _is_alike(mutant.source.model, source.model):
        return "no other answer"
    return "refused" if _is_refused(mutant.source) else "SURVIVED"


def _is_refused(source: Source) -> bool:
    """Whether the comparison with the program alone refuses it, not one with our own reading."""
    assert source.program
    assert source.folder
    reference = source.in_layout("padded")
    try:
        for original in sources.with_program(source, source.program).originals:
            refuse_unlike(reference, original, source.limits)
        if isinstance(source.texts, NoTexts):
            return False
        with served_by_torch(source) as path:
            bundle, name = path.model.bundle, source.program.name
            cases = authors.checks(path.service, bundle, source)
            return any(
                not difference <= limit
                for case, compare in cases
                if case.startswith(name)
                for _, difference, limit in compare("fp32")
            )
    except (CertificationError, UsageError, StartupError):
        return True


def _is_alike(one: Transformer, other: Transformer) -> bool:
    """Whether no answer differs: a change without effect, such as of what is not there."""
    config = other.config
    if [*one.heads] != [*other.heads]:
        return False
    ids = torch.arange(min(24, config.max_positions))[None] * 7 % config.vocab_size
    types = (torch.arange(ids.shape[1]) > 5).long()[None] % config.type_vocab_size
    mask, ids_seen = torch.ones_like(ids), []
    with torch.no_grad():
        for model in (one, other):
            rows = model(ids, mask, types if config.type_vocab_size > 1 else None)[0]
            ids_seen.append([rows, *(model.head(name, rows, mask) for name in model.heads)])
    return all(
        mine.shape == theirs.shape and (mine - theirs).abs().max() <= NO_OTHER * theirs.abs().max()
        for mine, theirs in zip(*ids_seen, strict=True)
    )


# ---- config.json: fields of Config, and of the heads in it ----
def _configs(source: Source) -> Iterator[Misread]:
    config = source.model.config
    for path, changed in _changes(config):
        if path.partition("=")[0] not in LIMITED:
            yield Misread("config", path, _of(source, changed))
    for output, head in config.heads.items():
        for path, changed in _changes(head):
            heads = {**config.heads, output: changed}
            yield Misread("config", f"{output}: {path}", _of(source, _made(config, heads=heads)))


def _of(source: Source, config: Config | None) -> Source | None:
    """The same weights under another configuration; those that it has no place for are left out.
    None if they do not fit."""
    if config is None:
        return None
    try:
        model = Transformer(config).eval()
        model.load_state_dict(source.model.state_dict(), strict=False)
    except (RuntimeError, ValueError, AssertionError, IndexError, TypeError):
        return None
    return replace(source, model=model)


def _changes(config: Any) -> Iterator[tuple[str, Any]]:
    """The name of a field, and a copy that has another value there; None if there is no such."""
    hints = get_type_hints(type(config))
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            for inner, changed in _changes(value):
                yield f"{field.name}.{inner}", changed and _made(config, **{field.name: changed})
        for other in _others(value, hints[field.name]):
            yield f"{field.name}={other!r}", _made(config, **{field.name: other})


def _made(config: Any, **changed: Any) -> Any:
    try:
        return replace(config, **changed)
    except ValueError:
        return None


def _others(value: Any, hint: Any) -> Sequence[Any]:
    if isinstance(value, bool):
        return [not value]
    if get_origin(hint) is Literal:
        return [other for other in get_args(hint) if other != value]
    if isinstance(value, float):
        return [max(1000 * value, 1e-2) if value < 0.1 else value * 1.5]  # less does not show
    if isinstance(value, int):
        return [other for other in (value - 1, value + 1, value // 2, 2 * value) if other > 0]
    if isinstance(value, tuple) and value and isinstance(value[0], int):
        return [value[1:]]
    return []


# ---- weights: entries of a family's table ----
def _weights(source: Source) -> Iterator[Misread]:
    for name, tensor in source.model.named_parameters():
        if name.startswith("blocks.") and not name.startswith(LAYER):
            continue
        for what, change in CHANGES.items():
            changed_tensor = change(tensor.detach())
            if changed_tensor is not None and not torch.equal(changed_tensor, tensor):
                yield Misread("weights", f"{name} {what}", _with(source, name, changed_tensor))


def _with(source: Source, name: str, tensor: torch.Tensor) -> Source:
    model = Transformer(source.model.config).eval()
    model.load_state_dict({**source.model.state_dict(), name: tensor})
    return replace(source, model=model)


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "one row on": lambda tensor: tensor.roll(1, 0),
    "left out": lambda tensor: torch.zeros_like(tensor) if tensor.dim() == 1 else None,
    "of the other half": lambda tensor: (
        tensor.roll(len(tensor) // 2, 0) if len(tensor) % 2 == 0 else None
    ),
    "transposed": lambda tensor: (
        tensor.T.contiguous() if tensor.dim() == 2 and len(set(tensor.shape)) == 1 else None
    ),
}


# ---- facts: what follows the body ----
def _facts(source: Source) -> Iterator[Misread]:
    assert source.program
    facts, tasks = source.facts, source.program.tasks
    changed: list[tuple[str, dict[str, Any]]] = []
    if "embed" in tasks:
        others = [name for name in POOLINGS if name != facts["pooling"]]
        if "pooled" not in source.model.heads:
            changed += [(f"pooling={name}", {"pooling": name}) for name in others]
    if {*tasks} & {"embed", "query", "document"}:
        changed.append(("normalize", {"normalize": not facts["normalize"]}))
    if labels := facts["labels"]:
        if {"classify", "tag"} & {*tasks} and len(labels) > 1:
            changed.append(("labels one on", {"labels": (*labels[1:], labels[0])}))
        if "classify" in tasks:
            is_many = facts.get("multi_label", False)
            is_number = facts.get("regression", False)
            if not is_number and not (len(labels) == 1 and not is_many):
                changed.append(("multi_label", {"multi_label": not is_many}))
            changed.append(("regression", {"regression": not is_number}))
    for name, prompt in (facts.get("prompts") or {}).items():
        other = {**facts["prompts"], name: prompt + "b "}
        changed.append((f"prompt {name}", {"prompts": other}))
    if facts.get("prompts") and "query" not in tasks:  # queries and documents have their own
        names = [None, *facts["prompts"]]
        now = facts.get("default_prompt_name")
        changed += [
            (f"default prompt {name}", {"default_prompt_name": name})
            for name in names
            if name != now
        ]
    for what, change in changed:
        yield Misread("facts", what, replace(source, facts={**facts, **change}))


# ---- texts: the tokenizer, its limit, its types, what a reranker writes around a pair ----
def _texts(source: Source, found: Texts) -> Iterator[Misread]:
    tokenizer = json.loads(found.tokenizer)
    others: list[tuple[str, dict[str, Any]]] = []
    is_limit = not found.input_types  # which have limits of their own
    if is_limit:
        others.append(("limit one less", {"max_text_tokens": found.max_text_tokens - 1}))
    if is_limit and found.max_text_tokens < source.model.config.max_positions:
        others.append(("limit one more", {"max_text_tokens": found.max_text_tokens + 1}))
    if source.model.config.type_vocab_size > 1 and {"rerank", "classify"} & {*source.program.tasks}:  # type: ignore[union-attr]
        others.append(("types of pairs", {"has_types": not found.has_types}))
    for part in ("normalizer", "pre_tokenizer", "post_processor"):
        # a template without special tokens changes no ids
        if tokenizer.get(part) and tokenizer[part].get("special_tokens") != {}:
            written = json.dumps({**tokenizer, part: None}).encode()
            others.append((f"without {part}", {"tokenizer": written}))
    if (tokenizer.get("normalizer") or {}).get("type") == "BertNormalizer":
        for name, value in tokenizer["normalizer"].items():
            if isinstance(value, bool):
                own = {**tokenizer["normalizer"], name: not value}
                written = json.dumps({**tokenizer, "normalizer": own}).encode()
                others.append((f"normalizer: {name}", {"tokenizer": written}))
    if found.pair_template:
        for index, part in enumerate(found.pair_template):
            own = [*found.pair_template]
            own[index] = part + "a "
            others.append((f"template, part {index}", {"pair_template": tuple(own)}))
    for what, change in others:
        changed = replace(found, **change)
        facts = {
            **source.facts,
            "texts_have_types": changed.has_types,
            "pair_template": changed.pair_template,
        }
        yield Misread("texts", what, replace(source, texts=changed, facts=facts))
    for kind, rules in found.input_types.items():
        for name, value in (("prompt_name", None), ("max_tokens", 5), ("skipped_ids", ())):
            if getattr(rules, name) != value:
                types = {**found.input_types, kind: rules.model_copy(update={name: value})}
                facts = {**source.facts, "input_types": types}
                yield Misread("texts", f"{kind}: {name}", replace(source, facts=facts))
