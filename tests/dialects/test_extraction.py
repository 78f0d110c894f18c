"""Names of any labels: small folders of gliner's format, served, beside the package's answers."""

import json
import random
import re
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from addnorm.export.certificate import extraction
from addnorm.export.certificate.served import CertificationError
from addnorm.export.reference.gliner import Extraction
from addnorm.export.wishes import UsageError
from addnorm.model.checkpoints import CheckpointError, gliner
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import EXTRACTION
from tests.conftest import client_of, inference_of
from tests.support import gliner_folders, web
from tests.support.gliner_folders import KEPT, exported, kept
from tests.support.small_folders import change_a_weight

LABELS = {len(labels): list(labels) for labels in extraction.LABELS}
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "extraction.md"
OWN = LABELS[8]  # that the model of spans is exported with
ANSWERS = json.loads(KEPT.read_text())
TEXT = max(
    (q for q in ANSWERS["spans"] if q.endswith("|8|0.5|flat")),
    key=lambda q: len({label for _, _, label, _ in ANSWERS["spans"][q]}),
).partition("|")[0]


@pytest.fixture(scope="module")
def folders(names_folders: Path) -> Path:
    return names_folders


@pytest.fixture(scope="module")
def client(folders: Path) -> Iterator[httpx.Client]:
    with client_of(inference_of(folders / "bundles", cache_bytes=2**20)) as client:
        yield client


