"""A row of the tables of clients, which is run in the environment of its packages.

Knows neither Addnorm nor any package. `python -m benchmarks.clients.GROUP URL OPEN GRPC PACKAGE`
runs the rows of a package, and prints a line of JSON for each.
"""

import json
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import httpx
import numpy as np

MODEL, RANKER, KEY = "all-minilm-l6-v2", "reranker", "any-key-will-do-here"
# names that some clients insist on; the server has them as aliases
OPENAI_NAME, COHERE_NAME = "text-embedding-3-small", "embed-english-v3.0"
ALIASES = {OPENAI_NAME: MODEL, COHERE_NAME: MODEL}
QUERY, TOP = "the same text", 2
TEXTS = ["pads are dropped", "padding costs nothing.", "a", "日本語の文です。"]

BITS, ORDER = "worked, bits equal to /v1/embeddings", "worked, order as /v1/rerank"
TENSORS = "worked, bits equal to /v2/models/NAME/infer"
SPARSE = "worked, entries as /embed_sparse"
INDEXED = "worked: none lost, a sample has the bits of /v1/embeddings"
REFUSED, ABSENT = "refused in words", "not runnable here"


class Site(NamedTuple):
    """The server as a client is told of it."""

    url: str  # asks for KEY
    open: str  # the same models without a key, for clients that can send none
    grpc: str  # host and port, without a key


Fields = Callable[[Site], dict[str, Any]]


class Row(NamedTuple):
    """outcome: what must come. call: gives vectors of TEXTS, indexes of the best TOP, or what else
    the outcome is about; it raises where it is to be refused. reason: words of the refusal, or the
    reason that nothing runs."""

    package: str  # as pip calls it; the group's environment has the version
    name: str
    outcome: str
    call: Callable[[Site], Any] | None = None
    reason: str = ""


def bits(package: str, name: str, call: Callable[[Site], Any]) -> Row:
    return Row(package, name, BITS, call)


def order(package: str, name: str, call: Callable[[Site], Any]) -> Row:
    return Row(package, name, ORDER, call)


def refusal(package: str, name: str, reason: str, call: Callable[[Site], Any]) -> Row:
    return Row(package, name, REFUSED, call, reason)


def absent(package: str, name: str, reason: str) -> Row:
    return Row(package, name, ABSENT, None, reason)


def at_site(url: str, path: str = "", key: str = "api_key", /, **fields: Any) -> Fields:
    """Fields that a class is made of: URL and key by the names that it has for them, and others."""
    return lambda site: {url: site.url + path, key: KEY, **fields}


def tables_of_tiktoken() -> None:
    """Has tiktoken read the tables that litellm brings: it fetches them otherwise."""
    root = sysconfig.get_path("purelib")
    os.environ["TIKTOKEN_CACHE_DIR"] = f"{root}/litellm/litellm_core_utils/tokenizers"


def post(site: Site, path: str, **body: Any) -> Any:
    """The plain route's answer."""
    return httpx.post(site.open + path, json=body, timeout=60).raise_for_status().json()


def vectors(site: Site) -> Any:
    embeddings = post(site, "/v1/embeddings", model=MODEL, input=TEXTS)["data"]
    return np.array([entry["embedding"] for entry in embeddings], np.float32)


def ranking(site: Site) -> Any:
    body = {"model": RANKER, "query": QUERY, "documents": TEXTS, "top_n": TOP}
    return np.array([entry["index"] for entry in post(site, "/v1/rerank", **body)["results"]])


def entries(site: Site) -> Any:
    (sparse,) = post(site, "/embed_sparse", inputs=TEXTS[0])
    return np.array([(entry["index"], entry["value"]) for entry in sparse])


PLAIN: Mapping[str, Callable[[Site], Any]] = {
    BITS: vectors,
    ORDER: ranking,
    SPARSE: entries,
}


def outcome(row: Row, site: Site, plain: Mapping[str, Callable[[Site], Any]] = PLAIN) -> str:
    """The row's own outcome, or what came instead."""
    if row.call is None:
        return row.outcome
    try:
        answer = row.call(site)
    except Exception as error:  # whatever the package makes of the server's answer
        message = f"{type(error).__name__}: {error}"
        if row.outcome == REFUSED and row.reason in message:
            return REFUSED
        return message + "\n" + traceback.format_exc(limit=-4)
    if row.outcome == REFUSED:
        return f"answered: {answer}"
    expected = plain[row.outcome](site)
    equal = np.array_equal(np.asarray(answer, expected.dtype), expected)
    return row.outcome if equal else f"other than the plain route: {answer}, not {expected}"


def texts_of(documents: Sequence[str]) -> list[int]:
    """The indexes of texts, for clients that give the texts back in order."""
    return [TEXTS.index(text) for text in documents]


def run(rows: Sequence[Row], plain: Mapping[str, Callable[[Site], Any]] = PLAIN) -> None:
    """Runs the rows of one package: two packages may not fit into one process."""
    *address, package = sys.argv[1:]
    for row in rows:
        if row.package == package:
            print(json.dumps([row.name, outcome(row, Site(*address), plain)]), flush=True)
