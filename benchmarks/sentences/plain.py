"""A second opinion: transformers' own model, exported plainly, in plain onnxruntime.

It exports the folder's model with `torch.onnx.export`, knows nothing of Addnorm's graphs, and
computes the vectors of some texts as one would: sorted by length, 32 at a time, padded. The served
bundle's vectors must be equal to these within 1e-4.
"""

import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from tokenizers import Tokenizer
from transformers import AutoModel

from addnorm.load.measure.contender import FP32
from addnorm.load.sweep import tables
from addnorm.load.sweep.tables import Row
from benchmarks import comparison, processes
from benchmarks.data import texts
from benchmarks.findings import MINILM, Findings, Options, newest
from benchmarks.sentences import ways
from benchmarks.sentences.ways import ALL, MODEL, NUM_TEXTS, PATIENT, Vectors, Way

PLAIN = "plain"
TITLES = {PLAIN: "plain export in onnxruntime", **tables.TITLES}
ROWS = [Row("all texts in one call", "texts_per_s", ALL, PLAIN)]
BATCH, MAX_TOKENS, LIMIT = 32, 256, 1e-4
INPUTS = ["input_ids", "attention_mask", "token_type_ids"]


def run(options: Options) -> Findings:
    plain, asked = Plain(MINILM), texts.prose(NUM_TEXTS)
    with processes.addnorm(newest(MODEL), **PATIENT) as server:
        found = [
            Way(ALL, PLAIN, ways.timed(lambda: plain(asked))),
            *ways.addnorm(server, asked, NUM_TEXTS),
        ]
        figures = comparison.measured([way.side for way in found], options)
    compared = comparison.compared(figures, ROWS, TITLES)
    expected = ways.runs_of(found, PLAIN)[0]
    gap = float(np.abs(ways.runs_of(found, FP32) - expected).max())
    missed = [f"fp32: {gap:.1e} from the plain export, the limit is {LIMIT:g}"] * (not gap <= LIMIT)
    return Findings(
        f"{compared.tables}\n\n{ways.vectors_table(found, expected)}",
        [*compared.missed, *missed],
        figures,
    )


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

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """A mean-pooled vector of length 1 for each text."""
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        vectors = np.empty((len(texts), self.session.get_outputs()[0].shape[-1]), np.float32)
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            vectors[chosen] = self._vectors([texts[index] for index in chosen])
        return vectors

    def _vectors(self, texts: Sequence[str]) -> Vectors:
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
