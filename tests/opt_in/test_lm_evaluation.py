"""lm-eval's `local-completions` against a server, beside its own `hf` model.

The model is a random GPT-2, its tokenizer is trained on this project's pages, the tasks are made of
them. An ending that the model itself finds likeliest is among the choices, so that some flags are
set.
"""

import json
import os
import random
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from addnorm.export import sources
from addnorm.export.exporting import export
from benchmarks import peers
from benchmarks.findings import BUILD
from tests.conftest import inference_of, serving
from tests.support.families import made
from tests.support.language_model import checkpoint

pytestmark = pytest.mark.lm_eval
ROOT = Path(__file__).parents[2]
NAME, POSITIONS, LIMIT = "writer", 128, 1e-4
SHAPE = {
    "vocab_size": 1000, "n_embd": 96, "n_layer": 3, "n_head": 4, "n_inner": 256,
    "n_positions": POSITIONS, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
NUM_DOCUMENTS, NUM_OTHERS = 60, 3
LONGEST = 90  # tokens of a document: lm-eval cuts longer ones in another way for each kind of model
WAYS: dict[str, tuple[dict[str, Any], int]] = {  # how requests are sent, and how many at once
    "ids": ({"tokenized_requests": True}, 1),
    "ids, 16 at once": ({"tokenized_requests": True}, 16),
    "ids, 4 callers": ({"tokenized_requests": True, "num_concurrent": 4}, 8),
    "texts": ({"tokenized_requests": False}, 4),
    "ids, the server's tokenizer": ({"tokenizer_backend": "remote"}, 16),
}
TASKS: dict[str, dict[str, Any]] = {
    "choice": {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}", "doc_to_target": 0,
     "metric_list": [{"metric": "acc"}]},
    "ending": {"output_type": "loglikelihood", "doc_to_target": "{{choices[-1]}}",
     "metric_list": [{"metric": "acc"}]},
    "rolling": {"output_type": "loglikelihood_rolling", "doc_to_text": "",
     "doc_to_target": "{{start}}{{choices[0]}}", "metric_list": [{"metric": "byte_perplexity"}]},
}  # fmt: skip


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run -> task -> what the model answered."""
    transformers.logging.set_verbosity_error()
    root = tmp_path_factory.mktemp("lm-eval")
    prose = [path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))]
    folder = checkpoint(root / NAME, prose, **SHAPE)
    export(sources.checkpoint(folder), root / "bundles", NAME)
    _write_tasks(root, "\n".join(prose), folder)
    with serving(inference_of(root / "bundles")) as url:
        (root / "runs.json").write_text(json.dumps(_runs(url, folder)))
        environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(root / "cache"), "TQDM_DISABLE": "1"}
        command = [BUILD / "lm-eval/bin/python", peers.program("lm_evaluation"), root]
        subprocess.run(command, env=os.environ | environment, check=True)
    return json.loads((root / "answers.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("way", WAYS)
def test_log_likelihoods_are_those_of_lm_evals_own_model(
    answers: dict[str, Any], way: str, task: str
) -> None:
    pairs = [
        (_pair(one), _pair(own))
        for one, own in zip(answers[way][task], answers["hf"][task], strict=True)
    ]
    assert [pair for pair in pairs if not abs(pair[0][0] - pair[1][0]) <= LIMIT] == []
    assert [one[1] for one, own in pairs] == [own[1] for one, own in pairs]
    assert task == "rolling" or any(own[1] for _, own in pairs)  # some endings are the likeliest


def _runs(url: str, folder: Path) -> dict[str, Any]:
    """Arguments of lm-eval by name; the first is what the others are compared with."""
    base = {"model": NAME, "base_url": f"{url}/v1/completions", "max_length": POSITIONS}
    options = {"tokenizer": str(folder), "tokenizer_backend": "huggingface"}
    hf = {"model": "hf", "model_args": {"pretrained": str(folder), "dtype": "float32"}}
    return {
        "hf": {**hf, "batch_size": 1},
        **{
            name: {
                "model": "local-completions",
                "model_args": base | ({} if "tokenizer_backend" in way else options) | way,
                "batch_size": size,
            }
            for name, (way, size) in WAYS.items()
        },
    }


def _write_tasks(root: Path, prose: str, folder: Path) -> None:
    documents = root / "documents.json"
    lines = map(json.dumps, _documents(prose, folder))
    documents.write_text("\n".join(lines))
    for name, task in TASKS.items():
        common = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(documents)}},
            "test_split": "test",
            "doc_to_text": "{{start}}",
            "target_delimiter": "",
        }
        (root / f"{name}.yaml").write_text(json.dumps(common | task))  # JSON is YAML


def _documents(prose: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Sentences cut in two: the beginning, and endings of which the first is the right one."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = made("GPT2LMHeadModel", **SHAPE)
    draws = random.Random(0)
    sentences = [one for one in re.split(r"(?<=[.?!])\s+", prose) if one.count(" ") > 5]
    draws.shuffle(sentences)
    halves = [
        _halves(sentence)
        for sentence in sentences
        if len(tokenizer.encode(sentence).ids) <= LONGEST
    ]
    for index, (start, end) in enumerate(halves[:NUM_DOCUMENTS]):
        others = [other for _, other in draws.sample(halves, NUM_OTHERS)]
        choices = dict.fromkeys([end, *others, *_greedy(model, tokenizer, start)])
        yield {"id": index, "start": start, "choices": list(choices)}


def _halves(sentence: str) -> tuple[str, str]:
    words = sentence.split(" ")
    middle = len(words) // 2
    return " ".join(words[:middle]), " " + " ".join(words[middle:])


def _greedy(model: PreTrainedModel, tokenizer: Tokenizer, start: str) -> Sequence[str]:
    """The model's likeliest next token, if it is a text that is read as this token."""
    ids = tokenizer.encode(start).ids
    with torch.no_grad():
        token = int(model(torch.tensor([ids])).logits[0, -1].argmax())
    text = tokenizer.decode([token])
    is_read = text.strip() and tokenizer.encode(start + text).ids == [*ids, token]
    return [text] if is_read else []


def _pair(answer: Any) -> tuple[float, bool | None]:
    """Rolling log-likelihoods have no flag."""
    return (float(answer[0]), bool(answer[1])) if isinstance(answer, list) else (answer, None)
