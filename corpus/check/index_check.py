"""Stored vectors beside those that are served now, in words: what differs, and why. Knows no
files."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from addnorm.corpus.comparison import Figures, Verdict, compare, verdict
from addnorm.corpus.embeddings_client import Embedded
from addnorm.corpus.errors import CorpusError
from addnorm.corpus.fingerprint_differences import Fingerprints
from addnorm.corpus.vectors_file import Sample
from addnorm.service.engine.fingerprint import Recorded

NUM_SHOWN = 10  # rows named
MEANINGS: dict[Verdict, str] = {
    "bit-equal": "the stored vectors equal the vectors served now",
    "other rows": "the vectors belong to other texts of this file, so its rows are in a different"
    " order",
    "some rows": "the other rows are bit-equal, so model and runtime are the same; these texts or"
    " vectors changed after they were computed, or these texts were truncated at another place",
    "rounding": "the same model, computed by another processor, version or program",
    "scaled": "the same directions with different lengths: only one side is normalized",
    "approximation": "the same model in another precision, such as int8 or numbers of fewer bits,"
    " or nearly the same texts",
    "other vectors": "a different model, pooling or prompt",
}


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
            return "all stored vectors are zero, so no vectors were stored"
        if self.verdict == "bit-equal" and self.fingerprints.are_equal is False:
            return f"{MEANINGS['bit-equal']}, though the fingerprint differs"
        if self.verdict not in ("bit-equal", "other rows") and self.fingerprints.are_equal:
            return (
                "the fingerprint shows the same model and runtime: the file's texts or vectors"
                " changed, or the options did (prompt, normalization, dimensions)"
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
                "differences": [asdict(difference) for difference in self.fingerprints.differences],
                **{name: side and side._asdict() for name, side in sides.items()},
            },
        }

    def lines(self) -> list[str]:
        """For people."""
        figures, rows = self.figures, self.different_rows()
        first_rows = ", ".join(map(str, rows[:NUM_SHOWN])) + (
            ", ..." if len(rows) > NUM_SHOWN else ""
        )
        lines = [f"{self.verdict}: {self.meaning}", f"fingerprint: {self.fingerprints}"]
        if rows:
            worst = self.rows[figures.largest_difference_row]
            lines += [
                f"rows that differ: {len(rows):,} of {figures.num_rows:,} ({first_rows})",
                f"largest difference: {figures.largest_difference:.3g} in row {worst},"
                f" {figures.relative_difference:.2g} of the largest value",
                f"cosine: {figures.smallest_cosine:.7f} at least,"
                f" {figures.mean_cosine:.7f} on average",
            ]
        if figures.num_zero:
            lines.append(f"stored vectors that are zero: {figures.num_zero:,}")
        if figures.of_other_rows:
            lines.append(f"stored vectors that belong to other rows: {figures.of_other_rows:.2%}")
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
            f"the stored vectors have {width} numbers, the vectors of {new.model} have {served}:"
            " choose another model with --model, or set --dimensions if the"
            " stored vectors were truncated"
        )
    figures = compare(sample.vectors, new.vectors)
    # a bare digest gets its parts if it is that of a precision that is served
    same = new.by_digest.get(stored.digest) if stored else None
    fingerprints = Fingerprints(same or stored, new.fingerprint)
    if stored and new.fingerprint and same and same.parts and same != new.fingerprint:
        fingerprints = replace(fingerprints, other_precision=same.parts["precision"])
    return Report(figures, sample.rows.tolist(), new.model, fingerprints)
