"""Stored vectors beside those that are served now: what differs, by how much, and why. Knows no
files."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from addnorm.corpus.embeddings_client import Embedded
from addnorm.corpus.errors import CorpusError
from addnorm.corpus.vectors_file import Sample
from addnorm.service.arithmetic import dots, lengths, row_sums
from addnorm.service.engine.fingerprint import ANY, Recorded

Verdict = Literal[
    "bit-equal", "other rows", "some rows", "rounding", "scaled", "approximation", "other vectors"
]
# Limits of the verdicts: docs/vector-indexes.md has the differences that were measured
ROUNDING = {"float32": 1e-4, "float64": 1e-4, "float16": 1e-3}  # of the largest value
STEPS = 4  # of whole numbers: in dimensions that hardly vary, a step is as small as a rounding
SAME_DIRECTION = 0.99999  # cosine of every row
SAME_LENGTH = 1e-2  # relative
APPROXIMATION = 0.9  # cosine of every row
SOME = 0.1  # share of the rows
SAME_TEXT = 0.9999  # cosine of two vectors that one model makes of a text
NUM_NEIGHBOURS = 10
NUM_QUERIES = 1000  # whose neighbours are looked for
SLICE = 256  # rows compared at once
NUM_SHOWN = 10  # rows named
MEANINGS: dict[Verdict, str] = {
    "bit-equal": "the stored vectors are those that are served now",
    "other rows": "the vectors are those of other texts of this file, so its rows are in another"
    " order",
    "some rows": "the other rows are bit-equal, so model and runtime are the same; these texts or"
    " vectors changed after they were made, or these texts were cut elsewhere",
    "rounding": "the same model, computed by another processor, version or program",
    "scaled": "the same directions with other lengths: only one side is normalized",
    "approximation": "the same model in another precision, such as int8 or numbers of fewer bits,"
    " or nearly the same texts",
    "other vectors": "another model, pooling or prompt",
}


@dataclass(frozen=True)
class Figures:
    """How the stored and the new vectors of a sample differ. Rows are named by their places in
    it."""

    num_rows: int
    width: int
    dtype: str  # of the stored vectors
    different: list[int]  # rows whose bits differ
    largest_difference: float  # of two numbers
    largest_difference_row: int
    largest_value: float
    smallest_cosine: float
    mean_cosine: float
    shortest: float  # length of a new vector by that of the stored one
    longest: float
    num_zero: int  # stored vectors of zeros only
    of_other_rows: float  # share of the rows whose stored vector is the new one of another row
    num_neighbours: int  # fewer than NUM_NEIGHBOURS where there are not more rows; zeros have none
    neighbours_shared: float | None  # mean over rows; None where there are none

    @property
    def relative_difference(self) -> float:
        return self.largest_difference / self.largest_value if self.largest_value else 0.0


def compare(stored: NDArray[Any], new: NDArray[Any]) -> Figures:
    """[n, width] both."""
    dtype = stored.dtype.name
    if dtype == "float64":  # a server computes no more digits than float32's
        stored = stored.astype(np.float32)
    if stored.dtype == np.float16:  # new ones rounded to what they can hold
        with np.errstate(over="ignore"):
            new = new.astype(np.float16)
    differences, cosines, ratios = _by_row(stored, new)
    worst = int(differences.argmax())
    not_zero = stored.any(1) & new.any(1)
    num_neighbours = max(0, min(NUM_NEIGHBOURS, int(not_zero.sum()) - 1))
    return Figures(
        num_rows=len(stored),
        width=stored.shape[1],
        dtype=dtype,
        different=np.flatnonzero((_bits(stored) != _bits(new)).any(1)).tolist(),
        largest_difference=float(differences[worst]),
        largest_difference_row=worst,
        largest_value=float(max(np.abs(side.astype(np.float64)).max() for side in (stored, new))),
        smallest_cosine=float(cosines.min()),
        mean_cosine=float(row_sums(cosines[None])[0, 0] / len(cosines)),
        shortest=float(ratios.min()),
        longest=float(ratios.max()),
        num_zero=int((~stored.any(1)).sum()),
        of_other_rows=_of_other_rows(stored, new, np.flatnonzero(cosines <= SAME_TEXT)),
        num_neighbours=num_neighbours,
        neighbours_shared=_neighbours_shared(stored[not_zero], new[not_zero], num_neighbours),
    )


def verdict(figures: Figures) -> Verdict:
    """Judges by the number of rows that differ, and by how much they do."""
    if not figures.different:
        return "bit-equal"
    if figures.of_other_rows >= SOME:
        return "other rows"
    is_float = figures.dtype in ROUNDING
    limit = ROUNDING[figures.dtype] * figures.largest_value if is_float else STEPS
    same_direction = figures.smallest_cosine > SAME_DIRECTION
    is_rounding = same_direction and figures.largest_difference <= limit
    # rounding changes every float32 vector, but not every vector of fewer bits
    may_be_rounding = is_rounding and figures.dtype not in ("float32", "float64")
    num_equal = figures.num_rows - len(figures.different)
    if num_equal >= SOME * figures.num_rows and not may_be_rounding:
        return "some rows"
    if is_rounding:
        return "rounding"
    if same_direction and max(abs(figures.shortest - 1), abs(figures.longest - 1)) > SAME_LENGTH:
        return "scaled"
    return "approximation" if figures.smallest_cosine > APPROXIMATION else "other vectors"


def _bits(vectors: NDArray[Any]) -> NDArray[Any]:
    """The bits of each number as an unsigned integer, so that 0 and -0 differ."""
    return np.ascontiguousarray(vectors).view(f"u{vectors.dtype.itemsize}")


def _by_row(
    stored: NDArray[Any], new: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """For each row the largest difference, the cosine, and the ratio of the new length to the
    stored one, `[n]` each."""
    parts = []
    for start in range(0, len(stored), SLICE):
        a, b = (side[start : start + SLICE].astype(np.float64) for side in (stored, new))
        of_a, of_b = lengths(a)[:, 0], lengths(b)[:, 0]
        product = of_a * of_b
        equal = (a == b).all(1)
        # of two zero vectors 1, of a zero vector and another 0
        cosines = np.where(equal, 1.0, dots(a, b)[:, 0] / np.where(product, product, 1))
        ratios = np.where(equal, 1.0, of_b / np.where(of_a, of_a, 1))
        parts.append((np.abs(a - b).max(1), cosines, ratios))
    differences, cosines, ratios = map(np.concatenate, zip(*parts, strict=True))
    return differences, cosines, ratios


def _of_other_rows(stored: NDArray[Any], new: NDArray[Any], unlike: NDArray[np.int64]) -> float:
    """Share of all rows. unlike: those whose own new vector is another one."""
    if not len(unlike):
        return 0.0
    asked = unlike[_spread(len(unlike))]
    directions, found = _directions(new), 0
    for start in range(0, len(asked), SLICE):
        cosines = _directions(stored[asked[start : start + SLICE]]) @ directions.T
        found += int((cosines.max(1) > SAME_TEXT).sum())
    return found / len(asked) * len(unlike) / len(stored)


def _spread(number: int) -> NDArray[np.int64]:
    """At most NUM_QUERIES of so many places, evenly."""
    return np.linspace(0, number - 1, min(NUM_QUERIES, number)).astype(np.int64)


def _neighbours_shared(stored: NDArray[Any], new: NDArray[Any], number: int) -> float | None:
    """The share of each row's nearest neighbours by cosine that both sides have, on average."""
    if not number:
        return None
    sides = [_directions(stored), _directions(new)]
    queries = _spread(len(stored))
    shared = 0
    for start in range(0, len(queries), SLICE):
        asked = queries[start : start + SLICE]
        found = (_nearest(side, asked, number) for side in sides)
        shared += sum(len(set(a) & set(b)) for a, b in zip(*found, strict=True))
    return shared / (number * len(queries))


