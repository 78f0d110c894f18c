"""The command `addnorm compare`: two models, precisions, servers or files of vectors, on texts."""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from tqdm import tqdm

from addnorm.corpus import embeddings_client as client
from addnorm.corpus.command import CANNOT_CHECK, check_writable
from addnorm.corpus.embeddings_client import Options
from addnorm.corpus.errors import CorpusError
from addnorm.corpus.options import compare_parser
from addnorm.corpus.side_by_side import Agreement, Scores, lines_of, picture
from addnorm.corpus.storage import Location
from addnorm.corpus.stored_vectors import StoredVectors, digests_of
from addnorm.corpus.texts_source import Source
from addnorm.corpus.vectors_file import numbers_of
from addnorm.service.engine.batch import Ints
from addnorm.service.engine.tokenizer import Text
from addnorm.service.errors import StartupError
from addnorm.service.loading.addresses import Address, find_version

BLOCK_ROWS = 2048  # texts compared at once: their scores for all queries are in memory
NUM_CANDIDATES = 20  # texts that a reranker puts in order for a query
PAIRS_QUERIES = 100  # of a reranker, at most
Vectors = NDArray[Any]


@dataclass
class Side:
    """One of the two. labels: of a model that classifies."""

    name: str
    task: str  # embed, rerank or classify
    ask: Callable[[Sequence[Text], Ints, bool], Any]
    labels: list[str] | None = None

    async def vectors(
        self, texts: Sequence[Text], rows: Ints, are_queries: bool = False
    ) -> Vectors:
        """Asks for `[n, width]`, finite. rows: numbers of the texts, for messages."""
        try:
            vectors: Vectors = await self.ask(texts, rows, are_queries)
        except CorpusError as error:
            raise CorpusError(f"{self.name}: {error}") from None
        finite = np.isfinite(vectors).all(1)
        if not finite.all():
            row = rows[int(finite.argmin())]
            raise CorpusError(
                f"{self.name}: row {row} contains a number that is not finite (NaN, inf)"
            )
        return vectors


@asynccontextmanager
async def _side(name: str, options: argparse.Namespace) -> AsyncIterator[Side]:
    if name.endswith(".parquet"):
        async with _of_file(name, options) as side:
            yield side
        return
    address = Address.parse(name)
    precision = address.precision
    key = client.api_key(options.api_key_env) if options.api_key_env else None
    async with AsyncExitStack() as stack:
        if address.server:
            url, model = address.server
            asking = await stack.enter_async_context(client.server(url, key))
        else:
            bundle = find_version(address, options.bundles, options.kept)
            asking = await stack.enter_async_context(client.in_process(bundle))
            model = f"{bundle.parent.name}/{bundle.name}"
        task, labels, prompts = "embed", None, ()
        if model:
            entry = await client.show_model(asking, model)
            tasks, labels, prompts = entry["tasks"], entry["labels"], entry["prompts"]
            task = next(
                (kind for kind in ("embed", "rerank", "classify") if kind in tasks), "embed"
            )
            if precision and precision not in entry["precisions"]:
                choices = ", ".join(entry["precisions"])
                raise CorpusError(f"{name}: precision is {precision!r}, available are {choices}")

        async def ask(texts: Sequence[Text], rows: Ints, are_queries: bool) -> Vectors:
            prompt = options.query_prompt_name if are_queries else options.prompt_name
            request_options = Options(model, precision, prompt if prompt in prompts else None)
            answer = await client.embed(
                asking, texts, rows.tolist(), request_options, task != "embed"
            )
            return answer.vectors

        yield Side(name, task, ask, labels)


