"""Tasks of trained models over HTTP, beside transformers' pipelines and sentence-transformers.

test_token_vectors.py does it for sparse vectors and for vectors of tokens.
"""

import json
import subprocess
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import transformers
from huggingface_hub import InferenceClient
from transformers import BertForSequenceClassification

from addnorm.export import command
from benchmarks.data.made_text import Maker
from benchmarks.data.trained import IGNORED, NUM_HELD_OUT, labelled
from benchmarks.findings import BUILD, PEER_PYTHON
from tests.conftest import inference_of, serving
from tests.support import web
from tests.support.pair_scores import DIALECTS, asked, bits, logits, sigmoid

pytestmark = pytest.mark.tasks
TRAINED, REAL = BUILD / "trained", BUILD / "real-models"
LIMIT = 1e-4
SPLADE, MODERN = "cognition/model", "modern-tagger"
LOST = 0.01  # share of tokens that int8 may tag wrong and PyTorch right
NUM_QUESTIONS, NUM_OTHERS, NUM_TEXTS = 20, 9, 60
NUM_DOCUMENTS, NUM_ALONE = 1000, 40
AGGREGATIONS = ("none", "simple", "first", "average", "max")
CANDIDATES, TEMPLATE = ["a river", "the weather", "a founder"], "It is about {}."

