"""Mixed requests of all protocols with short deadlines, more than can be met.

By the server's own log, no answer with 200 may begin to leave later than 50 ms after its deadline.
What the callers see stands beside it: they share the machine with the server, and their clock
starts before the request is sent.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any

from tqdm import tqdm

from addnorm.load.client import NO_RESPONSE
from addnorm.load.servers import Server
from addnorm.load.sweep.tables import table
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.manifest import Manifest
from benchmarks import processes
from benchmarks.findings import Findings, Options
from benchmarks.stress.caller import Caller, Request, Seen
from benchmarks.stress.copies import publish
from benchmarks.stress.requests.mixed import KINDS, REQUEST_ID, Sent, mixed

LATE_MS = 50.0  # past the deadline
TIMEOUT_S = 120.0
CALLERS = 16
PAUSE_S = 0.05  # after a 429: without it most requests would only be rejected
COLUMNS = (
    "kind", "answers", "200s, late", "worst 200", "worst of the rest",
    "callers: 200s, late", "worst 200",
)  # fmt: skip


@dataclass(frozen=True)
class Answered:
    """What became of one request. Lateness: ms from deadline to first byte; negative is in time."""

    kind: str
    timeout_ms: int
    status: int
    client_late_ms: float
    server_late_ms: float | None  # None: the server's log lacks it
    why: str = ""


def send(
    server: Server, manifest: Manifest, num: int, callers: int, seed: int
) -> list[tuple[Sent, Seen]]:
    """All of the mix, each caller the next when its last is answered."""
    numbers = iter(range(num))
    with tqdm(total=num, unit="request") as bar, ThreadPoolExecutor(callers) as pool:

        def caller(_: int) -> list[tuple[Sent, Seen]]:
            connection, seen = Caller(server.host, server.port, TIMEOUT_S), []
            for number in numbers:
                sent = mixed(manifest, number, seed)
                answer = connection.ask(sent.request)
                seen.append((sent._replace(request=Request("")), answer))
                bar.update()
                if answer.status == 429:
                    time.sleep(PAUSE_S)
            connection.close()
            return seen

        return [answer for answers in pool.map(caller, range(callers)) for answer in answers]


def logged(stream: IO[bytes]) -> Iterator[dict[str, Any]]:
    """The access log's lines."""
    for line in stream:
        if line.startswith(b"{") and (fields := json.loads(line)).get("message") == "request":
            yield fields


def joined(seen: Sequence[tuple[Sent, Seen]], lines: dict[str, dict[str, Any]]) -> list[Answered]:
    answers = []
    for sent, answer in seen:
        line = lines.get(REQUEST_ID.format(sent.number))
        # a server that does not log when the first byte left tells when the last one did
        left_ms = line.get("first_byte_ms", line["ms"]) if line else None
        server_late = (
            None if left_ms is None else left_ms - (line or {}).get("timeout_ms", sent.timeout_ms)
        )
        client_late = 1000 * answer.first_byte_s - sent.timeout_ms
        answers.append(
            Answered(
                sent.kind, sent.timeout_ms, answer.status, client_late, server_late, answer.why
            )
        )
    return answers


def deadlines(
    bundle: Bundle, num: int, callers: int, seed: int, worktree: Path | None = None
) -> "Deadlines":
    started = time.monotonic()
    with TemporaryDirectory() as name, TemporaryFile() as log:
        publish(bundle, Path(name))
        with processes.folder(Path(name), worktree, log, ADDNORM_LOG_LEVEL="info") as server:
            seen = send(server, bundle.manifest, num, callers, seed)
        log.seek(0)
        lines = {line["request_id"]: line for line in logged(log)}
    clock = "first_byte_ms" if any("first_byte_ms" in line for line in lines.values()) else "ms"
    return Deadlines(clock, time.monotonic() - started, joined(seen, lines))


@dataclass(frozen=True)
class Deadlines:
    """All of one run. clock: the field of the log that tells when an answer left."""

    clock: str
    seconds: float
    answers: list[Answered]

    def wrong(self) -> dict[str, int]:
        """What must not be -> how often it was."""
        counts = {
            f"answers with 200 later than {LATE_MS:.0f} ms past their deadline": len(
                late(self.answers)
            ),
            "requests without an answer": sum(
                answer.status == NO_RESPONSE for answer in self.answers
            ),
            "requests that the log lacks": sum(
                answer.server_late_ms is None for answer in self.answers
            ),
            "answers with 500": sum(answer.status == 500 for answer in self.answers),
        }
        return {what: number for what, number in counts.items() if number}

    def table(self) -> str:
        """Markdown, a row for each kind and one for all."""
        clock = {"first_byte_ms": "first byte", "ms": "last byte"}[self.clock]
        kinds = {kind: [answer for answer in self.answers if answer.kind == kind] for kind in KINDS}
        rows = [_row(kind, answers) for kind, answers in kinds.items() if answers]
        lines = [
            f"{len(self.answers):,} requests in {self.seconds:.0f} s; ms past the deadline,"
            f" by the server's log ({clock}) and as its callers see the first byte",
            "",
            table(COLUMNS, [*rows, _row("all", self.answers)]),
        ]
        return "\n".join(lines)


def late(answers: Sequence[Answered], of: str = "server_late_ms") -> list[Answered]:
    return [
        answer
        for answer in answers
        if answer.status == 200 and (getattr(answer, of) or 0.0) > LATE_MS
    ]


def _row(name: str, answers: Sequence[Answered]) -> tuple[str, ...]:
    counts = Counter(answer.status for answer in answers)
    good = [answer for answer in answers if answer.status == 200]
    rest = [answer for answer in answers if answer.status != 200]
    return (
        name,
        ", ".join(f"{number} x {status}" for status, number in sorted(counts.items())),
        f"**{num}**" if (num := len(late(answers))) else "0",
        _worst(answer.server_late_ms for answer in good),
        _worst(answer.server_late_ms for answer in rest),
        str(len(late(answers, "client_late_ms"))),
        _worst(answer.client_late_ms for answer in good),
    )


def _worst(lateness: Iterator[float | None]) -> str:
    known = [ms for ms in lateness if ms is not None]
    return f"{max(known):,.0f}" if known else ""


def run(options: Options) -> Findings:
    found = deadlines(options.bundle, options.times(5000), CALLERS, 0, options.worktree)
    missed = [f"{number} {what}" for what, number in found.wrong().items()]
    return Findings(found.table(), missed, asdict(found))
