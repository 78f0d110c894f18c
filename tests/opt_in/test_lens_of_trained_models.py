"""The lens of models with trained weights, beside what their own libraries show.

all-MiniLM-L6-v2 and rxnmapper's ALBERT are exported with a lens and served. Hidden states and
attention of ragged batches are compared with transformers, their bits with those of each sequence
alone. Then rxnmapper maps atoms by the attention that the server gives it.
"""

import json
import subprocess
from collections.abc import Iterator, Sequence

import httpx
import numpy as np
import pytest
import transformers
from numpy.typing import NDArray
from transformers import PreTrainedModel

from addnorm.export import command
from benchmarks import peers
from benchmarks.findings import BUILD, MINILM
from tests.conftest import inference_of, serving
from tests.support import web
from tests.support.families import layers

LIMIT = 1e-4
LENGTHS = (9, 1, 33, 120, 4, 64)
BERT, ALBERT = "all-minilm-l6-v2", "rxnmapper"
FOLDERS = {
    BERT: MINILM,
    ALBERT: BUILD / "real-models/rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k",
}
RXNMAPPER = BUILD / "rxnmapper/bin/python"
pytestmark = pytest.mark.lens
LENS = ("hidden_states", "attentions")
Answer = dict[str, list[NDArray[np.float32]]]  # of one sequence, by layer


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    bundles = tmp_path_factory.mktemp("bundles")
    for name, folder in FOLDERS.items():
        options = [str(folder), "--name", name, "--lens", "--out", str(bundles)]
        command.export(options)
    with serving(inference_of(bundles, invariance_check_share=0)) as url:
        yield url


@pytest.mark.parametrize(("name", "kind"), [(BERT, "BertModel"), (ALBERT, "AlbertModel")])
def test_hidden_states_and_attention_are_those_of_transformers(
    url: str, name: str, kind: str
) -> None:
    transformers.logging.set_verbosity_error()
    model: PreTrainedModel = getattr(transformers, kind).from_pretrained(FOLDERS[name])
    model.eval().set_attn_implementation("eager")  # the others show no attention
    draws = np.random.default_rng(0)
    ids = [draws.integers(5, model.config.vocab_size, length).tolist() for length in LENGTHS]
    with web.client(base_url=url, timeout=120) as client:
        together = _asked(client, name, ids)
        for sequence, answer in zip(ids, together, strict=True):
            alone = _asked(client, name, [sequence])[0]
            expected = layers(model, sequence, [0] * len(sequence))
            for output, meant in zip(LENS, expected, strict=True):
                for got, own, layer in zip(answer[output], alone[output], meant, strict=True):
                    assert got.tobytes() == own.tobytes()
                    assert np.abs(got - layer[0].numpy()).max() <= LIMIT, output


def _asked(client: httpx.Client, name: str, ids: Sequence[list[int]]) -> list[Answer]:
    body = {"model": name, "input_ids": ids, "outputs": LENS}
    answer = client.post("/v1/infer", json=body)
    assert answer.status_code == 200, answer.text
    payload = answer.json()
    return [
        {output: [np.array(layer[row], np.float32) for layer in payload[output]] for output in LENS}
        for row in range(len(ids))
    ]


def test_rxnmapper_maps_atoms_by_the_attention_of_the_server(url: str) -> None:
    command = [RXNMAPPER, peers.program("rxnmapper_lens"), url, ALBERT]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    for result in json.loads(done.stdout):
        served, own, known = (result[kind] for kind in ("served", "own", "known"))
        assert served["mapped_rxn"] == own["mapped_rxn"]
        assert _molecules(served) == _molecules(known)
        for other in (own, known):
            assert abs(served["confidence"] - other["confidence"]) <= LIMIT


def _molecules(result: dict[str, str]) -> list[list[str]]:
    """On both sides: their order depends on the version of rdkit."""
    return [sorted(side.split(".")) for side in result["mapped_rxn"].split(">>")]
