"""A folder of static vectors as a `Reference`: StaticEmbedding of sentence-transformers, or one
that model2vec wrote. Its graph reads a row for each token, and the server's own mean pools them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from addnorm.export.reference import program as programs
from addnorm.export.reference.asking import Asking
from addnorm.export.reference.original import Array
from addnorm.export.reference.program import PROMPTED, Answer, Ids, ProgramError
from addnorm.export.reference.reference import Reference, describe_answer, refuse_wide_rows
from addnorm.export.wishes import AS_WRITTEN, Text, UsageError, Wishes
from addnorm.export.words import folder_tokenizer, texts
from addnorm.export.words.texts import Texts
from addnorm.model.checkpoints import CheckpointError, json_files, weights
from addnorm.model.checkpoints.sentence_transformers import (
    STATIC,
    SentenceTransformers,
    list_modules,
    read_words,
    refusal,
)
from addnorm.service.engine.bundle import TOKENIZER
from addnorm.service.engine.files import sha256
from addnorm.service.engine.manifest import Limits

# fields of `Wishes` that a folder of static vectors reads
STATIC_READS = (
    "graph", "precisions", "default_precision", "tokenizer_as_written", "max_length", "samples",
)  # fmt: skip
MODEL2VEC = "model2vec"  # the model_type in its config.json
MODEL2VEC_TOKENS = 512  # that its encode cuts a text to, where config.json has no max_length
# Tokens of a text where its authors set no limit. More: longer texts, of which a mean says less
MOST_TOKENS = 8192
WHAT_IT_MEANS = "a table, and the server's own mean: equal bits on every processor, fp32 alone"
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8)
Encode = Callable[[str, str | None], Array]  # a text and the name of its prompt -> its vector


def is_static(folder: Path) -> bool:
    """CheckpointError if a file of settings is broken."""
    return _is_model2vec(folder) or [kind for kind, _ in list_modules(folder)][:1] == [STATIC]


def _is_model2vec(folder: Path) -> bool:
    return json_files.settings(folder / "config.json").get("model_type") == MODEL2VEC


class Table(nn.Module):
    """ids `[B, S]` -> their rows `[B, S, d]`."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(rows)

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        return {"activations": self.table(tokens)}


def open_static(folder: Path, wishes: Wishes) -> Reference:
    """UsageError and CheckpointError say why it cannot be served."""
    wishes.check_read("static vectors", STATIC_READS)
    if wishes.precisions != ("fp32",):
        raise UsageError("static vectors have a table and no products: fp32 is their one precision")
    if _is_model2vec(folder):
        place, authors, config = folder, None, json_files.settings(folder / "config.json")
    else:
        (_, place), *others = list_modules(folder)
        for kind, path in others:
            _check_normalize(kind, path)
        authors, config = read_words(folder), {"max_length": None}
    stored = weights.read(place)
    words = _read_words(place, config, authors is None, wishes)
    table = Table(_rows(place, stored.tensors))
    limits = Limits(
        max_positions=words.max_text_tokens,
        vocab_size=table.table.num_embeddings,
        max_text_tokens=words.max_text_tokens,
    )
    texts.refuse_other_ids(place, words, limits.vocab_size)
    normalizes = authors.normalize if authors else config.get("normalize") is True
    program = (
        _sentence_transformers(folder, words, authors)
        if authors
        else _model2vec(words, stored.tensors, normalizes)
    )
    ask = Asking(table, table)
    ask.name = program.name
    tensors, _ = describe_answer(ask, limits)
    refuse_wide_rows(program.name, tensors)
    return Reference(
        program.name,
        "program",
        ask,
        ask,
        limits,
        tensors,
        {
            "checkpoint": folder.resolve().name,
            "weights": {file.relative_to(folder).as_posix(): sha256(file) for file in stored.files},
            **wishes.recorded(),
            **AS_WRITTEN,
        },
        {
            "pooling": "mean",
            "normalize": normalizes,
            "labels": None,
            "prompts": dict(authors.prompts) if authors else {},
            "default_prompt_name": authors.default_prompt_name if authors else None,
            **({"similarity": authors.similarity} if authors else {}),
        },
        words,
        folder,
        program,
        wishes,
        means=WHAT_IT_MEANS,
    )


