"""Whether answers are right: compared, after the timed part, with each sequence computed alone."""

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import orjson
from safetensors import SafetensorError
from safetensors.numpy import load
from tqdm import tqdm

from addnorm.load.bench.stream import Request, Stream
from addnorm.load.client import REFUSED, Answers
from addnorm.service.inference import heads
from addnorm.service.runtime.batch import Batch, Floats, Ints
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.engine import Engine

WRONG = "wrong"
NAIVE_TOLERANCE = 1e-3  # of a padded graph on this load; ours has none


Compute = Callable[
    [str, Ints], Floats
]  # output, a sequence -> its pooled vector or its activations


def alone(bundle: Bundle, precision: str) -> Compute:
    """An engine in this process that sees one sequence at a time."""
    engine = Engine(bundle, precision, "cpu")

    def compute(output: str, sequence: Ints) -> Floats:
        batch = Batch.of([sequence])
        activations = engine.run(batch).activations
        if output == "activations":
            return activations.copy()
        vector: Floats = heads.pooled(activations, batch.offsets, bundle.manifest.pooling)[0]
        return vector

    return compute


class Reference:
    """The right answer to each request, and what passes for it."""

    def __init__(self, compute: Compute, tolerance: float | None = None) -> None:
        """tolerance: of real tokens. None asks for the same bits, and for zeros at pads."""
        self._compute = compute
        self._alone: dict[tuple[str, bytes], Floats] = {}
        self._tolerance = tolerance

    def near(self, tolerance: float) -> "Reference":
        """The same answers, told apart by a tolerance."""
        other = Reference(self._compute, tolerance)
        other._alone = self._alone
        return other

    def learn(self, stream: Stream, what: str = "") -> None:
        """Computes every sequence of the stream that is not known yet."""
        wanted = {(r.output, s.tobytes()): s for r in stream.requests for s in r.sequences}
        new = {key: sequence for key, sequence in wanted.items() if key not in self._alone}
        for (output, key), sequence in tqdm(
            new.items(), f"computing {what} alone", leave=False, disable=not new
        ):
            self._alone[output, key] = self._compute(output, sequence)

    def verdicts(self, stream: Stream, answers: Answers) -> tuple[list[bool], dict[str, int]]:
        """For each answer whether it is right, and how many are not, by status or "wrong"."""
        verdicts = {
            index: [self._verdict(stream.requests[index], *answer) for answer in kept]
            for index, kept in answers.kept.items()
        }
        given = [verdicts[index][which] for index, which in answers.given]
        return [verdict is None for verdict in given], dict(
            Counter(verdict for verdict in given if verdict)
        )

    def _verdict(self, request: Request, status: int, body: bytes) -> str | None:
        """None if right, else what is wrong."""
        if status == REFUSED:
            return "no answer"
        if status != 200:
            return str(status)
        try:
            got = _output(body, request.output)
        except (ValueError, KeyError, TypeError, SafetensorError):
            return "not the answer asked for"
        return None if self._is_right(request, got) else WRONG

    def _is_right(self, request: Request, got: Floats) -> bool:
        alone = [self._alone[request.output, sequence.tobytes()] for sequence in request.sequences]
        known = np.stack(alone) if request.output == "pooled" else _on_grid(alone, request.width)
        if got.shape != known.shape:
            return False
        if self._tolerance is None:
            return got.tobytes() == known.tobytes()
        if request.output == "activations":
            got = _on_grid(
                [row[: len(rows)] for row, rows in zip(got, alone, strict=True)], request.width
            )
        return bool(np.allclose(got, known, rtol=self._tolerance, atol=self._tolerance))


def _output(body: bytes, name: str) -> Floats:
    """Of an answer in JSON, or else in safetensors."""
    return (
        np.array(orjson.loads(body)[name], np.float32)
        if body.startswith(b"{")
        else load(body)[name]
    )


def _on_grid(rows: Iterable[Floats], width: int) -> Floats:
    return np.stack([np.pad(row, ((0, width - len(row)), (0, 0))) for row in rows])
