"""The sources of bundles: a preset and its seed, a checkpoint folder, or a model in memory."""

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from tokenizers import Tokenizer

from addnorm.export.sources import UsageError, download, texts
from addnorm.export.sources import program as programs
from addnorm.export.sources.folder_tokenizer import NoTexts
from addnorm.export.sources.original import Original, OriginalError, digest
from addnorm.export.sources.program import (
    Program,
    ProgramError,
    Sample,
    ids_of,
    split_task,
    texts_of,
)
from addnorm.export.sources.texts import AS_WRITTEN, Texts
from addnorm.model import presets
from addnorm.model.checkpoints import Checkpoint, CheckpointError, Choices, load_checkpoint, look
from addnorm.model.checkpoints.families import FAMILIES
from addnorm.model.config import Config, Pick
from addnorm.model.layout import LAYOUTS
from addnorm.model.transformer import Head, Transformer, shorten
from addnorm.service.engine.files import sha256
from addnorm.service.engine.manifest import Limits, Pooling, Task, tasks_of

SEED = 42
HUB = ("repository", "revision")  # of a source's origin
OUTPUTS = ("logits", "pooled", "token_vectors")  # that heads can make
OWN_READING = {"kind": "own reading", "name": "Addnorm's own reading"}


@dataclass(frozen=True)
class Comparison:
    """The program whose answers a checkpoint's must equal.

    kind: the program of its authors, or our reading of the folder alone. runs_code: whether the
    folder's own code may be run for it. samples: texts, pairs and token ids to compare beside ours.
    """

    kind: Literal["author", "none"] = "author"
    runs_code: bool = False
    samples: tuple[Sample, ...] = ()


AUTHOR = Comparison()


