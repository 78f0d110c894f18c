"""A model of more than 2 GB, exported, measured and served: `pytest -m large_model -s` shows it.

The memory of the processes is read while they run: anonymous memory, which is what they need for
themselves, and the resident set, which also counts the pages of mapped files.
"""

import re
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import pytest
import torch
import transformers
from transformers import BertConfig

from tests.support import web
from tests.support.beside import must_pass
from tests.support.process import Process

pytestmark = pytest.mark.large_model
MAX_MEMORY = 2.5  # peak of the export, in bytes of the weights as float32
POLL_S, GB = 0.02, 1e9
SHAPE = {
    "vocab_size": 30522, "hidden_size": 2048, "num_hidden_layers": 10, "num_attention_heads": 16,
    "intermediate_size": 8192, "max_position_embeddings": 64,
}  # fmt: skip
LENGTHS = (9, 1, 64)
NAME = "large"


class Memory(NamedTuple):
    """Bytes of a process."""

    anonymous: int = 0
    resident: int = 0

    @classmethod
    def of(cls, pid: int) -> "Memory":
        """Zeros once it has ended."""
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return cls()
        fields = dict(re.findall(r"^(RssAnon|VmRSS):\s+(\d+) kB$", status, re.MULTILINE))
        return cls(*(1024 * int(fields.get(name, 0)) for name in ("RssAnon", "VmRSS")))

    def largest(self, other: "Memory") -> "Memory":
        return Memory(*map(max, self, other))


class Step(NamedTuple):
    """What a process did after a line that it printed."""

    words: str
    seconds: float
    peak: Memory


def watched(command: list[str]) -> tuple[list[Step], int]:
    """Runs it to its end, and prints what it prints. A step ends with the next line.

    The steps, and the exit code.
    """
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    step, started, steps = "starting", time.monotonic(), list[Step]()
    peaks = [Memory()]

    def poll() -> None:
        while process.poll() is None:
            peaks[0] = peaks[0].largest(Memory.of(process.pid))
            time.sleep(POLL_S)

    poller = Thread(target=poll)
    poller.start()
    assert process.stdout
    with process.stdout:
        for line in process.stdout:
            print(line, end="", flush=True)
            now = time.monotonic()
            steps.append(Step(step, now - started, peaks[0]))
            step, started, peaks[0] = line.strip(), now, Memory()
    poller.join()
    steps.append(Step(step, time.monotonic() - started, peaks[0]))
    return steps, process.wait()


def peak(steps: list[Step]) -> Memory:
    return Memory(*(max(sizes) for sizes in zip(*(step.peak for step in steps), strict=True)))


def row(words: str, seconds: float, memory: Memory, weights: int) -> str:
    sizes = (f"{size / GB:.2f} GB | {size / weights:.2f}" for size in memory)
    return f"| {words[:60]} | {seconds:.0f} | {' | '.join(sizes)} |"


def table(steps: list[Step], weights: int) -> None:
    """A line for each step of a second or more, and one for the whole."""
    print("\n| after the line | s | anonymous, peak | x weights | resident, peak | x weights |")
    print("|---|---|---|---|---|---|")
    for step in steps:
        if step.seconds >= 1:
            print(row(*step, weights))
    print(row("all", sum(step.seconds for step in steps), peak(steps), weights))


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
    ("kind", "precision"), [("BertModel", "fp32"), ("BertForMaskedLM", "fp32,int8")]
)
def test_a_model_of_more_than_2_gb_is_exported_and_served(
    tmp_path: Path, kind: str, precision: str
) -> None:
    checkpoint, bundles = tmp_path / "checkpoint", tmp_path / "bundles"
    process = get_context("spawn").Process(target=write, args=(checkpoint, kind))
    process.start()  # in a process of its own, which gives its memory back
    process.join()
    stored = checkpoint.glob("*.safetensors")
    weights = 2 * sum(file.stat().st_size for file in stored)  # float32 has twice the bytes
    steps, code = watched(
        [sys.executable, "-u", "-m", "addnorm", "export", "--checkpoint", str(checkpoint),
         "--name", NAME, "--precision", precision, "--out", str(bundles)]
    )  # fmt: skip
    table(steps, weights)
    assert code == 0
    _is_served(bundles, checkpoint, kind, weights)
    assert peak(steps).anonymous <= MAX_MEMORY * weights


def _is_served(bundles: Path, checkpoint: Path, kind: str, weights: int) -> None:
    """A process of its own answers as transformers computes."""
    started = time.monotonic()
    server = Process(bundles)
    seconds = time.monotonic() - started
    print(f"\n{row('a server, ready', seconds, Memory.of(server.process.pid), weights)}\n")
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
