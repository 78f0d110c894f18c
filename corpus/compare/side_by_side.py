"""Agreement of two sides about texts, in figures, words and a picture. Knows no files."""

from collections.abc import Iterator, Set
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from addnorm.corpus.comparison import (
    NUM_NEIGHBOURS,
    Nearest,
    by_row,
    directions,
    is_best,
    mean,
    products,
    rank_correlation,
    shared,
)
from addnorm.service.engine.batch import Ints

WORDS = {
    "embed": "pooled vectors, by cosine",
    "sparse": "sparse vectors, by dot product",
    "rerank": "order of candidates (by MaxSim, of vectors of tokens)",
    "classify": "labels of texts",
    "tag": "entities",
}
NUM_RANKED = 100  # of the nearest texts, whose ranks are compared
NUM_SHOWN = 5  # of the worst
NUM_BINS = 20
Vectors = NDArray[Any]


class Agreement:
    """About vectors of texts that come in blocks, and the nearest of them to some queries. Memory
    is the queries' vectors, what is nearest to them, and a block."""

    def __init__(self, a: Vectors, b: Vectors, by_cosine: bool = True) -> None:
        """Vectors of the queries, `[q, width]` each; widths may differ. by_cosine: what is near;
        else the dot product."""
        self._scaled = directions if by_cosine else np.asarray
        self._queries = self._scaled(a), self._scaled(b)
        # which texts are nearest by each side, with the cosines of both
        self._nearest = Nearest(len(a), NUM_RANKED), Nearest(len(a), NUM_NEIGHBOURS)
        self._cosines = list[NDArray[np.float64]]()
        self._lowest = list[tuple[float, int]]()
        self._numbers = list[Ints]()
        self._num_rows = 0

    def add(self, rows: Ints, a: Vectors, b: Vectors) -> None:
        """rows: numbers of the texts. Vectors of one block, `[n, width]` each."""
        if a.shape[1] == b.shape[1]:
            _, cosines, _ = by_row(a, b)
            self._cosines.append(cosines)
            lowest = zip(cosines.tolist(), rows.tolist(), strict=True)
            self._lowest = sorted([*self._lowest, *lowest])[:NUM_SHOWN]
        by_a, by_b = (
            products(queries, self._scaled(side))
            for queries, side in zip(self._queries, (a, b), strict=True)
        )
        self._nearest[0].add(self._num_rows, by_a, by_b)
        self._nearest[1].add(self._num_rows, by_b, by_a)
        self._num_rows += len(rows)

    def figures(self) -> dict[str, Any]:
        by_a, by_b = self._nearest
        num_shared, number = shared(by_a, by_b), by_b.rows.shape[1]
        shares = num_shared / number
        ranked = by_a.rows.shape[1]
        ranks = rank_correlation(by_a.scores[0], by_a.scores[1]) if ranked > 1 else None
        worst = np.argsort(num_shared, kind="stable")[:NUM_SHOWN].tolist()
        cosines = np.concatenate(self._cosines) if self._cosines else None
        return {
            "cosine": None if cosines is None else {"mean": mean(cosines), "lowest": cosines.min()},
            "lowest_cosines": [{"row": row, "cosine": cosine} for cosine, row in self._lowest],
            "neighbours": number,
            "shared": {
                "mean": mean(shares),
                "all": np.count_nonzero(num_shared == number) / len(shares),
            },
            "histogram": {
                "of": f"queries by the number of their {number} nearest texts that A and B share",
                "from": 0,
                "to": number + 1,
                "counts": np.bincount(num_shared, minlength=number + 1).tolist(),
            },
            "worst_queries": [
                {"query": query, "shared": int(num_shared[query])} for query in worst
            ],
            "rank_correlation": None if ranks is None else mean(ranks),
            "ranked": ranked,
        }


