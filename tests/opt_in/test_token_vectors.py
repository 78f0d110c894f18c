"""Vectors of Addnorm beside `SparseEncoder` and `MultiVectorEncoder` of sentence-transformers.

PEER makes folders with sentence-transformers and encodes texts with them. The folders are exported
and served. The projection of the multi-vector models is random; all other weights are trained.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import processes
from benchmarks.findings import BUILD, MINILM, PEER_PYTHON
from tests.support import web
from tests.support.peers import run, texts_to_encode

pytestmark = pytest.mark.token_vectors
SPLADE = BUILD / "real-models/cognition/model"
MULTI_VECTOR = ("colbert", "skips-both", "skips-none")
LIMIT = 1e-4
PEER = """
import json, string, sys
from collections.abc import Iterator
from pathlib import Path
import numpy as np
import torch
from sentence_transformers import MultiVectorEncoder, SparseEncoder
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.base.modules.dense import Dense
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sparse_encoder.modules import SpladePooling

minilm, splade, work = sys.argv[1:]
work, punctuation = Path(work), list(string.punctuation)
torch.manual_seed(0)

def multi_vector(name, mask, prompts, **lengths):
    dense = Dense(384, 128, bias=False, activation_function=torch.nn.Identity(),
                  module_input_name="token_embeddings")
    normalize = Normalize(module_input_name="token_embeddings")
    modules = [Transformer(minilm, **lengths), dense, mask, normalize]
    model = MultiVectorEncoder(modules=modules, prompts=prompts, device="cpu")
    model.save(str(work / name))

prompts = {"query": "[Q] ", "document": "[D] "}
multi_vector("colbert", MultiVectorMask(punctuation), prompts, query_length=12, document_length=40)
both = MultiVectorMask([".", "the"], skiplist_tasks=["query", "document"])
multi_vector("skips-both", both, {"query": "query: ", "passage": "passage: "})
multi_vector("skips-none", MultiVectorMask(), {})
transformer = Transformer(splade, transformer_task="fill-mask")
SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu").save(str(work / "splade"))

texts = json.loads((work / "texts.json").read_text())
encoded = {}
for name in ("colbert", "skips-both", "skips-none"):
    model = MultiVectorEncoder(str(work / name), device="cpu", local_files_only=True)
    for kind, encode in (("query", model.encode_query), ("document", model.encode_document)):
        rows = encode(texts, convert_to_numpy=True)
        encoded[f"{name} {kind}"] = np.concatenate(rows)
        encoded[f"{name} {kind} lengths"] = np.array([len(vectors) for vectors in rows])
model = SparseEncoder(str(work / "splade"), device="cpu", local_files_only=True)
encoded["splade"] = model.encode(texts, convert_to_sparse_tensor=False).numpy()
np.savez(work / "peer.npz", **encoded)
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundles, and peer.npz: what sentence-transformers makes of the texts."""
    root = tmp_path_factory.mktemp("token-vectors")
    (root / "texts.json").write_text(json.dumps(texts_to_encode()))
    run(PEER_PYTHON, "-c", PEER, MINILM, SPLADE, root)
    for name in (*MULTI_VECTOR, "splade"):
        own = ("--checkpoint", root / name, "--out", root / "bundles")
        run(sys.executable, "-m", "addnorm", "export", *own)
    return root


@pytest.fixture(scope="module")
def url(work: Path) -> Iterator[str]:
    with processes.folder(work / "bundles") as server:
        yield f"http://{server.host}:{server.port}"


@pytest.mark.parametrize("input_type", ["query", "document"])
@pytest.mark.parametrize("name", MULTI_VECTOR)
def test_vectors_of_tokens_are_those_of_the_encoder(
    work: Path, url: str, name: str, input_type: str
) -> None:
    theirs = np.load(work / "peer.npz")
    options = {"input_type": input_type, "outputs": ["token_vectors"]}
    rows = infer(url, name, texts_to_encode(), normalize=True, **options)["token_vectors"]
    assert [len(own) for own in rows] == theirs[f"{name} {input_type} lengths"].tolist()
    assert np.abs(np.concatenate(rows) - theirs[f"{name} {input_type}"]).max() <= LIMIT


def test_sparse_vectors_are_those_of_the_encoder(work: Path, url: str) -> None:
    expected = np.load(work / "peer.npz")["splade"]
    rows = infer(url, "splade", texts_to_encode(), outputs=["sparse"])["sparse"]
    dense = np.zeros_like(expected)
    for vector, row in zip(dense, rows, strict=True):
        vector[row["indices"]] = row["values"]
    assert np.abs(dense - expected).max() <= LIMIT
    assert (dense > 0).any(1).all()


def infer(url: str, model: str, texts: list[str], **options: Any) -> dict[str, Any]:
    body = {"model": model, "texts": texts, "truncate": True, **options}
    answer = web.post(f"{url}/v1/infer", json=body, timeout=300)
    answer.raise_for_status()
    return answer.json()  # type: ignore[no-any-return]