@asynccontextmanager
async def _of_file(name: str, options: argparse.Namespace) -> AsyncIterator[Side]:
    path = Location.parse(name)
    if not path.exists():
        raise CorpusError(f"the file {path} does not exist")
    stored = StoredVectors.of_file(path, options.text_column, options.vector_column)

    async def ask(texts: Sequence[Text], rows: Ints, _: bool) -> Vectors:
        stored_rows = stored.find(digests_of(texts))
        if (stored_rows < 0).any():
            place = int((stored_rows < 0).argmax())
            raise CorpusError(
                f"there is no vector for row {rows[place]}: {str(texts[place])[:80]!r}; the texts"
                f" are read from column {options.text_column!r}"
            )
        return numbers_of(stored.take(stored_rows), stored_rows).astype(np.float32)

    with stored.open(None, of_all=True):
        for row, twin in stored.duplicates():
            pair = np.array([row, twin])
            vectors = numbers_of(stored.take(pair), pair)
            if (vectors[0] != vectors[1]).any():
                raise CorpusError(
                    f"{path}: rows {row} and {twin} have the same text but different vectors"
                )
        yield Side(name, "embed", ask)


class Texts(NamedTuple):
    """The queries, and which rows of the texts they are looked for in."""

    queries: list[str]
    query_rows: Ints  # their numbers in their file
    is_searched: NDArray[np.bool_]  # [rows of the texts]; of equal ones the first


