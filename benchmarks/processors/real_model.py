"""all-MiniLM-L6-v2 on a processor: `addnorm serve`, asked over HTTP.

Its load compares all outputs of up to 512 tokens with the certificate; only vectors are asked for.
"""

import json
from pathlib import Path

import httpx

from addnorm.export import sources
from addnorm.export.exporting import export
from addnorm.export.wishes import Wishes
from benchmarks import processes
from benchmarks.findings import MINILM
from benchmarks.processors.emulated import Python
from benchmarks.processors.questions import TEXTS
from benchmarks.processors.worker import of_certificate

NAME = "all-minilm-l6-v2"
PRECISIONS = ("fp32", "int8")
PATIENCE_S = 1200.0
SETTINGS = {
    "ADDNORM_TOKEN_BUDGET": "512", "ADDNORM_WORKER_THREADS": "2",
    "ADDNORM_TIMEOUT_S": "600", "ADDNORM_RUN_TIMEOUT_S": "600",
}  # fmt: skip


def export_to(root: Path) -> None:
    """Exports it by the code of this checkout, certified on this machine."""
    export(sources.checkpoint(MINILM, Wishes(precisions=PRECISIONS)), root, NAME, 1)


def ask(bundles: Path, python: Python, out: Path, name: str = NAME) -> None:
    """Writes the vectors of TEXTS that a server makes on the processor, whether it has the bits of
    the certificate, and its fingerprint."""
    served = out / name
    served.mkdir(parents=True)
    with (
        (out / f"{python.processor}.log").open("wb") as log,
        processes.folder(
            bundles, None, log, python.command, PATIENCE_S, **SETTINGS, **python.variables
        ) as server,
        httpx.Client(base_url=f"http://{server.host}:{server.port}", timeout=PATIENCE_S) as client,
    ):
        model = client.get(f"/v1/models/{name}").raise_for_status().json()
        for precision in PRECISIONS:
            body = {"model": name, "input": TEXTS, "precision": precision}
            answer = client.post("/v1/embeddings", json=body).raise_for_status()
            (served / f"{precision}-embeddings.json").write_bytes(answer.content)
            certificate = of_certificate(
                model["reproduces_certificate"][precision],
                model["different_from_certificate"][precision],
            )
            (served / f"{precision}-certificate.json").write_text(json.dumps(certificate))
            # all processors of a fleet have one fingerprint; of the versions compared, one each
            parts = {**model["fingerprint_parts"][precision], "onnxruntime": "any"}
            (served / f"{precision}-fingerprint.json").write_text(json.dumps(parts))
