"""A dict of characters or words to ids becomes the tokenizer that a bundle has."""

from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from addnorm.export import export_bundle, verify_bundle
from addnorm.export.library import write_vocabulary
from tests.conftest import inference_of, serving
from tests.support import web
from tests.support.people.encoders import OwnLayers

CHARACTERS = {
    character: index for index, character in enumerate("\n !.abcdefghijklmnopqrstuvwxyz]")
}


def tokenizer(vocabulary: dict[str, int], folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(write_vocabulary(vocabulary, folder) / "tokenizer.json"))


def test_characters_words_and_what_is_unknown(tmp_path: Path) -> None:
    found = tokenizer(CHARACTERS, tmp_path)
    assert found.encode("a b\n]Z!").ids == [CHARACTERS[c] for c in "a b\n]!"]
    found = tokenizer({**CHARACTERS, "<unk>": 40, "<eos>": 41}, tmp_path)
    assert found.encode("aZ<eos>").ids == [CHARACTERS["a"], 40, 41]
    found = tokenizer({"[UNK]": 0, "the": 1, "bell": 2, ",": 3}, tmp_path)
    assert found.encode("the old  bell ,").ids == [1, 0, 2, 3]


def test_texts_of_characters_are_served(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = OwnLayers().eval()
    bundle = export_bundle(module, tmp_path, "own", vocabulary=CHARACTERS)
    text = "hello there!"
    with serving(inference_of(tmp_path)) as url:
        body = {"model": "own", "texts": [text], "outputs": ["activations"]}
        answer = web.post(f"{url}/v1/infer", json=body).json()["activations"]
    with torch.no_grad():
        expected = module(torch.tensor([[CHARACTERS[c] for c in text]]))
    np.testing.assert_allclose(answer, expected, atol=1e-5)
    assert verify_bundle(bundle.path, module, vocabulary=CHARACTERS)
