"""`python -m addnorm.load.stress.scenarios.deadlines --bundle BUNDLE`: mixed requests with deadlines of 50 to 2,000 ms, more than can be met.

No answer with 200 may begin to leave later than 50 ms after its deadline, by the server's own log. What its callers see
stands beside it: they share the machine with the server, and their time begins before the request is sent.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any, NamedTuple

from tqdm import tqdm

from addnorm.load import servers
from addnorm.load.bench import report
from addnorm.load.client import REFUSED
from addnorm.load.stress import texts
from addnorm.load.stress.bodies import EMBEDDINGS, INFER, TOKENIZE, infer, long_integers, tensor, v2
from addnorm.load.stress.caller import Caller, Request, Seen
from addnorm.service.protocols.codec.safetensors_body import SAFETENSORS
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.bundle import Bundle, Manifest

SHORTEST_MS, LONGEST_MS = 50, 2000
LATE_MS = 50.0  # past the deadline
TIMEOUT_S = 120.0
REQUEST_ID = "deadline-{}"
OUT = Path("load/report/deadlines.json")


class Draw(NamedTuple):
    """What a request is made of."""

    manifest: Manifest
    draws: random.Random
    timeout_ms: int

    def row(self, least: int, most: int) -> list[int]:
        length = min(self.draws.randint(least, most), self.manifest.limits.max_positions)
        return self.draws.choices(range(self.manifest.limits.vocab_size), k=length)

    def rows(self, num: int, least: int, most: int) -> list[list[int]]:
        return [self.row(least, most) for _ in range(num)]

    def infer(self, rows: list[list[int]], output: str, **more: Any) -> Request:
        chosen = self.draws.choice(list(self.manifest.precisions))
        return infer(
            self.manifest, {"input_ids": rows, "outputs": [output], "precision": chosen, **more}
        )

    def texts(self, path: str, field: str, values: list[Any], **more: Any) -> Request:
        return Request.json(path, {"model": self.manifest.name, field: values, **more})


def _small(draw: Draw) -> Request:
    return draw.infer(draw.rows(draw.draws.randint(1, 4), 1, 128), "pooled")


def _logits(draw: Draw) -> Request:
    return draw.infer(draw.rows(1, 8, 200), "logits")


def _likeliest(draw: Draw) -> Request:
    """All of the vocabulary."""
    return draw.infer(
        draw.rows(1, 8, 128), "logits", logits={"top_k": draw.manifest.limits.vocab_size}
    )


def _hidden(draw: Draw) -> Request:
    return draw.infer(draw.rows(draw.draws.randint(1, 16), 1, 256), "activations")


def _v2(draw: Draw, output: bytes, binary: bool) -> Request:
    """Its deadline stands in the body."""
    num, length = draw.draws.randint(1, 8), min(64, draw.manifest.limits.max_positions)
    ids = b",".join(b"%d" % token for _ in range(num) for token in draw.row(length, length))
    parameters = {"timeout": 1000 * draw.timeout_ms, "binary_data_output": binary}
    rest = b',"outputs":[{"name":"%s"}],"parameters":%s' % (output, json.dumps(parameters).encode())
    return v2(draw.manifest, tensor("input_ids", [num, length], ids), rest=rest)


def _prose(draw: Draw) -> list[str]:
    draws = draw.draws
    return [
        texts.prose(draws.randint(1, 60), draws.getrandbits(30)) for _ in range(draws.randint(1, 8))
    ]


def _hopeless(draw: Draw) -> list[str]:
    return [texts.hopeless_words(draw.draws.randint(1, 60))] * draw.draws.randint(10, 900)


@dataclass(frozen=True)
class Kind:
    """One of the mix: how often it comes, and how it is made."""

    weight: int
    make: Callable[[Draw], Request]


KINDS = {
    "small": Kind(36, _small),
    "32 sequences": Kind(10, lambda draw: draw.infer(draw.rows(32, 1, 60), "pooled")),
    "8 sequences of 512": Kind(4, lambda draw: draw.infer(draw.rows(8, 512, 512), "pooled")),
    "hidden states": Kind(6, _hidden),
    "hidden states, gzip": Kind(4, lambda draw: _hidden(draw).having(accept_encoding="gzip")),
    "hidden states, safetensors": Kind(4, lambda draw: _hidden(draw).having(accept=SAFETENSORS)),
    "logits": Kind(5, _logits),
    "logits, gzip": Kind(4, lambda draw: _logits(draw).having(accept_encoding="gzip")),
    "top_k of the vocabulary": Kind(5, _likeliest),
    "V2, JSON": Kind(5, lambda draw: _v2(draw, b"activations", binary=False)),
    "V2, bytes": Kind(3, lambda draw: _v2(draw, b"logits", binary=True)),
    "embeddings of ids": Kind(3, lambda draw: draw.texts(EMBEDDINGS, "input", draw.rows(8, 1, 60))),
    "embeddings of texts": Kind(3, lambda draw: draw.texts(EMBEDDINGS, "input", _prose(draw))),
    "texts": Kind(3, lambda draw: draw.texts(INFER, "texts", _prose(draw), outputs=["pooled"])),
    "bad texts": Kind(
        1, lambda draw: draw.texts(INFER, "texts", _hopeless(draw), outputs=["pooled"])
    ),
    "tokenize": Kind(2, lambda draw: draw.texts(TOKENIZE, "texts", _prose(draw))),
    "tokenize bad texts": Kind(1, lambda draw: draw.texts(TOKENIZE, "texts", _hopeless(draw))),
    "integers of 4,299 digits": Kind(1, lambda draw: long_integers(4299, draw.manifest)),
}


class Sent(NamedTuple):
    """One request of the mix."""

    number: int
    kind: str
    timeout_ms: int
    request: Request


def mixed(manifest: Manifest, number: int, seed: int) -> Sent:
    """The same for the same seed, whoever sends it when."""
    draws = random.Random(f"{seed}/{number}")
    (kind,) = draws.choices(list(KINDS), [kind.weight for kind in KINDS.values()])
    timeout_ms = round(SHORTEST_MS * (LONGEST_MS / SHORTEST_MS) ** draws.random())
    headers = {"x-request-id": REQUEST_ID.format(number)}
    if not kind.startswith("V2"):
        headers["x-request-timeout-ms"] = str(timeout_ms)
    request = KINDS[kind].make(Draw(manifest, draws, timeout_ms))
    return Sent(number, kind, timeout_ms, request.having(**headers))


@dataclass(frozen=True)
class Answered:
    """What became of one request. Lateness is ms from its deadline to the first byte, below 0 in time."""

    kind: str
    timeout_ms: int
    status: int
    client_late_ms: float
    server_late_ms: float | None  # None: the server's log lacks it
    why: str = ""


PAUSE_S = (
    0.05  # of a caller that was refused for load: without it most requests would only be refused
)


def send(
    server: servers.Server, manifest: Manifest, num: int, callers: int, seed: int
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
        if line.startswith(b"{") and (facts := json.loads(line)).get("message") == "request":
            yield facts


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
) -> "Findings":
    machine, started = report.machine(), time.monotonic()
    with TemporaryDirectory() as name, TemporaryFile() as log:
        texts.publish(bundle, Path(name))
        with servers.folder(Path(name), worktree, log, ADDNORM_LOG_LEVEL="info") as server:
            seen = send(server, bundle.manifest, num, callers, seed)
        log.seek(0)
        lines = {line["request_id"]: line for line in logged(log)}
    clock = "first_byte_ms" if any("first_byte_ms" in line for line in lines.values()) else "ms"
    return Findings(machine, clock, time.monotonic() - started, joined(seen, lines))


@dataclass(frozen=True)
class Findings:
    """All of one run. clock: the field of the log that tells when an answer left."""

    machine: dict[str, str | int | float]
    clock: str
    seconds: float
    answers: list[Answered]

    def wrong(self) -> dict[str, int]:
        """What must not be, and how often it was."""
        counts = {
            f"answers with 200 later than {LATE_MS:.0f} ms past their deadline": len(
                late(self.answers)
            ),
            "requests without an answer": sum(answer.status == REFUSED for answer in self.answers),
            "requests that the log lacks": sum(
                answer.server_late_ms is None for answer in self.answers
            ),
            "answers with 500": sum(answer.status == 500 for answer in self.answers),
        }
        return {what: number for what, number in counts.items() if number}

    def table(self) -> str:
        """Markdown, a row for each kind and one for all."""
        clock = {"first_byte_ms": "first byte", "ms": "last byte"}[self.clock]
        lines = [
            ", ".join(f"{name} {value}" for name, value in self.machine.items()),
            "",
            f"{len(self.answers):,} requests in {self.seconds:.0f} s; ms past the deadline, by the server's log ({clock})"
            " and as its callers see the first byte",
            "",
            "| kind | answers | 200s, late | worst 200 | worst of the rest | callers: 200s, late | worst 200 |",
            "|---|---|---|---|---|---|---|",
        ]
        kinds = {kind: [answer for answer in self.answers if answer.kind == kind] for kind in KINDS}
        lines += [_line(kind, answers) for kind, answers in kinds.items() if answers]
        return "\n".join([*lines, _line("all", self.answers)]) + "\n"

    def write(self, file: Path) -> str:
        """The JSON, and the table beside it. -> the table"""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({**asdict(self), "wrong": self.wrong()}, indent=1) + "\n")
        file.with_suffix(".md").write_text(table := self.table())
        return table


def late(answers: Sequence[Answered], of: str = "server_late_ms") -> list[Answered]:
    return [
        answer
        for answer in answers
        if answer.status == 200 and (getattr(answer, of) or 0.0) > LATE_MS
    ]


def _line(name: str, answers: Sequence[Answered]) -> str:
    counts = Counter(answer.status for answer in answers)
    shown = ", ".join(f"{number} x {status}" for status, number in sorted(counts.items()))
    good = [answer for answer in answers if answer.status == 200]
    rest = [answer for answer in answers if answer.status != 200]
    padding = (
        name,
        shown,
        f"**{num}**" if (num := len(late(answers))) else "0",
        _worst(answer.server_late_ms for answer in good),
        _worst(answer.server_late_ms for answer in rest),
        str(len(late(answers, "client_late_ms"))),
        _worst(answer.client_late_ms for answer in good),
    )
    return f"| {' | '.join(padding)} |"


def _worst(lateness: Iterator[float | None]) -> str:
    known = [ms for ms in lateness if ms is not None]
    return f"{max(known):,.0f}" if known else ""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m addnorm.load.stress.scenarios.deadlines", description=__doc__
    )
    parser.add_argument(
        "--bundle", type=Path, required=True, help="is given a tokenizer where it has none"
    )
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--worktree", type=Path, help="the folder whose code serves, if it is not this one's"
    )
    parser.add_argument(
        "--out", type=Path, default=OUT, help=f"the JSON; the table goes beside it ({OUT})"
    )
    arguments = parser.parse_args()
    servers.end_on_sigterm()
    bundle = bundles.read(arguments.bundle)
    found = deadlines(
        bundle, arguments.requests, arguments.callers, arguments.seed, arguments.worktree
    )
    print(found.write(arguments.out), end="")
    if wrong := found.wrong():
        sys.exit("; ".join(f"{number} {what}" for what, number in wrong.items()))


if __name__ == "__main__":
    main()
