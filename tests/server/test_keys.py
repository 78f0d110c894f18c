"""API keys: who is let in to what, what a rejection looks like, and that no key is ever shown."""

import gc
import hashlib
import logging
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from select import select
from typing import Any

import httpx
import orjson
import pytest
from pydantic import SecretStr

from addnorm.service.engine.registry import Models
from addnorm.service.errors import StartupError, Unauthenticated
from addnorm.service.server.auth import Keys
from addnorm.service.server.followed import FollowedFiles
from addnorm.service.server.table import PROTOCOLS, Table
from addnorm.service.settings import Settings
from tests.conftest import Serve
from tests.support import web
from tests.support.waiting import PATIENCE_S, eventually, runs_held_up

ASK, SCRAPE, RUN = "ask-0123456789abcdef", "scrape-0123456789abcdef", "run-0123456789abcdef"
LINES = f"""
asker   infer  {ASK} 1   # at once
scraper metrics sha256:{hashlib.sha256(SCRAPE.encode()).hexdigest()}
runner  infer,admin,metrics {RUN}
"""
GOOD = {"model": "notebook", "input_ids": [[1, 3, 4, 5, 2]], "outputs": ["pooled"]}
OPEN = (
    *("/livez", "/readyz", "/health", "/ping", "/v2/health/live", "/v2/health/ready"),
    *("/v1/health/live", "/v1/health/ready"),
)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def keys_of(lines: str) -> Keys:
    return Keys(Settings(api_keys=SecretStr(lines)))


@pytest.fixture(scope="module")
def closed(serve: Serve) -> Iterator[httpx.Client]:
    with (
        serve(api_keys=SecretStr(LINES), admin=True) as url,
        web.client(base_url=url, timeout=PATIENCE_S) as client,
    ):
        yield client


def test_health_documentation_and_pages_are_open(closed: httpx.Client) -> None:
    pages = ("/docs", "/openapi.json", "/", "/page/playground.js", "/models/notebook/certificate")
    for path in (*OPEN, *pages):
        assert closed.get(path).status_code == 200, path


MODEL, REPOSITORY = "/v2/models/notebook", "/v2/repository/models/notebook"


@pytest.mark.parametrize(
    ("scope", "requests"),
    [
        ("infer", [("POST", "/v1/infer"), ("GET", "/v1/models"), ("GET", "/v2"),
                   ("POST", f"{MODEL}/infer"), ("GET", f"{MODEL}/ready"),
                   ("POST", "/v2/repository/index"), ("GET", "/nothing")]),
        ("admin", [("POST", f"{REPOSITORY}/load"), ("POST", f"{REPOSITORY}/unload")]),
        ("metrics", [("GET", "/metrics")]),
    ],
)  # fmt: skip
def test_paths_need_their_scope(
    closed: httpx.Client, scope: str, requests: list[tuple[str, str]]
) -> None:
    opens = {"infer": {ASK, RUN}, "admin": {RUN}, "metrics": {SCRAPE, RUN}}[scope]
    for method, path in requests:
        for key in (ASK, SCRAPE, RUN):
            status = closed.request(method, path, json=GOOD, headers=bearer(key)).status_code
            assert (status != 403) == (key in opens), (path, key, status)
        assert closed.request(method, path, json=GOOD).status_code == 401


@pytest.mark.parametrize(
    ("path", "scope"),
    [("//metrics", "infer"), ("/metrics/", "infer"), ("/livez/", "infer"),
     ("/v2/repository/index/", "admin"), ("/v2/repository//index", "admin"),
     ("/v2/health/../repository/models/a/load", None)],
)  # fmt: skip
def test_a_path_that_looks_like_another_leads_nowhere(
    closed: httpx.Client, path: str, scope: str | None
) -> None:
    assert Table(PROTOCOLS).scope("GET", path) == scope
    lines = ("host: x", f"authorization: Bearer {RUN}", "connection: close", "", "")
    request = "\r\n".join((f"GET {path} HTTP/1.1", *lines))
    with socket.create_connection(("127.0.0.1", closed.base_url.port or 0)) as caller:
        caller.sendall(request.encode())
        assert caller.recv(100).startswith(b"HTTP/1.1 404")


