"""The sources of bundles: a preset and its seed, a checkpoint folder, or a model in memory."""

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

import torch
from tokenizers import Tokenizer

from addnorm.export import download
from addnorm.export.reference import program as programs
from addnorm.export.reference.gliner import Extraction
from addnorm.export.reference.original import Original, OriginalError, digest
from addnorm.export.reference.program import Program, ProgramError, split_task
from addnorm.export.wishes import NO_WISHES, OF_GRAPHS, UsageError, Wishes
from addnorm.export.words import texts
from addnorm.export.words.folder_tokenizer import NoTexts
from addnorm.export.words.texts import Texts
from addnorm.model import presets
from addnorm.model.checkpoints import Checkpoint, CheckpointError, load_checkpoint, look
from addnorm.model.checkpoints.families import FAMILIES
from addnorm.model.config import Config, Pick
from addnorm.model.layout import LAYOUTS
from addnorm.model.transformer import Head, Transformer, add_unseen, shorten
from addnorm.service.engine.files import sha256
from addnorm.service.engine.manifest import Limits, Pooling, Task, compares_tokens, tasks_of

SEED = 42
HUB = ("repository", "revision")  # of a source's origin
WEIGHTS = (".safetensors", ".bin")  # ends of files
OUTPUTS = ("logits", "pooled", "token_vectors")  # that heads can make
# fields of `Wishes` that a folder with a table reads
CHECKPOINT_READS = (
    *OF_GRAPHS, "keep_recall", "ignore", "tokenizer_as_written", "runs_code", "max_length",
    "labels", "own_reading", "samples", "windows", "windows_label",
)  # fmt: skip
WITHOUT = ". To export without this comparison, use --reference none; the certificate records it"
OWN_READING = {"kind": "own reading", "name": "Addnorm's own reading"}


