"""Sparse encoders whose queries run no model: a Router of a table of weights and of SPLADE."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Router
from sentence_transformers.sparse_encoder.modules import (
    MLMTransformer,
    SparseStaticEmbedding,
    SpladePooling,
)
from transformers import BertConfig, BertForMaskedLM

from addnorm.export import command
from addnorm.service.engine import bundle as bundles
from addnorm.service.errors import StartupError
from tests.conftest import client_of, inference_of
from tests.support.bundles import hashed_anew
from tests.support.metrics import samples
from tests.support.sentence_transformers import tell, write_settings
from tests.support.small_folders import SIZES, exported, masked, saved
from tests.support.texts import WORDS

TEXTS = ["the same text the", "pads are dropped.", "a b c , a zebra"]
ALL_TEXTS = [*TEXTS, "a " * 40]


def bert(folder: Path) -> Path:
    torch.manual_seed(0)
    names = ("hidden_size", "max_position_embeddings", "num_attention_heads")
    config = {"intermediate_size": 64, **{name: SIZES[name] for name in names}}
    saved(BertForMaskedLM(BertConfig(vocab_size=len(WORDS), num_hidden_layers=1, **config)), folder)
    fields = json.loads((folder / "tokenizer_config.json").read_text())
    write_settings(folder, "tokenizer_config.json", **fields, mask_token="[MASK]")
    return folder


def inference_free(folder: Path, base: Path, **prompts: str) -> Path:
    """base: the folder of a masked language model. One token weighs nothing, and one less."""
    transformer = MLMTransformer(str(base))
    torch.manual_seed(2)
    weights = torch.rand(len(WORDS))
    weights[WORDS.index(",")], weights[WORDS.index("b")] = 0, -0.5
    table = SparseStaticEmbedding(tokenizer=transformer.tokenizer, weight=weights, frozen=True)
    pooling = SpladePooling(activation_function="log1p_relu")
    router = Router.for_query_document([table], [transformer, pooling])
    SparseEncoder(modules=[router], prompts=prompts, device="cpu").save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("inference-free")
    inference_free(root / "free", bert(root / "bert"))
    exported(root / "free", root / "bundles")
    return root


@pytest.fixture(scope="module")
def client(root: Path) -> Iterator[httpx.Client]:
    with client_of(inference_of(root / "bundles")) as client:
        yield client


@pytest.fixture(scope="module")
def library(root: Path) -> Any:
    return SparseEncoder(str(root / "free"), device="cpu")


def dense(rows: Any) -> NDArray[np.float32]:
    vectors = np.zeros((len(rows), len(WORDS)), np.float32)
    for vector, row in zip(vectors, rows, strict=True):
        vector[row["indices"]] = row["values"]
    return vectors


def infer(client: httpx.Client, texts: list[str], **options: Any) -> Any:
    body = {"model": "free", "texts": texts, "outputs": ["sparse"], "truncate": True, **options}
    answer = client.post("/v1/infer", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["sparse"]


def by_tei(client: httpx.Client, texts: list[str], **options: Any) -> Any:
    answer = client.post("/embed_sparse", json={"inputs": texts, **options})
    assert answer.status_code == 200, answer.text
    return [
        {"indices": [x["index"] for x in row], "values": [x["value"] for x in row]}
        for row in answer.json()
    ]


def test_both_sides_are_those_of_sparse_encoder(client: httpx.Client, library: Any) -> None:
    document = library.encode_document(ALL_TEXTS).to_dense().numpy()
    query = library.encode_query(ALL_TEXTS).to_dense().numpy()
    sides: list[tuple[dict[str, Any], Any]] = [
        ({}, document), ({"input_type": "document"}, document),
        ({"prompt_name": "document"}, document),
        ({"input_type": "query"}, query), ({"prompt_name": "query"}, query),
    ]  # fmt: skip
    for options, expected in sides:
        for ask in (infer, by_tei):
            np.testing.assert_allclose(
                dense(ask(client, ALL_TEXTS, **options)), expected, atol=1e-5, err_msg=f"{options}"
            )
    assert by_tei(client, TEXTS, input_type="search_query") == infer(
        client, TEXTS, input_type="query"
    )
    rows = infer(client, TEXTS, input_type="query")
    assert by_tei(client, TEXTS, input_type="search_query") == rows
    assert rows == [infer(client, [text], input_type="query")[0] for text in TEXTS]
    assert all(0 not in row["values"] for row in rows)
    (best,) = infer(client, TEXTS[2:], input_type="query", sparse={"top_k": 1})
    assert best["values"] == [max(rows[2]["values"])]


def test_queries_run_no_graph(client: httpx.Client) -> None:
    """No token of theirs is computed."""

    def num_computed() -> float:
        numbers = samples(client.get("/metrics").text)
        return numbers["addnorm_computed_tokens_total", (("model", "free"),)]

    infer(client, ["the text"])
    before = num_computed()
    infer(client, ["pads padding"], input_type="query")
    assert num_computed() == before
    infer(client, ["pads padding"])
    assert num_computed() > before > 0


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("/v1/infer", {"texts": ["a"], "input_type": "passage"}, "input_type", ""),
        ("/embed_sparse", {"inputs": "a", "input_type": "passage"}, "input_type", ""),
        ("/embed_sparse", {"inputs": "a", "prompt_name": "other"}, "prompt_name", "no such prompt"),
        ("/v1/infer", {"texts": ["a"], "input_type": "query", "outputs": ["pooled"]}, "input_type",
         "makes sparse vectors of it without a graph, and no pooled"),
        ("/v1/infer", {"texts": [["a", "b"]], "input_type": "query", "outputs": ["sparse"]},
         "input_type", "is a pair"),
        ("/v1/infer", {"texts": [""], "input_type": "query", "outputs": ["sparse"]}, "texts",
         "has no tokens"),
    ],
)  # fmt: skip
def test_what_no_side_answers_is_rejected_by_field(
    client: httpx.Client, path: str, body: dict[str, Any], param: str, words: str
) -> None:
    answer = client.post(path, json={"model": "free", **body})
    assert answer.status_code in (400, 422)
    assert param in answer.text
    assert words in answer.text


def test_prompts_a_default_and_an_authors_graph(tmp_path: Path) -> None:
    """The family has no table of its weights, and no side is the default."""
    prompts = {"query": "text : ", "document": "pads "}
    folder = inference_free(tmp_path / "free", masked(tmp_path / "masked"), **prompts)
    fields = json.loads((folder / "router_config.json").read_text())
    fields["parameters"] |= {"default_route": None, "allow_empty_key": False}
    (folder / "router_config.json").write_text(json.dumps(fields))
    bundle = exported(folder, tmp_path / "bundles")
    assert bundle.manifest.as_it_is
    library = SparseEncoder(str(folder), device="cpu")
    with client_of(inference_of(tmp_path / "bundles")) as client:
        for side, encode in (
            ("query", library.encode_query),
            ("document", library.encode_document),
        ):
            expected = encode(TEXTS).to_dense().numpy()
            got = dense(infer(client, TEXTS, input_type=side))
            np.testing.assert_allclose(got, expected, atol=1e-5)
            np.testing.assert_array_equal(dense(by_tei(client, TEXTS, prompt_name=side)), got)
        answer = client.post("/embed_sparse", json={"inputs": "a"})
    assert answer.status_code == 400
    assert "input_type is missing" in answer.text


def test_the_weights_are_certified(root: Path, tmp_path: Path) -> None:
    bundle = bundles.read(shutil.copytree(root / "bundles/free/1", tmp_path / "free/1"))
    file = bundle.path / bundles.TOKEN_WEIGHTS
    weights = np.load(file)
    weights[5] *= 1 + 2.0**-20
    np.save(file, weights)
    with pytest.raises(StartupError, match="token_weights"):
        bundles.read(bundle.path)
    hashed_anew(bundle)
    with pytest.raises(SystemExit, match=r"token_weights.npy: unlike the folder's"):
        command.verify([str(bundle.path), "--checkpoint", str(root / "free")])
    np.save(file, weights[1:])
    broken = hashed_anew(bundle)
    with pytest.raises(StartupError, match=r"token_weights.npy is float32 \(22,\)"):
        _ = broken.token_weights


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"structure": {"query": ["query_0_SparseStaticEmbedding"]}}, "Router is not supported"),
        ({"parameters": {"route_mappings": {"('query', 'text')": "query"}}}, "route_mappings"),
        ({"types": {}}, "is broken: it has no types, structure and parameters"),
    ],
)
def test_other_routers_are_refused_by_name(
    root: Path, tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    folder = tmp_path / "free"
    folder.mkdir()
    for path in (root / "free").iterdir():
        (folder / path.name).symlink_to(path)
    (folder / "router_config.json").unlink()
    fields = json.loads((root / "free" / "router_config.json").read_text())
    tell(folder, "router_config.json", **{**fields, **changed})
    with pytest.raises(SystemExit, match=words):
        command.export([str(folder), "--check"])
