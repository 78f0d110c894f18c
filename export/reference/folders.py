"""A folder whose architecture has no table, as a `Reference`: the class that its files name is
called as it is, and the folder's tokenizer, prompts, labels and limits are served around it."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from addnorm.export.graphs.graph import UnfitError
from addnorm.export.modules.asking import Asking
from addnorm.export.reference.reference import (
    Reference,
    describe_answer,
    longest_of,
    refuse_wide_rows,
)
from addnorm.export.sources import UsageError, download, texts
from addnorm.export.sources import program as programs
from addnorm.export.sources.folder_tokenizer import NoTexts
from addnorm.export.sources.original import OriginalError, as_found
from addnorm.export.sources.program import Program, ProgramError, split_task
from addnorm.export.sources.sources import AUTHOR, Comparison, refuse_one_tag
from addnorm.model.checkpoints import (
    CheckpointError,
    Choices,
    json_files,
    labels_of,
    problem_type_of,
    weights,
)
from addnorm.model.checkpoints import sentence_transformers as words_of
from addnorm.model.weight_files import FILES
from addnorm.service.engine.files import sha256
from addnorm.service.engine.manifest import SPANS, Limits, OwnTensor

NUM_SHOWN = 5  # of weights
NO_LIMIT = 512  # tokens, where neither the model nor the folder sets a limit
# Tokens of a text where --max-length names none. The scores of an author's attention are S x S
# numbers a head: at 8,192 tokens a small model holds gigabytes
MOST_TOKENS = 2048
SERVED = ("embed", "rerank", "relevance", "classify", "zero_shot", "tag")
# ends of the classes of transformers whose logits are served
HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
# what a configuration may call the number of its positions
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


def open_folder(
    folder: Path,
    choices: Choices | None = None,
    max_length: int | None = None,
    comparison: Comparison = AUTHOR,
) -> Reference:
    """UsageError, UnfitError and CheckpointError say why there is no such program, or why it cannot
    be served."""
    choices = choices or Choices()
    if comparison.kind == "none":
        raise UsageError("its graph is its authors' own: --reference none has no meaning")
    if choices.ignore:
        raise UsageError("--ignore is of graphs of ours: its authors' class loads all weights")
    fields = json_files.settings(words_of.read_words(folder).transformer / "config.json")
    words, most = _words(folder, fields, choices, max_length)
    limit = None if isinstance(words, NoTexts) else words.max_text_tokens
    program = _load(folder, limit, choices, comparison)
    model: Any = program.model
    if _refusal(program):
        raise UnfitError(_refusal(program))
    _refuse_drawn_weights(folder, program)
    limits = Limits(
        max_positions=most,
        vocab_size=model.get_input_embeddings().num_embeddings,
        type_vocab_size=max(getattr(model.config, "type_vocab_size", 1) or 1, 1),
    )
    kinds = ["types"] if limits.type_vocab_size > 1 else []
    ask = Asking(program.forward, program.forward, kinds=kinds)
    ask.name = program.name
    try:
        with as_found(ask):
            longest = longest_of(ask, limits)
            limits = limits.model_copy(update={"max_positions": longest})
            tensors, _ = describe_answer(ask, limits)
    except OriginalError as error:
        raise UsageError(f"{folder.name}: {error}") from error
    if limit is not None and longest < limit:
        # sentence-transformers lets texts have more tokens than the model takes
        assert not isinstance(words, NoTexts)
        words = replace(words, max_text_tokens=longest)
        program.cut_to(longest)
    refuse_wide_rows(program.name, tensors)
    if not isinstance(words, NoTexts):
        texts.refuse_other_ids(folder, words, limits.vocab_size)
    labels = _labels(program, tensors.values(), fields, choices)
    has_tags = any(tensor.name == "logits" and tensor.of == "token" for tensor in tensors.values())
    refuse_one_tag(labels, has_tags, "--labels none")
    program.tasks = {
        task: answer
        for task, answer in program.tasks.items()
        if split_task(task)[0] in SERVED and (labels or split_task(task)[0] != "tag")
    }
    reference = Reference(
        program.name,
        "program",
        ask,
        ask,
        limits,
        tensors,
        {"checkpoint": folder.resolve().name, "weights": _weights(folder)}
        | _stated(choices, max_length),
        _facts(folder, fields, labels),
        None if isinstance(words, NoTexts) else words,
        folder,
        None if isinstance(words, NoTexts) else program,
    )
    reference.refuse_mixing()
    return reference


def load(
    name: str,
    choices: Choices | None = None,
    max_length: int | None = None,
    comparison: Comparison = AUTHOR,
) -> Reference:
    """The same of a folder, or of `ORG/NAME[@REVISION]` of the Hugging Face hub, which is
    downloaded. DownloadError if it cannot be."""
    address = download.address(name)
    if address is None:
        return open_folder(Path(name), choices, max_length, comparison)
    fetched = download.fetch(*address, with_code=comparison.runs_code)
    reference = open_folder(fetched.folder, choices, max_length, comparison)
    short = fetched.repository.rpartition("/")[2]
    where = {
        "checkpoint": short,
        "repository": fetched.repository,
        "revision": fetched.revision,
    }
    return replace(reference, origin={**reference.origin, **where})


def _labels(
    program: Program, tensors: Iterable[OwnTensor], fields: Mapping[str, Any], choices: Choices
) -> Sequence[str] | None:
    """The names of its logits; None without logits, and for a score. fields: of config.json."""
    logits = next((tensor for tensor in tensors if tensor.name == "logits"), None)
    if logits is None or (logits.width == 1 and logits.of == "sequence"):
        return None
    if type(program.model).__qualname__.endswith("ForQuestionAnswering"):
        return SPANS
    return labels_of(fields, logits.width, choices.labels)


def _weights(folder: Path) -> dict[str, str]:
    """The sha256 of each file of weights that its library reads."""
    names = [name for name in download.files_of(folder) if name.endswith((".safetensors", ".bin"))]
    return {name: sha256(folder / name) for name in names}


def _facts(folder: Path, fields: Mapping[str, Any], labels: Sequence[str] | None) -> dict[str, Any]:
    """Fields of the manifest that say what follows the graph. fields: of config.json."""
    authors, problem_type = words_of.read_words(folder), problem_type_of(fields)
    return {
        "pooling": "last",  # the row of every token has the vector that the graph makes
        "normalize": authors.normalize,
        "labels": labels,
        "multi_label": problem_type == "multi_label_classification",
        "prompts": dict(authors.prompts),
        "default_prompt_name": authors.default_prompt_name,
        **({"similarity": authors.similarity} if authors.similarity != "cosine" else {}),
        **({"regression": True} if problem_type == "regression" else {}),
    }


def _words(
    folder: Path, fields: Mapping[str, Any], choices: Choices, max_length: int | None
) -> tuple[texts.Texts | NoTexts, int]:
    """How its texts become token ids, and the positions that its sequences may have. fields: of
    config.json."""
    stated = (fields.get(name) for name in POSITIONS)
    positions = next((value for value in stated if isinstance(value, int) and value > 0), None)
    most = positions or max_length or MOST_TOKENS
    try:
        words = texts.read(folder, most, choices.tokenizer_as_written)
    except NoTexts as why:
        return why, max_length or min(positions or NO_LIMIT, MOST_TOKENS)
    if max_length is not None:
        return texts.cut(words, max_length, most, "--max-length"), max_length
    limited_by = "a graph as its authors wrote it; --max-length takes more"
    if words.max_text_tokens > MOST_TOKENS:
        words = replace(words, max_text_tokens=MOST_TOKENS, limited_by=limited_by)
    return words, min(positions or words.max_text_tokens, MOST_TOKENS)


def _refuse_drawn_weights(folder: Path, program: Program) -> None:
    """CheckpointError for weights that none of its files has, bit for bit: transformers draws what
    is missing, and only warns."""
    places = {folder, *(path for _, path in words_of.list_modules(folder))}
    stored = {
        _digest(tensor)
        for place in places
        if any((place / name).is_file() for name in FILES)
        for tensor in weights.read(place).tensors.values()
    }
    drawn = [
        name.removeprefix("runs.")
        for name, tensor in program.forward.state_dict().items()
        if tensor.is_floating_point() and _digest(tensor) not in stored
    ]
    if drawn:
        more = f" and {len(drawn) - NUM_SHOWN} more" if len(drawn) > NUM_SHOWN else ""
        raise CheckpointError(
            f"{folder}: no file has the weights {', '.join(drawn[:NUM_SHOWN])}{more}, which"
            f" {program.name} draws at random or makes of others"
        )


def _digest(tensor: Tensor) -> bytes:
    values = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
    return hashlib.blake2b(values.tobytes(), digest_size=16).digest()


def _load(folder: Path, limit: int | None, choices: Choices, comparison: Comparison) -> Program:
    try:
        return programs.load(
            folder, limit, None, None, True, comparison.runs_code, choices.tokenizer_as_written
        )
    except ProgramError as error:
        raise UsageError(f"its authors' library cannot run it: {error}") from error


def _refusal(program: Program) -> str:
    """Why this program's answer has no task that is served around a graph. Empty if it has."""
    kind, name = type(program.runs).__qualname__, type(program.model).__qualname__
    if kind in ("SparseEncoder", "MultiVectorEncoder"):
        return f"{kind} is served of supported families alone: this is a {name}"
    if program.model is not program.runs or name.endswith(HEADS):
        return ""
    if name.endswith(("ForMaskedLM", "ForCausalLM", "LMHeadModel", "ForPreTraining")):
        return f"{name} answers with logits of its vocabulary, served of supported families alone"
    if name.endswith(("ForConditionalGeneration", "EncoderDecoderModel")):
        return f"{name} has an encoder and a decoder, which takes two sequences"
    return f"{name} is no class whose answer has a task here: known are {', '.join(HEADS)}"


def _stated(choices: Choices, max_length: int | None) -> dict[str, Any]:
    """The choices of the person who exports, as the manifest records them."""
    stated = {
        "labels": None if choices.labels is None else [*choices.labels],
        "max_length": max_length,
        **(texts.AS_WRITTEN if choices.tokenizer_as_written else {}),
    }
    return {name: value for name, value in stated.items() if value is not None}
