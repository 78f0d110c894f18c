"""A second opinion: transformers' own model, exported plainly, in plain onnxruntime.

python examples/plain_export.py CHECKPOINT_FOLDER BUNDLES

It exports the folder's model with `torch.onnx.export`, knows nothing of Addnorm's graphs, and
computes the vectors of some texts as one would: sorted by length, 32 at a time, padded. The served
bundle's vectors must be equal to these within 1e-4. Both are timed in turns: `make second-opinion`.
"""

import os
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import onnxruntime as ort
import torch
from beside_sentence_transformers import (
    FP32,
    INT8,
    NUM_ROUNDS,
    NUM_TEXTS,
    Run,
    ask_addnorm,
    call,
    some_texts,
)
from serving import served
from tokenizers import Tokenizer
from transformers import AutoModel

BATCH, MAX_TOKENS, LIMIT = 32, 256, 1e-4
INPUTS = ["input_ids", "attention_mask", "token_type_ids"]


class Body(torch.nn.Module):
    """transformers' model, with inputs in the order of INPUTS."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__()
        self.model = AutoModel.from_pretrained(checkpoint, attn_implementation="eager").eval()

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        named = dict(zip(INPUTS, inputs, strict=True))
        return self.model(**named).last_hidden_state  # type: ignore[no-any-return]


class Plain:
    """The plain export, with as many threads as the machine has cores."""

    def __init__(self, checkpoint: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer.enable_padding()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "plain.onnx"
            _export(Body(checkpoint), file)
            self.session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])

    def __call__(self, texts: list[str]) -> Run:
        """A mean-pooled vector of length 1 for each text."""
        started = time.perf_counter()
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        vectors = np.empty((len(texts), self.session.get_outputs()[0].shape[-1]), np.float32)
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            vectors[chosen] = self._vectors([texts[index] for index in chosen])
        seconds = time.perf_counter() - started
        return Run(seconds, [seconds], vectors)

    def _vectors(self, texts: list[str]) -> np.ndarray:
        encodings = self.tokenizer.encode_batch_fast(texts)
        mask = np.array([encoding.attention_mask for encoding in encodings], np.int64)
        ids = np.array([encoding.ids for encoding in encodings], np.int64)
        feeds = dict(zip(INPUTS, (ids, mask, np.zeros_like(ids)), strict=True))
        hidden = self.session.run(None, feeds)[0]
        pooled = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)  # type: ignore[no-any-return]


def _export(body: Body, file: Path) -> None:
    ids = torch.ones(2, 7, dtype=torch.int64)
    grid = {0: "batch", 1: "seq"}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            body, (ids, ids, ids * 0), file, dynamo=False, opset_version=17, input_names=INPUTS,
            output_names=["hidden"], dynamic_axes=dict.fromkeys([*INPUTS, "hidden"], grid),
        )  # fmt: skip


def main(checkpoint: Path, bundles: Path) -> None:
    plain, texts = Plain(checkpoint), some_texts(NUM_TEXTS)
    with served(bundles) as url:
        ways = {
            "plain": partial(plain, texts),
            FP32: partial(call, url, partial(ask_addnorm, FP32), texts, NUM_TEXTS),
            INT8: partial(call, url, partial(ask_addnorm, INT8), texts, NUM_TEXTS),
        }
        runs = [{name: way() for name, way in ways.items()} for _ in range(1 + NUM_ROUNDS)]
    del runs[0]  # warms up
    print(
        f"{os.cpu_count()} cores, {NUM_TEXTS} texts in one call, medians of {NUM_ROUNDS} rounds\n"
    )
    print("| texts per second | plain export in onnxruntime | Addnorm fp32 | int8 |")
    print("|---|---|---|---|")
    cells = [f"{median(run['plain'].texts_per_s for run in runs):,.0f}"]
    for name in (FP32, INT8):
        ratio = median(run[name].texts_per_s / run["plain"].texts_per_s for run in runs)
        cells.append(f"{median(run[name].texts_per_s for run in runs):,.0f} ({ratio:.1f} x)")
    print(f"| all texts in one call | {' | '.join(cells)} |")
    difference = float(np.abs(runs[0][FP32].vectors - runs[0]["plain"].vectors).max())
    print(f"\nlargest difference of a vector's entry, fp32: {difference:.1e}, the limit is {LIMIT}")
    if not difference <= LIMIT:
        sys.exit("the two exports disagree")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