PEER = """
import json, sys
from sentence_transformers import CrossEncoder
from torch import nn
model = CrossEncoder(sys.argv[1], device="cpu", local_files_only=True)
kind = getattr(nn, sys.argv[2])
print(json.dumps(model.predict(json.load(sys.stdin), activation_fn=kind()).tolist()))
"""


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of bundles: fp32 and int8."""
    root = tmp_path_factory.mktemp("tasks")
    entailment(TRAINED / "cross-encoder", root / "entailment")
    folders = [TRAINED / "cross-encoder", TRAINED / "tagger", root / "entailment"]
    for folder in folders:
        exported(folder, folder.name, root / "fp32", "fp32")
    exported(TRAINED / MODERN, MODERN, root / "fp32", "fp32,int8")
    exported(REAL / SPLADE, "splade", root / "fp32", "fp32")
    exported(TRAINED / "cross-encoder", "cross-encoder", root / "int8", "int8")
    return root


@pytest.fixture(scope="module")
def url(work: Path) -> Iterator[str]:
    with serving(served(work / "fp32")) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx.Client]:
    with web.client(base_url=url, timeout=300) as client:
        yield client


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


@pytest.mark.parametrize("raw", [True, False], ids=["logits", "sigmoid"])
def test_rerank_gives_the_scores_of_sentence_transformers(client: httpx.Client, raw: bool) -> None:
    questions = Maker(seed=5, held_out=True).questions(NUM_OTHERS)
    cases = [(asks, [answer, *others]) for asks, answer, others in islice(questions, NUM_QUESTIONS)]
    pairs = [[question, document] for question, documents in cases for document in documents]
    run = subprocess.run(
        [PEER_PYTHON, "-c", PEER, TRAINED / "cross-encoder", "Identity" if raw else "Sigmoid"],
        input=json.dumps(pairs), stdout=-1, text=True, check=True,
    )  # fmt: skip
    ours = [
        score
        for question, documents in cases
        for score in DIALECTS["/v1/rerank"](client, question, documents, raw)
    ]
    assert gap(ours, json.loads(run.stdout)) <= LIMIT


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_every_dialect_has_the_bits_of_each_document_alone(work: Path, precision: str) -> None:
    with serving(served(work / precision)) as url, web.client(base_url=url, timeout=300) as client:
        question, documents = documents_of_many_lengths()
        scores = logits(client, "cross-encoder", question, documents)
        alone = range(0, NUM_DOCUMENTS, NUM_DOCUMENTS // NUM_ALONE)
        for ask in DIALECTS.values():
            for raw, own in ((True, scores), (False, sigmoid(scores))):
                got = [
                    *ask(client, question, documents, raw),
                    *(ask(client, question, [documents[index]], raw)[0] for index in alone),
                ]
                assert not (bits(got) != bits([*own, *(own[index] for index in alone)])).any()


def documents_of_many_lengths() -> tuple[str, list[str]]:
    """A question, and documents of 1 to 6 sentences."""
    questions = Maker(seed=6).questions(5)
    made = list(islice(questions, NUM_DOCUMENTS))
    documents = [
        " ".join([answer, *others][: 1 + index % 6])
        for index, (_, answer, others) in enumerate(made)
    ]
    return made[0][0], documents


def test_pairs_are_classified_as_by_transformers(client: httpx.Client) -> None:
    theirs = pipeline("text-classification", TRAINED / "cross-encoder")
    pairs = [(one.question, one.sentence) for one in islice(Maker(seed=7).pairs(), NUM_TEXTS)]
    expected = [theirs({"text": first, "text_pair": second})["score"] for first, second in pairs]
    answer = asked(client, "/v1/classify", model="cross-encoder", texts=pairs)
    assert gap([one["score"] for (one,) in answer["results"]], expected) <= LIMIT


def test_texts_are_classified_as_by_transformers(url: str) -> None:
    texts = sentences()
    expected = [
        one["score"] for one in pipeline("text-classification", TRAINED / "cross-encoder")(texts)
    ]
    hub = InferenceClient(model=f"{url}/hf/cross-encoder")
    assert gap([hub.text_classification(text)[0].score for text in texts], expected) <= LIMIT


@pytest.mark.parametrize("multi_label", [False, True])
def test_zero_shot_is_that_of_transformers(
    client: httpx.Client, url: str, work: Path, multi_label: bool
) -> None:
    theirs, texts = pipeline("zero-shot-classification", work / "entailment"), sentences()
    hub = InferenceClient(model=f"{url}/hf/entailment")
    options = {"hypothesis_template": TEMPLATE, "multi_label": multi_label}
    expected = [
        sorted(zip(one["labels"], one["scores"], strict=True))
        for one in (theirs(text, CANDIDATES, **options) for text in texts)
    ]
    answer = asked(client, "/v1/zero-shot", model="entailment", texts=texts,
                   candidate_labels=CANDIDATES, **options)  # fmt: skip
    ours = [[(one["label"], one["score"]) for one in own] for own in answer["results"]]
    hubs = [
        [
            (one.label, one.score)
            for one in hub.zero_shot_classification(text, CANDIDATES, **options)
        ]
        for text in texts
    ]
    for found in (ours, hubs):
        are_equal(map(sorted, found), expected)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_tags_are_those_of_transformers(client: httpx.Client, url: str, aggregation: Any) -> None:
    theirs, texts = pipeline("token-classification", TRAINED / "tagger"), sentences()
    hub = InferenceClient(model=f"{url}/hf/tagger")
    options: Any = {"aggregation_strategy": aggregation}
    expected = [[entry(one) for one in found] for found in theirs(texts, **options)]
    answer = asked(client, "/v1/tag", model="tagger", texts=texts, **options)
    are_equal([[entry(one) for one in own] for own in answer["results"]], expected)
    hubs = [[entry(one) for one in hub.token_classification(text, **options)] for text in texts]
    are_equal(hubs, expected)
    assert sum(map(len, expected)) > len(texts)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_trained_modernbert_tags_as_well_as_in_pytorch(
    client: httpx.Client, precision: str
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(TRAINED / MODERN)
    model = transformers.AutoModelForTokenClassification.from_pretrained(TRAINED / MODERN)
    inputs, labels = labelled(tokenizer, list(islice(Maker(seed=1).marked(), NUM_HELD_OUT)))
    given = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
    with torch.no_grad():
        theirs = model(**given).logits.numpy()
    asked_for = {name: rows.tolist() for name, rows in given.items()}
    answer = asked(
        client, "/v1/infer", model=MODERN, precision=precision, outputs=["logits"], **asked_for
    )
    ours = np.array(answer["logits"], np.float32)
    counted = labels.numpy() != IGNORED
    right = [(logits.argmax(-1) == labels.numpy())[counted].mean() for logits in (theirs, ours)]
    print(f"{precision}: {right[1]:.2%} of {counted.sum()} tokens right, PyTorch {right[0]:.2%}")
    assert right[1] >= right[0] - LOST
    if precision == "fp32":
        assert np.abs(ours - theirs)[counted].max() <= LIMIT
    assert right[0] > 0.9


def test_masks_are_filled_as_by_transformers(client: httpx.Client, url: str) -> None:
    theirs = pipeline("fill-mask", REAL / SPLADE)
    texts = [
        text.replace(text.split()[len(text.split()) // 2], "[MASK]", 1) for text in sentences()
    ]
    expected = [[candidate(one) for one in theirs(text)] for text in texts]
    answer = asked(client, "/v1/fill-mask", model="splade", texts=texts)
    are_equal([[candidate(one) for one in own] for (own,) in answer["results"]], expected)
    hub = InferenceClient(model=f"{url}/hf/splade")
    are_equal([[candidate(one) for one in hub.fill_mask(text)] for text in texts], expected)


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


def are_equal(ours: Any, theirs: Sequence[Any]) -> None:
    """But for scores, which come last and are near."""
    for own, other in zip(ours, theirs, strict=True):
        assert [one[:-1] for one in own] == [one[:-1] for one in other]
        assert gap([one[-1] for one in own], [one[-1] for one in other]) <= LIMIT


def gap(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return float(np.abs(np.subtract(ours, theirs)).max(initial=0))
