"""A folder whose architecture has no table, as a `Reference`: the class that its files name is
called as it is, and the folder's tokenizer, prompts, labels and limits are served around it."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.export import download
from addnorm.export.graphs.graph import UnfitError
from addnorm.export.reference import program as programs
from addnorm.export.reference import static_vectors
from addnorm.export.reference.asking import Asking
from addnorm.export.reference.original import OriginalError, as_found
from addnorm.export.reference.program import LANGUAGE_MODELS, Program, ProgramError, split_task
from addnorm.export.reference.reference import (
    EXAMPLE,
    Key,
    LastLayer,
    Reference,
    describe_answer,
    inputs_of,
    longest_of,
    pair,
    refuse_wide_rows,
)
from addnorm.export.sources import refuse_one_tag
from addnorm.export.wishes import NO_WISHES, UsageError, Wishes
from addnorm.export.words import texts
from addnorm.export.words.folder_tokenizer import NoTexts
from addnorm.model.checkpoints import (
    NO_FOLDER,
    CheckpointError,
    json_files,
    labels_of,
    problem_type_of,
    weights,
)
from addnorm.model.checkpoints import sentence_transformers as words_of
from addnorm.model.weight_files import FILES
from addnorm.service.engine.files import sha256
from addnorm.service.engine.manifest import SPANS, Limits, OwnTensor

# fields of `Wishes` that a folder without a table reads
FOLDER_READS = (
    "graph", "precisions", "default_precision", "keep_recall", "tokenizer_as_written", "runs_code",
    "max_length", "labels", "samples", "windows", "windows_label",
)  # fmt: skip
NUM_SHOWN = 5  # of weights
NO_LIMIT = 512  # tokens, where neither the model nor the folder sets a limit
# Tokens of a text where --max-length names none. The scores of an author's attention are S x S
# numbers a head: at 8,192 tokens a small model holds gigabytes
MOST_TOKENS = 2048
SERVED = (
    "embed", "rerank", "relevance", "classify", "zero_shot", "tag", "fill_mask", "sparse",
)  # fmt: skip
# ends of the classes of transformers whose logits are served
HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
# what a configuration may call the number of its positions
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


def open_folder(folder: Path, wishes: Wishes = NO_WISHES) -> Reference:
    """UsageError, UnfitError and CheckpointError say why there is no such program, or why it cannot
    be served."""
    if not folder.is_dir():
        raise CheckpointError(NO_FOLDER.format(folder))
    if static_vectors.is_static(folder):
        return static_vectors.open_static(folder, wishes)
    wishes.check_read("a graph as its authors wrote it", FOLDER_READS)
    fields = json_files.settings(words_of.read_words(folder).transformer / "config.json")
    words, num_positions, uncut = _words(folder, fields, wishes)
    limit = None if isinstance(words, NoTexts) else words.max_text_tokens
    program = _open_program(folder, limit, wishes)
    model: Any = program.model
    limits = Limits(
        max_positions=num_positions,
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
            head = _split_head(program, ask, limits, tensors)
    except OriginalError as error:
        raise UsageError(f"{folder.name}: {error}") from error
    if limit is not None and longest < limit:
        # sentence-transformers lets texts have more tokens than the model takes
        assert not isinstance(words, NoTexts)
        words = texts.shortened(words, longest, words.limited_by)
        program.cut_to(longest)
    refuse_wide_rows(program.name, tensors)
    if not isinstance(words, NoTexts):
        texts.refuse_other_ids(folder, words, limits.vocab_size)
    labels = _labels(program, tensors.values(), fields, wishes)
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
        _origin(folder, wishes),
        _facts(folder, program, fields, labels),
        None if isinstance(words, NoTexts) else words,
        folder,
        None if isinstance(words, NoTexts) else program,
        wishes,
        uncut,
        head,
    )
    reference.refuse_mixing()
    return reference


def _open_program(folder: Path, limit: int | None, wishes: Wishes) -> Program:
    """limit: tokens of a text. UsageError, UnfitError and CheckpointError as of `open_folder`."""
    try:
        program = programs.load(folder, limit, wishes)
    except ProgramError as error:
        raise UsageError(f"the model's library cannot run it: {error}") from error
    if _refusal(program):
        raise UnfitError(_refusal(program))
    _refuse_drawn_weights(folder, program)
    program.forward.is_split = program.forward.last_layer is not None
    return program


def _split_head(
    program: Program, ask: Asking, limits: Limits, tensors: dict[Key, OwnTensor]
) -> LastLayer | None:
    """The last layer of a language model, which becomes a graph of its own: logits of a vocabulary
    are too many to keep for every token. They are taken out of the tensors. UnfitError if another
    step follows that layer."""
    layer = program.forward.last_layer
    if layer is None:
        return None
    del tensors["logits"]
    with torch.no_grad():
        answer = ask(*inputs_of(ask, pair(limits, min(EXAMPLE, limits.max_positions))))
        is_last = torch.equal(layer(answer["activations"]), answer["logits"])
    if not (is_last and isinstance(layer, nn.Linear)):
        raise UnfitError(
            f"{program.name} changes the logits after its last layer, as a cap does, which is"
            " supported only for supported families"
        )
    return LastLayer(layer)


def load(name: str, wishes: Wishes = NO_WISHES) -> Reference:
    """The same of a folder, or of `ORG/NAME[@REVISION]` of the Hugging Face hub, which is
    downloaded. DownloadError if it cannot be."""
    address = download.address(name)
    if address is None:
        return open_folder(Path(name), wishes)
    snapshot = download.fetch(*address, with_code=wishes.runs_code)
    reference = open_folder(snapshot.folder, wishes)
    return replace(reference, origin={**reference.origin, **snapshot.origin})


def _labels(
    program: Program, tensors: Iterable[OwnTensor], fields: Mapping[str, Any], wishes: Wishes
) -> Sequence[str] | None:
    """The names of its logits; None without logits, and for a score. fields: of config.json."""
    logits = next((tensor for tensor in tensors if tensor.name == "logits"), None)
    is_score = logits is not None and logits.width == 1 and logits.of == "sequence"
    if logits is None or (is_score and not program.labels):
        return None
    if type(program.model).__qualname__.endswith("ForQuestionAnswering"):
        return SPANS
    return labels_of(fields, logits.width, wishes.labels)


def _origin(folder: Path, wishes: Wishes) -> dict[str, Any]:
    """The manifest's `source`, with the sha256 of each file of weights that its library reads."""
    names = [name for name in download.files_of(folder) if name.endswith((".safetensors", ".bin"))]
    return {
        "checkpoint": folder.resolve().name,
        "weights": {name: sha256(folder / name) for name in names},
        **wishes.recorded(),
    }


