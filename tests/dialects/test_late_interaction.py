"""MaxSim of models that compare tokens, in the formats of MultiVectorEncoder, PyLate and Stanford's
ColBERT, beside the class that reads them all."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from addnorm.export import onnx_folder
from addnorm.export.exporting import export
from addnorm.export.opening import Checkpoint
from addnorm.export.wishes import NO_WISHES, UsageError, Wishes
from addnorm.export.words import texts
from addnorm.export.words.folder_tokenizer import NoTexts
from addnorm.service.asking.tasks.max_sim import max_sims
from addnorm.service.engine.clusters import join_clusters
from addnorm.service.engine.manifest import Clusters
from addnorm.service.engine.whole_numbers import WholeNumbers
from tests.conftest import OWN, client_of, inference_of
from tests.support.families import made, save
from tests.support.multi_vector import D_MODEL, IDENTITY
from tests.support.sentence_transformers import tell, write_dense, write_modules, write_settings
from tests.support.texts import WORDS, tokenizer

WIDTH, FILLED = 8, 12
QUERY = "the same text"
DOCUMENTS = ["padding costs nothing, nothing.", "a", "the text costs the same.", "pads are b c ."]
Write = Callable[[Path], Path]


def body(folder: Path, name: str = "BertModel") -> Path:
    """A transformer with a tokenizer that has [MASK]."""
    num_layers = 2 if name == "ModernBertModel" else 1  # one is global, one local
    save(made(name, vocab_size=len(WORDS), num_hidden_layers=num_layers), folder)
    words = tokenizer()
    words.enable_truncation(40)
    words.save(str(folder / "tokenizer.json"))
    special = {
        f"{kind}_token": f"[{kind.upper()}]" for kind in ("pad", "unk", "cls", "sep", "mask")
    }
    classes = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 40}
    write_settings(folder, "tokenizer_config.json", **special, **classes)
    return folder


def dense() -> torch.nn.Linear:
    torch.manual_seed(1)
    return torch.nn.Linear(D_MODEL, WIDTH, bias=False)


def pylate(folder: Path) -> Path:
    body(folder)
    write_modules(folder, Transformer="", Dense="1_Dense")
    listed = json.loads((folder / "modules.json").read_text())
    listed[1]["type"] = "pylate.models.Dense.Dense"
    (folder / "modules.json").write_text(json.dumps(listed))
    write_dense(folder / "1_Dense", dense(), activation_function=IDENTITY)
    settings = {
        "model_type": "ColBERT", "query_prefix": "a ", "document_prefix": "b ",
        "query_length": FILLED, "document_length": 14, "do_query_expansion": True,
        "attend_to_expansion_tokens": False, "skiplist_words": [".", ","],
    }  # fmt: skip
    write_settings(folder, "config_sentence_transformers.json", **settings)
    return folder


def stanford(folder: Path) -> Path:
    body(folder)
    weights = load_file(folder / "model.safetensors")
    weights = {f"bert.{name}": tensor for name, tensor in weights.items()}
    weights["linear.weight"] = dense().weight.detach()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    write_settings(folder, **{**config, "architectures": ["HF_ColBERT"]})
    metadata = {"query_token_id": "a", "doc_token_id": "b", "query_maxlen": FILLED}
    (folder / "artifact.metadata").write_text(json.dumps(metadata))
    return folder


def native(name: str, expansion: dict[str, Any], factor: float | None = None) -> Write:
    """name: of a transformer. factor: of the joining of documents' vectors."""

    def write(folder: Path) -> Path:
        body(folder, name)
        joining = {"HierarchicalTokenPooling": "4"} if factor else {}
        write_modules(
            folder, Transformer="", Dense="1_Dense", MultiVectorMask="2", Normalize="3", **joining
        )
        if factor:
            write_settings(folder / "4", pool_factor=factor, normalize_embeddings=True)
        tokens = {"module_input_name": "token_embeddings"}
        write_dense(folder / "1_Dense", dense(), activation_function=IDENTITY, **tokens)
        write_settings(folder / "2", skiplist_words=["."])
        write_settings(folder / "3", **tokens)
        write_settings(folder, "sentence_bert_config.json", query_expansion=expansion)
        similarity = {"similarity_fn_name": "meanmaxsim"} if expansion["attend"] else {}
        about = {"model_type": "MultiVectorEncoder", "prompts": {"query": "a "}, **similarity}
        write_settings(folder, "config_sentence_transformers.json", **about)
        return folder

    return write


