"""Which connection makes room for a new one, once as many are open as may be."""

import socket
import threading
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from addnorm.service.errors import ServiceError
from addnorm.service.server.http.connection import Connection
from addnorm.service.server.http.room import SILENT_S, Room
from tests.conftest import Serve
from tests.support import web
from tests.support.waiting import PATIENCE_S, eventually, until

LATER = 10 * SILENT_S


@dataclass(eq=False)
class Fake:
    key: str = ""
    idle_since: float = 0.0
    waiting_s: float = 0.0
    ended: list[str] = field(default_factory=list)

    def waits_for_caller(self, now: float) -> float:
        return self.waiting_s

    def abort(self) -> None:
        self.ended.append("aborted")

    def end(self, error: ServiceError) -> None:
        self.ended.append(error.code)


def full_of(*connections: Fake) -> Room[Fake]:
    """A room that has no space left. All of these have sent a whole head."""
    room = Room[Fake](len(connections))
    for each in connections:
        room.enter(each)
        del room.idle[each]
    return room


def test_the_oldest_that_waits_of_the_key_that_has_most_makes_room() -> None:
    other = Fake("other", waiting_s=LATER)
    busy, *slow = [Fake("greedy", waiting_s=seconds) for seconds in (0.0, 2.0, 3.0, 4.0)]
    room = full_of(other, busy, *slow)
    for _ in range(2):
        room.enter(new := Fake(idle_since=LATER))
        assert new not in room.surplus
        del room.idle[new]
    assert [each.ended for each in slow] == [*2 * [["too_many_connections"]], []]
    assert not busy.ended + other.ended


def test_nobody_makes_room_who_does_not_keep_the_server_waiting() -> None:
    busy, shortly, without_key = Fake("one"), Fake("one", waiting_s=SILENT_S / 2), Fake()
    room = full_of(busy, shortly, without_key)
    room.enter(new := Fake(idle_since=LATER))
    assert new in room.surplus
    assert not [each for each in (busy, shortly, without_key) if each.ended]


def test_who_has_no_key_and_does_not_read_makes_room_before_any_key() -> None:
    keyed = [Fake("one", waiting_s=LATER), Fake("one", waiting_s=LATER)]
    oldest, other = Fake(waiting_s=SILENT_S), Fake(waiting_s=LATER)
    room = full_of(*keyed, oldest, other)
    room.enter(new := Fake(idle_since=LATER))
    assert new not in room.surplus
    assert oldest.ended == ["too_many_connections"]
    assert not [each for each in (*keyed, other) if each.ended]


def test_what_has_asked_for_nothing_goes_first() -> None:
    slow, silent = Fake("one", waiting_s=LATER), Fake()
    room = full_of(slow)
    room.max_connections = 2
    room.enter(silent)
    room.enter(new := Fake(idle_since=LATER))
    assert new not in room.surplus
    assert (slow.ended, silent.ended) == ([], ["aborted"])


def test_who_was_answered_makes_room_once_idle(serve: Serve) -> None:
    made = list[Connection]()

    class Noted(Connection):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            made.append(self)

    def ask(caller: socket.socket) -> bytes:
        caller.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        return caller.recv(100)

    with serve(Noted, max_connections=1) as url, ExitStack() as at_end:
        callers = [at_end.enter_context(closing(socket.socket())) for _ in range(2)]
        for caller in callers:
            caller.settimeout(PATIENCE_S)
        callers[0].connect((urlsplit(url).hostname, urlsplit(url).port))
        assert ask(callers[0]).startswith(b"HTTP/1.1 200")
        (first,) = made
        assert eventually(lambda: first in first.room.idle)
        first.idle_since -= LATER
        callers[1].connect((urlsplit(url).hostname, urlsplit(url).port))
        assert ask(callers[1]).startswith(b"HTTP/1.1 200")
        with suppress(ConnectionError):
            while callers[0].recv(1000):  # the rest of its answer, then the end
                pass


def test_unread_answers_to_callers_without_a_key_keep_nobody_with_one_out(serve: Serve) -> None:
    key, made = "one-0123456789abcdef", list[Connection]()

    class Noted(Connection):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            made.append(self)

        def waits_for_caller(self, now: float) -> float:
            return super().waits_for_caller(now + LATER)

    settings = {"max_connections": 4, "api_keys": SecretStr(f"one infer {key}")}
    with serve(Noted, **settings) as url, ExitStack() as at_end:
        for _ in range(4):
            caller = at_end.enter_context(closing(socket.socket()))
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            caller.connect((urlsplit(url).hostname, urlsplit(url).port))
            caller.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 30)
        assert eventually(lambda: len([each for each in made if each.flow.write_paused]) == 4)
        for _ in range(3):
            answer = web.get(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == 200


def test_requests_without_a_key_that_are_sent_ahead_keep_nobody_with_one_out(
    serve: Serve,
) -> None:
    key, begun, go = "one-0123456789abcdef", threading.Event(), threading.Event()

    async def answers_late(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        await until(go.is_set)

    class Late(Connection):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if not begun.is_set():
                self.app = answers_late

        def waits_for_caller(self, now: float) -> float:
            return super().waits_for_caller(now + LATER)

    settings = {"max_connections": 1, "api_keys": SecretStr(f"one infer {key}")}
    with serve(Late, **settings) as url, ExitStack() as at_end:
        at_end.callback(go.set)
        caller = at_end.enter_context(closing(socket.socket()))
        caller.connect((urlsplit(url).hostname, urlsplit(url).port))
        caller.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 30)
        assert begun.wait(PATIENCE_S)
        answer = web.get(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == 200


def test_a_body_that_the_server_does_not_read_is_not_awaited_from_its_caller(serve: Serve) -> None:
    made, go = list[Connection](), threading.Event()

    async def reads_late(scope: Any, receive: Any, send: Any) -> None:
        await until(go.is_set)
        while (await receive())["type"] != "http.disconnect":
            pass

    class ReadLate(Connection):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.app = reads_late
            made.append(self)

    with serve(ReadLate) as url, ExitStack() as at_end:
        at_end.callback(go.set)
        caller = at_end.enter_context(closing(socket.socket()))
        caller.settimeout(PATIENCE_S)
        caller.connect((urlsplit(url).hostname, urlsplit(url).port))
        caller.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 200000\r\n\r\n")
        caller.sendall(b" " * 100_000)
        assert eventually(lambda: any(each.flow.read_paused for each in made))
        (connection,) = made
        later = connection.loop.time() + LATER
        assert connection.waits_for_caller(later) == 0.0
        go.set()
        assert eventually(lambda: connection.waits_for_caller(later) > 0.0)
