"""Cases of the certificate: what is served against PyTorch, and its bits against themselves.

Cases are seeded requests. They go through the server's own request path and encode; a few through
the bare graph. The reference is always the plain `Padded` model in PyTorch, so packing is proved
too. Of bits, this counts how many differ and by how much: the certificate allows no difference on
the CPU, and writes down what holds on CUDA.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, compress
from typing import Any, NamedTuple, TypeVar

import numpy as np
import orjson
import torch
from numpy.typing import NDArray

from addnorm.export.certificate import tolerances
from addnorm.model.config import Pick
from addnorm.model.pooling import pick_vectors
from addnorm.model.transformer import Transformer
from addnorm.service.asking.ask import Ask
from addnorm.service.dialects.native.native_infer import INFER, Bodies, encode, infer
from addnorm.service.engine import selfcheck
from addnorm.service.engine.batch import Batch, Grid
from addnorm.service.engine.engine import Engine
from addnorm.service.engine.manifest import Limits
from addnorm.service.engine.model import Model
from addnorm.service.engine.outputs import OutputKind
from addnorm.service.engine.outputs.per_token import SomeTokenVectors
from addnorm.service.engine.outputs.sparse import TOKEN_WEIGHTS, Sparse
from addnorm.service.engine.registry import Models
from addnorm.service.loading.loader import PADDINGS
from addnorm.service.server.wiring import Service, build
from addnorm.service.settings import Settings
from addnorm.service.wire.codec.payload import Encode
from addnorm.service.wire.codec.validation import fit

Array = NDArray[Any]
PLACES = ("right", "left", "holes")  # of pads
Arrays = Sequence[NDArray[Any]]  # all outputs of a sequence or a row, its activations first
Pair = tuple[Arrays, Arrays]  # the same numbers, computed in two ways
NamedPairs = tuple[str, Callable[[str], Mapping[str, Iterable[Pair]]]]  # precision -> by output
NUM_SEQUENCES = 64  # of the pool that compositions are drawn from
MOST_TOGETHER = 32
T = TypeVar("T")
NamedCompare = tuple[str, Callable[[str], Iterable[tolerances.Result]]]  # called with a precision
BIT_LENGTHS = (1, 2, 3, 5, 8, 16, 17, 33, 64, 100, 129, 512)
PATIENCE_S = 3600.0  # for one case, all in one run too: a slow machine is no fault of the graph
# every case is computed: a cache would compare a sequence's first answer with itself
SETTINGS = Settings(
    max_response_bytes=2**32,
    cache_bytes=0,
    **dict.fromkeys(("timeout_s", "bulk_timeout_s", "run_timeout_s"), PATIENCE_S),
)


@dataclass(frozen=True)
class Case:
    """A request: rows of token ids, of their types or none, and a mask or none. Or rows of vectors
    in place of ids."""

    name: str
    input_ids: list[list[int]]
    attention_mask: list[list[int]] | None = None
    token_type_ids: list[list[int]] | None = None
    inputs: list[list[list[float]]] | None = None

    @classmethod
    def from_batch(cls, name: str, batch: Batch) -> "Case":
        """The sequences of a batch, ragged."""
        types = None if batch.types is None else _split(batch.types, batch)
        rows = _split(batch.tokens, batch)
        if batch.field == "inputs":
            return cls(name, [], None, types, rows)
        return cls(name, rows, None, types)

    def row(self, index: int) -> "Case":
        """One of its rows, alone."""
        mask = self.attention_mask and [self.attention_mask[index]]
        types = self.token_type_ids and [self.token_type_ids[index]]
        return Case(f"{self.name}, row {index}", [self.input_ids[index]], mask, types)

    def grid(self) -> Grid:
        """`[B, S]`; ragged rows are padded on the right."""
        types = None if self.token_type_ids is None else _padded_right(self.token_type_ids)
        mask = self.attention_mask or _padded_right([[1] * len(row) for row in self.input_ids])
        return Grid(_padded_right(self.input_ids), np.array(mask, np.int64), types)


def _split(values: Array, batch: Batch) -> list[list[Any]]:
    return [row.tolist() for row in np.split(values, batch.offsets[1:-1])]


def _padded_right(rows: list[list[int]]) -> Array:
    width = max(map(len, rows))
    return np.array([row + [0] * (width - len(row)) for row in rows], np.int64)


def cases(limits: Limits) -> list[Case]:
    """The seeded requests of the certificate."""
    longest, ends = limits.max_positions, np.array([0, limits.vocab_size - 1])
    drawn = selfcheck.sequences(limits, [1, longest, 3, 29, 7, 60, 2])
    ragged = Batch.joined([(drawn, index) for index in range(2, len(drawn))])
    padded = [_pad_batch(ragged, place) for place in PLACES]
    masks = padded[0].attention_mask
    assert masks
    pads_alone = [[0] * len(mask) if row == 1 else mask for row, mask in enumerate(masks)]
    return [
        Case.from_batch("length 1", drawn.sequence(0)),
        Case("lowest and highest id", [[int(ids)] for ids in limits.without_pads(ends)]),
        Case.from_batch(f"maximum length {longest}", drawn.sequence(1)),
        Case.from_batch("ragged", ragged),
        *padded,
        replace(padded[0], name="a row of pads alone", attention_mask=pads_alone),
    ]


def case_named(limits: Limits, name: str) -> Case:
    return next(case for case in cases(limits) if case.name == name)


def _pad_batch(batch: Batch, place: str) -> Case:
    grids = [selfcheck.place(batch.sequence(index), 64, place) for index in range(len(batch))]
    ids, masks, types = zip(*grids, strict=True)
    return Case(
        f"pads {place}",
        np.concatenate(ids).tolist(),
        np.concatenate(masks).tolist(),
        None if batch.types is None else np.concatenate(types).tolist(),
    )


class Bits(NamedTuple):
    """Result of comparing some pairs bit by bit. Differences and values are those of
    activations."""

    compared: int
    unequal: int
    largest_difference: float
    largest_value: float


def count_unequal(pairs: Iterable[Pair]) -> Bits:
    compared = unequal = 0
    difference = value = 0.0
    for rows, twin in pairs:
        compared += 1
        value = _largest_of(value, rows[0])
        if not selfcheck.same_bits(rows, twin):
            unequal += 1
            difference = _largest_of(difference, rows[0] - twin[0])
    return Bits(compared, unequal, difference, value)


def _largest_of(largest: float, values: NDArray[Any]) -> float:
    """NaN if any is."""
    return float(np.maximum(largest, np.abs(values).max(initial=0)))


def compositions(engine: Engine, limits: Limits, num: int) -> Iterator[Pair]:
    """Every sequence of so many drawn batches, beside the same sequence alone."""
    draws = np.random.default_rng(0)
    lengths = np.clip(draws.lognormal(3.2, 0.9, NUM_SEQUENCES).astype(int), 1, 512)
    pool = selfcheck.sequences(limits, lengths.tolist())
    alone = [engine.run(pool.sequence(index)) for index in range(NUM_SEQUENCES)]
    for _ in range(num):
        chosen = draws.choice(NUM_SEQUENCES, draws.integers(2, MOST_TOGETHER + 1), replace=False)
        batch = Batch.joined([(pool, int(index)) for index in chosen])
        rows = engine.run(batch)
        for place, index in enumerate(chosen):
            start, end = batch.offsets[place : place + 2].tolist()
            yield rows.span(start, end), alone[index]


class CertificationError(Exception):
    """A check failed. The message names the case in words."""


class Served:
    """The server's path without HTTP: a decoded body in, the parsed answer out."""

    def __init__(self, model: Model, bodies: Bodies = INFER) -> None:
        """bodies: for the outputs that are compared."""
        self.model, self.bodies = model, bodies
        # texts are cut, as their authors' program cuts them
        manifest = model.bundle.manifest.model_copy(update={"windows": None})
        model.bundle = replace(model.bundle, manifest=manifest)
        self.service = build(Models([model]), SETTINGS)

    def ask(self, case: Case, precision: str, **options: Any) -> dict[str, Any]:
        rows = {name: part for name, part in vars(case).items() if name != "name" and part}
        body = {**rows, "precision": precision, **options}
        # an answer may be large, and takes many times its bytes once parsed
        answer, _ = run(infer_body(self.service, body, self.bodies))
        return orjson.loads(answer)  # type: ignore[no-any-return]

    @property
    def outputs(self) -> Mapping[str, OutputKind]:
        """The outputs of the model that every precision has."""
        kinds = self.bodies.request.output_kinds.of(self.model.bundle)
        return {name: kind for name, kind in kinds.items() if not kind.is_of_lens}

    def few_values(self, output: str, case: Case) -> Mapping[str, Any]:
        """The options of an output with which the case's answer has few enough values."""
        num_tokens = int(case.grid().attention_mask.sum())
        return self.outputs[output].compared_options(self.model.bundle, num_tokens)