def test_every_documented_route_but_health_needs_a_key(closed: httpx.Client) -> None:
    for path, methods in closed.get("/openapi.json").json()["paths"].items():
        for method in methods:
            status = closed.request(method, path).status_code
            assert (status == 401) == (path not in OPEN), path


@pytest.mark.parametrize("path", ["/v1/infer", "/v2/models/notebook/infer", "/metrics"])
@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer"}, bearer("wrong"), bearer(ASK[:-1]), bearer(f"{ASK}x"),
     {"authorization": ASK}, {"authorization": f"Basic {ASK}"},
     bearer(hashlib.sha256(ASK.encode()).hexdigest()), bearer("asker"), bearer("\xe9" * 20)],
)  # fmt: skip
def test_no_key_and_a_wrong_one_are_rejected_in_the_paths_envelope(
    closed: httpx.Client, path: str, headers: dict[str, str]
) -> None:
    sent = {name: value.encode() for name, value in headers.items()}
    answer = closed.post(path, json=GOOD, headers=sent)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    error = answer.json()["error"]
    if path.startswith("/v2"):
        assert "API key" in error
    else:
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    assert ASK[:8] not in answer.text


def test_a_key_of_another_scope_is_told_what_it_is_for(closed: httpx.Client) -> None:
    answer = closed.get("/metrics", headers=bearer(ASK))
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert error["message"] == "the API key 'asker' is for infer; this needs metrics"
    assert error["code"] == "insufficient_permissions"


def test_a_keys_own_limit_of_requests_at_once(closed: httpx.Client, few: Models) -> None:
    def ask(key: str) -> httpx.Response:
        return closed.post("/v1/infer", json=GOOD, headers=bearer(key))

    with runs_held_up(few) as go, ThreadPoolExecutor(6) as callers:
        futures = [callers.submit(ask, key) for key in [ASK] * 3 + [RUN] * 3]
        assert eventually(lambda: sum(future.done() for future in futures[:3]) == 2)
        go.set()
        answers = [future.result() for future in futures]
    refused = [answer for answer in answers[:3] if answer.status_code == 429]
    assert len(refused) == 2
    assert {answer.headers["retry-after"] for answer in refused} == {"1"}
    codes = {answer.json()["error"]["code"] for answer in refused}
    assert codes == {"too_many_concurrent_requests"}
    assert [answer.status_code for answer in answers[3:]] == [200] * 3
    assert closed.post("/v1/infer", json=GOOD, headers=bearer(ASK)).status_code == 200  # given back


def test_without_keys_all_is_open() -> None:
    assert not Keys(Settings()).contents


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("name infer", "entry 1: an API key is `name infer,admin,metrics KEY"),
        (f"name infer {ASK} 1 more", "entry 1: an API key is"),
        (f"name infer {ASK} -1", "entry 1: an API key is"),
        (f"name infer {ASK} 0", "entry 1: the limit is 0 requests at once: write 1 or more, or no"),
        (f"name infer {ASK} 00", "entry 1: the limit is 0"),
        (f"name infer {ASK} 2#3", "entry 1: an API key is"),
        ("name infer 0123456789#45", "entry 1: the key has 13 characters, at least 16"),
        (f"name infer sha256:{'0' * 64}#0", "entry 1: sha256: must be followed by 64"),
        (f"#\n # comment\nname all {ASK}", "entry 3: an API key is"),
        (f"# comment\nname all {ASK}", "entry 2: an API key is"),
        ("name infer short-secret", "entry 1: the key has 12 characters, at least 16"),
        ("name infer sha256:abc", "entry 1: sha256: must be followed by 64"),
        (f"name infer {ASK}; name infer {RUN}", "the same name or the same key twice"),
        (f"a infer {ASK}; b infer {ASK}", "the same name or the same key twice"),
        ("  # all withdrawn", "the settings for API keys contain no key"),
        ("", "the settings for API keys contain no key"),
    ],
)
def test_a_line_that_is_no_key_stops_the_start_and_is_not_shown(lines: str, words: str) -> None:
    with pytest.raises(StartupError, match=words) as caught:
        keys_of(lines)
    assert not {"short-secret", ASK} & set(str(caught.value).split())


