"""`python -m benchmarks.processors.worker BUNDLES OUT`: loads every bundle, asks all questions and
writes the answers' bytes to OUT/NAME/QUESTION.json. Why a bundle was refused goes to refused.txt.

Runs natively and on emulated processors.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from addnorm.corpus.embedder import open_service
from addnorm.corpus.errors import CorpusError
from addnorm.service.server.wiring import Service
from benchmarks.processors.questions import questions

REFUSED = "refused.txt"
HOUR = 3600.0
# Nothing is cached, and nobody is in a hurry: emulation is 20 to 60 times slower. Two workers: the
# checks of a load compare one thread with all.
SETTINGS = {
    "worker_threads": 2, "cache_bytes": 0, "token_budget": 512, "timeout_s": HOUR,
    "run_timeout_s": HOUR, "max_response_bytes": 2**30,
}  # fmt: skip


def main(root: Path, out: Path, **settings: Any) -> None:
    """settings: other than SETTINGS."""
    for path in sorted(path for path in root.glob("*/*") if path.name.isdigit()):
        folder = out / path.parent.name
        folder.mkdir(parents=True)
        try:
            service = open_service(path, **{**SETTINGS, **settings})
        except CorpusError as error:
            (folder / REFUSED).write_text(str(error))
            continue
        try:
            asyncio.run(_ask(service, folder))
        finally:
            service.close()


async def _ask(service: Service, out: Path) -> None:
    (model,) = service.models.all()
    for precision, reproduction in model.reproductions.items():
        certificate = of_certificate(reproduction.is_equal, reproduction.different)
        (out / f"{precision}-certificate.json").write_text(json.dumps(certificate))
    through = httpx.ASGITransport(app=service.app)
    async with httpx.AsyncClient(transport=through, base_url="http://here", timeout=HOUR) as here:
        for question in questions(model.bundle):
            answer = await here.post(question.path, json=question.body)
            if answer.status_code != 200:
                raise SystemExit(f"{model.bundle.ref}, {question.name}: {answer.text}")
            (out / f"{question.name}.json").write_bytes(answer.content)


def of_certificate(is_equal: bool | None, different: Sequence[str]) -> dict[str, object]:
    """The load's verdict on the known answers: all outputs of up to 512 tokens."""
    return {"certificate": {"is_equal": is_equal, "different": [*different]}}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