@dataclass(frozen=True)
class Source:
    """A model, and what its bundle's manifest says beside its shape.

    origin: the manifest's `source`. facts: its pooling, normalize, labels and prompts. texts: how
    it takes texts, or why it takes none. folder: where transformers finds its tokenizer. loaded:
    what was found in that folder. originals: the forward of whoever wrote the model, for each of
    its outputs. program: that they are of, where it takes texts too. pad_id: an id that this
    forward takes for a pad wherever it stands. wishes: that it was opened with. extraction: what is
    behind a model that finds names of any labels.
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
    wishes: Wishes = NO_WISHES
    extraction: Extraction | None = None

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
        """The tasks that it is made for."""
        if self.extraction:
            return ("extract",)
        config, labels = self.model.config, self.facts["labels"]
        tasks = tasks_of(config.heads, labels, config.vocab_size, config.causal)
        input_types = () if isinstance(self.texts, NoTexts) else self.texts.input_types
        return (*tasks, "rerank") if compares_tokens(config.heads, input_types) else tasks

    def compared_with(self) -> dict[str, Any]:
        """For its certificate: the model or program that the bundle is proved to equal."""
        outputs = [original.compared.output for original in self.originals]
        if self.program is not None:
            record = self.program.record(outputs)
        elif self.originals:
            record = self.originals[0].record()
        elif self.loaded:
            record = OWN_READING
        else:
            record = {"kind": "itself" if "module" in self.origin else next(iter(self.origin))}
        if self.extraction:
            record = {**record, "names": self.extraction.program}
        return {**record, **self.samples_record()}

    def samples_record(self) -> dict[str, Any]:
        """The number of samples, and their sha256."""
        wishes = self.wishes
        if not wishes.samples:
            return {}
        sha256 = hashlib.sha256(json.dumps([wishes.texts, wishes.token_ids]).encode()).hexdigest()
        return {"samples": len(wishes.samples), "samples_sha256": sha256}

    def in_layout(self, layout: str) -> Transformer:
        """The model with the same weights, not copied."""
        twin = copy.copy(self.model)
        twin.layout = LAYOUTS[layout]
        return twin


def preset(name: str, wishes: Wishes = NO_WISHES, seed: int = SEED) -> Source:
    """KeyError for an unknown name. UsageError for wishes that a preset does not read."""
    wishes.check_read("a preset", OF_GRAPHS)
    facts = {"pooling": "mean", "normalize": False, "labels": None}
    no_texts = NoTexts(f"preset {name} has no tokenizer")
    model = presets.build(name, seed=seed)
    return Source(name, model, {"preset": name, "seed": seed}, facts, no_texts, wishes=wishes)


def fetch(address: str, wishes: Wishes = NO_WISHES) -> tuple[Path, Mapping[str, str]]:
    """A folder, and what its address adds to the origin. address: the folder, or
    `ORG/NAME[@REVISION]` of the Hugging Face hub, which is downloaded. DownloadError if it cannot
    be."""
    place = download.address(address)
    if place is None:
        return Path(address), {}
    snapshot = download.fetch(*place, with_code=wishes.runs_code, look=look)
    return snapshot.folder, snapshot.origin


def checkpoint(folder: Path, wishes: Wishes = NO_WISHES) -> Source:
    """CheckpointError if the folder does not fit, UsageError if a wish does not, or if its authors'
    program cannot be run."""
    wishes.check_read("a checkpoint", CHECKPOINT_READS)
    loaded = load_checkpoint(folder, wishes.ignore, wishes.labels)
    hashes = {file.relative_to(folder).as_posix(): sha256(file) for file in loaded.files}
    folder = folder.resolve()
    origin = {
        "checkpoint": folder.name,
        "weights": hashes,
        "unused": loaded.unused,
        **wishes.recorded(),
    }
    facts = {
        "pooling": loaded.authors.pooling,
        "normalize": loaded.authors.normalize,
        "labels": loaded.labels,
        "multi_label": loaded.problem_type == "multi_label_classification",
        "prompts": loaded.authors.prompts,
        "default_prompt_name": loaded.authors.default_prompt_name,
    }
    refuse_one_tag(loaded.labels, _has_tags(loaded.model.config), "--labels none")
    if loaded.problem_type == "regression":
        facts["regression"] = True
    if loaded.authors.similarity != "cosine":
        facts["similarity"] = loaded.authors.similarity
    if loaded.authors.mean_max_sim:
        facts["mean_max_sim"] = True
    if loaded.authors.sparse_activation != "relu":
        facts["sparse_activation"] = loaded.authors.sparse_activation
    config = loaded.model.config
    words = texts.read_for(folder, config.vocab_size, config.max_positions, wishes)
    if wishes.max_length is not None:
        shorten(loaded.model, wishes.max_length)
    if not isinstance(words, NoTexts) and (token := words.unseen_token) is not None:
        _refuse_far_fill(words, config)
        words = texts.with_unseen(words, config.vocab_size)
        add_unseen(loaded.model, token)
    facts |= texts.facts_of(words)
    _refuse_pads_around(loaded, words)
    source = Source(folder.name, loaded.model, origin, facts, words, folder, loaded, wishes=wishes)
    if wishes.own_reading:
        return source
    limit = None if isinstance(words, NoTexts) else words.max_text_tokens
    logits = loaded.model.config.heads.get("logits")
    num_labels = logits.width if logits and loaded.labels else None
    # sentence-transformers lets texts have more tokens than a model that counts from its pad can
    is_cut = wishes.max_length is not None or limit == loaded.model.config.max_positions
    try:
        program = programs.load(folder, limit, wishes, loaded.head, num_labels, is_cut)
    except ProgramError as error:
        raise UsageError(
            f"{folder.name} cannot be compared with its authors' program: {error}{WITHOUT}"
        ) from error
    return with_program(source, program)


def _refuse_far_fill(words: Texts, config: Config) -> None:
    """UsageError if queries may be filled with tokens that see none of the text: what those are, no
    program says."""
    length = words.input_types["query"].min_tokens or 0
    if config.window and length - words.num_special > config.window:
        raise UsageError(
            f"queries are filled up to {length} tokens, and those of local layers see"
            f" {config.window} to each side: export it without query_expansion"
        )


def hash_weights(folder: Path) -> dict[str, str]:
    """sha256 of each file of weights in a folder and its modules' folders."""
    names = [name for name in download.files_of(folder) if name.endswith(WEIGHTS)]
    return {name: sha256(folder / name) for name in sorted(names)}


def module(model: Transformer, wishes: Wishes = NO_WISHES, pad: int | None = None) -> Source:
    """A copy of a model in memory, on the CPU and in evaluation mode. pad: see `Original`.

    UsageError if a wish does not fit, CheckpointError if the tokenizer's folder is broken.
    """
    pooling, labels = wishes.pooling or "mean", wishes.labels
    if problems := [*_problems(model, labels, pooling)]:
        raise UsageError("; ".join(problems))
    refuse_one_tag(labels, _has_tags(model.config), "labels=None")
    name, twin = type(model).__qualname__, copy.deepcopy(model).cpu().eval()
    origin: dict[str, Any] = {"module": name, "sha256": digest(twin)}
    if wishes.max_length is not None:
        origin["max_length"] = wishes.max_length
    facts = {"pooling": pooling, "normalize": bool(wishes.normalize), "labels": labels}
    config = model.config
    words = texts.read_for(wishes.tokenizer, config.vocab_size, config.max_positions, wishes)
    if wishes.max_length is not None:
        shorten(twin, wishes.max_length)
    facts |= texts.facts_of(words)
    if wishes.tokenizer is not None and isinstance(words, NoTexts):
        raise UsageError(f"the tokenizer cannot be used: {words}")
    originals: tuple[Original, ...] = ()
    if wishes.reference is not None:
        originals = (_original(wishes.reference, twin.config, pooling, pad),)
    return Source(
        name, twin, origin, facts, words, wishes.tokenizer, originals=originals, pad_id=pad,
        wishes=wishes,
    )  # fmt: skip


