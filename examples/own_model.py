"""A model of one's own: trained here, exported by a call, served, compared (`make own-model`).

It learns which of two words comes first in a text. That needs positions: counting words does not
tell. Takes about a minute on two cores.

python examples/own_model.py BUNDLES
"""

import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import torch
from serving import served
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from addnorm.export import export_bundle
from addnorm.model.config import Config, HeadConfig
from addnorm.model.transformer import Transformer

NAME, LABELS = "tick-tock", ["tick first", "tock first"]
FILLERS = ["a", "bell", "clock", "goes", "hand", "old", "on", "slow", "the", "then", "wall", "when"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "tick", "tock", *FILLERS]
TEXTS = [
    "tick tock",
    "tock tick",
    "the old clock on the wall goes tick then tock",
    "when the hand goes tock on the clock the slow bell goes tick",
]
MAX_POSITIONS = 32
STEPS, BATCH = 300, 64
LIMIT = 1e-4


def main(bundles: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # a model so small is no faster with more
    draws, tokenizer = random.Random(0), word_tokenizer()
    config = Config(
        vocab_size=len(WORDS), d_model=64, n_heads=4, d_ff=128, n_layers=2,
        max_positions=MAX_POSITIONS, block="pre", final_norm=True,
        heads={"logits": HeadConfig("first", len(LABELS))},  # of [CLS]
    )  # fmt: skip
    model = Transformer(config, "padded")
    train(model, tokenizer, draws)
    print(f"accuracy on texts that it has not seen: {accuracy(model, tokenizer, draws):.1%}")
    with TemporaryDirectory() as folder:
        tokenizer.save(f"{folder}/tokenizer.json")
        export_bundle(model, bundles, NAME, labels=LABELS, pooling="first", tokenizer=folder)
    compare(model, tokenizer, bundles)


def word_tokenizer() -> Tokenizer:
    """A token for each word, and [CLS] before them."""
    ids = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", ids["[CLS]"])]
    )
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]"])
    return tokenizer


def draw(draws: random.Random, length: int) -> tuple[str, int]:
    """A text with one tick and one tock, and its label."""
    words = draws.choices(FILLERS, k=length)
    places, label = sorted(draws.sample(range(length), 2)), draws.randrange(2)
    words[places[label]], words[places[1 - label]] = "tick", "tock"
    return " ".join(words), label


def drawn(draws: random.Random, count: int) -> tuple[list[str], torch.Tensor]:
    """Texts of 2 to 24 words, and their labels `[count]`."""
    pairs = [draw(draws, draws.randint(2, 24)) for _ in range(count)]
    texts, labels = zip(*pairs, strict=True)
    return list(texts), torch.tensor(labels)


def logits(model: Transformer, tokenizer: Tokenizer, texts: list[str]) -> torch.Tensor:
    """`[len(texts), 2]`, of a grid padded to the longest text."""
    rows = [torch.tensor(encoding.ids) for encoding in tokenizer.encode_batch(texts)]
    input_ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    ones = [torch.ones_like(row) for row in rows]
    mask = torch.nn.utils.rnn.pad_sequence(ones, batch_first=True)
    activations, *_ = model(input_ids, mask)
    return model.head("logits", activations, mask)


def train(model: Transformer, tokenizer: Tokenizer, draws: random.Random) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, STEPS + 1):
        texts, labels = drawn(draws, BATCH)
        loss = torch.nn.functional.cross_entropy(logits(model, tokenizer, texts), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}")


@torch.no_grad()
def accuracy(model: Transformer, tokenizer: Tokenizer, draws: random.Random) -> float:
    texts, labels = drawn(draws, 2000)
    return (logits(model, tokenizer, texts).argmax(1) == labels).float().mean().item()


@torch.no_grad()
def compare(model: Transformer, tokenizer: Tokenizer, bundles: Path) -> None:
    """Asks a server for the logits of TEXTS, as they are and as ragged token ids."""
    ragged = [encoding.ids for encoding in tokenizer.encode_batch(TEXTS)]
    with served(bundles) as url:
        found = [ask(url, texts=TEXTS), ask(url, input_ids=ragged)]
    expected = logits(model, tokenizer, TEXTS)
    for text, row in zip(TEXTS, found[0], strict=True):
        label = LABELS[int(row.argmax())]
        print(f"{label}  [{', '.join(f'{logit:6.3f}' for logit in row)}]  {text}")
    worst = max((answer - expected).abs().max().item() for answer in found)
    print(f"largest difference of a logit to PyTorch: {worst:.1e}")
    if worst > LIMIT:
        sys.exit(f"over the limit of {LIMIT:g}")


def ask(url: str, **inputs: list[str] | list[list[int]]) -> torch.Tensor:
    """Logits `[rows, 2]`."""
    body = {"model": NAME, "outputs": ["logits"], **inputs}
    # trust_env: HTTP_PROXY does not hold for this machine's own servers
    answer = httpx.post(f"{url}/v1/infer", json=body, timeout=60, trust_env=False)
    answer.raise_for_status()
    return torch.tensor(answer.json()["logits"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
