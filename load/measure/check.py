"""Answers are right or wrong: compared, after the timed part, with each sequence computed alone."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
import orjson
from safetensors import SafetensorError
from safetensors.numpy import load
from tqdm import tqdm

from addnorm.load.client import NO_RESPONSE, Answers
from addnorm.load.measure.stream import Request, Stream
from addnorm.service.engine import heads
from addnorm.service.runtime.batch import Batch, Floats, Ints
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.engine import Engine

WRONG = "wrong"
NAIVE_TOLERANCE = 1e-3  # of a padded graph on this load; ours has none

Key = tuple[str, bytes]  # output, sequence
# output, a sequence -> its activations, its pooled vector, or that as /v1/embeddings gives it
Compute = Callable[[str, Ints], Floats]


def compute_alone(bundle: Bundle, precision: str) -> Compute:
    """An engine in this process that sees one sequence at a time. It is loaded at first use."""
    engine = cache(lambda: Engine(bundle, precision))

    def compute(output: str, sequence: Ints) -> Floats:
        batch = Batch.of([sequence])
        rows = engine().run(batch)
        if output == "activations":
            return rows.activations.copy()
        vectors = heads.pooled(rows, batch.offsets, bundle.manifest.pooling)
        if output == "embedding" and bundle.manifest.normalize:
            vectors = heads.unit(vectors)
        vector: Floats = vectors[0]
        return vector

    return compute


class Reference:
    """The right answer to each request, and what passes for it."""

    def __init__(
        self, compute: Compute, tolerance: float | None = None, most_alone: int | None = None
    ) -> None:
        """tolerance: of real tokens. None asks for the same bits, and for zeros at pads.

        most_alone: how many sequences a call of `learn` computes, drawn by a seed. All answers to
        each of the others must equal its first one, whichever server gave it.
        """
        self._compute = compute
        self._alone: dict[Key, Floats] = {}
        self._first: dict[Key, Floats] = {}  # answers to what was not computed
        self._left_out: set[Key] = set()
        self._tolerance, self._most_alone = tolerance, most_alone
        self._draws = np.random.default_rng(0)

    def with_tolerance(self, tolerance: float) -> "Reference":
        """The same answers, told apart by a tolerance."""
        other = Reference(self._compute, tolerance)
        other._alone = self._alone
        return other

    def learn(self, requests: Iterable[Request], what: str = "") -> None:
        """Computes the sequences that are not known yet, or a share of them."""
        wanted = {_key(r.output, s): s for r in requests for s in r.sequences}
        new = [key for key in wanted if key not in self._alone and key not in self._left_out]
        if self._most_alone is not None and len(new) > self._most_alone:
            order = self._draws.permutation(len(new))
            self._left_out |= {new[i] for i in order[self._most_alone :]}
            new = [new[i] for i in order[: self._most_alone]]
        for key in tqdm(new, f"computing {what} alone", leave=False, disable=None if new else True):
            self._alone[key] = self._compute(key[0], wanted[key])

    def coverage(self, requests: Iterable[Request]) -> tuple[int, int]:
        """Distinct sequences of these requests, and how many of them were computed alone."""
        keys = {_key(r.output, s) for r in requests for s in r.sequences}
        return len(keys), len(keys & self._alone.keys())

    def verdicts(self, stream: Stream, answers: Answers) -> tuple[list[bool], dict[str, int]]:
        """For each answer whether it is right, and how many are not, by status or "wrong"."""
        verdicts = {
            index: [self._verdict(stream.requests[index], *answer) for answer in kept]
            for index, kept in answers.kept.items()
        }
        given = [verdicts[index][which] for index, which in answers.given]
        wrong = Counter(verdict for verdict in given if verdict)
        return [verdict is None for verdict in given], dict(wrong)

    def _verdict(self, request: Request, status: int, body: bytes) -> str | None:
        """None if right, else what is wrong."""
        if status == NO_RESPONSE:
            return "no answer"
        if status != 200:
            return str(status)
        try:  # in JSON, or else in safetensors
            if not body.startswith(b"{"):
                got = load(body)[request.output]
            elif request.output != "embedding":
                got = np.array(orjson.loads(body)[request.output], np.float32)
            else:
                entries = sorted(orjson.loads(body)["data"], key=lambda entry: entry["index"])
                got = np.array([entry["embedding"] for entry in entries], np.float32)
        except (ValueError, KeyError, TypeError, SafetensorError):
            return "not the answer asked for"
        return None if self._is_right(request, got) else WRONG

    def _is_right(self, request: Request, got: Floats) -> bool:
        has_rows = request.output == "activations"  # of each token; else a vector a sequence
        if got.ndim != (3 if has_rows else 2) or len(got) != len(request.sequences):
            return False
        alone = []
        for sequence, row in zip(request.sequences, got, strict=True):
            key = _key(request.output, sequence)
            if key not in self._left_out:
                alone.append(self._alone[key])
                continue
            # of one that was left out, its first answer
            alone.append(self._first.setdefault(key, row[: len(sequence)] if has_rows else row))
        if {row.shape[-1] for row in alone} != {got.shape[-1]}:
            return False
        known = _on_grid(alone, request.width) if has_rows else np.stack(alone)
        if got.shape != known.shape:
            return False
        if self._tolerance is None:
            return got.tobytes() == known.tobytes()
        if has_rows:
            got = _on_grid(
                [row[: len(rows)] for row, rows in zip(got, alone, strict=True)], request.width
            )
        return bool(np.allclose(got, known, rtol=self._tolerance, atol=self._tolerance))


def _key(output: str, sequence: Ints) -> Key:
    return output, sequence.tobytes()


def _on_grid(rows: Iterable[Floats], width: int) -> Floats:
    return np.stack([np.pad(row, ((0, width - len(row)), (0, 0))) for row in rows])