def _check_normalize(kind: str, folder: Path) -> None:
    """CheckpointError for a module after the table that is not Normalize."""
    if kind != "Normalize":
        raise refusal(kind, f"Normalize is served after {STATIC}, and nothing else")
    config, vector = json_files.settings(folder / "config.json"), "sentence_embedding"
    for name in ("module_input_name", "module_output_name"):
        if (value := config.get(name)) not in (None, vector):
            raise CheckpointError(f"{folder}: {name} is {value!r}, supported is {vector!r}")


def _rows(folder: Path, tensors: Mapping[str, Tensor]) -> Tensor:
    """The row of each token id `[V, d]` in float32: of model2vec, one that a mapping names, times a
    weight. CheckpointError if the tensors are others."""
    rows = tensors.get("embedding.weight", tensors.get("embeddings"))
    mapping, factors = tensors.get("mapping"), tensors.get("weights")
    if rows is None or rows.dim() != 2 or rows.dtype not in FLOATS:
        shapes = ", ".join(f"{name} {[*x.shape]} {x.dtype}" for name, x in tensors.items())
        raise CheckpointError(
            f"{folder}: embedding.weight or embeddings of numbers [ids, width] is needed, there"
            f" are {shapes or 'none'}"
        )
    rows = rows.float()
    if mapping is not None:
        if mapping.dim() != 1 or not ((mapping >= 0) & (mapping < len(rows))).all():
            raise CheckpointError(f"{folder}: mapping names rows that embeddings do not have")
        rows = rows[mapping.long()]
    if factors is not None:
        if factors.shape != rows.shape[:1]:
            raise CheckpointError(
                f"{folder}: there are {len(factors)} weights for {len(rows)} token ids"
            )
        rows = (rows * factors[:, None]).float()
    if not rows.isfinite().all():
        raise CheckpointError(f"{folder}: the table has NaN or infinity")
    return rows.contiguous()


def _read_words(
    folder: Path, config: Mapping[str, Any], leaves_out_unknown: bool, wishes: Wishes
) -> Texts:
    """tokenizer.json as the authors read it: without special tokens around a text. CheckpointError
    if there is none, or if it cannot be used."""
    if not (folder / TOKENIZER).is_file():
        raise CheckpointError(f"there is no {TOKENIZER} in {folder}")
    tokenizer = folder_tokenizer.parse(folder / TOKENIZER)
    folder_tokenizer.refuse_unusable(folder, tokenizer)
    tokenizer.post_processor = None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    limit, limited_by = config.get("max_length", MODEL2VEC_TOKENS), "model2vec's max_length"
    if limit is None:
        limit, limited_by = MOST_TOKENS, "its authors set no limit; --max-length sets another"
    elif type(limit) is not int or limit < 1:
        raise CheckpointError(f"{folder}: max_length is {limit!r}: a number of tokens is needed")
    unknown = _unknown_id(tokenizer) if leaves_out_unknown else None
    words = Texts(
        tokenizer.to_str().encode(),
        limit,
        limited_by,
        num_special=0,
        num_ids=1 + max(tokenizer.get_vocab().values(), default=-1),
        has_types=False,
        special_tokens={},
        input_types={},
        splits_special=False,
        read_by=TOKENIZER,
        unlike_file=None,
        left_out_ids=() if unknown is None else (unknown,),
    )
    longest = wishes.max_length or limit
    return texts.cut(words, max(longest, limit), wishes)  # type: ignore[return-value]


