"""What one caller asks and is given, whatever the protocol, and every limit on it, looked at before any work."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from addnorm.service.errors import InvalidInput
from addnorm.service.inference.outputs import Positions
from addnorm.service.models.registry import Model
from addnorm.service.runtime.batch import Batch, Cells
from addnorm.service.runtime.bundle import Bundle, Pooling
from addnorm.service.settings import Settings

JSON_BYTES_PER_FLOAT = 13  # of a float32 written with all its digits, sign and comma
JSON_BYTES_PER_PAD = 4  # "0.0,"
BINARY_BYTES = 4  # of any float32


class Query(NamedTuple):
    """What one caller asks, whatever the protocol. None: as the bundle says."""

    model: Model
    batch: Batch
    cells: Cells
    outputs: tuple[str, ...] | None = None
    positions: Positions = "all"
    top_k: int | None = None
    pooling: Pooling | None = None
    normalize: bool = False
    precision: str | None = None
    timeout_s: float | None = None  # as the body says; the header goes before it
    coding: str | None = None  # of the answer, if it goes out compressed
    key: str = ""  # the name of the caller's API key: keys take turns
    half: bool = False  # activations, logits and pooled vectors go out as float16
    binary: bool = False  # the answer goes out as raw numbers, not as text
    field: str = "input_ids"  # where the caller put the sequences, for errors
    hint: str = ""  # why an id of the caller's may be outside the vocabulary

    @property
    def wanted(self) -> tuple[str, ...]:
        """The outputs asked for; by default activations, and logits where there is a head."""
        return self.outputs or tuple(
            name for name in self.model.bundle.outputs if name in ("activations", "logits")
        )


@dataclass(frozen=True)
class Answer:
    """outputs: name -> arrays in the caller's layout, `[rows, seq, w]` or `[rows, w]`; a list of `[n, w]` if ragged.

    num_bytes: what writing them is estimated to make.
    """

    query: Query
    outputs: dict[str, Any]
    num_bytes: int


def check(query: Query, settings: Settings) -> int:
    """InvalidInput for whatever the engine must never see: field, limit and value. -> the answer's estimated bytes."""
    _check_size(query, settings)
    _check_tokens(query)
    _check_outputs(query)
    return _check_answer(query, settings)


def _check_size(query: Query, settings: Settings) -> None:
    num_cells = query.batch.num_tokens + query.cells.num_pads
    for what, value, limit in (
        ("sequences", len(query.cells.lengths), settings.max_sequences),
        ("cells", num_cells, settings.max_cells),
        # more than the queue can ever hold is no matter of coming back later
        (
            "real tokens",
            query.batch.num_tokens,
            min(settings.max_tokens, settings.max_queue_tokens),
        ),
    ):
        if value > limit:
            raise InvalidInput(
                f"{query.field} has {value} {what}, the limit is {limit}: send less at once",
                param=query.field,
            )


def _check_tokens(query: Query) -> None:
    limits = query.model.bundle.manifest.limits
    lengths, tokens = query.cells.lengths, query.batch.tokens
    if (lengths > limits.max_positions).any():
        row = int((lengths > limits.max_positions).argmax())
        raise InvalidInput(
            f"{query.field}[{row}] has {lengths[row]} real tokens, the limit of {query.model.bundle.ref} is {limits.max_positions}",
            param=query.field,
        )
    outside = tokens.view(np.uint64) >= limits.vocab_size  # so seen, negative ids are huge
    if outside.any():
        index = int(outside.argmax())
        row, column = _cell(query.cells, index)
        raise InvalidInput(
            f"{query.field}[{row}][{column}] is {tokens[index]}: ids of {query.model.bundle.ref} are 0 to {limits.vocab_size - 1}{query.hint}",
            param=query.field,
        )


def _cell(cells: Cells, index: int) -> tuple[int, int]:
    """Row and column of the index-th real token in the caller's layout."""
    if cells.mask is not None:
        row, column = np.argwhere(cells.mask)[index]
        return int(row), int(column)
    row = int(np.searchsorted(cells.lengths.cumsum(), index, side="right"))
    return row, index - int(cells.lengths[:row].sum())


def _check_outputs(query: Query) -> None:
    bundle, wanted = query.model.bundle, query.wanted
    if query.outputs is not None and not query.outputs:
        raise InvalidInput(
            f"outputs is empty: ask for some of {', '.join(bundle.outputs)}", param="outputs"
        )
    for name in wanted:
        if name not in bundle.outputs:
            raise InvalidInput(
                f"outputs has {name!r}: {bundle.ref} has {', '.join(bundle.outputs)}",
                param="outputs",
            )
        if wanted.count(name) > 1:
            raise InvalidInput(f"outputs has {name!r} twice", param="outputs")
    vocab_size = bundle.manifest.limits.vocab_size
    if query.top_k is not None and not 1 <= query.top_k <= vocab_size:
        raise InvalidInput(
            f"logits.top_k is {query.top_k}: 1 to {vocab_size} for {bundle.ref}",
            param="logits.top_k",
        )


def _check_answer(query: Query, settings: Settings) -> int:
    """Bytes of the answer, estimated before any work."""
    num_bytes = sum(_answer_bytes(query, name) for name in query.wanted)
    if num_bytes > settings.max_answer_bytes:
        raise InvalidInput(
            f"the answer would have about {num_bytes / 2**20:.0f} MiB, the limit is {settings.max_answer_bytes / 2**20:.0f}:"
            f" {_smaller(query)}",
            param="outputs",
        )
    return num_bytes


def _smaller(query: Query) -> str:
    """What to ask instead."""
    if "logits" in query.wanted and query.top_k is None:
        return 'ask for "outputs": ["activations"], or "logits": {"top_k": 5}'
    return 'ask for "outputs": ["pooled"], or send fewer sequences at once'


def _answer_bytes(query: Query, name: str) -> int:
    real, pads, rows = query.batch.num_tokens, query.cells.num_pads, len(query.cells.lengths)
    if name == "logits" and query.positions == "last":
        real, pads = rows, 0
    if name == "pooled":
        real, pads = rows, 0
    width = (
        _width(query.model.bundle, name)
        if name != "logits" or query.top_k is None
        else 2 * query.top_k
    )
    if query.binary:
        return width * BINARY_BYTES * (real + pads)
    return width * (real * JSON_BYTES_PER_FLOAT + pads * JSON_BYTES_PER_PAD)


def _width(bundle: Bundle, name: str) -> int:
    manifest = bundle.manifest
    widths = {"logits": manifest.limits.vocab_size, "norm_stats": 2 * manifest.n_norms}
    return widths.get(name, manifest.d_model)
