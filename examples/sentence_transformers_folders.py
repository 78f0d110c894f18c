"""Vectors of Addnorm beside `SentenceTransformer.encode`, for folders of many kinds
(`make sentence-transformers`).

python examples/sentence_transformers_folders.py CHECKPOINT_FOLDER WORK_FOLDER PEER_PYTHON

Makes variants of the folder, exports and serves them, and lets PEER_PYTHON encode the same texts
with sentence-transformers. Exits with 1 if a vector differs by more than the limits.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
from beside_sentence_transformers import some_texts
from safetensors.numpy import save_file
from serving import served

LIMIT, COSINE = 1e-4, 0.99999
NUM_TEXTS, NUM_LONG = 64, 4
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


def main(checkpoint: Path, work: Path, peer_python: str) -> None:
    bundles, texts = work / "bundles", texts_to_encode()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for name, variant in VARIANTS.items():
        shutil.copytree(checkpoint, work / name)
        variant.change(work / name)
        run(
            sys.executable, "-m", "addnorm", "export", "--checkpoint", work / name, "--out", bundles
        )
    prompt_names = {name: variant.prompt_names for name, variant in VARIANTS.items()}
    (work / "asked.json").write_text(json.dumps([texts, prompt_names]))
    run(peer_python, "-c", PEER, work)
    with served(bundles) as url:
        ours = {
            f"{name} {prompt_name}": vectors(url, name, texts, prompt_name)
            for name, variant in VARIANTS.items()
            for prompt_name in variant.prompt_names
        }
    sys.exit(table(ours, np.load(work / "peer.npz")))


def run(*command: str | Path) -> None:
    """Shows what it printed if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}")


def texts_to_encode() -> list[str]:
    """Of documentation, a few over every limit."""
    texts = some_texts(NUM_TEXTS)
    return [
        *texts,
        *(" ".join(texts[i::NUM_LONG]) for i in range(NUM_LONG)),
        "Ünïcode, 中文: ODD\t!",
    ]


# The variants of the folder


def as_is(folder: Path) -> None:
    """Changes nothing."""


def pooling(mode: str) -> Callable[[Path], None]:
    """Another pooling, in the present spelling; vectors keep their length."""

    def change(folder: Path) -> None:
        modules(folder, [("Transformer", ""), ("Pooling", "1_Pooling")])
        config = {"embedding_dimension": 384, "pooling_mode": mode}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))

    return change


def dense(*activations: str) -> Callable[[Path], None]:
    """Dense modules after the pooling, of random weights."""

    def change(folder: Path) -> None:
        kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
        for i, (activation, outputs) in enumerate(zip(activations, (256, 96), strict=False)):
            width = (384, 256)[i]
            place = folder / f"{i + 2}_Dense"
            place.mkdir()
            draws = np.random.default_rng(i)
            weight = draws.normal(0, 1 / np.sqrt(width), (outputs, width)).astype(np.float32)
            bias = draws.normal(0, 0.1, outputs).astype(np.float32)
            save_file({"linear.weight": weight, "linear.bias": bias}, place / "model.safetensors")
            config = {"in_features": width, "out_features": outputs, "bias": True}
            config |= {"activation_function": f"torch.nn.modules.{activation}"}
            (place / "config.json").write_text(json.dumps(config))
            kinds.append(("Dense", place.name))
        modules(folder, kinds)

    return change


def modules(folder: Path, kinds: Sequence[tuple[str, str]]) -> None:
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))


def prompts(folder: Path) -> None:
    config = {"prompts": PROMPTS, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config))


def cut(folder: Path) -> None:
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 24}))


def former(folder: Path) -> None:
    """As the first releases laid it out, before there was a tokenizer.json."""
    (folder / "tokenizer.json").unlink()
    place = folder / "0_Transformer"
    place.mkdir()
    for file in list(folder.iterdir()):
        if file.is_file() and file.name not in (
            "modules.json",
            "config_sentence_transformers.json",
        ):
            file.rename(place / file.name)
    kinds = [("Transformer", place.name), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    modules(folder, kinds)


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


# The two sides


def vectors(url: str, model: str, texts: list[str], prompt_name: str | None) -> np.ndarray:
    """As /v1/embeddings gives them: pooled and normalized as the folder says."""
    body: dict[str, Any] = {"model": model, "input": texts, "truncate": True}
    if prompt_name:
        body["prompt_name"] = prompt_name
    answer = httpx.post(f"{url}/v1/embeddings", json=body, timeout=300)
    answer.raise_for_status()
    return np.array([entry["embedding"] for entry in answer.json()["data"]])


def table(ours: dict[str, np.ndarray], theirs: Any) -> int:
    """Prints it. 1 if a vector is beyond the limits."""
    print(f"{'folder':34}{'width':>6}{'largest difference':>20}{'lowest cosine':>15}")
    failed = False
    for key, got in ours.items():
        name, _, prompt_name = key.partition(" ")
        what = VARIANTS[name].what if prompt_name == "None" else f"prompt_name {prompt_name}"
        expected = theirs[key].astype(np.float64)
        difference = np.abs(got - expected).max()
        lengths = np.linalg.norm(got, axis=1) * np.linalg.norm(expected, axis=1)
        cosine = ((got * expected).sum(1) / lengths).min()
        failed |= not (difference <= LIMIT and cosine > COSINE)
        print(f"{what:34}{got.shape[1]:6}{difference:20.1e}{cosine:15.8f}")
    print(f"limits: {LIMIT:g} and {COSINE}: {'exceeded' if failed else 'kept'}")
    return int(failed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