@dataclass(frozen=True)
class Source:
    """A model, and what its bundle's manifest says beside its shape.

    origin: the manifest's `source`. facts: its pooling, normalize, labels and prompts. texts: how
    it takes texts, or why it takes none. folder: where transformers finds its tokenizer. loaded:
    what was found in that folder. originals: the forward of whoever wrote the model, for each of
    its outputs. program: that they are of, where it takes texts too. pad_id: an id that this
    forward takes for a pad wherever it stands. samples: compared beside the certificate's own.
    """

    name: str
    model: Transformer
    origin: Mapping[str, Any]
    facts: Mapping[str, Any]
    texts: Texts | NoTexts
    folder: Path | None = None
    loaded: Checkpoint | None = None
    originals: tuple[Original, ...] = ()
    program: Program | None = None
    pad_id: int | None = None
    samples: tuple[Sample, ...] = ()

    @property
    def limits(self) -> Limits:
        """The model's own, and that of its texts."""
        config, limits = self.model.config, dict[str, Any]()
        if not isinstance(self.texts, NoTexts):
            limits["max_text_tokens"] = self.texts.max_text_tokens
        return Limits(
            max_positions=config.max_positions,
            vocab_size=config.vocab_size,
            type_vocab_size=config.type_vocab_size,
            pad_id=self.pad_id,
            **limits,
        )

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What it is made for."""
        config, labels = self.model.config, self.facts["labels"]
        return tasks_of(config.heads, labels, config.vocab_size, config.causal)

    def compared_with(self) -> dict[str, Any]:
        """For its certificate: the model or program that the bundle is proved to equal."""
        outputs = [original.compared.output for original in self.originals]
        if self.program is not None:
            found = self.program.record(outputs)
        elif self.originals:
            found = self.originals[0].record()
        elif self.loaded:
            found = OWN_READING
        else:
            found = {"kind": "itself" if "module" in self.origin else next(iter(self.origin))}
        return {**found, **self.samples_record()}

    def samples_record(self) -> dict[str, Any]:
        """How many samples there are, and their sha256."""
        if not self.samples:
            return {}
        written = json.dumps([texts_of(self.samples), ids_of(self.samples)]).encode()
        return {"samples": len(self.samples), "samples_sha256": hashlib.sha256(written).hexdigest()}

    def in_layout(self, layout: str) -> Transformer:
        """The model with the same weights, not copied."""
        twin = copy.copy(self.model)
        twin.layout = LAYOUTS[layout]
        return twin


def preset(name: str, seed: int = SEED) -> Source:
    """KeyError for an unknown name."""
    facts = {"pooling": "mean", "normalize": False, "labels": None}
    no_texts = NoTexts(f"preset {name} has no tokenizer")
    model = presets.build(name, seed=seed)
    return Source(name, model, {"preset": name, "seed": seed}, facts, no_texts)


def load(
    name: str,
    choices: Choices | None = None,
    max_length: int | None = None,
    reference: Comparison = AUTHOR,
) -> Source:
    """The source with this name: a folder, or `ORG/NAME[@REVISION]` of the Hugging Face hub, which
    is downloaded.

    DownloadError if it cannot be, and the errors of `checkpoint`.
    """
    address = download.address(name)
    if address is None:
        return checkpoint(Path(name), choices, max_length, reference)
    found = download.fetch(*address, with_code=reference.runs_code, look=look)
    source = checkpoint(found.folder, choices, max_length, reference)
    short = found.repository.rpartition("/")[2]
    where = {"checkpoint": short, "repository": found.repository, "revision": found.revision}
    return replace(source, name=short, origin={**source.origin, **where})


def checkpoint(
    folder: Path,
    choices: Choices | None = None,
    max_length: int | None = None,
    reference: Comparison = AUTHOR,
) -> Source:
    """max_length: tokens of a sequence, and of a text in place of the authors' limit.

    CheckpointError if the folder does not fit, UsageError if max_length does not, or if its
    authors' program cannot be run.
    """
    choices = choices or Choices()
    loaded = load_checkpoint(folder, choices)
    hashes = {file.relative_to(folder).as_posix(): sha256(file) for file in loaded.files}
    folder = folder.resolve()
    origin = {"checkpoint": folder.name, "weights": hashes, "unused": loaded.unused}
    # lists for tuples: so JSON gives it back
    chosen: dict[str, Any] = {
        "ignore": list(choices.ignore) or None,
        "labels": None if choices.labels is None else list(choices.labels),
        "max_length": max_length,
        **(AS_WRITTEN if choices.tokenizer_as_written else {}),
    }
    origin |= {name: value for name, value in chosen.items() if value is not None}
    facts = {
        "pooling": loaded.pooling,
        "normalize": loaded.normalize,
        "labels": loaded.labels,
        "multi_label": loaded.problem_type == "multi_label_classification",
        "prompts": loaded.prompts,
        "default_prompt_name": loaded.default_prompt_name,
    }
    refuse_one_tag(loaded.labels, _has_tags(loaded.model.config), "--labels none")
    if loaded.problem_type == "regression":
        facts["regression"] = True
    if loaded.similarity != "cosine":
        facts["similarity"] = loaded.similarity
    as_written = choices.tokenizer_as_written
    config = loaded.model.config
    found = texts.read_for(
        folder, config.vocab_size, config.max_positions, max_length, "--max-length", as_written
    )
    if max_length is not None:
        shorten(loaded.model, max_length)
    facts |= texts.facts_of(found)
    facts["input_types"] = {} if isinstance(found, NoTexts) else dict(found.input_types)
    _refuse_pads_around(loaded, found)
    source = Source(
        folder.name, loaded.model, origin, facts, found, folder, loaded, samples=reference.samples
    )
    if reference.kind == "none":
        return source
    limit = None if isinstance(found, NoTexts) else found.max_text_tokens
    logits = loaded.model.config.heads.get("logits")
    num_labels = logits.width if logits and loaded.labels else None
    # sentence-transformers lets texts have more tokens than a model that counts from its pad can
    is_cut = max_length is not None or limit == loaded.model.config.max_positions
    try:
        program = programs.load(
            folder, limit, loaded.head, num_labels, is_cut, reference.runs_code, as_written
        )
    except ProgramError as error:
        raise UsageError(
            f"{folder.name} cannot be compared with the program of its authors: {error}. Go without"
            " with --reference none, and the certificate says so"
        ) from error
    return with_program(source, program)


def module(
    model: Transformer,
    *,
    labels: Sequence[str] | None,
    pooling: str,
    normalize: bool,
    tokenizer: Path | None,
    max_length: int | None,
    reference: Callable[..., Any] | None = None,
    pad: int | None = None,
    samples: tuple[Sample, ...] = (),
) -> Source:
    """A copy of a model in memory, on the CPU and in evaluation mode.

    reference, pad: see `Original`.

    UsageError if the arguments do not fit, CheckpointError if the tokenizer's folder is broken.
    """
    if found := [*_problems(model, labels, pooling)]:
        raise UsageError("; ".join(found))
    refuse_one_tag(labels, _has_tags(model.config), "labels=None")
    name, twin = type(model).__qualname__, copy.deepcopy(model).cpu().eval()
    origin: dict[str, Any] = {"module": name, "sha256": digest(twin)}
    if max_length is not None:
        origin["max_length"] = max_length
    facts = {
        "pooling": pooling,
        "normalize": normalize,
        "labels": None if labels is None else tuple(labels),
    }
    config = model.config
    with_texts = texts.read_for(
        tokenizer, config.vocab_size, config.max_positions, max_length, "max_length"
    )
    if max_length is not None:
        shorten(twin, max_length)
    facts |= texts.facts_of(with_texts)
    if tokenizer is not None and isinstance(with_texts, NoTexts):
        raise UsageError(f"the tokenizer cannot be used: {with_texts}")
    originals = () if reference is None else (_original(reference, twin.config, pooling, pad),)
    more: dict[str, Any] = {"originals": originals, "pad_id": pad, "samples": samples}
    return Source(name, twin, origin, facts, with_texts, tokenizer, **more)


def _problems(model: Transformer, labels: Sequence[str] | None, pooling: str) -> Iterator[str]:
    """Why a model in memory cannot become a bundle, in words."""
    if not isinstance(model, Transformer):
        kind = type(model).__qualname__
        yield f"the model is a {kind}, an addnorm.model.transformer.Transformer is needed"
        return
    for name, tensor in model.state_dict().items():  # the first that does not fit
        if tensor.is_meta:
            yield f"{name} has no values: it is on the device meta"
            break
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            how = "export a copy, `copy.deepcopy(model).float()`"
            yield f"{name} is {tensor.dtype}, torch.float32 is needed: {how}"
            break
    heads = model.config.heads
    for name, module in model.heads.items():
        if name not in heads or not isinstance(module, Head):
            yield f"heads.{name} is not of the model's Config: name it there, with a HeadConfig"
    for name in sorted(heads):
        if name not in OUTPUTS:
            yield f"there is a head {name!r}: heads can make {', '.join(OUTPUTS)}"
    if "token_vectors" in heads and (pick := heads["token_vectors"].pick) != "every":
        yield f"the head of token_vectors picks {pick!r}: 'every' is needed"
    if "pooled" in heads and (pick := heads["pooled"].pick) != pooling:
        yield f"the head of pooled vectors picks {pick!r}, pooling is {pooling!r}"
    if labels is not None:
        head = heads.get("logits")
        if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
            yield f"labels {labels!r}: a list of strings is needed"
        elif head is None:
            yield "labels are of logits, and the model has no such head"
        elif len(labels) != head.width:
            yield f"there are {len(labels)} labels, the head has {head.width} logits"
    if pooling not in (known := get_args(Pooling)):
        yield f"pooling {pooling!r}: {', '.join(known)} are known"


def _original(reference: Any, config: Config, pooling: str, pad: int | None) -> Original:
    try:
        return Original(reference, config, cast(Pick, pooling), pad)
    except OriginalError as error:
        raise UsageError(str(error)) from error


def with_program(source: Source, program: Program) -> Source:
    """A checkpoint whose answers must be the program's: what it makes of ids and of texts.
    UsageError if it makes something else than such a model."""
    assert source.loaded
    pad = _pad(source.loaded)
    ids = [int(pad == 0)] * min(3, source.model.config.max_positions)
    types = [0] * len(ids) if source.model.config.type_vocab_size > 1 else None
    if not source.facts["labels"]:
        for task in [task for task in program.tasks if split_task(task)[0] == "tag"]:
            del program.tasks[task]  # which is not served without labels
    parts = program.parts(ids, types)
    originals = tuple(
        _original(part, source.model.config, source.facts["pooling"], pad) for part in parts
    )
    heads = source.model.config.heads
    for output, of_every_token in (original.compared for original in originals):
        if output in heads and of_every_token != (heads[output].pick == "every"):
            kinds = "of each token", "of each sequence"
            says, ours = kinds if of_every_token else kinds[::-1]
            raise UsageError(f"{program.name} makes {output} {says}, and these are {ours}")
    return replace(source, originals=originals, program=program)


def _pad(loaded: Checkpoint) -> int | None:
    """The id that the family takes for a pad wherever it stands, whatever the mask says: it counts
    positions by it, or picks the last token before it."""
    family = FAMILIES[loaded.model_type]
    raw = family.raw(loaded.fields)
    is_asked = family.position_offset(raw) or _picks_last(loaded)
    return raw.get("pad_token_id") if is_asked else None


def _picks_last(loaded: Checkpoint) -> bool:
    """True if it classifies by the last token, to transformers the last that is no pad."""
    picks = {head.pick for head in loaded.model.config.heads.values()}
    return "last" in picks and (loaded.head or "").endswith("ForSequenceClassification")


def refuse_one_tag(labels: Sequence[str] | None, has_tags: bool, without: str) -> None:
    """has_tags: the labels are of every token. without: what exports it without labels."""
    if labels and len(labels) == 1 and has_tags:
        raise UsageError(
            f"the label {labels[0]!r} is the only one of every token: a softmax of one number is"
            f" 1.0, as transformers answers. Export it with {without}, and ask /v1/infer for logits"
        )


def _has_tags(config: Config) -> bool:
    """True if it has logits of every token."""
    head = config.heads.get("logits")
    return head is not None and head.pick == "every"


def _refuse_pads_around(loaded: Checkpoint, found: Texts | NoTexts) -> None:
    """CheckpointError if the tokenizer puts around texts what the family takes for a pad there."""
    if isinstance(found, NoTexts) or (pad := _pad(loaded)) is None:
        return
    around = Tokenizer.from_str(found.tokenizer.decode()).encode("").ids
    if pad in (around[-1:] if _picks_last(loaded) else around):
        why = "classifies the token before it" if _picks_last(loaded) else "gives it no position"
        raise CheckpointError(
            f"{loaded.folder}: the tokenizer puts pad_token_id {pad} of config.json around each"
            f" text, and transformers {why}: name the pad of the training there, or take the"
            " tokenizer's files out and send token ids"
        )


def source_of_manifest(
    origin: Mapping[str, Any], name: str | None, reference: Comparison = AUTHOR
) -> Source:
    """The source that a manifest names. name: of the checkpoint, where it is one.

    A repository without a revision is that of the manifest. A folder is compared by its weights,
    wherever the manifest's were downloaded from. UsageError if more is needed to make it again.
    """
    if "preset" in origin:
        return preset(origin["preset"], origin["seed"])
    if "module" in origin:
        raise UsageError(
            f"it was made of a {origin['module']} in memory: verify it in Python, where that model"
            " is, with addnorm.export.verify_bundle(path, model), or verify_onnx"
        )
    where = {key: origin[key] for key in HUB if key in origin}
    address = "@".join(where.values())
    if name is None:
        known = f"--checkpoint {address or 'DIR'}"
        raise UsageError(f"it was made from {origin['checkpoint']}: name it with {known}")
    labels = origin.get("labels")
    choices = Choices(
        tuple(origin.get("ignore", ())),
        labels if labels is None else tuple(labels),
        texts.is_as_written(origin),
    )
    again = address if where and name == where["repository"] else name
    source = load(again, choices, origin.get("max_length"), reference)
    return replace(source, origin={**where, **source.origin})
