"""Vectors of Addnorm beside `SentenceTransformer.encode`, for variants of one folder."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import processes
from benchmarks.findings import MINILM, PEER_PYTHON
from tests.support import web
from tests.support.peers import run, texts_to_encode
from tests.support.sentence_transformers import write_dense, write_modules, write_settings

pytestmark = pytest.mark.sentence_transformers
LIMIT, COSINE = 1e-4, 0.99999
POOLED = {"Transformer": "", "Pooling": "1_Pooling"}
PROMPTS = {"query": "query: ", "passage": "Represent this passage for retrieval: "}

PEER = """
import json, sys
from pathlib import Path
import numpy as np
from sentence_transformers import SentenceTransformer

work = Path(sys.argv[1])
texts, prompt_names = json.loads((work / "asked.json").read_text())
encoded = {}
for name, asked in prompt_names.items():
    model = SentenceTransformer(str(work / name), device="cpu", local_files_only=True)
    for prompt_name in asked:
        encoded[f"{name} {prompt_name}"] = model.encode(texts, prompt_name=prompt_name)
np.savez(work / "peer.npz", **encoded)
"""


class Variant(NamedTuple):
    """What is changed in a copy of the folder, and the prompts that are asked for."""

    what: str
    change: Callable[[Path], None]
    prompt_names: tuple[str | None, ...] = (None,)


def as_is(folder: Path) -> None:
    """Changes nothing."""


def pooling(mode: str) -> Callable[[Path], None]:
    """Another pooling, in the present spelling; vectors keep their length."""

    def change(folder: Path) -> None:
        write_modules(folder, **POOLED)
        write_settings(folder / "1_Pooling", embedding_dimension=384, pooling_mode=mode)

    return change


def dense(*activations: str) -> Callable[[Path], None]:
    """Dense modules after the pooling, of random weights."""

    def change(folder: Path) -> None:
        torch.manual_seed(0)
        layers = nn.Linear(384, 256), nn.Linear(256, 96)
        for number, (activation, layer) in enumerate(zip(activations, layers, strict=False), 2):
            sizes = {"in_features": layer.in_features, "out_features": layer.out_features}
            function = f"torch.nn.modules.{activation}"
            place = folder / f"{number}_Dense"
            write_dense(place, layer, **sizes, activation_function=function)
        names = {f"Dense_{number}": f"{number}_Dense" for number in range(2, 2 + len(activations))}
        write_modules(folder, **POOLED, **names)

    return change


def prompts(folder: Path) -> None:
    file = "config_sentence_transformers.json"
    write_settings(folder, file, prompts=PROMPTS, default_prompt_name="query")


def cut(folder: Path) -> None:
    write_settings(folder, "sentence_bert_config.json", max_seq_length=24)


def former(folder: Path) -> None:
    """Lays a folder out as the first releases did, before there was a tokenizer.json."""
    (folder / "tokenizer.json").unlink()
    place = folder / "0_Transformer"
    place.mkdir()
    for file in list(folder.iterdir()):
        if file.is_file() and file.name not in (
            "modules.json",
            "config_sentence_transformers.json",
        ):
            file.rename(place / file.name)
    paths = {**POOLED, "Transformer": place.name, "Normalize": "2_Normalize"}
    write_modules(folder, **paths)


VARIANTS = {
    "as-is": Variant("as it is: mean, normalized", as_is),
    "cls": Variant("pooling cls", pooling("cls")),
    "max": Variant("pooling max", pooling("max")),
    "lasttoken": Variant("pooling lasttoken", pooling("lasttoken")),
    "weightedmean": Variant("pooling weightedmean", pooling("weightedmean")),
    "mean-sqrt": Variant("pooling mean_sqrt_len_tokens", pooling("mean_sqrt_len_tokens")),
    "dense": Variant("Dense + Tanh", dense("activation.Tanh")),
    "two-dense": Variant("Dense + GELU, Dense", dense("activation.GELU", "linear.Identity")),
    "prompts": Variant("a default prompt", prompts, (None, "passage")),
    "cut": Variant("max_seq_length 24", cut),
    "former": Variant("0_Transformer, vocab.txt alone", former),
}


def vectors(url: str, model: str, texts: list[str], prompt_name: str | None) -> np.ndarray:
    """Vectors as /v1/embeddings returns them: pooled and normalized as the folder says."""
    body: dict[str, Any] = {"model": model, "input": texts, "truncate": True}
    if prompt_name:
        body["prompt_name"] = prompt_name
    answer = web.post(f"{url}/v1/embeddings", json=body, timeout=300)
    answer.raise_for_status()
    return np.array([entry["embedding"] for entry in answer.json()["data"]])


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders, their bundles, and peer.npz: what sentence-transformers makes of the texts."""
    root = tmp_path_factory.mktemp("folders")
    for name, variant in VARIANTS.items():
        shutil.copytree(MINILM, root / name)
        variant.change(root / name)
        own = ("--checkpoint", root / name, "--out", root / "bundles")
        run(sys.executable, "-m", "addnorm", "export", *own)
    prompt_names = {name: variant.prompt_names for name, variant in VARIANTS.items()}
    (root / "asked.json").write_text(json.dumps([texts_to_encode(), prompt_names]))
    run(PEER_PYTHON, "-c", PEER, root)
    return root


@pytest.fixture(scope="module")
def url(work: Path) -> Iterator[str]:
    with processes.folder(work / "bundles") as server:
        yield f"http://{server.host}:{server.port}"


@pytest.mark.parametrize(
    ("name", "prompt_name"),
    [(name, asked) for name, variant in VARIANTS.items() for asked in variant.prompt_names],
)
def test_vectors_are_those_of_encode(
    work: Path, url: str, name: str, prompt_name: str | None
) -> None:
    got = vectors(url, name, texts_to_encode(), prompt_name)
    expected = np.load(work / "peer.npz")[f"{name} {prompt_name}"].astype(np.float64)
    lengths = np.linalg.norm(got, axis=1) * np.linalg.norm(expected, axis=1)
    assert np.abs(got - expected).max() <= LIMIT
    assert ((got * expected).sum(1) / lengths).min() > COSINE