def posted(client: httpx.Client, path: str = "/v1/extract", **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def rejected(client: httpx.Client, path: str = "/v1/extract", **body: Any) -> str:
    by_default = {} if path != "/v1/extract" else {"model": "spans", "labels": OWN[:1]}
    answer = client.post(path, json={**by_default, **body})
    assert answer.status_code == 400, answer.text
    return str(answer.json().get("error"))


@pytest.mark.parametrize("kind", ["spans", "tokens"])
def test_names_are_those_of_gliner(client: httpx.Client, kind: str) -> None:
    """Flat and nested, at two thresholds, with words that have no tokens; a blank text has none."""
    num_names = 0
    for question in ANSWERS[kind]:
        text, num_labels, threshold, mode = question.rsplit("|", 3)
        asked = text, LABELS[int(num_labels)], float(threshold), mode == "flat"
        body = dict(zip(("labels", "threshold", "flat"), asked[1:], strict=True))
        (names,) = posted(client, model=kind, texts=[text], **body)["results"]
        expected = kept(kind)(*asked)
        without_scores = [[{**name, "score": 0} for name in side] for side in (names, expected)]
        assert without_scores[0] == without_scores[1], question
        scores = [[name["score"] for name in side] for side in (names, expected)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-5), question
        num_names += len(names)
    assert num_names > 200


@pytest.mark.parametrize("kind", ["spans", "tokens"])
def test_names_have_the_bits_of_a_text_alone(client: httpx.Client, kind: str) -> None:
    """Order, company and the cache change nothing."""
    draws = random.Random(0)
    words = gliner_folders.WORDS[5:]
    texts = [" ".join(draws.choices(words, k=draws.randint(1, 9))) for _ in range(40)]
    body = {"model": kind, "labels": OWN, "threshold": 0.1, "flat": False}
    with web.client(base_url=client.base_url, headers={"cache-control": "no-cache"}) as anew:
        together = posted(anew, texts=[*texts, "  "], **body)["results"]
        backwards = posted(anew, texts=texts[::-1], **body)["results"][::-1]
        alone = [posted(anew, texts=[text], **body)["results"][0] for text in texts]
    assert together == [*alone, []]
    assert backwards == alone == [posted(client, texts=[t], **body)["results"][0] for t in texts]
    assert sum(map(len, alone)) > 40


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("kind", ["spans", "tokens"])
def test_names_of_long_texts_are_those_of_their_windows(
    client: httpx.Client, kind: str, flat: bool
) -> None:
    """Each once, with the bits that it has in its window alone."""
    draws = random.Random(1)
    pool = [word for word in gliner_folders.WORDS[5:] if word.isalpha()]
    text = " ".join(draws.choices(pool, k=90))
    body = {"model": kind, "labels": OWN[:2], "threshold": 0.3, "flat": flat}
    assert "which reads all of it" in rejected(client, texts=[text], **body)
    sent = {**body, "windows": {"overlap": 4}}
    (names,) = posted(client, texts=[text], **sent)["results"]
    assert names
    places = [(name["start"], name["end"], name["label"]) for name in names]
    assert len(set(places)) == len(places)
    assert places == sorted(places, key=lambda place: place[0])
    if flat:
        assert all(end <= start for (_, end, _), (start, _, _) in pairwise(places))
    for name in names:
        assert text[name["start"] : name["end"]] == name["text"]
    # a text that is one window is as it was
    short = " ".join(text.split()[:3])
    assert posted(client, texts=[short], **sent) == posted(client, texts=[short], **body)
    # and names of the first window, but for its end, are those of it alone
    num_words = next(n for n in range(90, 0, -1) if fits(client, text, n, body))
    first = " ".join(text.split()[:num_words])
    (alone,) = posted(client, texts=[first], **body)["results"]
    border = len(" ".join(text.split()[: num_words - 8]))
    assert [name for name in names if name["end"] < border] == [
        name for name in alone if name["end"] < border
    ]


def fits(client: httpx.Client, text: str, num_words: int, body: dict[str, Any]) -> bool:
    texts = [" ".join(text.split()[:num_words])]
    return client.post("/v1/extract", json={**body, "texts": texts}).status_code == 200


def test_a_rule_of_windows_that_cannot_be_is_rejected(client: httpx.Client) -> None:
    text = "a " * 90
    assert "a smaller one" in rejected(client, texts=[text], windows={"overlap": 60})
    assert "found where it stands" in rejected(client, texts=["a"], windows={"take": "max"})
    body = {"model": "spans", "labels": OWN[:1], "texts": ["a " * 9000], "windows": {"overlap": 9}}
    answer = client.post("/v1/extract", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_many_windows")


def test_taggers_routes_answer_with_labels_of_the_export(client: httpx.Client) -> None:
    (names,) = posted(client, model="spans", texts=[TEXT])["results"]
    assert names == posted(client, model="spans", texts=[TEXT], labels=[*OWN, OWN[0]])["results"][0]
    expected = [
        {"entity_group": name["label"], "score": name["score"], "word": name["text"],
         "start": name["start"], "end": name["end"]}
        for name in names
    ]  # fmt: skip
    assert expected
    assert posted(client, "/v1/tag", model="spans", texts=[TEXT])["results"] == [expected]
    assert posted(client, "/hf/spans", inputs=TEXT) == expected
    without = {"ignore_labels": [expected[0]["entity_group"]]}
    (fewer,) = posted(client, "/v1/tag", model="spans", texts=[TEXT], **without)["results"]
    assert len(fewer) < len(expected)
    reason = "labels is missing, and tokens/1 has none by default: send labels to /v1/extract"
    assert reason in client.post("/hf/tokens", json={"inputs": TEXT}).text
    words = rejected(client, "/v1/tag", model="tokens", texts=[TEXT])
    assert "tokens/1 cannot tag tokens: it can find names of any labels" in words


def test_the_guides_recognizer_finds_the_names(client: httpx.Client) -> None:
    """Presidio is no part of these tests: its two classes have stand-ins."""
    (program,) = re.findall(r"```python\n(.+?)```", GUIDE.read_text(), re.DOTALL)
    program = program.replace(
        "from presidio_analyzer import EntityRecognizer, RecognizerResult", ""
    )
    program = program.replace("http://localhost:8000", str(client.base_url).rstrip("/"))
    program = program.replace("body = {", 'body = {"model": "spans", ')
    names: dict[str, Any] = {"EntityRecognizer": object, "RecognizerResult": lambda *fields: fields}
    exec(program, names)
    (expected,) = posted(client, model="spans", texts=[TEXT], labels=OWN)["results"]
    assert names["Names"]().analyze(TEXT, OWN) == [
        (name["label"], name["start"], name["end"], name["score"]) for name in expected
    ]


def test_what_cannot_be_read_is_rejected(client: httpx.Client) -> None:
    words = rejected(client, texts=["ok", "a " * 31])
    assert "texts[1] has 31 words, 1 more than spans/1 takes (30)" in words
    tokens = rejected(client, texts=["tokens " * 22])
    assert "tokens with labels, 1 more than spans/1 takes (48)" in tokens
    silent = rejected(client, texts=["a"], labels=["a", "\u200b"])
    assert "labels[1] is '\\\\u200b': it has no tokens" in silent
    assert "<<ENT>>, which stands before" in rejected(client, texts=["a"], labels=["<<ENT>> a"])
    many = rejected(client, texts=["a"], labels=[f"a {'b' * n}" for n in range(1, 21)])
    assert "labels has 62 tokens, the limit is 46: send fewer" in many
    assert rejected(client, texts=["a"], truncate=True)
    assert rejected(client, texts=["a"], labels=[])
    assert "texts[0] is a pair" in rejected(client, texts=[["a", "b"]])


def test_a_certificate_finds_other_names_and_another_graph(folders: Path, tmp_path: Path) -> None:
    name = {"start": 0, "end": 1, "label": "a", "text": "b", "score": 0.5}
    other, near = {**name, "score": 0.50003}, {**name, "score": 0.500003}
    of_names, of_scores = extraction.compare_names([[name], [name], [name]], [[name], [], [other]])
    assert (of_names[1:], of_scores[1] > of_scores[2]) == ((1, 0), True)
    of_names, of_scores = extraction.compare_names([[name]], [[near]])
    assert (of_names[1:], of_scores[1] < of_scores[2]) == ((0, 0), True)
    shutil.copytree(folders / "bundles" / "tokens" / "1", path := tmp_path / "tokens" / "1")
    bundle, read = bundles.read(path), gliner.read(folders / "tokens")
    made_of = Extraction(read.extractor, read.extraction, "", None)
    assert not extraction.differences(bundle, made_of)
    assert bundle.compared_with["names"] == "answer"
    change_a_weight(bundle, path / EXTRACTION)
    assert extraction.differences(bundle, made_of)


def test_int8_must_find_the_names_of_fp32() -> None:
    names = [[{"start": at, "end": at + 1, "label": "a", "text": "b"}] for at in range(200)]
    ((_, difference, limit),) = extraction.compare_int8([*names[:-3], [], [], []], names)
    assert 0.007 < difference < limit
    with pytest.raises(CertificationError, match=r"F1 is 0\.987 with the 200 names of fp32"):
        list(extraction.compare_int8([*names[:-5], *[[]] * 5], names))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"labels_encoder": "bert"}, "labels_encoder is 'bert', supported is None"),
        ({"labels_decoder": "gpt2"}, "labels_decoder is 'gpt2'"),
        ({"relations_layer": "biaffine"}, "relations_layer is 'biaffine'"),
        ({"span_mode": "markerV1"}, "span_mode is 'markerV1', supported is 'markerV0' or"),
        ({"words_splitter_type": "spacy"}, "words_splitter_type is 'spacy'"),
        ({"model_type": "gliner_streaming_span"}, "gliner_streaming_span"),
        ({"encoder_config": None}, "save_pretrained"),
        ({"max_width": "x"}, "is broken"),
        ({"hidden_size": 8}, "the weights do not fit gliner_config.json"),
    ],
)
def test_other_kinds_are_refused_by_name(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    folder = gliner_folders.write(tmp_path / "spans", "spans", **changed)
    with pytest.raises(CheckpointError, match=words):
        gliner.read(folder)


def test_the_package_is_needed_to_compare(folders: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="gliner, which is not installed: pip install gliner"):
        exported(folders / "spans", tmp_path, reference=None)
