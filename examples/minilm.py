"""A real checkpoint, served: all-MiniLM-L6-v2 against transformers' BertModel (`make minilm`).

python examples/minilm.py CHECKPOINT_FOLDER BUNDLES
"""

import sys
from pathlib import Path

import httpx
import numpy as np
import torch
from serving import served
from tokenizers import Tokenizer
from transformers import BertModel

MODEL = "all-minilm-l6-v2"
LIMIT = 1e-4
SENTENCES = [
    "LayerNorm normalizes each token across its features.",
    "Every token's vector is scaled with its own mean and deviation.",
    "PAD tokens are not real data.",
    "Padding zeros corrupt the statistics of batch normalization.",
    "Deep nets can become numerically unstable.",
    "Tiny changes in activations can blow up or shrink toward zero.",
    "Welcome to Day 79 of the 100-day Deep Learning series!",
]


def main(checkpoint: Path, bundles: Path) -> None:
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.no_padding()  # the file pads every text to 128 tokens
    tokenizer.no_truncation()
    input_ids = [encoding.ids for encoding in tokenizer.encode_batch(SENTENCES)]
    with served(bundles) as url:
        answer = httpx.post(
            f"{url}/v1/infer",
            json={"model": MODEL, "input_ids": input_ids, "outputs": ["activations", "pooled"]},
            trust_env=False,  # HTTP_PROXY does not hold for this machine's own servers
        ).json()
    lengths = ", ".join(str(len(ids)) for ids in input_ids)
    print(f"{len(input_ids)} sentences of {lengths} tokens, sent ragged")
    worst = largest_difference(checkpoint, input_ids, answer["activations"])
    print(f"largest difference of a hidden state to transformers' BertModel: {worst:.1e}")
    show_neighbours(np.array(answer["pooled"]))
    if worst > LIMIT:
        sys.exit(f"over the limit of {LIMIT:g}")


def largest_difference(
    checkpoint: Path, input_ids: list[list[int]], served: list[list[list[float]]]
) -> float:
    """Over all hidden states, against transformers on the padded batch."""
    width = max(map(len, input_ids))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in input_ids])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in input_ids])
    model = BertModel.from_pretrained(checkpoint).eval()
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask).last_hidden_state.numpy()
    return max(
        float(np.abs(np.array(row) - expected[i, : len(row)]).max()) for i, row in enumerate(served)
    )


def show_neighbours(vectors: np.ndarray) -> None:
    """Each sentence's nearest by cosine."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = unit @ unit.T
    np.fill_diagonal(similarity, -1)
    for i, nearest in enumerate(similarity.argmax(1)):
        print(f"{similarity[i, nearest]:6.3f}  {SENTENCES[i]}  ->  {SENTENCES[nearest]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