def _unknown_id(tokenizer: Tokenizer) -> int | None:
    """The id of unknown tokens, as model2vec finds it."""
    model: Any = tokenizer.model
    if not hasattr(model, "unk_token"):
        return getattr(model, "unk_id", None)  # Unigram
    return None if model.unk_token is None else tokenizer.token_to_id(model.unk_token)


class AuthorsVectors:
    """Answers texts as the authors do."""

    mask_token: str | None = None

    def __init__(self, name: str, words: Texts, prompts: Mapping[str, str], encode: Encode) -> None:
        """prompts: by name, the default one under "". encode: cuts texts as `words` does."""
        self.name, self.labels, self._prompts, self._encode = name, list[str](), prompts, encode
        self._tokenizer, self._cut = (
            Tokenizer.from_str(words.tokenizer.decode()) for _ in range(2)
        )
        self._cut.enable_truncation(words.max_text_tokens)
        self._left_out_ids = words.left_out_ids or ()
        self.tasks: dict[str, Callable[[Text], Any]] = {
            f"embed{PROMPTED}{prompt_name}" if prompt_name else "embed": partial(
                self._vector, prompt_name
            )
            for prompt_name in {"": "", **prompts}
        }

    def answer(self, task: str, text: Text) -> Answer:
        prompt = self._prompts.get(task.partition(PROMPTED)[2], "")
        ids = self._cut.encode(f"{prompt}{text}").ids
        ids = [token_id for token_id in ids if token_id not in self._left_out_ids]
        return Answer(Ids(ids, [0] * len(ids)), np.asarray(self.tasks[task](text), np.float32))

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch(texts)]

    def _vector(self, prompt_name: str, text: Text) -> Array:
        return self._encode(f"{text}", prompt_name or None)


def _sentence_transformers(
    folder: Path, words: Texts, authors: SentenceTransformers
) -> AuthorsVectors:
    """UsageError if sentence-transformers cannot load it."""
    try:
        with programs.silence_libraries():
            runs: Any = programs.load_sentence_transformers(folder, False, None)
    except ProgramError as error:
        raise UsageError(f"its authors' library cannot run it: {error}") from error
    runs[0].tokenizer.enable_truncation(words.max_text_tokens)
    default = authors.prompts.get(authors.default_prompt_name or "", "")

    def encode(text: str, prompt_name: str | None) -> Array:
        vector: Array = runs.float().encode(text, prompt_name=prompt_name)
        return vector

    return AuthorsVectors(
        programs.name_in_words(runs), words, {"": default, **authors.prompts}, encode
    )


def _model2vec(words: Texts, tensors: Mapping[str, Tensor], normalizes: bool) -> AuthorsVectors:
    """StaticModel.encode of model2vec 0.10, but for a text that it cuts by characters first.
    CheckpointError for other tensors."""
    if "embeddings" not in tensors:
        raise CheckpointError(
            f"a folder of model2vec has embeddings, this has {', '.join(tensors)}"
        )
    numbers = {name: tensor.float().numpy() for name, tensor in tensors.items()}
    rows, weights = numbers["embeddings"], numbers.get("weights")
    places = tensors["mapping"].numpy() if "mapping" in tensors else np.arange(len(rows))
    tokenizer = Tokenizer.from_str(words.tokenizer.decode())
    tokenizer.enable_truncation(words.max_text_tokens)

    def encode(text: str, _: str | None) -> Array:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        ids = [token_id for token_id in ids if token_id not in (words.left_out_ids or ())]
        if not ids:
            return np.zeros(rows.shape[1], np.float32)
        vectors = rows[places[ids]]
        if weights is not None:
            vectors = vectors * weights[ids][:, None]
        mean = vectors.mean(0)
        length = np.linalg.norm(mean) + 1e-32 if normalizes else 1
        return np.asarray(mean / length, np.float32)

    return AuthorsVectors("model2vec.StaticModel's formula", words, {}, encode)