async def infer_body(
    service: Service, body: dict[str, Any], bodies: Bodies = INFER
) -> tuple[bytes, Ask]:
    """The answer to a body of /v1/infer, and the ask that it became."""
    request = fit(bodies.request, body)

    async def decode(ask: Ask) -> Encode:
        await infer(request, ask, service.tools)
        # which vectors are joined may depend on the last bits of distances: they are compared as
        # they are before
        ask.outputs = tuple(
            output.before_joining() if isinstance(output, SomeTokenVectors) else output
            for output in ask.outputs
        )
        return encode

    payload, ask = await service.answers.ask(PATIENCE_S, decode)
    return b"".join(payload.parts), ask


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine as asyncio.run does, also if the thread has a loop already, as in
    notebooks."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


@contextmanager
def path_of(model: Model, bodies: Bodies = INFER) -> Iterator[Served]:
    """Closed at the end."""
    path = Served(model, bodies)
    yield path
    path.service.close()


def named_cases(path: Served, reference: Transformer) -> list[NamedCompare]:
    """Every case by name, as a function to be called with the precision."""

    def pads_alone(precision: str) -> Iterator[tolerances.Result]:
        yield "not zero", int(not selfcheck.all_pad_is_zero(path.model.engine(precision))), 0

    compared = list[NamedCompare]()
    for case in cases(path.model.bundle.manifest.limits):
        computed = cache(partial(by_torch, reference, case.grid()))  # the same for each precision
        compared.append((case.name, partial(_against_torch, path, reference, case, computed)))
    return [
        *compared,
        ("bare graph, pads holes", partial(_bare_graph, path, reference)),
        ("bare graph, pads alone", pads_alone),
    ]


