"""A model of more than 2 GB, exported in memory that is measured while it runs, and served."""

import re
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
import transformers
from transformers import BertConfig

from tests.support import web
from tests.support.beside import must_pass
from tests.support.process import Process

pytestmark = pytest.mark.large_model
POLL_S = 0.02
SHAPE = {
    "vocab_size": 30522, "hidden_size": 2048, "num_hidden_layers": 10, "num_attention_heads": 16,
    "intermediate_size": 8192, "max_position_embeddings": 64,
    "initializer_range": 0.01,  # with 0.02, int8 of so wide a model is not near enough
}  # fmt: skip
LENGTHS = (9, 1, 64)
NAME = "large"


def anonymous(pid: int) -> int:
    """Bytes that a process needs for itself, without pages of mapped files. 0 once it ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    match = re.search(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)
    return 1024 * int(match[1]) if match else 0


def peak_of(command: list[str]) -> int:
    """Runs it to its end -> the most anonymous memory that it had."""
    process, peak = subprocess.Popen(command), 0
    while process.poll() is None:
        peak = max(peak, anonymous(process.pid))
        time.sleep(POLL_S)
    assert process.returncode == 0
    return peak


def write(folder: Path, kind: str) -> None:
    """A BERT in shards of bfloat16. Its weights are drawn."""
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    model = getattr(transformers, kind)(BertConfig(**SHAPE))
    with torch.no_grad():
        for parameter in model.parameters():  # those that are 0 or 1 too
            parameter.add_(torch.randn_like(parameter) * 0.01)
    model.bfloat16().save_pretrained(folder, max_shard_size="500MB")


@pytest.mark.parametrize(
    ("kind", "precision", "most"),
    [("BertModel", "fp32", 2.5), ("BertForMaskedLM", "fp32,int8", 3.2)],
)
def test_a_model_of_more_than_2_gb_is_exported_and_served(
    tmp_path: Path, kind: str, precision: str, most: float
) -> None:
    """most: the peak of the export's memory, in bytes of the weights as float32."""
    checkpoint, bundles = tmp_path / "checkpoint", tmp_path / "bundles"
    process = get_context("spawn").Process(target=write, args=(checkpoint, kind))
    process.start()  # in a process of its own, which gives its memory back
    process.join()
    stored = checkpoint.glob("*.safetensors")
    weights = 2 * sum(file.stat().st_size for file in stored)  # float32 has twice the bytes
    peak = peak_of(
        [sys.executable, "-m", "addnorm", "export", f"{checkpoint}@{precision}",
         "--name", NAME, "--out", str(bundles)]
    )  # fmt: skip
    print(f"anonymous memory: {peak / 1e9:.2f} GB, {peak / weights:.2f} x the weights")
    _is_served(bundles, checkpoint, kind)
    assert peak <= most * weights


def _is_served(bundles: Path, checkpoint: Path, kind: str) -> None:
    """A process of its own answers as transformers computes."""
    server = Process(bundles)
    try:
        model = getattr(transformers, kind).from_pretrained(checkpoint, dtype=torch.float32).eval()
        draws = torch.Generator().manual_seed(1)
        sent = [
            (torch.randint(5, SHAPE["vocab_size"], (n,), generator=draws).tolist(), [0] * n)
            for n in LENGTHS
        ]
        with web.client(base_url=server.url, timeout=300) as client:
            must_pass(client, NAME, model, sent)
    finally:
        server.terminate()