FOLDERS: dict[str, Write] = {
    "pylate": pylate,
    "stanford": stanford,
    # whose local layers see a window
    "unseen": native("ModernBertModel", {"strategy": "min", "attend": False, "length": 6}),
    "joined": native("BertModel", {"strategy": "fixed", "attend": True, "length": 6}, factor=2),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("late")
    for name, write in FOLDERS.items():
        with Checkpoint(f"{write(root / name)}").packed(NO_WISHES) as source:
            assert "rerank" in source.tasks  # as the export prints them
            export(source, root / "bundles", name)
    return root


@pytest.fixture(scope="module")
def client(folders: Path) -> Iterator[httpx.Client]:
    cache = {"cache_bytes": 2**20}
    with client_of(inference_of(folders / "bundles", **{**OWN, **cache})) as client:
        yield client


def scores(client: httpx.Client, name: str, documents: list[str], **fields: Any) -> list[float]:
    body = {"model": name, "query": QUERY, "documents": documents, **fields}
    answer = client.post("/v1/rerank", json=body)
    assert answer.status_code == 200, answer.text
    results = sorted(answer.json()["results"], key=lambda result: result["index"])
    return [result["relevance_score"] for result in results]


@pytest.mark.parametrize("name", FOLDERS)
def test_scores_are_those_of_the_authors_class(
    folders: Path, client: httpx.Client, name: str
) -> None:
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(str(folders / name), device="cpu")
    queries = [torch.as_tensor(rows) for rows in model.encode_query([QUERY])]
    documents = [torch.as_tensor(rows) for rows in model.encode_document(DOCUMENTS)]
    expected = model.similarity(queries, documents)[0].numpy()
    np.testing.assert_allclose(scores(client, name, DOCUMENTS), expected, atol=1e-5)
    body = {"model": name, "input_type": "query", "outputs": ["token_vectors"], "normalize": True}
    answer = client.post("/v1/infer", json={**body, "texts": [QUERY]}).json()
    np.testing.assert_allclose(answer["token_vectors"][0], queries[0].numpy(), atol=1e-5)


@pytest.mark.parametrize("name", FOLDERS)
def test_company_and_cache_change_no_bit_of_a_score(client: httpx.Client, name: str) -> None:
    first = scores(client, name, DOCUMENTS)
    assert scores(client, name, DOCUMENTS) == first
    assert [*reversed(scores(client, name, DOCUMENTS[::-1]))] == first
    assert [scores(client, name, [document])[0] for document in DOCUMENTS] == first
    anew = {"headers": {"cache-control": "no-cache"}}
    body = {"model": name, "query": QUERY, "documents": DOCUMENTS}
    results = client.post("/v1/rerank", json=body, **anew).json()["results"]
    by_index = {result["index"]: result["relevance_score"] for result in results}
    assert [by_index[index] for index in range(len(DOCUMENTS))] == first


def test_every_rerank_route_has_the_same_scores(client: httpx.Client) -> None:
    expected = scores(client, "pylate", DOCUMENTS)
    body = {"model": "pylate", "query": QUERY, "texts": DOCUMENTS}
    by_tei = {entry["index"]: entry["score"] for entry in client.post("/rerank", json=body).json()}
    assert [by_tei[index] for index in range(len(DOCUMENTS))] == expected
    pairs = {"model": "pylate", "text_1": [QUERY, "a", QUERY, QUERY], "text_2": DOCUMENTS}
    data = client.post("/score", json=pairs).json()["data"]
    assert [data[index]["score"] for index in (0, 2, 3)] == [expected[at] for at in (0, 2, 3)]
    assert data[1]["score"] != expected[1], "of another query"
    assert scores(client, "pylate", DOCUMENTS, max_time_ms=10_000) == expected


@pytest.mark.parametrize("dtype", ["int8", "ubinary"])
def test_vectors_of_tokens_in_smaller_numbers(client: httpx.Client, dtype: str) -> None:
    body = {"model": "pylate", "texts": DOCUMENTS, "input_type": "document"}
    body |= {"outputs": ["token_vectors"], "normalize": True}
    whole = client.post("/v1/infer", json=body).json()["token_vectors"]
    small = client.post("/v1/infer", json={**body, "dtype": dtype}).json()["token_vectors"]
    assert list(map(len, small)) == list(map(len, whole))
    if dtype == "ubinary":
        expected = np.packbits(np.array(whole[0]) > 0, axis=1)
    else:
        ranges = client.get("/v1/models/pylate").json()["token_vector_ranges"]
        lowest, highest = np.array(ranges, np.float32)
        steps = (np.array(whole[0], np.float32) - lowest) / ((highest - lowest) / np.float32(255))
        expected = np.clip(np.floor(steps), 0, 255) - 128
    np.testing.assert_array_equal(small[0], expected)


def test_an_unseen_token_changes_no_other_row(client: httpx.Client) -> None:
    limit = client.get("/v1/models/unseen").json()["limits"]["vocab_size"]
    body = {"model": "unseen", "outputs": ["activations"]}
    ids = [2, 4, 5, 3]
    (plain,) = client.post("/v1/infer", json={**body, "input_ids": [ids]}).json()["activations"]
    filled = {**body, "input_ids": [[*ids, limit - 1, limit - 1]]}
    (rows,) = client.post("/v1/infer", json=filled).json()["activations"]
    np.testing.assert_allclose(rows[:4], plain, atol=2e-6)
    assert rows[4] != rows[5], "they have places of their own"


def test_other_programs_would_mask_what_fills_a_query(folders: Path, tmp_path: Path) -> None:
    with (
        Checkpoint(f"{folders / 'unseen'}").packed(NO_WISHES) as source,
        pytest.raises(UsageError, match="other programs mask them"),
    ):
        onnx_folder.export(source, tmp_path / "onnx")


def test_no_limit_is_below_the_length_that_queries_are_filled_to(folders: Path) -> None:
    wishes = Wishes(max_length=FILLED - 1)
    with (
        pytest.raises(UsageError, match=f"is {FILLED - 1}, but the model fills a query up to"),
        Checkpoint(f"{folders / 'pylate'}").packed(wishes),
    ):
        pass


def test_vectors_of_long_texts_are_not_joined(folders: Path, tmp_path: Path) -> None:
    folder = tmp_path / "joined"
    shutil.copytree(folders / "joined", folder)
    tell(folder, "sentence_bert_config.json", document_length=2048)
    assert texts.read(folder, 4096).input_types["document"].clusters
    tell(folder, "sentence_bert_config.json", document_length=2049)
    with pytest.raises(NoTexts, match="2049 tokens, and the limit is 2048: set document_length"):
        texts.read(folder, 4096)


def test_a_long_document_has_the_score_of_its_best_window(client: httpx.Client) -> None:
    """A window has up to 14 tokens: the prompt and two special ones beside 11 of the document."""
    words = list("abcabacbbcaabcab")
    parts = [" ".join(words[start : start + 11]) for start in range(0, len(words) - 4, 11 - 4)]
    alone = scores(client, "pylate", parts)
    (score,) = scores(client, "pylate", [" ".join(words)], windows={"overlap": 4})
    assert len(set(alone)) > 1
    assert score == max(alone)


def test_a_text_that_is_too_long_is_named(client: httpx.Client) -> None:
    body = {"model": "pylate", "query": "a " * 40, "documents": ["a"], "truncation": False}
    answer = client.post("/v1/rerank", json=body)
    assert answer.status_code == 400
    assert "query has" in answer.text
    assert f"takes of a query ({FILLED})" in answer.text
    long = {**body, "query": "a", "documents": ["a", "b " * 40]}
    assert "documents[1] has" in client.post("/v1/rerank", json=long).text


@pytest.mark.parametrize("factor", [1.0, 1.5, 3.0])
@pytest.mark.parametrize("num_protected", [0, 1])
def test_clusters_are_those_of_the_authors_class(factor: float, num_protected: int) -> None:
    from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling

    draws = np.random.default_rng(0)
    for num in (1, 2, 3, 5, 8, 21, 40):
        vectors = draws.normal(size=(num, 16)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors[num // 2] = vectors[num // 3]  # two that are as near as can be
        for normalize in (True, False):
            pooling = HierarchicalTokenPooling(
                factor, num_protected_tokens=num_protected, normalize_embeddings=normalize
            )
            expected = pooling.forward(
                {
                    "token_embeddings": torch.from_numpy(vectors)[None],
                    "attention_mask": torch.ones(1, num),
                }
            )["token_embeddings"][0]
            rules = Clusters(factor=factor, num_protected=num_protected, normalize=normalize)
            np.testing.assert_allclose(join_clusters(vectors, rules), expected, atol=1e-6)


def test_joined_vectors_have_length_1(client: httpx.Client) -> None:
    body = {"model": "joined", "texts": DOCUMENTS, "input_type": "document"}
    body |= {"outputs": ["token_vectors"]}
    whole = client.post("/v1/infer", json={**body, "normalize": True}).json()["token_vectors"]
    assert all(abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-6 for vectors in whole)
    assert "normalize is False" in client.post("/v1/infer", json=body).text


def test_max_sim_is_exact() -> None:
    """Whole numbers: the bits are those of sums in any order."""
    draws = np.random.default_rng(0)
    query, *documents = (draws.normal(size=(n, 96)).astype(np.float32) for n in (5, 3, 40, 7))
    expected = [(query.astype(float) @ rows.T.astype(float)).max(1).sum() for rows in documents]
    got = max_sims(query, documents)
    whole = [WholeNumbers.of(vectors).numbers for vectors in (query, documents[1])]
    exact = whole[0].astype(np.int64).astype(object) @ whole[1].astype(np.int64).astype(object).T
    assert (whole[0] @ whole[1].T).tolist() == exact.tolist()
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert max_sims(query, documents[1:2])[0] == got[1]
    assert max_sims(query, [documents[1][::-1]])[0] == got[1]
    order = draws.permutation(96)
    assert max_sims(query[:, order], [documents[1][:, order]])[0] == got[1]
    huge = max_sims(query * np.float32(2.0**60), [documents[0] * np.float32(2.0**-90)])
    assert huge[0] == got[0] * np.float32(2.0**-30)
    assert max_sims(query, [documents[0][:0], documents[0]]).tolist() == [0.0, got[0]]
    assert max_sims(query[:0], documents).tolist() == [0.0] * 3
