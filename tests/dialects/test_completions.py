"""Log-probabilities of prompts beside transformers' GPT-2: /v1/completions, `prompt_logprobs`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from openai import OpenAI
from safetensors.numpy import load
from tokenizers import Tokenizer

from addnorm.export import sources
from addnorm.export.exporting import export
from addnorm.service.asking.tasks import scoring
from tests.conftest import client_of, inference_of
from tests.support.families import made
from tests.support.language_model import END, checkpoint

NAME, VOCAB_SIZE = "writer", 300
PROSE = ["Pads are dropped, and pads are never computed. A quick brown fox jumps over a lazy dog."]
TEXTS = ["Pads are dropped.", f"The caf\u00e9 {END} fox", "a"]
SHAPE = {"vocab_size": VOCAB_SIZE, "n_layer": 1, "bos_token_id": 0, "eos_token_id": 0}
SCORED = {"max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = checkpoint(tmp_path_factory.mktemp(NAME) / NAME, PROSE, **SHAPE)
    settings = {"prompts": {"question": "Q: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    root = folder.parent / "bundles"
    export(sources.checkpoint(folder), root, NAME)
    with client_of(inference_of(root)) as client:
        yield client


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def ids(tokenizer: Tokenizer) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch(TEXTS)]


@pytest.fixture(scope="module")
def names(tokenizer: Tokenizer) -> list[str]:
    """The text of each id of the vocabulary."""
    each = [[token] for token in range(VOCAB_SIZE)]
    return tokenizer.decode_batch(each, skip_special_tokens=False)


@pytest.fixture(scope="module")
def expected(ids: list[list[int]]) -> list[torch.Tensor]:
    """transformers' log-probabilities of every next token, `[S, V]` for each text."""
    original = made("GPT2LMHeadModel", **SHAPE)
    with torch.no_grad():
        return [original(torch.tensor([token_id])).logits[0].log_softmax(-1) for token_id in ids]


def complete(client: httpx.Client, prompt: Any, **options: Any) -> list[dict[str, Any]]:
    answer = client.post("/v1/completions", json={"prompt": prompt, **SCORED, **options})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("sent", ["texts", "ids"])
def test_log_probabilities_are_transformers(
    client: httpx.Client,
    names: list[str],
    ids: list[list[int]],
    expected: list[torch.Tensor],
    sent: str,
) -> None:
    choices = complete(client, TEXTS if sent == "texts" else ids)
    for choice, own, rows, text in zip(choices, ids, expected, TEXTS, strict=True):
        got, new = choice["logprobs"], int(rows[-1].argmax())
        first, *others = got["token_logprobs"]
        assert first is None
        assert got["top_logprobs"][0] is None
        tops = got["top_logprobs"][1:]
        for row, token, logprob, top in zip(rows, [*own[1:], new], others, tops, strict=True):
            assert logprob == pytest.approx(float(row[token]), abs=1e-4)
            # of equal texts the likeliest stays
            shown = sorted({token, *row.topk(2).indices.tolist()}, key=row.__getitem__)
            right = {names[entry]: float(row[entry]) for entry in shown}
            assert top == pytest.approx(right, abs=1e-4)
            assert top[names[token]] >= logprob, "its own has the same bits"
        assert choice["text"].startswith(text)
        assert choice["finish_reason"] == "length"


def test_bits_are_the_same_alone_in_company_and_under_any_padding(
    client: httpx.Client, ids: list[list[int]]
) -> None:
    together = [choice["logprobs"]["token_logprobs"][:-1] for choice in complete(client, ids)]
    for own, scored in zip(ids, together, strict=True):
        (alone,) = complete(client, own, max_tokens=0, logprobs=0)
        assert alone["logprobs"]["token_logprobs"] == scored
    width = max(map(len, ids)) + 2
    draws = np.random.default_rng(0)
    columns = [np.sort(draws.choice(width, len(own), replace=False)) for own in ids]
    grid, mask = np.zeros((2, len(ids), width), int)
    for row, (own, places) in enumerate(zip(ids, columns, strict=True)):
        grid[row, places], mask[row, places] = own, 1
    body = {
        "model": NAME,
        "input_ids": grid.tolist(),
        "attention_mask": mask.tolist(),
        "outputs": ["prompt_logprobs"],
        "dtype": "float16",
    }
    rows = client.post("/v1/infer", json=body).json()["prompt_logprobs"]
    for row, real, scored in zip(rows, mask, together, strict=True):
        assert [value for value, is_real in zip(row, real, strict=True) if is_real] == scored
        assert {value for value, is_real in zip(row, real, strict=True) if not is_real} == {None}
    accept = {"accept": "application/vnd.safetensors"}
    tensor = load(client.post("/v1/infer", json=body, headers=accept).content)["prompt_logprobs"]
    np.testing.assert_array_equal(tensor, np.array(rows, np.float32))


