"""The lens of models with trained weights, beside what their own libraries show: `make lens`.

all-MiniLM-L6-v2 and rxnmapper's ALBERT are exported with a lens and served. Hidden states and
attention of ragged batches are compared with transformers, their bits with those of each sequence
alone. Then rxnmapper maps atoms by the attention that the server gives it: see `lens_peer.py`.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import transformers
from numpy.typing import NDArray
from transformers import PreTrainedModel

from addnorm.export import command
from tests.conftest import inference_of, serving
from tests.support.families import layers

LIMIT = 1e-4
LENGTHS = (9, 1, 33, 120, 4, 64)
MINILM, ALBERT = "all-minilm-l6-v2", "rxnmapper"
ALBERT_FOLDER = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
LENS = ("hidden_states", "attentions")
Answer = dict[str, list[NDArray[np.float32]]]  # of one sequence, by layer


def main(minilm: str, real: str, rxnmapper_python: str) -> None:
    """minilm: its folder; real: where `make real-models` puts its packages."""
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    folders = {MINILM: minilm, ALBERT: str(Path(real) / ALBERT_FOLDER)}
    with tempfile.TemporaryDirectory() as bundles:
        for name, folder in folders.items():
            command.export(["--checkpoint", folder, "--name", name, "--lens", "--out", bundles])
        with serving(inference_of(Path(bundles), invariance_check_share=0)) as url:
            client = httpx.Client(base_url=url, timeout=120)
            failed = [
                *_beside(client, MINILM, transformers.BertModel.from_pretrained(minilm)),
                *_beside(client, ALBERT, transformers.AlbertModel.from_pretrained(folders[ALBERT])),
                *_atoms(url, rxnmapper_python),
            ]
    if failed:
        sys.exit(f"failed: {'; '.join(failed)}")


def _beside(client: httpx.Client, name: str, model: PreTrainedModel) -> Iterator[str]:
    """What failed."""
    model.eval().set_attn_implementation("eager")  # the others show no attention
    draws = np.random.default_rng(0)
    ids = [draws.integers(5, model.config.vocab_size, length).tolist() for length in LENGTHS]
    together, largest, unequal = _asked(client, name, ids), dict.fromkeys(LENS, 0.0), 0
    for sequence, answer in zip(ids, together, strict=True):
        alone = _asked(client, name, [sequence])[0]
        expected = layers(model, sequence, [0] * len(sequence))
        for output, meant in zip(LENS, expected, strict=True):
            for got, own, layer in zip(answer[output], alone[output], meant, strict=True):
                unequal += got.tobytes() != own.tobytes()
                largest[output] = max(largest[output], float(np.abs(got - layer[0].numpy()).max()))
    gaps = ", ".join(f"{output} {gap:.2g}" for output, gap in largest.items())
    print(f"{name}: largest differences from transformers: {gaps}; {unequal} layers unlike alone")
    if max(largest.values()) > LIMIT or unequal:
        yield f"{name}: {gaps}, {unequal} unequal"


def _asked(client: httpx.Client, name: str, ids: Sequence[list[int]]) -> list[Answer]:
    body = {"model": name, "input_ids": ids, "outputs": LENS}
    answer = client.post("/v1/infer", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return [
        {output: [np.array(layer[row], np.float32) for layer in found[output]] for output in LENS}
        for row in range(len(ids))
    ]


def _atoms(url: str, python: str) -> Iterator[str]:
    """What failed."""
    peer = Path(__file__).with_name("lens_peer.py")
    done = subprocess.run([python, str(peer), url, ALBERT], check=True, stdout=subprocess.PIPE)
    results: list[dict[str, Any]] = json.loads(done.stdout)
    for result in results:
        served, own, known = (result[kind] for kind in ("served", "own", "known"))
        gap = abs(served["confidence"] - own["confidence"])
        print(f"{served['mapped_rxn']}\n  confidence {served['confidence']:.10f}, by {gap:.1g} off")
        if served["mapped_rxn"] != own["mapped_rxn"] or _molecules(served) != _molecules(known):
            yield f"rxnmapper maps {served['mapped_rxn']}, {known['mapped_rxn']} is known"
        if max(gap, abs(served["confidence"] - known["confidence"])) > LIMIT:
            yield f"confidence {served['confidence']}, {known['confidence']} is known"


def _molecules(result: dict[str, Any]) -> list[list[str]]:
    """On both sides: their order depends on the version of rdkit."""
    return [sorted(side.split(".")) for side in result["mapped_rxn"].split(">>")]


if __name__ == "__main__":
    main(*sys.argv[1:])
