"""Folders of static vectors: a table and a mean, of sentence-transformers and of model2vec."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize

from addnorm.export import command
from tests.conftest import client_of, inference_of
from tests.support import web
from tests.support.sentence_transformers import tell
from tests.support.small_folders import WIDTH, change_a_weight, exported, static
from tests.support.texts import WORDS, library, tokenizer

Vectors = NDArray[np.float32]
UNKNOWN = WORDS.index("[UNK]")
TEXTS = ["the same text", "", "pads are dropped.", "zebra", "the zebra, a text", "a " * 400]
FEW = 6  # tokens that the folder of model2vec is cut to


def model2vec(folder: Path, **config: Any) -> Path:
    """A folder that model2vec 0.10 writes, of a quantized vocabulary: 8 rows for all token ids."""
    folder.mkdir()
    torch.manual_seed(1)
    tensors = {
        "embeddings": torch.randn(8, WIDTH),
        "mapping": torch.randint(0, 8, (len(WORDS),)),
        "weights": torch.rand(len(WORDS)),
    }
    save_file(tensors, folder / "model.safetensors")
    tokenizer().save(str(folder / "tokenizer.json"))
    return tell(folder, model_type="model2vec", architectures=["StaticModel"], **config)


def by_model2vec(folder: Path, text: str, limit: int) -> Vectors:
    """The formula of its StaticModel.encode, without the unit length."""
    from safetensors.numpy import load_file

    tensors = load_file(folder / "model.safetensors")
    ids = library(limit).encode(text, add_special_tokens=False).ids
    known = [token for token in ids if token != UNKNOWN]
    rows = tensors["embeddings"][tensors["mapping"][known]] * tensors["weights"][known][:, None]
    return rows.mean(0) if known else np.zeros(WIDTH, np.float32)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("static")
    static(root / "static", Normalize(), query="text : ")
    model2vec(root / "quantized", normalize=False)
    exported(root / "static", root / "bundles")
    exported(root / "quantized", root / "bundles", "--max-length", str(FEW))
    return root


@pytest.fixture(scope="module")
def client(folders: Path) -> Iterator[httpx.Client]:
    with client_of(inference_of(folders / "bundles", cache_bytes=2**20)) as client:
        yield client


def posted(client: httpx.Client, path: str, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def embedded(client: httpx.Client, model: str, texts: list[str], **options: Any) -> Vectors:
    body = {"model": model, "input": texts, "encoding_format": "base64", "truncate": True}
    entries = posted(client, "/v1/embeddings", **body, **options)["data"]
    rows = [np.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in entries]
    return np.stack(rows)


def test_every_route_answers_as_sentence_transformers(folders: Path, client: httpx.Client) -> None:
    """A text without tokens has the vector 0, as there."""
    expected = SentenceTransformer(str(folders / "static"), device="cpu").encode(TEXTS)
    answers = {
        "/v1/embeddings": embedded(client, "static", TEXTS),
        "/v1/infer": posted(client, "/v1/infer", model="static", texts=TEXTS, normalize=True)[
            "pooled"
        ],
        "/api/embed": posted(client, "/api/embed", model="static", input=TEXTS)["embeddings"],
        "/embed": posted(client, "/embed", model="static", inputs=TEXTS),
    }
    for path, vectors in answers.items():
        np.testing.assert_allclose(vectors, expected, atol=1e-6, err_msg=path)
    query = embedded(client, "static", TEXTS[:1], prompt_name="query")
    assert query.tobytes() == embedded(client, "static", [f"text : {TEXTS[0]}"]).tobytes()


@pytest.mark.parametrize("model", ["static", "quantized"])
def test_bits_are_those_of_a_text_alone(client: httpx.Client, model: str) -> None:
    """They do not change in company, nor out of the cache."""
    together = embedded(client, model, TEXTS)
    for index, text in enumerate(TEXTS):
        assert embedded(client, model, [text])[0].tobytes() == together[index].tobytes()
    with web.client(base_url=client.base_url, headers={"cache-control": "no-cache"}) as anew:
        assert embedded(anew, model, TEXTS[::-1])[::-1].tobytes() == together.tobytes()


def test_model2vecs_rows_and_what_it_leaves_out(folders: Path, client: httpx.Client) -> None:
    """Unknown tokens have no part in the mean, nor in its number of tokens."""
    expected = [by_model2vec(folders / "quantized", text, FEW) for text in TEXTS]
    np.testing.assert_allclose(embedded(client, "quantized", TEXTS), expected, atol=1e-6)
    (limits,) = (
        entry["limits"]
        for entry in client.get("/v1/models").json()["data"]
        if entry["id"] == "quantized"
    )
    assert limits["max_text_tokens"] == FEW
    body = {"model": "quantized", "texts": ["the zebra"], "spans": [[[0, 3]]]}
    answer = client.post("/v1/infer", json={**body, "outputs": ["pooled"]})
    assert answer.status_code == 400
    assert "texts[0] has no tokens, or some that quantized/1 leaves out" in answer.text


def test_what_no_table_has_is_refused_by_name(tmp_path: Path) -> None:
    def refused(folder: Path, words: str, *options: str) -> None:
        with pytest.raises(SystemExit, match=words):
            command.export([str(folder), "--out", str(tmp_path / "out"), *options])

    plain = static(tmp_path / "plain")
    refused(Path(f"{plain}@int8"), "static vectors have a table and no products: fp32")
    refused(plain, "--lens has no effect for static vectors", "--lens")
    dense = static(tmp_path / "dense", Dense(WIDTH, 8))
    refused(dense, "Dense is not supported: Normalize is served after StaticEmbedding")
    vocabulary = json.loads((plain / "tokenizer.json").read_text())
    vocabulary["model"]["vocab"]["beyond"] = len(WORDS)
    (plain / "tokenizer.json").write_text(json.dumps(vocabulary))
    refused(plain, "the tokenizer has ids up to 23, the model has embeddings of ids below 23")
    assert not (tmp_path / "out").exists()


def test_a_certificate_finds_another_row(folders: Path, tmp_path: Path) -> None:
    bundle = exported(folders / "static", tmp_path, "--max-length", str(FEW))
    again = [str(bundle.path), "--checkpoint", str(folders / "static")]
    command.verify(again)
    change_a_weight(bundle, bundle.graph("fp32"))
    with pytest.raises(SystemExit, match=r"weights \(fp32\): "):
        command.verify(again)