def _problems(model: Transformer, labels: Sequence[str] | None, pooling: str) -> Iterator[str]:
    """Why a model in memory cannot become a bundle, in words."""
    if not isinstance(model, Transformer):
        kind = type(model).__qualname__
        yield f"the model is a {kind}, but must be an addnorm.model.transformer.Transformer"
        return
    for name, tensor in model.state_dict().items():  # the first that does not fit
        if tensor.is_meta:
            yield f"{name} has no values: it is on the device meta"
            break
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            remedy = "export a copy, `copy.deepcopy(model).float()`"
            yield f"{name} is {tensor.dtype}, but must be torch.float32: {remedy}"
            break
    heads = model.config.heads
    for name, module in model.heads.items():
        if name not in heads or not isinstance(module, Head):
            yield f"heads.{name} is not in the model's Config: add it there with a HeadConfig"
    for name in sorted(heads):
        if name not in OUTPUTS:
            yield f"there is a head {name!r}, but the possible heads are {', '.join(OUTPUTS)}"
    if "token_vectors" in heads and (pick := heads["token_vectors"].pick) != "every":
        yield f"the head of token_vectors picks {pick!r}, but must pick 'every'"
    if "pooled" in heads and (pick := heads["pooled"].pick) != pooling:
        yield f"the head of pooled vectors picks {pick!r}, but pooling is {pooling!r}"
    if labels is not None:
        head = heads.get("logits")
        if head is None:
            yield "labels need logits, but the model has no such head"
        elif len(labels) != head.width:
            yield f"there are {len(labels)} labels, but the head has {head.width} logits"
    if pooling not in (poolings := get_args(Pooling)):
        yield f"pooling is {pooling!r}, but must be one of {', '.join(poolings)}"


def _original(
    reference: Any, config: Config, pooling: str, pad: int | None, key: str | None = None
) -> Original:
    try:
        return Original(reference, config, cast(Pick, pooling), pad, key)
    except OriginalError as error:
        raise UsageError(str(error)) from error


def with_program(source: Source, program: Program) -> Source:
    """A checkpoint whose answers must be the program's: what it makes of ids and of texts.
    UsageError if it makes something else than such a model."""
    assert source.loaded
    program.advice = WITHOUT
    if (unseen_id := source.model.config.unseen_id) is not None:
        assert not isinstance(source.texts, NoTexts)
        program.forward.unseen = unseen_id, source.texts.unseen_token
    pad = _pad(source.loaded)
    ids = [int(pad == 0)] * min(3, source.model.config.max_positions)
    types = [0] * len(ids) if source.model.config.type_vocab_size > 1 else None
    if not source.facts["labels"]:
        for task in [task for task in program.tasks if split_task(task)[0] == "tag"]:
            del program.tasks[task]  # which is not served without labels
    config, pooling = source.model.config, source.facts["pooling"]
    originals = tuple(
        _original(program.outputs, config, pooling, pad, key) for key in program.rows(ids, types)
    )
    heads = source.model.config.heads
    for output, of_every_token in (original.compared for original in originals):
        if output in heads and of_every_token != (heads[output].pick == "every"):
            kinds = "of each token", "of each sequence"
            says, kind = kinds if of_every_token else kinds[::-1]
            raise UsageError(
                f"{program.name} answers with {output} {says}, but here they are {kind}"
            )
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
            f"the model has only one label, {labels[0]!r}: its probability is 1.0 for every"
            f" token, as in transformers. Export it with {without}, and request logits from"
            " /v1/infer"
        )


def _has_tags(config: Config) -> bool:
    """True if it has logits of every token."""
    head = config.heads.get("logits")
    return head is not None and head.pick == "every"


def _refuse_pads_around(loaded: Checkpoint, words: Texts | NoTexts) -> None:
    """CheckpointError if the tokenizer puts around texts what the family takes for a pad there."""
    if isinstance(words, NoTexts) or (pad := _pad(loaded)) is None:
        return
    special_ids = Tokenizer.from_str(words.tokenizer.decode()).encode("").ids
    if pad in (special_ids[-1:] if _picks_last(loaded) else special_ids):
        effect = "classifies the token before it" if _picks_last(loaded) else "gives it no position"
        raise CheckpointError(
            f"{loaded.folder}: the tokenizer puts pad_token_id {pad} of config.json around each"
            f" text, and transformers {effect}: set it to the padding id of the training, or"
            " remove the tokenizer's files and send token ids"
        )