class Scores:
    """About scores of labels, or of candidates."""

    def __init__(self) -> None:
        self._entries = list[dict[str, Any]]()
        self._num_changed = 0
        self._changes = list[NDArray[np.float64]]()
        self._num_entities = np.zeros(3, np.int64)  # A's, B's, of both

    def add_order(self, row: int, query: str, a: Vectors, b: Vectors) -> None:
        """Scores of a query's candidates, `[n]` each."""
        rank = float(rank_correlation(a[None], b[None])[0]) if len(a) > 1 else 1.0
        same = bool(is_best(a[None], b[None].argmax(1))[0])
        self._entries.append(
            {"row": row, "text": query, "rank_correlation": rank, "same_top": same}
        )

    def orders(self) -> dict[str, Any]:
        ranks = np.array([entry["rank_correlation"] for entry in self._entries])
        tops = np.array([entry["same_top"] for entry in self._entries])
        worst = sorted(
            self._entries, key=lambda entry: (entry["same_top"], entry["rank_correlation"])
        )
        return {
            "rank_correlation": mean(ranks),
            "same_top": np.count_nonzero(tops) / len(tops),
            "worst_queries": worst[:NUM_SHOWN],
            "histogram": _histogram("queries by the rank correlation of A and B", ranks, -1.0),
        }

    def add_labels(self, rows: Ints, texts: list[Any], a: Vectors, b: Vectors) -> None:
        """Scores of the labels, `[n, labels]` each."""
        change = np.abs(a - b).max(1)
        self._add(rows, texts, change, ~is_best(a, b.argmax(1)))

    def _add(self, rows: Ints, texts: list[Any], change: Vectors, is_changed: Vectors) -> None:
        self._changes.append(change.astype(np.float64))
        self._num_changed += int(np.count_nonzero(is_changed))
        entries = [
            {"row": int(rows[i]), "text": texts[i], "change": float(change[i]),
             "label_changed": bool(is_changed[i])}
            for i in np.argsort(-change, kind="stable")[:NUM_SHOWN]
        ]  # fmt: skip
        self._entries = sorted([*self._entries, *entries], key=lambda entry: -entry["change"])[
            :NUM_SHOWN
        ]

    def add_entities(
        self, rows: Ints, texts: list[Any], a: list[Set[Any]], b: list[Set[Any]]
    ) -> None:
        """Entities of each text. The change of a text is the share of those that one side has."""
        pairs = list(zip(a, b, strict=True))
        change = np.array([len(x ^ y) / max(len(x | y), 1) for x, y in pairs])
        num_both = sum(len(x & y) for x, y in pairs)
        self._num_entities += [sum(map(len, a)), sum(map(len, b)), num_both]
        self._add(rows, texts, change, change > 0)

    def labels(self) -> dict[str, Any]:
        changes = np.concatenate(self._changes)
        return {
            "labels_changed": self._num_changed,
            "texts_classified": len(changes),
            "largest_change": self._entries[0]["change"],
            "worst_texts": self._entries,
            "histogram": _histogram("texts by the largest change of a probability", changes, 0.0),
        }

    def entities(self) -> dict[str, Any]:
        of = "texts by the share of their entities that one side has"
        a, b, both = self._num_entities.tolist()
        histogram = _histogram(of, np.concatenate(self._changes), 0.0)
        return {**self.labels(), "entities": {"a": a, "b": b, "both": both}, "histogram": histogram}


def _histogram(of: str, values: NDArray[np.float64], lowest: float) -> dict[str, Any]:
    """values: from `lowest` to 1."""
    counts, _ = np.histogram(values, NUM_BINS, (lowest, 1.0))
    return {"of": of, "from": lowest, "to": 1.0, "counts": counts.tolist()}