def test_openais_sdk_scores_prompts_and_gets_the_likeliest_next_token(
    client: httpx.Client, names: list[str], ids: list[list[int]], expected: list[torch.Tensor]
) -> None:
    with OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as sdk:
        answer = sdk.completions.create(
            model=NAME, prompt=TEXTS[0], echo=True, logprobs=1, max_tokens=0, n=1, seed=1, user="me"
        )
        new = sdk.completions.create(model=NAME, prompt=TEXTS, max_tokens=1, temperature=0)
        with pytest.raises(openai.BadRequestError, match="it does not generate") as refused:
            sdk.completions.create(model=NAME, prompt=TEXTS[0])
    assert refused.value.param == "max_tokens"
    (choice,) = answer.choices
    assert choice.text == TEXTS[0]
    assert choice.logprobs
    assert choice.logprobs.token_logprobs
    right = [float(row[token]) for row, token in zip(expected[0], ids[0][1:], strict=False)]
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(right, abs=1e-4)
    assert answer.usage
    assert answer.usage.total_tokens == answer.usage.prompt_tokens == len(ids[0])
    assert (answer.object, answer.model, answer.id[:5]) == ("text_completion", NAME, "cmpl-")
    likeliest = [names[int(row[-1].argmax())] for row in expected]
    assert [choice.text for choice in new.choices] == likeliest
    assert new.usage
    assert new.usage.completion_tokens == len(TEXTS)


def test_tokens_are_texts_and_offsets_point_into_the_text(client: httpx.Client) -> None:
    (choice,) = complete(client, TEXTS[1], max_tokens=0)
    got, text = choice["logprobs"], choice["text"]
    assert text == TEXTS[1]
    assert got["tokens"].count("\ufffd") == 2, "\u00e9 is two tokens, and no text by itself"
    for token, begin in zip(got["tokens"], got["text_offset"], strict=True):
        assert text[begin:].startswith("\u00e9" if token == "\ufffd" else token)
    (whole,) = complete(client, TEXTS[1])
    (new,) = complete(client, TEXTS[1], echo=False)
    assert TEXTS[1] + new["text"] == whole["text"]
    assert new["logprobs"] == {name: values[-1:] for name, values in whole["logprobs"].items()}


def test_a_prompt_of_one_token_has_null_only(client: httpx.Client) -> None:
    (choice,) = complete(client, [[7]], max_tokens=0)
    assert choice["logprobs"]["token_logprobs"] == choice["logprobs"]["top_logprobs"] == [None]


def test_without_a_tokenizer_tokens_are_called_by_their_ids() -> None:
    texts = scoring.texts_of([3, 1, 3], None)
    assert texts == {1: "token_id:1", 3: "token_id:3"}
    assert scoring.join_tokens([3, 1], texts, None) == ("token_id:3token_id:1", [0, 10])


def test_an_alias_puts_its_prompt_before_each_text(client: httpx.Client) -> None:
    (choice,) = complete(client, "fox", model=f"{NAME}:question", max_tokens=0)
    assert choice["text"] == "Q: fox"
    body = {**SCORED, "prompt": [[1]], "model": f"{NAME}:question"}
    error = client.post("/v1/completions", json=body).json()["error"]
    assert (error["param"], "applies to texts only" in error["message"]) == ("prompt_name", True)


def test_of_tokens_of_the_same_text_the_likelier_one_stays() -> None:
    texts = {1: "a", 2: "b", 3: "a"}
    logprobs = np.array([-1, -2], np.float32)
    own = 3, np.float32(-5)
    assert scoring.likely(own, np.array([1, 2]), logprobs, texts) == {"a": -1, "b": -2}


def test_values_without_effect_are_accepted(client: httpx.Client) -> None:
    plain = complete(client, "a fox")
    neutral = {
        "n": 1, "best_of": 1, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0.0,
        "logit_bias": {}, "stop": None, "suffix": None, "stream": False, "seed": 7, "user": "me",
    }  # fmt: skip
    assert complete(client, "a fox", **neutral) == plain
    assert complete(client, "a fox", max_tokens=0, temperature=1)[0]["text"] == "a fox"
