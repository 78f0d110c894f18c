"""Texts -> an Arrow column of a bundle's answers, of some kinds: in this process, through the
server's own request path.

Sequences are sorted by length, so that nothing is padded. Knows no files.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from addnorm.corpus.errors import CorpusError
from addnorm.service.asking.ask import Ask
from addnorm.service.asking.tasks.classification import probabilities
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.batch import Batch, Ints, Padding
from addnorm.service.engine.fingerprint import Recorded
from addnorm.service.engine.manifest import InputType, Task
from addnorm.service.engine.model import Model
from addnorm.service.engine.outputs import Logits, Output, Pooled, Sparse, TokenVectors, Value
from addnorm.service.engine.outputs.output import OutputParameters
from addnorm.service.engine.outputs.per_token import SomeTokenVectors
from addnorm.service.engine.registry import Models
from addnorm.service.engine.selfcheck import sequences
from addnorm.service.engine.tokenizer import Text
from addnorm.service.errors import NotFinite, ServiceError, StartupError
from addnorm.service.loading.loader import load
from addnorm.service.server.wiring import Service, build
from addnorm.service.settings import Settings
from addnorm.service.wire.texts.texts import TextsToTokenize, Wish

DType = Literal["float32", "float16", "int8"]


@dataclass(frozen=True)
class EmbedOptions:
    """None: as the model says. They mean what they mean to the server."""

    output: str = "pooled"  # a name of KINDS
    dtype: DType = "float32"
    precision: str | None = None
    prompt_name: str | None = None
    input_type: InputType | None = None
    dimensions: int | None = None
    top_k: int | None = None
    truncate: bool = False


class Kind(NamedTuple):
    """One kind of column."""

    task: Task  # that the model must be made for
    dtypes: tuple[DType, ...]
    column: Callable[[Ask], pa.Array]  # of what the output made of n texts
    options: tuple[str, ...] = ()  # that are for it alone

    def check(self, options: EmbedOptions) -> None:
        """CorpusError if an option is for another kind."""
        if options.dtype not in self.dtypes:
            raise CorpusError(
                f"dtype is {options.dtype}: for the output {options.output} it must be one of"
                f" {', '.join(self.dtypes)}"
            )
        for name, kind in KINDS.items():
            for option in kind.options:
                if getattr(options, option) is not None and option not in self.options:
                    raise CorpusError(
                        f"{option} applies to the output {name}, not to {options.output}:"
                        " leave it out"
                    )


def output(options: EmbedOptions, model: Model) -> Output[Value]:
    """The output to ask the server's pipeline for. `pooled` is what `/v1/embeddings` answers."""
    manifest = model.bundle.manifest
    match options.output:
        case "pooled":
            dtype: Literal["float32", "int8"] = "int8" if options.dtype == "int8" else "float32"
            return Pooled(None, manifest.normalize, options.dimensions, (dtype,))
        case "sparse":
            return Sparse(options.top_k)
        case "multi-vector":
            rules = manifest.input_types.get(options.input_type) if options.input_type else None
            request = OutputParameters(normalize=manifest.normalize, rules=rules)
            return TokenVectors.asked_for(request)
    return Logits()


def _entries(ask: Ask) -> pa.Array:
    vectors = ask.value(Sparse)
    parts = [_lists(vectors.indices, np.int32), _lists(vectors.values, np.float32)]
    return pa.StructArray.from_arrays(parts, ["indices", "values"])


def _token_vectors(ask: Ask) -> pa.Array:
    kind = TokenVectors if TokenVectors in ask.values else SomeTokenVectors
    vectors = ask.value(kind)
    return pa.ListArray.from_arrays(_offsets(vectors.rows), _lists_of_one_size(vectors.joined))


def _scores(ask: Ask) -> pa.Array:
    """`[n, labels]`, as `/v1/classify` and the routes for reranking give them."""
    is_multi_label = ask.model.bundle.manifest.multi_label
    logits = ask.value(Logits).joined
    return _lists_of_one_size(probabilities(logits, "sigmoid" if is_multi_label else None))