def picture(figures: dict[str, Any]) -> str:
    """The histogram, as SVG."""
    bars, (a, b) = figures["histogram"], figures["sides"]
    counts, width, height = bars["counts"], 560, 200
    step, largest = width / len(counts), max(*bars["counts"], 1)
    title = escape(f"{a} (A) compared with {b} (B)")
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 40} {height + 90}"'
        ' font-family="sans-serif" font-size="11" text-anchor="middle">',
        f'<rect width="{width + 40}" height="{height + 90}" fill="white"/>',
        f'<text x="{width / 2 + 20}" y="18" font-size="13">{title}</text>',
    ]
    for place, count in enumerate(counts):
        x, tall = 20 + place * step, height * count / largest
        start = bars["from"] + place * (bars["to"] - bars["from"]) / len(counts)
        drawn += [
            f'<rect x="{x + 1:.1f}" y="{height + 45 - tall:.1f}" width="{step - 2:.1f}"'
            f' height="{tall:.1f}" fill="#2a6f97"/>',
            f'<text x="{x + step / 2:.1f}" y="{height + 41 - tall:.1f}">{count or ""}</text>',
            f'<text x="{x + step / 2:.1f}" y="{height + 60}">{start:g}</text>',
        ]
    drawn += [f'<text x="{width / 2 + 20}" y="{height + 80}">{escape(bars["of"])}</text>', "</svg>"]
    return "\n".join(drawn) + "\n"


def lines_of(figures: dict[str, Any]) -> Iterator[str]:
    """For people. figures: with the two sides."""
    a, b = figures["sides"]
    yield f"A: {a}, B: {b}"
    others = ", ".join(figures["other_tasks"])
    other = f" (--task: also {others})" if others else ""
    yield f"compared: {WORDS[figures['task']]}{other}"
    if figures["fingerprint"]["equal"]:
        parts = ", ".join(
            f"{part['part']} ({part['stored']}, {part['served']})"
            for part in figures["fingerprint"]["differences"]
        )
        yield "known answers: equal bits" + (f", with another {parts}" if parts else "")
    match figures["task"]:
        case "embed" | "sparse":
            yield from _of_vectors(figures)
        case "rerank":
            yield f"order of the candidates: rank correlation {figures['rank_correlation']:.4f}"
            yield f"same best candidate: {figures['same_top']:.2%} of the queries"
            for entry in figures["worst_queries"]:
                note = "" if entry["same_top"] else ", different best candidate"
                line = f"{entry['rank_correlation']:.4f}{note}"
                yield f"  {line}, query {entry['row']}: {_short(entry['text'])}"
        case _:
            changed, number = figures["labels_changed"], figures["texts_classified"]
            yield f"labels changed: {changed:,} of {number:,} texts ({changed / number:.2%})"
            if entities := figures.get("entities"):
                both = entities["both"]
                yield (
                    f"entities: {both:,} of both, {entities['a'] - both:,} of A alone,"
                    f" {entities['b'] - both:,} of B alone"
                )
            else:
                yield f"largest change of a probability: {figures['largest_change']:.4f}"
            for entry in figures["worst_texts"]:
                note = ", different label" if entry["label_changed"] else ""
                line = f"{entry['change']:.4f}{note}"
                yield f"  {line}, row {entry['row']}: {_short(entry['text'])}"


def _of_vectors(figures: dict[str, Any]) -> Iterator[str]:
    searched, queries = figures["texts"]["searched"], figures["queries"]
    source = "from --queries" if queries["file"] else "held out from them"
    yield f"{searched:,} texts; {queries['number']:,} queries, {source}"
    number, shares = figures["neighbours"], figures["shared"]
    yield (
        f"nearest {number} shared: {shares['mean']:.2%} on average; all {number} of"
        f" {shares['all']:.2%} of the queries"
    )
    for entry in figures["worst_queries"]:
        yield f"  {entry['shared']} of {number}, query {entry['row']}: {_short(entry['text'])}"
    if figures["rank_correlation"] is not None:
        ranks = figures["rank_correlation"]
        yield f"rank correlation of the {figures['ranked']} nearest: {ranks:.4f} on average"
    if (cosine := figures["cosine"]) is None:
        yield "cosine: not defined, because the vectors of A and B differ in width"
        return
    yield f"cosine: {cosine['lowest']:.7f} at least, {cosine['mean']:.7f} on average"
    for entry in figures["lowest_cosines"]:
        yield f"  {entry['cosine']:.7f}, row {entry['row']}: {_short(entry['text'])}"


def _short(text: Any) -> str:
    words = " ".join(str(text).split())
    return words if len(words) <= 80 else f"{words[:77]}..."