def _texts(options: argparse.Namespace, source: Source) -> Texts:
    digests = np.concatenate([digests_of(texts) for texts in source.checked_texts()])
    is_searched = np.zeros(len(digests), np.bool_)
    is_searched[np.unique(digests, return_index=True)[1]] = True
    if options.queries:
        column = options.query_column or options.text_column
        query_source = Source(Location.parse(options.queries), [column])
        try:
            queries = [str(text) for texts in query_source.checked_texts() for text in texts]
        except CorpusError as error:
            raise CorpusError(f"--queries {options.queries}: {error}") from None
        return Texts(queries, np.arange(len(queries)), is_searched)
    rows = np.flatnonzero(is_searched)
    if len(rows) < 2:
        raise CorpusError(
            f"--texts {options.texts} has {len(rows)} distinct texts, at least 2 are needed"
        )
    number = max(1, min(options.sample, len(rows) // 10))
    drawn = np.sort(np.random.default_rng(options.seed).choice(rows, number, replace=False))
    is_searched[drawn] = False
    return Texts([*map(str, _rows_of(source, drawn))], drawn, is_searched)


def _rows_of(source: Source, rows: Ints) -> Iterator[Text]:
    """The texts of some rows, in their order."""
    start = 0
    for piece in source.pieces():
        here = rows[(rows >= start) & (rows < start + piece.num_rows)]
        yield from source.texts(piece.take(pa.array(here - start)))
        start += piece.num_rows


def _blocks(source: Source, rows: Ints) -> Iterator[tuple[list[Text], Ints]]:
    texts, start = list[Text](), 0
    for text in _rows_of(source, rows):
        texts.append(text)
        if len(texts) == BLOCK_ROWS:
            yield texts, rows[start : start + len(texts)]
            texts, start = [], start + len(texts)
    if texts:
        yield texts, rows[start:]


def compare(arguments: Sequence[str]) -> None:
    """Exits with code 2 if the two cannot be compared."""
    options = compare_parser().parse_args(arguments)
    try:
        for name in ("json", "picture"):
            check_writable(f"--{name}", getattr(options, name))
        figures = asyncio.run(_compare(options))
        print("\n".join(lines_of(figures)))
        for path, content in (
            (options.json, json.dumps(figures, indent=2) + "\n"),
            (options.picture, picture(figures)),
        ):
            if path:
                try:
                    path.write_text(content)
                except OSError as error:
                    raise CorpusError(f"{path}: {error.strerror}") from None
    except (CorpusError, StartupError) as error:
        print(f"addnorm compare: {error}", file=sys.stderr)
        sys.exit(CANNOT_CHECK)


async def _compare(options: argparse.Namespace) -> dict[str, Any]:
    """The figures, as JSON has them."""
    source = Source(Location.parse(options.texts), [options.text_column])
    texts = _texts(options, source)
    async with _side(options.a, options) as a, _side(options.b, options) as b:
        if a.task != b.task:
            raise CorpusError(f"the tasks differ: {a.name} can {a.task}, {b.name} can {b.task}")
        if sorted(a.labels or []) != sorted(b.labels or []):
            raise CorpusError(
                f"the labels differ: {a.name} has {a.labels}, {b.name} has {b.labels}"
            )
        run = {"embed": _compare_vectors, "rerank": _compare_orders, "classify": _compare_labels}[
            a.task
        ]
        figures = await run(source, texts, a, b)
    return {
        "task": a.task,
        "texts": {"file": options.texts, "searched": int(np.count_nonzero(texts.is_searched))},
        "queries": {"file": options.queries, "number": len(texts.queries)},
        "sides": [a.name, b.name],
        **figures,
    }


async def _compare_vectors(source: Source, texts: Texts, a: Side, b: Side) -> dict[str, Any]:
    query_vectors = [await side.vectors(texts.queries, texts.query_rows, True) for side in (a, b)]
    rows = np.flatnonzero(texts.is_searched)
    agreement = Agreement(*query_vectors)
    with tqdm(total=len(rows), desc="comparing", unit=" texts", disable=None) as bar:
        for block, numbers in _blocks(source, rows):
            vectors = [await side.vectors(block, numbers) for side in (a, b)]
            for side, before, text_vectors in zip((a, b), query_vectors, vectors, strict=True):
                if text_vectors.shape[1] != before.shape[1]:
                    raise CorpusError(
                        f"{side.name}: vectors of queries have {before.shape[1]} numbers, of texts"
                        f" {text_vectors.shape[1]}"
                    )
            await asyncio.to_thread(agreement.add, numbers, *vectors)
            bar.update(len(block))
    figures = agreement.figures()
    worst = [entry["row"] for entry in figures["lowest_cosines"]]
    texts_by_row = dict(
        zip(sorted(worst), _rows_of(source, np.array(sorted(worst), np.int64)), strict=True)
    )
    for entry in figures["lowest_cosines"]:
        entry["text"] = texts_by_row[entry["row"]]
    for entry in figures["worst_queries"]:
        place = entry.pop("query")
        entry["row"], entry["text"] = int(texts.query_rows[place]), texts.queries[place]
    return figures


async def _compare_orders(source: Source, texts: Texts, a: Side, b: Side) -> dict[str, Any]:
    """Each query has the same candidates on both sides, drawn by a seed."""
    draws, rows = np.random.default_rng(0), np.flatnonzero(texts.is_searched)
    queries = texts.queries[:PAIRS_QUERIES]
    number = min(NUM_CANDIDATES, len(rows))
    drawn = np.stack([draws.choice(rows, number, replace=False) for _ in queries])
    texts_by_row = dict(
        zip(np.unique(drawn).tolist(), _rows_of(source, np.unique(drawn)), strict=True)
    )
    scores = Scores()
    for place, query in enumerate(tqdm(queries, desc="comparing", unit=" queries", disable=None)):
        pairs = [(query, str(texts_by_row[row])) for row in drawn[place].tolist()]
        answers = [await side.vectors(pairs, drawn[place]) for side in (a, b)]
        scores.add_order(int(texts.query_rows[place]), query, *(answer[:, 0] for answer in answers))
    return scores.orders()


async def _compare_labels(source: Source, texts: Texts, a: Side, b: Side) -> dict[str, Any]:
    """All texts, those that are held out too."""
    scores, rows = Scores(), np.arange(len(texts.is_searched))
    with tqdm(total=len(rows), desc="comparing", unit=" texts", disable=None) as bar:
        for block, numbers in _blocks(source, rows):
            probabilities = [await side.vectors(block, numbers) for side in (a, b)]
            scores.add_labels(numbers, block, *probabilities)
            bar.update(len(block))
    return scores.labels()
