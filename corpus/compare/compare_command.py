"""The command `addnorm compare`: two models, precisions, servers or files of vectors, on texts."""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from addnorm.corpus import embeddings_client as client
from addnorm.corpus.compare.side_by_side import Agreement, Scores, lines_of, picture
from addnorm.corpus.embeddings_client import Options
from addnorm.corpus.errors import CorpusError
from addnorm.corpus.fingerprint_differences import Fingerprints
from addnorm.corpus.options import compare_parser
from addnorm.corpus.storage import Location, check_writable
from addnorm.corpus.stored_vectors import StoredVectors, digests_of
from addnorm.corpus.texts_source import Source
from addnorm.corpus.vectors_file import numbers_of
from addnorm.service.engine.batch import Ints
from addnorm.service.engine.fingerprint import Recorded, from_text
from addnorm.service.engine.tokenizer import Text
from addnorm.service.errors import StartupError
from addnorm.service.loading.addresses import Address, find_version

BLOCK_ROWS = 2048  # texts compared at once: their scores for all queries are in memory
SPARSE_BLOCK_ROWS = 256  # as arrays of the width of the vocabulary
CANNOT_COMPARE = 2  # exit code
# that are compared; of those that both sides have, the first
TASKS = ("embed", "rerank", "classify", "tag", "sparse")
NUM_CANDIDATES = 20  # texts that a reranker puts in order for a query
PAIRS_QUERIES = 100  # of a reranker, at most
Vectors = NDArray[Any]


@dataclass
class Side:
    """One of the two. tasks: what it can do, of TASKS. labels: of a model that classifies. prompts:
    None if they are not known. fingerprint: of what answers. computes: a file does not."""

    name: str
    tasks: Sequence[str]
    ask: Callable[[str, Sequence[Text], Ints, bool], Any]
    labels: list[str] | None = None
    prompts: Mapping[str, str] | None = None
    fingerprint: Recorded | None = None
    num_ids: int = 0  # width of sparse vectors
    computes: bool = True

    async def answers(
        self, task: str, texts: Sequence[Text], rows: Ints, are_queries: bool = False
    ) -> Any:
        """Asks for `[n, width]`, finite, or for a list of sets of entities. rows: numbers of the
        texts, for messages."""
        try:
            answers = await self.ask(task, texts, rows, are_queries)
        except CorpusError as error:
            raise CorpusError(f"{self.name}: {error}") from None
        if task == "sparse":
            dense = np.zeros((len(texts), self.num_ids), np.float32)
            for row, (indices, values) in zip(dense, answers, strict=True):
                row[indices] = values
            return dense
        if task != "tag" and not (finite := np.isfinite(answers).all(1)).all():
            row = rows[int(finite.argmin())]
            raise CorpusError(
                f"{self.name}: row {row} contains a number that is not finite (NaN, inf)"
            )
        return answers


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

        async def ask(task: str, texts: Sequence[Text], rows: Ints, are_queries: bool) -> Any:
            prompt = options.query_prompt_name if are_queries else options.prompt_name
            if side.prompts is not None and prompt not in side.prompts:
                prompt = None
            request_options = Options(model, precision, prompt)
            answer = await client.embed(asking, texts, rows.tolist(), request_options, task)
            return answer.vectors

        side = Side(name, ["embed"], ask)
        if model:
            entry = await client.show_model(asking, model)
            if precision and precision not in entry["precisions"]:
                choices = ", ".join(entry["precisions"])
                raise CorpusError(f"{name}: precision is {precision!r}, available are {choices}")
            # every model has pooled vectors, and a few are made for nothing that can be compared
            side.tasks = [task for task in TASKS if task in entry["tasks"]] or ["embed"]
            side.labels, side.prompts = entry["labels"], entry["prompts"]
            side.num_ids = entry["limits"]["vocab_size"]
            side.fingerprint = client.fingerprints(entry)[precision or entry["default_precision"]]
        yield side


@asynccontextmanager
async def _of_file(name: str, options: argparse.Namespace) -> AsyncIterator[Side]:
    path = Location.parse(name)
    if not path.exists():
        raise CorpusError(f"the file {path} does not exist")
    stored = StoredVectors.of_file(path, options.text_column, options.vector_column)

    async def ask(_: str, texts: Sequence[Text], rows: Ints, _are_queries: bool) -> Vectors:
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
        try:
            fingerprint = from_text(stored.fingerprint) if stored.fingerprint else None
        except ValueError as error:
            raise CorpusError(f"{path}: its metadata: {error}") from None
        yield Side(name, ["embed"], ask, fingerprint=fingerprint, computes=False)


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
    return Texts([*map(str, source.some_texts(drawn))], drawn, is_searched)


def _blocks(
    source: Source, rows: Ints, num_rows: int = BLOCK_ROWS
) -> Iterator[tuple[list[Text], Ints]]:
    texts = source.some_texts(rows)
    for start in range(0, len(rows), num_rows):
        block = rows[start : start + num_rows]
        yield [*map(str, islice(texts, len(block)))], block


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
        sys.exit(CANNOT_COMPARE)


