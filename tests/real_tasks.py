"""Tasks of trained models over HTTP, beside transformers' pipelines and sentence-transformers:
`make tasks`.

`make sparse-and-multi-vector` does it for sparse vectors and for vectors of tokens. Exits with 1 if
a difference is over its limit.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import torch
import transformers
from huggingface_hub import InferenceClient
from transformers import BertForSequenceClassification

from addnorm.export import command
from tests.conftest import inference_of, serving
from tests.support.made_text import Maker
from tests.support.pair_scores import DIALECTS, asked, bits, logits, sigmoid

LIMIT = 1e-4
SPLADE = "cognition/model"
NUM_QUESTIONS, NUM_OTHERS, NUM_TEXTS = 20, 9, 60
NUM_DOCUMENTS, NUM_ALONE = 1000, 40
AGGREGATIONS = ("none", "simple", "first", "average", "max")
CANDIDATES, TEMPLATE = ["a river", "the weather", "a founder"], "It is about {}."

PEER = """
import json, sys
from sentence_transformers import CrossEncoder
from torch import nn
model = CrossEncoder(sys.argv[1], device="cpu", local_files_only=True)
pairs = json.load(sys.stdin)
scores = [model.predict(pairs, activation_fn=kind()).tolist() for kind in (nn.Identity, nn.Sigmoid)]
print(json.dumps(scores))
"""


class Row(NamedTuple):
    """A line of the table. limit: 0 where bits are compared, and unequal ones are counted."""

    model: str
    task: str
    dialect: str
    cases: int
    difference: float
    limit: float = LIMIT


def main(trained: Path, real: Path, peer_python: str) -> None:
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    rows = list[Row]()
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        entailment(trained / "cross-encoder", work / "entailment")
        folders = [trained / "cross-encoder", trained / "tagger", work / "entailment"]
        for folder in folders:
            exported(folder, folder.name, work / "fp32", "fp32")
        exported(real / SPLADE, "splade", work / "fp32", "fp32")
        exported(trained / "cross-encoder", "cross-encoder", work / "int8", "int8")
        with serving(served(work / "fp32")) as url:
            client = httpx.Client(base_url=url, timeout=300)
            rows += rerank(client, trained / "cross-encoder", peer_python)
            rows += same_bits(client, "fp32")
            rows += classify(client, url, trained / "cross-encoder")
            rows += zero_shot(client, url, work / "entailment")
            rows += tag(client, url, trained / "tagger")
            rows += fill_mask(client, url, real / SPLADE)
        with serving(served(work / "int8")) as url:
            rows += same_bits(httpx.Client(base_url=url, timeout=300), "int8")
    report(rows)


def served(root: Path) -> Any:
    defaults = {"classify": "cross-encoder", "rerank": "cross-encoder"}
    return inference_of(root, default_models=defaults, timeout_s=300, invariance_check_share=0)


def exported(folder: Path, name: str, root: Path, precision: str) -> None:
    options = ["--out", str(root), "--name", name, "--precision", precision]
    command.export(["--checkpoint", str(folder), *options])


def entailment(cross_encoder: Path, folder: Path) -> None:
    """The cross-encoder with a second label, whose logit is 0: zero-shot needs two."""
    model = BertForSequenceClassification.from_pretrained(cross_encoder)
    head = torch.nn.Linear(model.config.hidden_size, 2)
    with torch.no_grad():
        head.weight.copy_(torch.cat([torch.zeros_like(model.classifier.weight),
                                     model.classifier.weight]))  # fmt: skip
        head.bias.copy_(torch.cat([torch.zeros(1), model.classifier.bias]))
    model.classifier = head
    model.config.id2label = {0: "contradiction", 1: "entailment"}
    model.config.label2id = {"contradiction": 0, "entailment": 1}
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(cross_encoder).save_pretrained(folder)


def rerank(client: httpx.Client, folder: Path, peer_python: str) -> Iterator[Row]:
    questions = Maker(seed=5, held_out=True).questions(NUM_OTHERS)
    cases = [(asks, [answer, *others]) for asks, answer, others in islice(questions, NUM_QUESTIONS)]
    pairs = [[question, document] for question, documents in cases for document in documents]
    run = subprocess.run(
        [peer_python, "-c", PEER, folder], input=json.dumps(pairs), stdout=-1, text=True, check=True
    )
    for raw, theirs in zip((True, False), json.loads(run.stdout), strict=True):
        ours = [
            score
            for question, documents in cases
            for score in DIALECTS["/v1/rerank"](client, question, documents, raw)
        ]
        what = "logits" if raw else "sigmoid"
        yield Row("cross-encoder", f"CrossEncoder.predict, {what}", "/v1/rerank",
                  len(pairs), gap(ours, theirs))  # fmt: skip


def same_bits(client: httpx.Client, precision: str) -> Iterator[Row]:
    """Each dialect's answer for all documents, and for some of them alone."""
    question, documents = documents_of_many_lengths()
    scores = logits(client, "cross-encoder", question, documents)
    alone = range(0, NUM_DOCUMENTS, NUM_DOCUMENTS // NUM_ALONE)
    for dialect, ask in DIALECTS.items():
        unequal, cases = 0, 0
        for raw, own in ((True, scores), (False, sigmoid(scores))):
            got = [
                *ask(client, question, documents, raw),
                *(ask(client, question, [documents[index]], raw)[0] for index in alone),
            ]
            expected = [*own, *(own[index] for index in alone)]
            unequal += int((bits(got) != bits(expected)).sum())
            cases += len(got)
        yield Row(f"cross-encoder {precision}", "unequal bits", dialect, cases, unequal, 0)


def documents_of_many_lengths() -> tuple[str, list[str]]:
    """Of 1 to 6 sentences."""
    questions = Maker(seed=6).questions(5)
    made = list(islice(questions, NUM_DOCUMENTS))
    documents = [
        " ".join([answer, *others][: 1 + index % 6])
        for index, (_, answer, others) in enumerate(made)
    ]
    return made[0][0], documents


def classify(client: httpx.Client, url: str, folder: Path) -> Iterator[Row]:
    theirs = pipeline("text-classification", folder)
    pairs = [(one.question, one.sentence) for one in islice(Maker(seed=7).pairs(), NUM_TEXTS)]
    expected = [theirs({"text": first, "text_pair": second})["score"] for first, second in pairs]
    answer = asked(client, "/v1/classify", model=folder.name, texts=pairs)
    ours = [one["score"] for (one,) in answer["results"]]
    yield Row(folder.name, "text-classification, pairs", "/v1/classify", len(pairs),
              gap(ours, expected))  # fmt: skip
    texts = sentences()
    expected = [one["score"] for one in theirs(texts)]
    hub = InferenceClient(model=f"{url}/hf/{folder.name}")
    ours = [hub.text_classification(text)[0].score for text in texts]
    yield Row(folder.name, "text-classification", "huggingface_hub", len(texts),
              gap(ours, expected))  # fmt: skip


def zero_shot(client: httpx.Client, url: str, folder: Path) -> Iterator[Row]:
    theirs, texts = pipeline("zero-shot-classification", folder), sentences()
    hub = InferenceClient(model=f"{url}/hf/{folder.name}")
    for multi_label in (False, True):
        options = {"hypothesis_template": TEMPLATE, "multi_label": multi_label}
        expected = [
            sorted(zip(one["labels"], one["scores"], strict=True))
            for one in (theirs(text, CANDIDATES, **options) for text in texts)
        ]
        answer = asked(client, "/v1/zero-shot", model=folder.name, texts=texts,
                       candidate_labels=CANDIDATES, **options)  # fmt: skip
        ours = [[(one["label"], one["score"]) for one in own] for own in answer["results"]]
        hubs = [
            [
                (one.label, one.score)
                for one in hub.zero_shot_classification(text, CANDIDATES, **options)
            ]
            for text in texts
        ]
        for dialect, found in (("/v1/zero-shot", ours), ("huggingface_hub", hubs)):
            difference = of_entries(map(sorted, found), expected)
            what = "zero-shot, several labels" if multi_label else "zero-shot, one label"
            yield Row(folder.name, what, dialect, len(texts), difference)


def tag(client: httpx.Client, url: str, folder: Path) -> Iterator[Row]:
    theirs, texts = pipeline("token-classification", folder), sentences()
    hub = InferenceClient(model=f"{url}/hf/{folder.name}")
    for aggregation in AGGREGATIONS:
        options: Any = {"aggregation_strategy": aggregation}
        expected = [[entry(one) for one in found] for found in theirs(texts, **options)]
        answer = asked(client, "/v1/tag", model=folder.name, texts=texts, **options)
        ours = [[entry(one) for one in own] for own in answer["results"]]
        hubs = [[entry(one) for one in hub.token_classification(text, **options)] for text in texts]
        for dialect, found in (("/v1/tag", ours), ("huggingface_hub", hubs)):
            difference = of_entries(found, expected)
            what = f"tags, {aggregation} ({sum(map(len, expected))} in all)"
            yield Row(folder.name, what, dialect, len(texts), difference)


def fill_mask(client: httpx.Client, url: str, folder: Path) -> Iterator[Row]:
    theirs = pipeline("fill-mask", folder)
    texts = [
        text.replace(text.split()[len(text.split()) // 2], "[MASK]", 1) for text in sentences()
    ]
    expected = [[candidate(one) for one in theirs(text)] for text in texts]
    answer = asked(client, "/v1/fill-mask", model="splade", texts=texts)
    ours = [[candidate(one) for one in own] for (own,) in answer["results"]]
    hub = InferenceClient(model=f"{url}/hf/splade")
    hubs = [[candidate(one) for one in hub.fill_mask(text)] for text in texts]
    for dialect, found in (("/v1/fill-mask", ours), ("huggingface_hub", hubs)):
        difference = of_entries(found, expected)
        yield Row("splade", "fill-mask", dialect, len(texts), difference)


def sentences() -> list[str]:
    return [one.text for one in islice(Maker(seed=8, held_out=True).marked(), NUM_TEXTS)]


def pipeline(task: str, folder: Path) -> Any:
    return transformers.pipeline(task, model=str(folder), device="cpu")  # type: ignore[call-overload]


def entry(one: Any) -> tuple[Any, ...]:
    """What must be equal of a tag or an entity, then its score."""
    what = one.get("entity") or one.get("entity_group")
    return what, one["word"], one["start"], one["end"], one["score"]


def candidate(one: Any) -> tuple[Any, ...]:
    return one["token"], one["token_str"], one["sequence"], one["score"]


def of_entries(ours: Any, theirs: Sequence[Any]) -> float:
    """The largest difference of scores, which come last; infinite if anything else differs."""
    largest = 0.0
    for own, other in zip(ours, theirs, strict=True):
        if [one[:-1] for one in own] != [one[:-1] for one in other]:
            print(f"other words: {own} instead of {other}")
            return float("inf")
        largest = max(largest, gap([one[-1] for one in own], [one[-1] for one in other]))
    return largest


def gap(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return float(np.abs(np.subtract(ours, theirs)).max(initial=0))


def report(rows: Sequence[Row]) -> None:
    print(
        f"{'model':20}{'task':32}{'dialect':20}{'cases':>6}{'largest difference':>20}{'limit':>8}"
    )
    for row in rows:
        failed = "" if row.difference <= row.limit else "  FAILED"
        print(f"{row.model:20}{row.task:32}{row.dialect:20}{row.cases:6}{row.difference:20.2g}"
              f"{row.limit:8.0e}{failed}")  # fmt: skip
    sys.exit(int(any(not row.difference <= row.limit for row in rows)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
