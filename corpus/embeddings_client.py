"""Asks a server, or a bundle in this process, for the vectors of many texts, or for what another
task makes of them.

Waits where the server is busy, and asks for less at once where a request is too large for it.
"""

import asyncio
import base64
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from addnorm.corpus.embedder import open_service
from addnorm.corpus.errors import CorpusError
from addnorm.service.engine.fingerprint import Recorded
from addnorm.service.engine.tokenizer import Text
from addnorm.service.wire.serving import FINGERPRINT_HEADER

TEXTS_AT_ONCE = 32  # in one request
REQUESTS_AT_ONCE = 4
PATIENCE_S = 300.0  # for one answer, and for a server that is busy
UNAUTHENTICATED = 401
BUSY = (429, 503)
TOO_LARGE = (413, 504)
DTYPES = {"float32": "<f4", "int8": "i1", "uint8": "u1"}


@dataclass(frozen=True)
class Options:
    """Options of `/v1/embeddings`. None: the default of the server and the model."""

    model: str | None = None
    precision: str | None = None
    prompt_name: str | None = None
    dimensions: int | None = None
    dtype: str = "float32"


class Embedded(NamedTuple):
    vectors: Any  # [texts, width], or a list of what each text is answered
    model: str
    fingerprint: Recorded | None  # None: the server tells none
    by_digest: Mapping[str, Recorded]  # of each precision that is served


class Route(NamedTuple):
    """field: that has the texts. body: of a request. read: what each text is answered."""

    path: str
    field: str
    body: Callable[[list[Text], Options], dict[str, Any]]
    read: Callable[[Any, Options], list[Any]]


class _Answer(NamedTuple):
    values: list[Any]  # of each text
    model: str
    digest: str | None


def api_key(variable: str) -> str:
    """The key in the environment variable. CorpusError if it is not set."""
    if not os.environ.get(variable):
        raise CorpusError(f"--api-key-env: the environment variable {variable} is not set")
    return os.environ[variable]


def server(url: str, key: str | None) -> httpx.AsyncClient:
    """HTTP_PROXY holds for other machines: a proxy does not reach this one's own addresses."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    host = httpx.URL(url).host
    is_here = host == "localhost" or host == "::1" or host.startswith("127.")
    return httpx.AsyncClient(
        base_url=url, headers=headers, timeout=PATIENCE_S, trust_env=not is_here
    )


@asynccontextmanager
async def in_process(bundle: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Serves the bundle with default settings. Nothing is held: each text is computed."""
    service = open_service(bundle, cache_bytes=0, timeout_s=PATIENCE_S)
    transport = httpx.ASGITransport(service.app)
    try:
        async with httpx.AsyncClient(
            transport=transport, base_url="http://in-process", timeout=PATIENCE_S
        ) as client:
            yield client
    finally:
        service.close()


async def embed(
    client: httpx.AsyncClient,
    texts: Sequence[Text],
    rows: Sequence[int],
    options: Options,
    task: str = "embed",
) -> Embedded:
    """The vectors of all texts, or what another task answers, and what they were computed by.

    rows: numbers of the texts in their file, for messages. task: of ROUTES.
    CorpusError if the server cannot be reached, or rejects the request.
    """
    starts = iter(range(0, len(texts), TEXTS_AT_ONCE))
    answers: dict[int, _Answer] = {}

    async def worker(bar: Any) -> None:
        for start in starts:
            batch = slice(start, min(start + TEXTS_AT_ONCE, len(texts)))
            parts = _ask_in_parts(client, texts, rows, batch, options, task)
            async for first_text, answer in parts:
                answers[first_text] = answer
                bar.update(len(answer.values))

    with tqdm(total=len(texts), desc="embedding", unit=" texts", leave=False, disable=None) as bar:
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(REQUESTS_AT_ONCE):
                    tasks.create_task(worker(bar))
        except ExceptionGroup as group:  # one worker's reason is enough
            raise group.exceptions[0] from None
    in_order = [answers[start] for start in sorted(answers)]
    if len({answer.digest for answer in in_order}) > 1:
        raise CorpusError("the server replaced the model during the check: run the check again")
    # the name that was asked for, which may have a version
    model, digest = options.model or in_order[0].model, in_order[0].digest
    by_digest = dict[str, Recorded]()
    if digest:
        entry = await show_model(client, model)
        by_digest = {each.digest: each for each in fingerprints(entry).values()}
    recorded = by_digest.get(digest, Recorded(digest, None)) if digest else None
    values = [value for answer in in_order for value in answer.values]
    are_arrays = isinstance(values[0], np.ndarray)
    return Embedded(np.stack(values) if are_arrays else values, model, recorded, by_digest)


async def _ask_in_parts(
    client: httpx.AsyncClient,
    texts: Sequence[Text],
    rows: Sequence[int],
    batch: slice,
    options: Options,
    task: str,
) -> AsyncIterator[tuple[int, _Answer]]:
    """(start, answer) of the batch, or of parts of it where the server rejects its size."""
    num_texts, route = batch.stop - batch.start, ROUTES[task]
    response = await _send_patiently(client, route.path, route.body([*texts[batch]], options))
    if response.is_success:
        yield batch.start, _read(response, num_texts, options, route)
        return
    message, param = _rejection(response)
    if param != route.field and response.status_code not in TOO_LARGE:
        raise CorpusError(message)
    if num_texts == 1:
        raise CorpusError(f"row {rows[batch.start]}: {message}")
    middle = batch.start + num_texts // 2
    for half in (slice(batch.start, middle), slice(middle, batch.stop)):
        async for part in _ask_in_parts(client, texts, rows, half, options, task):
            yield part