async def _compare(options: argparse.Namespace) -> dict[str, Any]:
    """The figures, as JSON has them."""
    source = Source(Location.parse(options.texts), [options.text_column])
    texts = _texts(options, source)
    async with _side(options.a, options) as a, _side(options.b, options) as b:
        task, other_tasks = _task(a, b, options.task)
        if task == "classify" and sorted(a.labels or []) != sorted(b.labels or []):
            raise CorpusError(
                f"the labels differ: {a.name} has {a.labels}, {b.name} has {b.labels}"
            )
        for name in ("prompt_name", "query_prompt_name"):
            _check_prompt(name, getattr(options, name), (a, b))
        figures = await COMPARISONS[task](source, texts, a, b, task)
    fingerprints = Fingerprints(a.fingerprint, b.fingerprint)
    differences = [asdict(difference) for difference in fingerprints.differences]
    return {
        "task": task,
        "other_tasks": other_tasks,
        "fingerprint": {"equal": fingerprints.are_equal, "differences": differences},
        "texts": {"file": options.texts, "searched": int(np.count_nonzero(texts.is_searched))},
        "queries": {"file": options.queries, "number": len(texts.queries)},
        "sides": [a.name, b.name],
        **figures,
    }


def _task(a: Side, b: Side, task_option: str | None) -> tuple[str, list[str]]:
    """The task that is compared, by `--task` or by what both are made for, and others that could
    be. A model of token vectors, which reranks by MaxSim, has pooled ones too; they count if it
    has all kinds."""
    both = [task for task in a.tasks if task in b.tasks]
    if not both or (task_option and task_option not in both):
        raise CorpusError(
            f"the tasks differ: {a.name} can {', '.join(a.tasks)}, {b.name} can"
            f" {', '.join(b.tasks)}" + (f", --task is {task_option}" if task_option else "")
        )
    is_late = "embed" in both and "rerank" in both and "sparse" not in both
    task = task_option or ("rerank" if is_late else both[0])
    return task, [name for name in both if name != task]


def _check_prompt(option: str, prompt: str | None, sides: Sequence[Side]) -> None:
    """CorpusError if no side knows the prompt: without it, vectors would be compared silently."""
    prompts = {side.name: side.prompts for side in sides if side.computes}
    if prompt is None or any(names is None or prompt in names for names in prompts.values()):
        return
    lists = (f"{side} has {', '.join(names or ()) or 'none'}" for side, names in prompts.items())
    raise CorpusError(
        f"--{option.replace('_', '-')} is {prompt!r}: {'; '.join(lists) or 'files have none'}"
    )


async def _compare_vectors(
    source: Source, texts: Texts, a: Side, b: Side, task: str
) -> dict[str, Any]:
    query_vectors = [
        await side.answers(task, texts.queries, texts.query_rows, True) for side in (a, b)
    ]
    rows = np.flatnonzero(texts.is_searched)
    agreement = Agreement(query_vectors[0], query_vectors[1], task == "embed")
    num_rows = BLOCK_ROWS if task == "embed" else SPARSE_BLOCK_ROWS
    with tqdm(total=len(rows), desc="comparing", unit=" texts", disable=None) as bar:
        for block, numbers in _blocks(source, rows, num_rows):
            vectors = [await side.answers(task, block, numbers) for side in (a, b)]
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
        zip(sorted(worst), source.some_texts(np.array(sorted(worst), np.int64)), strict=True)
    )
    for entry in figures["lowest_cosines"]:
        entry["text"] = texts_by_row[entry["row"]]
    for entry in figures["worst_queries"]:
        place = entry.pop("query")
        entry["row"], entry["text"] = int(texts.query_rows[place]), texts.queries[place]
    return figures


async def _compare_orders(
    source: Source, texts: Texts, a: Side, b: Side, task: str
) -> dict[str, Any]:
    """Each query has the same candidates on both sides, drawn by a seed."""
    draws, rows = np.random.default_rng(0), np.flatnonzero(texts.is_searched)
    queries = texts.queries[:PAIRS_QUERIES]
    number = min(NUM_CANDIDATES, len(rows))
    drawn = np.stack([draws.choice(rows, number, replace=False) for _ in queries])
    texts_by_row = dict(
        zip(np.unique(drawn).tolist(), source.some_texts(np.unique(drawn)), strict=True)
    )
    scores = Scores()
    for place, query in enumerate(tqdm(queries, desc="comparing", unit=" queries", disable=None)):
        pairs = [(query, str(texts_by_row[row])) for row in drawn[place].tolist()]
        answers = [await side.answers(task, pairs, drawn[place]) for side in (a, b)]
        scores.add_order(int(texts.query_rows[place]), query, *(answer[:, 0] for answer in answers))
    return scores.orders()


async def _compare_labels(
    source: Source, texts: Texts, a: Side, b: Side, task: str
) -> dict[str, Any]:
    """All texts, those that are held out too."""
    scores, rows = Scores(), np.arange(len(texts.is_searched))
    with tqdm(total=len(rows), desc="comparing", unit=" texts", disable=None) as bar:
        for block, numbers in _blocks(source, rows):
            answers = [await side.answers(task, block, numbers) for side in (a, b)]
            (scores.add_entities if task == "tag" else scores.add_labels)(numbers, block, *answers)
            bar.update(len(block))
    return scores.entities() if task == "tag" else scores.labels()


COMPARISONS = {
    "embed": _compare_vectors,
    "sparse": _compare_vectors,
    "rerank": _compare_orders,
    "classify": _compare_labels,
    "tag": _compare_labels,
}