def bits(path: Served) -> list[NamedPairs]:
    """Pairs whose bits must be equal on the CPU."""
    return [
        ("padded like alone", partial(_padded_pairs, path)),
        ("co-batched like alone", partial(_co_batched_pairs, path)),
        ("bare graph, its bits", partial(_bare_pairs, path)),
    ]


def _against_torch(
    path: Served,
    reference: Transformer,
    case: Case,
    computed: Callable[[], tuple[Array, Array, Array]],
    precision: str,
) -> Iterator[tolerances.Result]:
    """Every output over real tokens. Heads run in float32 always: in int8 they are compared with
    what the reference's head makes of the served activations."""
    activations, mean, rstd = computed()
    activations = activations.copy()
    got = path.ask(case, precision, outputs=["activations", "pooled", "norm_stats"])
    real = case.grid().attention_mask != 0
    served = real_rows(got["activations"], real, case)
    yield from tolerances.vectors("activations", served, activations[real], precision)
    vectors = np.array(got["pooled"], np.float32)[real.any(1)]
    if "pooled" not in reference.heads:
        pooled = picked_rows(path.model.bundle.manifest.pooling, activations, real)
        yield from tolerances.vectors("pooled", vectors, pooled, precision)
    stats = got["norm_stats"]
    norms = real_rows(stats["mean"], real, case), real_rows(stats["rstd"], real, case)
    yield from tolerances.norms(norms, (mean[real], rstd[real]), precision)
    if precision != "fp32":
        activations[real] = served
    for output, _ in reference.named_heads():
        if output == "pooled":
            pooled = picked_rows(path.model.bundle.manifest.pooling, activations, real)
            yield from tolerances.vectors(
                output, vectors, by_head(reference, output, pooled), "fp32"
            )
            continue
        if output == TOKEN_WEIGHTS:
            continue  # an output has them by words: compared with the program's, text by text
        # where logits of every token are too many values, of the last token of each row
        few_options = path.few_values(output, case)
        options = {output: few_options} if few_options else {}
        answer = path.ask(case, precision, outputs=[output], **options)[output]
        pick = path.outputs[output].of_options(few_options).pick(path.model.bundle)
        if pick == "every":
            rows, inputs = real_rows(answer, real, case), activations[real]
        else:
            rows, inputs = np.array(answer)[real.any(1)], picked_rows(pick, activations, real)
        yield from tolerances.vectors(output, rows, by_head(reference, output, inputs), "fp32")


def by_torch(reference: Transformer, grid: Grid) -> tuple[Array, Array, Array]:
    """activations, norm_mean, norm_rstd `[B, S, ...]`."""
    inputs = (None if cells is None else torch.from_numpy(cells) for cells in grid)
    with torch.no_grad():
        activations, mean, rstd = reference(*inputs)
    return activations.numpy(), mean.numpy(), rstd.numpy()


