"""The servers that rerank, each as its own process, and how all of them are asked."""

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from addnorm.load.measure.run import Figures
from addnorm.load.servers import Server
from addnorm.service.runtime.bundle import Bundle
from benchmarks import peers, processes
from benchmarks.findings import PEER_PYTHON
from benchmarks.rerank.requests import Request

NAIVE, INFINITY, FP32, INT8 = "CrossEncoder.predict", "Infinity", "fp32", "int8"
PEERS = (NAIVE, INFINITY)
PATH = "/v1/rerank"
# the peers queue without limits, and so does Addnorm here
PATIENT = {"ADDNORM_TIMEOUT_S": "300", "ADDNORM_MAX_QUEUE_TOKENS": "1000000"}
CPU = "cpu_ms_per_document"  # of the server: hardly moved by others on the machine
TOLERANCE = 1e-3  # of a score, between Addnorm in fp32 and others; int8 is another model

Scores = NDArray[np.float64]


class WrongScores(RuntimeError):
    """A server's scores are not those of the others, or not those that it gave before."""


@dataclass
class Contender:
    """A server, what its bodies hold besides the texts, and the scores that it gave."""

    name: str
    server: Server
    fields: dict[str, str]
    known: dict[Request, Scores] = field(default_factory=dict)

    def scores(self, request: Request) -> Scores:
        """Scores of the documents, in their order. WrongScores if they differ from those given
        before."""
        body = {"query": request.query, "documents": request.documents, **self.fields}
        results = json.loads(self.server.ask(json.dumps(body).encode(), PATH))["results"]
        by_index = {result["index"]: result["relevance_score"] for result in results}
        scores = np.array([by_index[i] for i in range(len(request.documents))])
        before = self.known.setdefault(request, scores)
        if not (apart := float(abs(scores - before).max())) <= (TOLERANCE if self.is_peer else 0):
            raise WrongScores(f"{self.name}: a score of the same pair differs by {apart:g}")
        return scores

    @property
    def is_peer(self) -> bool:
        return self.name in PEERS

    def run(self, requests: Sequence[Request]) -> Figures:
        """Each request from a caller of its own, all at once, until the last one is answered."""
        num_documents = sum(len(request.documents) for request in requests)
        started, cpu_s = time.perf_counter(), self.server.cpu_s() or 0
        with ThreadPoolExecutor(len(requests)) as callers:
            list(callers.map(self.scores, requests))
        seconds, cpu_s = time.perf_counter() - started, (self.server.cpu_s() or 0) - cpu_s
        return {
            "documents_per_s": num_documents / seconds,
            CPU: 1000 * cpu_s / num_documents,
        }


def start(stack: ExitStack, bundle: Bundle, checkpoint: Path) -> list[Contender]:
    """All of them, with their defaults but PATIENT."""
    name = bundle.manifest.name
    servers = {
        NAIVE: processes.program((PEER_PYTHON, peers.program("cross_encoder"), checkpoint)),
        INFINITY: peers.infinity(checkpoint, name),
    }
    fields = {"model": name}
    started = [
        Contender(peer, stack.enter_context(server), fields) for peer, server in servers.items()
    ]
    server = stack.enter_context(processes.addnorm(bundle, **PATIENT))
    ours = [Contender(each, server, {**fields, "precision": each}) for each in (FP32, INT8)]
    return [*started, *ours]


def compare(contenders: Sequence[Contender], request: Request) -> dict[str, float]:
    """How far each one's scores are from Addnorm's in fp32. WrongScores if a peer's are too far."""
    scores = {contender.name: contender.scores(request) for contender in contenders}
    apart = {name: float(abs(own - scores[FP32]).max()) for name, own in scores.items()}
    for name in PEERS:
        if not apart[name] <= TOLERANCE:
            raise WrongScores(f"{name}: its scores differ from Addnorm's by {apart[name]:g}")
    return apart