def _facts(
    folder: Path, program: Program, fields: Mapping[str, Any], labels: Sequence[str] | None
) -> dict[str, Any]:
    """Fields of the manifest that say what follows the graph. fields: of config.json."""
    authors, problem_type = words_of.read_words(folder), problem_type_of(fields)
    return {
        # the row of every token has the vector that the graph makes
        "pooling": "mean" if program.forward.is_split else "last",
        "normalize": authors.normalize,
        "labels": labels,
        "multi_label": problem_type == "multi_label_classification",
        "prompts": dict(authors.prompts),
        "default_prompt_name": authors.default_prompt_name,
        **({"similarity": authors.similarity} if authors.similarity != "cosine" else {}),
        **({"regression": True} if problem_type == "regression" else {}),
        **_facts_of_words(program),
    }


def _facts_of_words(program: Program) -> dict[str, Any]:
    """Fields for logits of a vocabulary."""
    name = type(program.model).__qualname__
    facts: dict[str, Any] = {}
    if name.endswith(LANGUAGE_MODELS[1:]):
        facts["config"] = {"causal": True}
    if type(program.runs).__qualname__ == "SparseEncoder":
        activation = program.forward.modules_of_texts[1].activation_function
        facts |= {"sparse_activation": activation} if activation != "relu" else {}
    return facts


def _words(
    folder: Path, fields: Mapping[str, Any], wishes: Wishes
) -> tuple[texts.Texts | NoTexts, int, int]:
    """The way from its texts to token ids, the positions that its sequences may have, and more that
    its authors take. fields: of config.json."""
    max_length = wishes.max_length
    values = (fields.get(name) for name in POSITIONS)
    positions = next((value for value in values if isinstance(value, int) and value > 0), None)
    num_positions = positions or max_length or MOST_TOKENS
    try:
        words = texts.read(folder, num_positions, wishes.tokenizer_as_written)
    except NoTexts as no_texts:
        limit = positions or NO_LIMIT
        return no_texts, max_length or min(limit, MOST_TOKENS), 0 if max_length else limit
    if max_length is not None:
        return texts.cut(words, num_positions, wishes), max_length, 0
    uncut = words.max_text_tokens
    if uncut > MOST_TOKENS:
        limited_by = f"a graph as its authors wrote it; --max-length takes up to {uncut:,}"
        words = texts.shortened(words, MOST_TOKENS, limited_by)
    return words, min(positions or words.max_text_tokens, MOST_TOKENS), uncut


def _refuse_drawn_weights(folder: Path, program: Program) -> None:
    """CheckpointError for weights that none of its files has, bit for bit: transformers draws what
    is missing, and only warns."""
    places = {folder, *(path for _, path in words_of.list_modules(folder))}
    if router := words_of.router_of(folder):
        places.add(router.query)
    digests = {
        _digest(tensor)
        for place in places
        if any((place / name).is_file() for name in FILES)
        for tensor in weights.read(place).tensors.values()
    }
    names = [
        name.removeprefix("runs.")
        for name, tensor in program.forward.state_dict().items()
        if tensor.is_floating_point() and _digest(tensor) not in digests
    ]
    if names:
        rest = f" and {len(names) - NUM_SHOWN} more" if len(names) > NUM_SHOWN else ""
        raise CheckpointError(
            f"{folder}: no file has the weights {', '.join(names[:NUM_SHOWN])}{rest}, which"
            f" {program.name} initializes at random or computes from other weights"
        )


def _digest(tensor: Tensor) -> bytes:
    values = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
    return hashlib.blake2b(values.tobytes(), digest_size=16).digest()


def _refusal(program: Program) -> str:
    """Why this program's answer has no task that is served around a graph. Empty if it has."""
    kind, name = type(program.runs).__qualname__, type(program.model).__qualname__
    if kind == "MultiVectorEncoder":
        return f"{kind} is served for supported families only: this is a {name}"
    if kind == "SparseEncoder":
        modules: Any = program.forward.modules_of_texts
        kinds = [type(module).__qualname__ for module in modules]
        is_max = kinds[1:] == ["SpladePooling"] and modules[1].pooling_strategy == "max"
        if kinds[:1] == ["MLMTransformer"] and is_max:
            return ""
        return f"a SparseEncoder of {', '.join(kinds)} is not served: SpladePooling by max is"
    if program.model is not program.runs or name.endswith((*HEADS, *LANGUAGE_MODELS)):
        return ""
    if name.endswith(("ForConditionalGeneration", "EncoderDecoderModel")):
        return (
            f"{name} has an encoder and a decoder and takes two sequences, which is not supported"
        )
    class_endings = ", ".join((*HEADS, *LANGUAGE_MODELS))
    return f"no task is known for the answers of the class {name}: known are {class_endings}"