def _lists_of_one_size(values: NDArray[Any]) -> pa.Array:
    """`[n, w]`"""
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def _lists(rows: list[NDArray[Any]], dtype: Any) -> pa.Array:
    return pa.ListArray.from_arrays(
        _offsets(rows), pa.array(np.concatenate(rows).astype(dtype, copy=False))
    )


def _offsets(rows: Iterable[NDArray[Any]]) -> pa.Array:
    return pa.array(np.cumsum([0, *map(len, rows)]), pa.int32())


KINDS = {
    "pooled": Kind(
        "embed", ("float32", "float16", "int8"),
        lambda ask: _lists_of_one_size(ask.value(Pooled).joined), ("dimensions",),
    ),
    "sparse": Kind("sparse", ("float32",), _entries, ("top_k", "input_type")),
    "multi-vector": Kind("multi_vector", ("float32", "float16"), _token_vectors, ("input_type",)),
    "scores": Kind("classify", ("float32",), _scores),
}  # fmt: skip


RUN_S = 3600.0  # one of the longest sequences, on a slow machine
# of requests: the caller bounds what is under way
NO_LIMIT = 2**40
NO_LIMITS = dict.fromkeys(
    (
        "max_sequences", "max_tokens", "max_padded_tokens", "max_queue_tokens",
        "max_response_bytes", "max_pending_response_bytes", "max_pending_body_bytes",
    ),
    NO_LIMIT,
)  # fmt: skip
FOREVER_S = 1e9
# MICRO_BATCHES: of one request at most. Larger: the queue holds more tokens than workers need.
#   Smaller: more requests, at about a millisecond of Python each.
# REQUEST_S: about, where that is fewer. Larger: a kill loses more, since what is under way is lost.
# SPARE_REQUESTS: under way beside one for two workers. Fewer: workers wait while results are made.
MICRO_BATCHES = 8
REQUEST_S = 5.0
SPARE_REQUESTS = 3
TEXTS_AT_ONCE = 256  # tokenized
# a text's tokens before it is tokenized, about
BYTES_OF_A_TOKEN, SPECIAL_TOKENS, NO_TOKEN = 4, 2, -1
FIELD = "text"  # in the server's messages


def open_service(bundle: Path, **changed: Any) -> Service:
    """To be closed. CorpusError if the bundle is refused.

    changed: settings that are not the default ones. The environment is not read. No run counts as
    hanging: nobody waits for an answer within seconds.
    """
    settings = Settings(invariance_check_share=0, **{"run_timeout_s": RUN_S, **changed})
    try:
        return build(Models([load(bundles.read(bundle), settings)]), settings)
    except StartupError as error:
        raise CorpusError(str(error)) from None


class RowVectors(NamedTuple):
    """Vectors of some rows of a file or a part of it."""

    rows: Ints  # [n]
    column: pa.Array  # [n]

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        """All parts, in the order of their rows."""
        all_rows, columns = zip(*parts, strict=True)
        rows = np.concatenate(all_rows)
        order = np.argsort(rows, kind="stable")
        return cls(rows[order], pa.concat_arrays(columns).take(pa.array(order)))


class Computing(NamedTuple):
    """Texts whose vectors are being computed."""

    order: list[Ints]  # of each request, the indices of its texts
    tasks: list[asyncio.Task[pa.Array]]  # of each request

    async def compute_column(self) -> pa.Array:
        """The Arrow column of the outputs of all texts, in the order of the texts."""
        columns = await asyncio.gather(*self.tasks)
        return RowVectors.joined(map(RowVectors, self.order, columns)).column


# of a request: the indices of its texts, the texts' tokens, their column
Done = Callable[[Ints, Batch, pa.Array], Awaitable[object]]


async def _nothing(_indices: Ints, _batch: Batch, _column: pa.Array) -> None:
    pass


