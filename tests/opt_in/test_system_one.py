"""`/v1/systemone` before the suite that pins the API down, and before TypeSafe's own client; and a
thousand times with other questions beside, in company."""

import random
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from addnorm.export import sources
from addnorm.export.exporting import export
from benchmarks.findings import BUILD, MINILM
from tests.conftest import inference_of, serving
from tests.support import web

pytestmark = pytest.mark.system_one
BIN = BUILD / "systemone/bin"
LABELS = {"zero-shot": ("contradiction", "neutral", "entailment"), "reranker": ("LABEL_0",)}
SHAPE: dict[str, Any] = {
    "vocab_size": 30_522, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64,
}  # fmt: skip
NUM_PAIRS, NUM_CALLERS = 1000, 8
STATES = ["I was charged twice.", "The train is late again.", {"plan": "pro", "tickets": [1, 2]}]
WORDS = ["refund", "billing", "angry", "calm", "urgent", "train", "late", "polite", "other"]
CLIENT = """
import sys
from typesafe_sdk import Choice, Noul, Score, TypeSafeClient
with TypeSafeClient(api_key="none", base_url=sys.argv[1]) as client:
    questions = {
        "refund": Noul(instructions="Do they want money back?"),
        "team": Choice(criteria={"billing": "Invoices", "other": None}),
        "anger": Score(instructions="How angry?", criteria=["calm", "angry", "furious"]),
    }
    found = client.system_one(state="I was charged twice.", questions=questions)
    print(found.nouls["refund"].noul, found.choices["team"].choice, found.scores["anger"].score)
    print([model.name for model in client.models.list().models])
"""


@pytest.fixture(scope="module", params=LABELS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of one tiny model, with weights drawn widely: its answers differ."""
    root, name = tmp_path_factory.mktemp("system-one"), request.param
    torch.manual_seed(0)
    names = dict(enumerate(LABELS[name]))
    config = BertConfig(**SHAPE, id2label=names, label2id={v: k for k, v in names.items()})
    model = BertForSequenceClassification(config).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(root / "model")
    AutoTokenizer.from_pretrained(MINILM).save_pretrained(root / "model")
    export(sources.checkpoint(root / "model"), root / "bundles", name)
    with serving(inference_of(root / "bundles", worker_threads=2, cache_bytes=0)) as url:
        yield url


def said(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def test_the_suite_finds_it_conformant(url: str) -> None:
    report = said(BIN / "jevcompat", "test", url)
    assert "conformant to spec 0.1: MUST 32/32, SHOULD 13/13" in report, report


def test_typesafes_client_reads_every_type_of_answer(url: str, tmp_path: Path) -> None:
    program = tmp_path / "client.py"
    program.write_text(CLIENT)
    answers, models = said(BIN / "python", program, url).splitlines()
    noul, choice, score = answers.split()
    assert 0 < float(noul) < 1
    assert choice in ("billing", "other")
    assert 0 < float(score) < 2
    assert models


def question(draws: random.Random) -> dict[str, Any]:
    about = {"instructions": " ".join(draws.sample(WORDS, 3))}
    words = draws.sample(WORDS, draws.randint(2, 5))
    kind = draws.choice(("noul", "choice", "score"))
    if kind == "noul":
        return {"type": kind, **about}
    return {"type": kind, **about, "criteria": dict.fromkeys(words) if kind == "choice" else words}


def test_what_else_is_asked_changes_no_bit(url: str) -> None:
    """Questions are added, removed, renamed and reordered, while others ask."""

    def ask(client: httpx.Client, state: Any, questions: dict[str, Any]) -> Any:
        body = {"model": "jev-latest", "state": state, "questions": questions}
        return client.post("/v1/systemone", json=body).raise_for_status().json()["answers"]

    def other_bits(number: int) -> int:
        draws = random.Random(number)
        state, questions = draws.choice(STATES), [question(draws) for _ in range(4)]
        some = draws.sample(range(4), draws.randint(1, 4))
        more = [question(draws) for _ in range(draws.randint(0, 3))]
        varied = [
            *((f"q{at}", questions[at]) for at in some),
            *((f"m{i}", m) for i, m in enumerate(more)),
        ]
        draws.shuffle(varied)
        first = ask(client, state, {f"q{at}": one for at, one in enumerate(questions)})
        second = ask(client, state, dict(varied))
        return sum(first[f"q{at}"] != second[f"q{at}"] for at in some)

    with web.client(base_url=url) as client, ThreadPoolExecutor(NUM_CALLERS) as pool:
        assert sum(pool.map(other_bits, range(NUM_PAIRS))) == 0
