"""Short paths of text-embeddings-inference and Infinity: the same answers as the long ones."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from huggingface_hub import InferenceClient

from addnorm.service.engine.registry import Models
from addnorm.service.server.wiring import build
from addnorm.service.settings import Settings
from tests.conftest import OWN, client_of, inference_of, linked, service_of, serving
from tests.support import web
from tests.support.metrics import value
from tests.support.task_models import NLI

TEXTS = ["pads are dropped", "a b c"]
ROOTS = ("/", "/invocations")


def posted(client: httpx.Client, path: str, body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, f"{path}: {answer.text}"
    payload = answer.json()
    return {**payload, "id": None} if isinstance(payload, dict) else payload


@pytest.mark.parametrize("path", ROOTS)
def test_the_root_embeds_and_reranks_by_the_body(task_client: httpx.Client, path: str) -> None:
    for long, body in (
        ("/embed", {"inputs": TEXTS, "truncate": True}),
        ("/embed", {"inputs": TEXTS[0], "normalize": False}),
        ("/rerank", {"query": "a", "texts": TEXTS, "raw_scores": True}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": TEXTS}}),
    ):
        assert posted(task_client, path, body) == posted(task_client, long, body)


ONE: dict[str, tuple[str, list[Any]]] = {  # a model, the route that it is made for, and bodies
    "classifier": ("/predict", [{"inputs": "a b"}, {"inputs": [["a b"], ["a", "b"]]}]),
    "reranker": ("/rerank", [{"query": "a", "texts": TEXTS}]),
    "masked-lm": ("/embed_sparse", [{"inputs": "a b"}, {"inputs": ["a", "b c"]}]),
    "tagger": ("/hf/tagger", [{"inputs": "a"}, {"inputs": "a", "parameters": {"stride": None}}]),
}


@pytest.mark.parametrize("name", ONE)
def test_root_and_vertex_do_what_the_one_model_is_made_for(
    task_bundles: Path, tmp_path: Path, name: str
) -> None:
    route, bodies = ONE[name]
    with client_of(inference_of(linked(tmp_path, [task_bundles / name]))) as client:
        expected = [posted(client, route, body) for body in bodies]
        if name != "masked-lm":
            for path in ROOTS:
                assert [posted(client, path, body) for body in bodies] == expected
        if name != "tagger":
            assert posted(client, "/vertex", {"instances": bodies})["predictions"] == expected
        short, long = (
            InferenceClient(model=str(client.base_url.join(path))) for path in ("/", f"/hf/{name}")
        )
        if name == "masked-lm":
            assert short.fill_mask("a [MASK]", top_k=2) == long.fill_mask("a [MASK]", top_k=2)
        if name == "classifier":
            assert {one.label for one in short.text_classification("a b")} == set(NLI)


def test_the_page_stays_at_the_root(task_client: httpx.Client) -> None:
    answer = task_client.get("/")
    assert answer.headers["content-type"].startswith("text/html")
    assert task_client.put("/").status_code == 405


def test_hub_clients_may_be_given_the_root(task_url: str) -> None:
    vectors = InferenceClient(model=task_url).feature_extraction(TEXTS[0])
    long = InferenceClient(model=f"{task_url}/embed").feature_extraction(TEXTS[0])
    assert vectors.tolist() == long.tolist()


def test_embeddings_need_no_v1(task_client: httpx.Client) -> None:
    body = {"model": "embedder", "input": TEXTS, "modality": "text"}
    long = posted(task_client, "/v1/embeddings", body)
    assert posted(task_client, "/embeddings", body) == long
    # as infinity-client sends it: all dimensions
    assert posted(task_client, "/embeddings", {**body, "dimensions": 0}) == long


def test_ping_is_health_and_needs_no_key(tasks: Models) -> None:
    with serving(service_of(tasks, api_keys="a infer 0123456789abcdef")) as url:
        answer = web.get(f"{url}/ping")
        assert (answer.status_code, answer.content) == (200, b"")
        assert web.post(f"{url}/invocations", json={"inputs": "a"}).status_code == 401


@pytest.mark.parametrize("name", ["embedder", "nobody", "BAAI/bge-small"])
def test_kserves_first_protocol_is_answered_in_words(task_client: httpx.Client, name: str) -> None:
    answer = task_client.post(f"/v1/models/{name}:predict", json={"instances": [[1]]})
    assert answer.status_code == 404
    assert f"send the request to /v2/models/{name}/infer" in answer.json()["error"]["message"]


def test_vertex_computes_its_instances_as_one_request(task_client: httpx.Client) -> None:
    embeds = [{"inputs": TEXTS[0]}, {"inputs": TEXTS}, {"inputs": [TEXTS[1]]}]
    ranks = [{"query": "a", "texts": TEXTS, "top_n": 1}, {"query": "c", "texts": TEXTS}]
    for path, instances in (("/embed", embeds), ("/rerank", ranks)):
        predictions = posted(
            task_client, "/vertex", {"instances": instances, "parameters": {"a": 1}}
        )
        long = [posted(task_client, path, instance) for instance in instances]
        assert predictions["predictions"] == long


def test_vertex_may_name_the_paths(tasks: Models) -> None:
    path = "/v1/endpoints/1/deployedModels/2"
    paths = {("POST", f"{path}:predict"): "/vertex", ("GET", path): "/health"}
    body = {"instances": [{"inputs": TEXTS}]}
    service = build(tasks, Settings(**OWN), paths=paths)
    with client_of(service) as client:
        assert posted(client, f"{path}:predict", body) == posted(client, "/vertex", body)
        assert client.get(path).status_code == client.head(path).status_code == 200
        assert client.get(f"{path}:predict").status_code == 404
        refused = client.post(f"{path}:predict", json={"instances": []})
        assert refused.json() == client.post("/vertex", json={"instances": []}).json()
        counted = {"route": "/vertex", "model": "embedder", "status": "200"}
        assert value(service.metrics, "addnorm_requests_total", **counted) == 2
        service.readiness.draining = True
        assert client.get(path).content == client.get("/health").content != b""
        assert value(service.metrics, "addnorm_rejections_total", reason="draining") is None