@pytest.mark.parametrize("rest", ["", " # comment", "\t#comment # more", " 3 # comment", "  "])
def test_only_a_number_sign_after_white_space_begins_a_comment(rest: str) -> None:
    keys = keys_of(f"#all\n # these\none infer {ASK}#{RUN}{rest}")
    assert keys.find(f"Bearer {ASK}#{RUN}".encode()).name == "one"
    for shorter in (ASK, f"{ASK}#", RUN):
        with pytest.raises(Unauthenticated):
            keys.find(f"Bearer {shorter}".encode())


def test_a_file_that_changes_is_read_again_and_a_broken_one_is_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    file.write_text(f"old infer {ASK}\n")
    keys = Keys(Settings(api_keys_file=file))
    file.write_text(f"new infer {RUN}\nsecond infer {SCRAPE}\n")
    keys.refresh()
    assert keys.find(b"Bearer " + RUN.encode()).name == "new"
    with pytest.raises(Unauthenticated):
        keys.find(b"Bearer " + ASK.encode())
    for broken in ("nonsense\n", "# none\n"):
        file.write_text(broken)
        with caplog.at_level(logging.ERROR):
            keys.refresh()
        assert "the API keys stay as they were" in caplog.text
        assert keys.find(b"Bearer " + RUN.encode()).name == "new"
        caplog.clear()
    file.unlink()
    keys.refresh()
    assert keys.find(b"Bearer " + RUN.encode()).name == "new"


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("first")

    def read() -> str:
        text = file.read_text()
        if text == "half":
            file.write_text("whole")
        return text

    followed = FollowedFiles("the words", [file], read)
    file.write_text("half")
    followed.refresh()
    assert followed.contents == "first"
    followed.refresh()
    assert followed.contents == "whole"


def test_a_file_that_keeps_its_size_and_time_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("first")
    followed, time_ns = FollowedFiles("the words", [file], file.read_text), file.stat().st_mtime_ns
    changed_ns = file.stat().st_ctime_ns
    while file.stat().st_ctime_ns == changed_ns:  # the system's clock is coarse
        file.write_text("other")
        os.utime(file, ns=(time_ns, time_ns))
    followed.refresh()
    assert followed.contents == "other"


def test_a_missing_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="cannot be read"):
        Keys(Settings(api_keys_file=tmp_path / "none"))


def test_only_digests_stay_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"one infer {'held-' * 5}\n")
    keys = Keys(Settings(api_keys_file=file))
    seen: list[Any] = [keys]
    reserve: set[int] = set()
    while seen:
        thing = seen.pop()
        if (
            id(thing) not in reserve
            and not isinstance(thing, type)
            and "module" not in type(thing).__name__
        ):
            reserve.add(id(thing))
            assert "held-held" not in repr(thing)
            seen += gc.get_referents(thing) if isinstance(thing, dict | list | tuple | Keys) else []


def test_one_keys_bodies_leave_space_to_another_key_and_to_its_own_small_ones(serve: Serve) -> None:
    body = orjson.dumps(GOOD)
    keys = SecretStr(f"many infer {RUN};one infer {ASK}")
    with (
        serve(api_keys=keys, body_timeout_s=600.0, max_pending_body_bytes=1_000_000) as url,
        web.client(base_url=url, timeout=PATIENCE_S) as client,
        ExitStack() as halves,
    ):

        def half_sent() -> socket.socket:
            address = "127.0.0.1", int(url.rpartition(":")[2])
            half = halves.enter_context(socket.create_connection(address, timeout=PATIENCE_S))
            head = f"POST /v1/infer HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {RUN}"
            half.sendall(f"{head}\r\ncontent-length: 200000\r\n\r\n".encode() + b" " * 199_990)
            return half

        def status(key: str, num_spaces: int) -> int:
            sent = body + b" " * num_spaces
            return client.post("/v1/infer", content=sent, headers=bearer(key)).status_code

        refused, _, _ = select([half_sent() for _ in range(5)], [], [], PATIENCE_S)
        assert [half.recv(12) for half in refused] == [b"HTTP/1.1 429"]
        assert status(RUN, 150_000) == 429
        assert status(ASK, 150_000) == 200
        assert status(RUN, 0) == 200