def _directions(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """The vectors scaled to length 1. Zero vectors stay zero."""
    floats = vectors.astype(np.float32)
    divisors = lengths(floats)
    return np.divide(floats, np.where(divisors, divisors, 1), dtype=np.float32)


def _nearest(vectors: NDArray[np.float32], queries: NDArray[Any], number: int) -> list[list[int]]:
    """The nearest rows of each query, itself left out."""
    cosines = vectors[queries] @ vectors.T
    cosines[np.arange(len(queries)), queries] = -np.inf
    nearest = np.argpartition(-cosines, number - 1, axis=1)[:, :number]
    return nearest.tolist()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Difference:
    """A part of a fingerprint that differs. None: that side has no such part."""

    part: str
    stored: str | None
    served: str | None

    def __str__(self) -> str:
        stored, served = self.stored, self.served
        are_classes = ANY not in f"{stored} {served}"
        if self.part == "processor" and stored and served and are_classes:
            # long lists, nearly the same
            a, b = stored.split(), served.split()
            stored = " ".join(word for word in a if word not in b) or "without"
            served = " ".join(word for word in b if word not in a) or "without"
        return f"{self.part} (stored {stored or 'none'}, now {served or 'none'})"


@dataclass(frozen=True)
class Fingerprints:
    """The fingerprints of the stored vectors and of the server."""

    stored: Recorded | None
    served: Recorded | None
    other_precision: str | None = None  # that the model has too, if the stored one is of it

    @property
    def are_equal(self) -> bool | None:
        """None if one is not known."""
        if self.stored is None or self.served is None:
            return None
        return self.stored.digest == self.served.digest

    @property
    def differences(self) -> list[Difference]:
        """The parts that differ, if both sides have parts."""
        if not (self.stored and self.served and self.stored.parts and self.served.parts):
            return []
        stored, served = self.stored.parts, self.served.parts
        differ = [part for part in {**served, **stored} if stored.get(part) != served.get(part)]
        # these bits are of the bundle's known answers, which each bundle and precision has its own
        of_answers = all(ANY in parts.get("processor", "") for parts in (stored, served))
        if of_answers and {"manifest_sha256", "precision"} & {*differ}:
            differ = [part for part in differ if part != "processor"]
        return [Difference(part, stored.get(part), served.get(part)) for part in differ]

    def __str__(self) -> str:
        if self.stored is None:
            return "none is stored with the vectors, so no cause can be named"
        if self.served is None:
            return "the server tells none"
        if self.are_equal:
            return "equal"
        if differences := self.differences:
            named = "differs in " + ", ".join(map(str, differences))
            precision = self.other_precision
            asked = (
                f"; the stored vectors are {precision}'s, which is served: --precision {precision}"
            )
            return named + (asked if precision else "")
        digests = f"stored {self.stored.digest}, now {self.served.digest}"
        unknown = "stored" if self.stored.parts is None else "told by the server"
        return f"differs ({digests}); its parts were not {unknown}, so no cause can be named"


@dataclass(frozen=True)
class Report:
    """All that was found."""

    figures: Figures
    rows: Sequence[int]  # of the sample, their numbers in the file
    model: str
    fingerprints: Fingerprints

    @property
    def verdict(self) -> Verdict:
        return verdict(self.figures)

    @property
    def meaning(self) -> str:
        """The meaning of verdict and fingerprint together, in words."""
        if self.figures.num_zero == self.figures.num_rows and self.verdict != "bit-equal":
            return "the stored vectors are zero, so nothing was stored"
        if self.verdict == "bit-equal" and self.fingerprints.are_equal is False:
            return f"{MEANINGS['bit-equal']}, though the fingerprint differs"
        if self.verdict not in ("bit-equal", "other rows") and self.fingerprints.are_equal:
            return (
                "model and runtime are the same, by the fingerprint: texts or vectors of the file"
                " changed, or the options (prompt, normalization, dimensions)"
            )
        return MEANINGS[self.verdict]

    def different_rows(self) -> list[int]:
        return [int(self.rows[place]) for place in self.figures.different]

    def as_json(self) -> dict[str, Any]:
        figures = asdict(self.figures)
        figures["different_rows"] = self.different_rows()
        figures["num_different"] = len(figures.pop("different"))
        figures["largest_difference_row"] = int(self.rows[self.figures.largest_difference_row])
        figures["relative_difference"] = self.figures.relative_difference
        sides = {"stored": self.fingerprints.stored, "served": self.fingerprints.served}
        return {
            "verdict": self.verdict,
            "meaning": self.meaning,
            "model": self.model,
            "figures": figures,
            "fingerprint": {
                "equal": self.fingerprints.are_equal,
                "differences": [asdict(found) for found in self.fingerprints.differences],
                **{name: side and side._asdict() for name, side in sides.items()},
            },
        }

    def lines(self) -> list[str]:
        """For people."""
        figures, rows = self.figures, self.different_rows()
        named = ", ".join(map(str, rows[:NUM_SHOWN])) + (", ..." if len(rows) > NUM_SHOWN else "")
        lines = [f"{self.verdict}: {self.meaning}", f"fingerprint: {self.fingerprints}"]
        if rows:
            worst = self.rows[figures.largest_difference_row]
            lines += [
                f"rows that differ: {len(rows):,} of {figures.num_rows:,} ({named})",
                f"largest difference: {figures.largest_difference:.3g} in row {worst},"
                f" {figures.relative_difference:.2g} of the largest value",
                f"cosine: {figures.smallest_cosine:.7f} at least,"
                f" {figures.mean_cosine:.7f} on average",
            ]
        if figures.num_zero:
            lines.append(f"stored vectors that are zero: {figures.num_zero:,}")
        if figures.of_other_rows:
            lines.append(
                f"stored vectors that are those of other rows: {figures.of_other_rows:.2%}"
            )
        if figures.neighbours_shared is not None:
            lines.append(
                f"nearest {figures.num_neighbours} neighbours shared:"
                f" {figures.neighbours_shared:.2%}"
            )
        return lines


def report(sample: Sample, new: Embedded, stored: Recorded | None) -> Report:
    """CorpusError if the vectors cannot be compared."""
    width, served = sample.vectors.shape[1], new.vectors.shape[1]
    if width != served:
        raise CorpusError(
            f"the stored vectors have {width} numbers, those of {new.model} {served}: name another"
            " model or bundle with --model or --bundle, or --dimensions if they were cut"
        )
    figures = compare(sample.vectors, new.vectors)
    # a bare digest gets its parts if it is that of a precision that is served
    parts = new.known.get(stored.digest) if stored else None
    found = Fingerprints(stored, new.fingerprint)
    if stored and new.fingerprint and parts:
        other = parts["precision"] if stored.digest != new.fingerprint.digest else None
        found = Fingerprints(Recorded(stored.digest, parts), new.fingerprint, other)
    return Report(figures, sample.rows.tolist(), new.model, found)
