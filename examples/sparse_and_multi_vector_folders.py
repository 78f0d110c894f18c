"""Vectors of Addnorm beside `SparseEncoder` and `MultiVectorEncoder` of sentence-transformers
(`make sparse-and-multi-vector`).

python examples/sparse_and_multi_vector_folders.py MINILM SPLADE WORK_FOLDER PEER_PYTHON

PEER_PYTHON makes folders with sentence-transformers and encodes texts with them. This program
exports the folders, serves them and compares. Exits with 1 if a number differs by more than LIMIT.
The projection of the multi-vector models is random; all other weights are trained.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from sentence_transformers_folders import run, texts_to_encode
from serving import served

LIMIT = 1e-4
PEER = """
import json, string, sys
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


def main(minilm: Path, splade: Path, work: Path, peer_python: str) -> None:
    bundles, texts = work / "bundles", texts_to_encode()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    (work / "texts.json").write_text(json.dumps(texts))
    run(peer_python, "-c", PEER, minilm, splade, work)
    names = [entry.name for entry in sorted(work.iterdir()) if entry.is_dir()]
    for name in names:
        run(
            sys.executable, "-m", "addnorm", "export", "--checkpoint", work / name, "--out", bundles
        )
    theirs = np.load(work / "peer.npz")
    print(f"{'folder':24}{'vectors':>9}{'entries':>9}{'largest difference':>20}")
    with served(bundles) as url:
        differences = [*multi_vectors(url, names, texts, theirs), sparse(url, texts, theirs)]
    kept = max(differences) <= LIMIT
    print(f"limit: {LIMIT:g}: {'kept' if kept else 'exceeded'}")
    sys.exit(int(not kept))


def multi_vectors(url: str, names: list[str], texts: list[str], theirs: Any) -> list[float]:
    """The largest difference of each folder, for queries and for documents."""
    found = list[float]()
    for name in names:
        if name != "splade":
            for input_type in ("query", "document"):
                options = {"input_type": input_type, "outputs": ["token_vectors"]}
                rows = infer(url, name, texts, normalize=True, **options)["token_vectors"]
                what = f"{name} {input_type}"
                lengths = theirs[f"{what} lengths"].tolist()
                if [len(vectors) for vectors in rows] != lengths:
                    sys.exit(f"{what}: other numbers of vectors")
                found.append(np.abs(np.concatenate(rows) - theirs[what]).max())
                print(f"{what:24}{sum(lengths):9}{128:9}{found[-1]:20.1e}")
    return found


def sparse(url: str, texts: list[str], theirs: Any) -> float:
    rows = infer(url, "splade", texts, outputs=["sparse"])["sparse"]
    dense = np.zeros_like(theirs["splade"])
    for vector, row in zip(dense, rows, strict=True):
        vector[row["indices"]] = row["values"]
    difference = float(np.abs(dense - theirs["splade"]).max())
    num_entries = sum(len(row["indices"]) for row in rows)
    print(f"{'splade':24}{len(texts):9}{num_entries:9}{difference:20.1e}")
    return difference


def infer(url: str, model: str, texts: list[str], **options: Any) -> dict[str, Any]:
    body = {"model": model, "texts": texts, "truncate": True, **options}
    answer = httpx.post(f"{url}/v1/infer", json=body, timeout=300)
    answer.raise_for_status()
    return answer.json()  # type: ignore[no-any-return]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