def picked_rows(pick: Pick, activations: Array, real: Array) -> Array:
    """`[B, S, d]` -> a vector for each row with a real token `[n, d]`."""
    vectors: Array = pick_vectors(
        pick, torch.from_numpy(activations), torch.from_numpy(real)
    ).numpy()
    return vectors[real.any(1)]


def by_head(reference: Transformer, output: str, rows: Array) -> Array:
    """rows `[n, d_model]` -> what the reference's head makes of them `[n, width]`."""
    with torch.no_grad():
        return reference.heads[output](torch.from_numpy(rows)).numpy()  # type: ignore[no-any-return]


def real_rows(answer: list[Any], real: Array, case: Case) -> Array:
    """The answer's rows over real tokens `[n, w]`; pads must be exact zeros."""
    if case.attention_mask is None:
        return np.concatenate([np.array(row) for row in answer])
    grid = np.array(answer)
    if grid[~real].any():
        raise CertificationError(f"{case.name}: a pad is not zero")
    return grid[real]


def _bare_graph(
    path: Served, reference: Transformer, precision: str
) -> Iterator[tolerances.Result]:
    """The graph as any other ONNX server would call it: on the padded grid."""
    case = case_named(path.model.bundle.manifest.limits, "pads holes")
    expected, *_ = by_torch(reference, case.grid())
    got = path.model.engine(precision).run_grid(case.grid())[0]
    flat = (-1, expected.shape[-1])
    served, expected = got.reshape(flat), expected.reshape(flat)
    yield from tolerances.vectors("activations", served, expected, precision)


def _bare_pairs(path: Served, precision: str) -> Mapping[str, Iterable[Pair]]:
    engine, manifest = path.model.engine(precision), path.model.bundle.manifest
    paddings = PADDINGS[manifest.layout]
    drawn = selfcheck.sequences(manifest.limits, BIT_LENGTHS)
    expected = selfcheck.SequenceRows.together(engine, drawn, len(drawn))
    pairs = selfcheck.pairs(engine, expected, paddings)
    return {f"unequal ({', '.join(paddings)})": ((rows, twin) for _, rows, twin in pairs)}


def _padded_pairs(path: Served, precision: str) -> Mapping[str, Iterable[Pair]]:
    """Padded rows, and the same rows sent ragged."""
    limits = path.model.bundle.manifest.limits
    plain = _rows(path, case_named(limits, "ragged"), precision)
    padded = (_rows(path, case_named(limits, f"pads {place}"), precision) for place in PLACES)
    return {"unequal rows": chain.from_iterable(zip(rows, plain, strict=True) for rows in padded)}


def _co_batched_pairs(path: Served, precision: str) -> Mapping[str, Iterable[Pair]]:
    """Rows sent alone, and the same rows in one batch."""
    ragged = case_named(path.model.bundle.manifest.limits, "ragged")
    together = _rows(path, ragged, precision)
    return {
        "unequal rows": (
            (_rows(path, ragged.row(index), precision)[0], row)
            for index, row in enumerate(together)
        )
    }


def _rows(path: Served, case: Case, precision: str) -> list[Arrays]:
    """Every output of each row over its real tokens, activations first.

    Equal numbers are equal bits: floats print exactly.
    """
    grids, vectors = list[Any](), list[Any]()
    options = {name: path.few_values(name, case) for name in path.outputs}
    narrowed = {name: few_options for name, few_options in options.items() if few_options}
    got = path.ask(case, precision, outputs=[*options], **narrowed)
    for name, kind in path.outputs.items():
        output = kind.of_options(options[name])
        parts = got[name].values() if isinstance(got[name], dict) else [got[name]]
        by_token = output.pick(path.model.bundle) == "every" and name != Sparse.name
        (grids if by_token else vectors).extend(parts)
    masks = case.attention_mask or [[1] * len(row) for row in case.input_ids]
    return [
        [
            # a quarter of the memory of Python's floats
            *(np.array([*compress(grid[i], mask)], np.float64) for grid in grids),
            *(np.array(_numbers(vector[i]), np.float64) for vector in vectors),
        ]
        for i, mask in enumerate(masks)
    ]


def _numbers(vector: list[Any] | dict[str, list[Any]]) -> list[Any]:
    """The numbers of a vector; those of a sparse one are put end to end."""
    return [*chain.from_iterable(vector.values())] if isinstance(vector, dict) else vector