class Embedder:
    """To be closed."""

    def __init__(
        self,
        bundle: Path,
        options: EmbedOptions,
        open_bundle: Callable[..., Service] = open_service,
        **settings: Any,
    ) -> None:
        """settings: of the server, that are not the default ones. CorpusError if the bundle is
        refused, or an option does not fit it."""
        self.options = options
        kind = KINDS[options.output]
        kind.check(options)
        self._service = open_bundle(bundle, **{**NO_LIMITS, **settings})
        try:
            (model,) = self._service.models.all()
            self.model = self._service.models.find(model.bundle.ref, kind.task)
            self.engine = self.model.engine(options.precision)
            self._output = output(options, self.model)
            self._output.check(self.model.bundle)
            prompt = self._request([""]).prompt if self.model.tokenizer else ""
        except ServiceError as error:
            self.close()
            raise CorpusError(error.message) from None
        self.token_budget = self.model.target(options.precision).token_budget
        self._request_tokens = self.token_budget  # until the speed is measured
        # what takes more may have too many tokens
        fitting = self.model.bundle.manifest.limits.max_text_tokens - SPECIAL_TOKENS
        self._fitting_bytes = math.inf if options.truncate else fitting - len(prompt.encode())
        self.num_workers = self._service.settings.num_cores
        num_requests = self.num_workers // 2 + SPARE_REQUESTS
        self._under_way = asyncio.Semaphore(num_requests)

    def close(self) -> None:
        self._service.close()

    @property
    def fingerprint(self) -> Recorded:
        fingerprint = self.engine.fingerprint
        return Recorded(fingerprint.digest, fingerprint.parts(), fingerprint.bits)

    @property
    def labels(self) -> tuple[str, ...] | None:
        return self.model.bundle.manifest.labels if self.options.output == "scores" else None

    def num_bytes(self, text_bytes: Ints) -> int:
        """Bytes of the tokens and of the column of texts with so many bytes each, estimated."""
        longest = self.model.bundle.manifest.limits.max_text_tokens
        lengths = np.minimum(text_bytes // BYTES_OF_A_TOKEN + SPECIAL_TOKENS, longest)
        batch = Batch.of([np.full(length, NO_TOKEN) for length in lengths])
        padding = Padding(batch.lengths, None)
        values = self._output.size(self.model.bundle, batch, padding).num_values
        return batch.tokens.nbytes + 4 * values

    async def column_type(self) -> pa.DataType:
        batch = sequences(self.model.bundle.manifest.limits, [1])
        return (await (await self.start(batch, np.zeros(1, np.int64))).compute_column()).type

    async def compute_column(self, texts: Sequence[Text]) -> pa.Array:
        """Computes the Arrow column of all texts, in their order."""
        rows = np.arange(len(texts))
        batches = [
            await self.tokenize(texts[start : start + TEXTS_AT_ONCE], rows[start:])
            for start in range(0, len(texts), TEXTS_AT_ONCE)
        ]
        return await (await self.start(join_batches(batches), rows)).compute_column()

    async def tokenize(self, texts: Sequence[Text], rows: Ints) -> Batch:
        """Tokenizes in threads that are not the engine's. CorpusError names a text that is
        rejected.

        rows: numbers of the texts, for messages.
        """
        try:
            request = self._request(texts)
            ask = Ask(timeout_s=FOREVER_S)
            with self._service.gate.admit(ask):
                batch, padding = await self._service.tools.texts.tokenize(request, ask)
        except ServiceError as error:
            if len(texts) > 1:
                for index, text in enumerate(texts):
                    await self.tokenize([text], rows[index:])
            # the server's words, about one row of a file
            message = error.message.replace('send "truncate": true', "set truncate (--truncate)")
            if message.startswith(place := f"{FIELD}[0]"):
                message = f"row {rows[0]}{message.removeprefix(place)}"
            raise CorpusError(message) from None
        if not padding.lengths.all():  # a table's vector of it would be 0
            raise CorpusError(f"row {rows[padding.lengths.argmin()]} has no tokens: take it out")
        return batch

    def _request(self, texts: Sequence[Text]) -> TextsToTokenize:
        """The texts as the options say. InvalidInput for an option that the model lacks."""
        options = self.options
        wish = Wish(
            field=FIELD, texts=texts, truncate=options.truncate, exact_type=options.input_type
        )
        return TextsToTokenize.of(wish, self.model, options.prompt_name)

    async def rejected(self, texts: Sequence[Text | None], rows: Ints) -> dict[int, str]:
        """Row -> why its text cannot be embedded. Tokenized are only texts that may be too long, or
        have no tokens. rows: numbers of the texts."""
        doubtful = list[tuple[Text, int]]()
        for text, row in zip(texts, rows.tolist(), strict=True):
            if text is not None:
                joined = "".join(text)
                if not joined.strip() or len(joined.encode()) > self._fitting_bytes:
                    doubtful.append((text, row))
        return await self._problems(doubtful)

    async def _problems(self, texts: Sequence[tuple[Text, int]]) -> dict[int, str]:
        """Tokenizes all at once, and halves of them where one is rejected."""
        if not texts:
            return {}
        try:
            await self.tokenize([text for text, _ in texts], np.array([row for _, row in texts]))
        except CorpusError as error:
            if len(texts) == 1:
                return {texts[0][1]: str(error)}
            middle = len(texts) // 2
            return await self._problems(texts[:middle]) | await self._problems(texts[middle:])
        return {}

    async def start(self, batch: Batch, rows: Ints, done: Done = _nothing) -> Computing:
        """Returns once the last request is under way. rows: numbers of the sequences, for messages.
        done: called after each request. A slow model gets short requests, so that little is under
        way at any time."""
        order = np.argsort(-batch.lengths, kind="stable")
        until, start = np.cumsum([0, *batch.lengths[order]]), 0
        computing = Computing([], [])
        while start < len(order):
            await self._under_way.acquire()
            num_tokens = until[start] + self._request_tokens
            end = max(start + 1, int(np.searchsorted(until, num_tokens, side="right")) - 1)
            indices = order[start:end]
            part = Batch.joined([(batch, index) for index in indices])
            computing.order.append(indices)
            computing.tasks.append(
                asyncio.create_task(self._compute_part(indices, part, rows[indices], done))
            )
            start = end
        return computing

    async def _compute_part(self, indices: Ints, batch: Batch, rows: Ints, done: Done) -> pa.Array:
        async def decode(ask: Ask) -> Callable[[Ask], pa.Array]:
            ask.model, ask.precision, ask.field = self.model, self.options.precision, FIELD
            ask.batch, ask.padding = batch, Padding(batch.lengths, None)
            ask.outputs, ask.binary = (self._output,), True
            ask.input_type = self._request([""]).input_type
            ask.dtype = "float16" if self.options.dtype == "float16" else "float32"
            return KINDS[self.options.output].column

        started = time.monotonic()
        try:
            column, _ = await self._service.answers.ask(FOREVER_S, decode)
        except NotFinite as error:
            raise CorpusError(f"row {rows[error.sequence]}: {error.message}") from None
        except ServiceError as error:
            raise CorpusError(f"rows {rows.min()} to {rows.max()}: {error.message}") from None
        finally:
            self._under_way.release()
        if batch.num_tokens > self._request_tokens // 2:  # a smaller one tells too little
            per_s = batch.num_tokens / max(time.monotonic() - started, 1e-9)
            most = MICRO_BATCHES * self.token_budget
            self._request_tokens = min(int(per_s * REQUEST_S) + 1, most)
        await done(indices, batch, column)
        return column


def join_batches(batches: Sequence[Batch]) -> Batch:
    return Batch.joined([(batch, index) for batch in batches for index in range(len(batch))])


def as_dict(options: EmbedOptions) -> dict[str, Any]:
    """The options that are set."""
    return {name: value for name, value in asdict(options).items() if value not in (None, False)}