async def _send_patiently(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> httpx.Response:
    """Sends it again while the server is busy, when the server says."""
    ends = time.monotonic() + PATIENCE_S
    while True:
        try:
            response = await client.post(path, json=body)
        except httpx.HTTPError as error:
            raise _no_answer(client, error) from None
        try:
            wait_s = float(response.headers["retry-after"])
        except (KeyError, ValueError):  # a proxy may write a date
            wait_s = 1.0
        if response.status_code not in BUSY or time.monotonic() + wait_s > ends:
            return response
        await asyncio.sleep(wait_s)


def _no_answer(client: httpx.AsyncClient, error: httpx.HTTPError) -> CorpusError:
    return CorpusError(f"{client.base_url} does not answer: {str(error) or type(error).__name__}")


def _rejection(response: httpx.Response) -> tuple[str, str | None]:
    """The server's message, in one line, and the field that it names."""
    try:
        error = response.json()["error"]
        message, param = str(error["message"]), error["param"]
    except (ValueError, KeyError, TypeError):  # a proxy's answer, or another server's
        message, param = " ".join(response.text[:200].split()), None
    if response.status_code == UNAUTHENTICATED:
        message += "; name the environment variable that holds the key with --api-key-env"
    return f"{response.url} answered {response.status_code}: {message}", param


def _read(response: httpx.Response, num_texts: int, options: Options, route: Route) -> _Answer:
    try:
        answer = response.json()
        values, model = route.read(answer, options), str(answer.get("model"))
    except (ValueError, LookupError, TypeError, AttributeError):
        values, model = [], ""
    if len(values) != num_texts:
        raise CorpusError(f"{response.url} did not answer with one vector per text")
    return _Answer(values, model, response.headers.get(FINGERPRINT_HEADER))


def _vectors(answer: Any, options: Options) -> list[NDArray[Any]]:
    return [
        np.frombuffer(base64.b64decode(entry["embedding"]), DTYPES[options.dtype])
        for entry in answer["data"]
    ]


def _scores(answer: Any, _: Options) -> list[NDArray[np.float32]]:
    """Scores in the order of their labels' names."""
    return [
        np.array(
            [score for _, score in sorted((e["label"], e["score"]) for e in result)], np.float32
        )
        for result in answer["results"]
    ]


def _relevance(answer: Any, _: Options) -> list[NDArray[np.float32]]:
    by_index = sorted(answer["results"], key=lambda result: int(result["index"]))
    return [np.array([result["relevance_score"]], np.float32) for result in by_index]


def _entities(answer: Any, _: Options) -> list[frozenset[tuple[str, int, int]]]:
    return [
        frozenset((entity["entity_group"], entity["start"], entity["end"]) for entity in result)
        for result in answer["results"]
    ]


def _sparse(answer: Any, _: Options) -> list[tuple[list[int], list[float]]]:
    return [(entry["indices"], entry["values"]) for entry in answer["sparse"]]


def _of_texts(texts: list[Text], options: Options) -> dict[str, Any]:
    # texts are cut as the model's authors cut them
    return {"texts": texts, **_set(options), "truncate": True}


def _set(options: Options, *left_out: str) -> dict[str, Any]:
    """The options that are set."""
    fields = {name: value for name, value in vars(options).items() if value is not None}
    return {name: value for name, value in fields.items() if name not in ("dtype", *left_out)}


ROUTES = {  # by task
    "embed": Route(
        "v1/embeddings",
        "input",
        lambda texts, options: {  # base64 keeps the exact bits
            "input": texts, **_set(options), "dtype": options.dtype, "truncate": True,
            "encoding_format": "base64",
        },
        _vectors,
    ),
    "classify": Route("v1/classify", "texts", _of_texts, _scores),
    "tag": Route(
        "v1/tag",
        "texts",
        lambda texts, options: {**_of_texts(texts, options), "aggregation_strategy": "simple"},
        _entities,
    ),
    "sparse": Route(
        "v1/infer",
        "texts",
        lambda texts, options: {**_of_texts(texts, options), "outputs": ["sparse"]},
        _sparse,
    ),
    # pairs of one query; late interaction scores them by MaxSim
    "rerank": Route(
        "v1/rerank",
        "documents",
        lambda pairs, options: {
            "query": pairs[0][0], "documents": [pair[1] for pair in pairs],
            **_set(options, "prompt_name", "dimensions"),
        },
        _relevance,
    ),
}  # fmt: skip


def fingerprints(entry: Mapping[str, Any]) -> dict[str, Recorded]:
    """Precision -> its fingerprint, by an entry of `/v1/models`."""
    parts, bits = entry["fingerprint_parts"], entry.get("bits", {})
    return {
        precision: Recorded(digest, parts[precision], bits.get(precision))
        for precision, digest in entry["fingerprint"].items()
    }


async def only_model(client: httpx.AsyncClient) -> str:
    """The name of the only model that is served. CorpusError if there are several."""
    names = [entry["id"] for entry in (await _get(client, "v1/models"))["data"]]
    if len(names) != 1:
        raise CorpusError(f"{client.base_url} serves {', '.join(names)}: write URL#NAME")
    return str(names[0])


async def show_model(client: httpx.AsyncClient, model: str) -> dict[str, Any]:
    """The entry of a model in `/v1/models`. CorpusError if there is none."""
    return await _get(client, f"v1/models/{model}")


async def _get(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    try:
        response = await client.get(path)
    except httpx.HTTPError as error:
        raise _no_answer(client, error) from None
    if not response.is_success:
        raise CorpusError(_rejection(response)[0])
    answer: dict[str, Any] = response.json()
    return answer
