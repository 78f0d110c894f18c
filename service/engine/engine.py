"""The onnxruntime sessions of one bundle. Knows batches and rows; no requests, no queue."""

import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnxruntime import InferenceSession, RunOptions

from addnorm.service.engine.batch import AnyRows, Batch, Floats, Grid, Ints, Rows
from addnorm.service.engine.bundle import EXTRACTION, LENS, Bundle
from addnorm.service.engine.device.placement import Node, nodes
from addnorm.service.engine.fingerprint import Fingerprint
from addnorm.service.engine.session import Sessions, open_session, open_sessions
from addnorm.service.errors import StartupError

# HEAD_ROWS, HEAD_PRODUCTS: of one head run, rows and products of two numbers. Larger: others wait
# longer for their turn, and the logits leave the processor's cache. Smaller: weights are read more
# often. Rows of 384 numbers to logits of 30,522, on one core, with the sum of their exponentials:
# 256 rows 136 ms, 0.53 ms a row; 45 rows 13 ms, 0.28 ms a row; 8 rows 4 ms, 0.46 ms a row.
HEAD_ROWS, MIN_HEAD_ROWS, HEAD_PRODUCTS = 256, 8, 2**29
NAMES = "name_logits"  # an output that a graph makes of a sequence's words and labels
INPUTS, TYPES = ("input_ids", "attention_mask"), "token_type_ids"
OUTPUTS = list(Rows._fields)
# of a GPU's engine too
SESSIONS = {"_body", "_body_on_all_cores", "_heads", "_lens", "_pooling", "_extraction"}
NO_HEADS = np.empty(0, np.int64)
NO_MEMORY = "Failed to allocate memory"  # in onnxruntime's words


class Seen(NamedTuple):
    """The lens's view of one sequence of n tokens."""

    hidden_states: list[Floats]  # [n, d_model] for each layer asked for
    attentions: list[Floats]  # [h, n, n] for each layer asked for, queries before keys


class Engine:
    """The body in one precision, and the heads; in fp32 the lens, if the bundle has one.
    Thread-safe.

    It runs on the CPU. `cuda/gpu_engine.py` has the one that runs on a GPU.
    """

    provider = "cpu"  # where it runs, as answers and metrics name it
    exact = True  # whether equal bits are promised alone, co-batched and padded
    on_cores = True  # whether idle cores make its runs sooner
    on_device = False  # whether rows stay on a device, and an answer copies only what it needs
    num_workers = 0  # worker threads that it wants; 0: one for each core
    budgets: tuple[int, ...] = (128, 256, 512, 1024)  # tokens of a micro-batch, for warm-up

    def __init__(self, bundle: Bundle, precision: str, num_threads: int = 1) -> None:
        """num_threads: of a run on all cores. StartupError as of `open_sessions`."""
        manifest = bundle.manifest
        self.d_model, self.n_norms = manifest.d_model, manifest.n_norms
        self._has_types = manifest.limits.type_vocab_size > 1
        graph = self._graph(bundle, precision)
        self._body, self._body_on_all_cores = self._open_body(
            graph, num_threads, manifest.int8.fits_16_bits
        )
        widths = {"activations": manifest.d_model}
        widths |= dict.fromkeys(("norm_mean", "norm_rstd"), manifest.n_norms)
        check_graph(graph, self._body, [*INPUTS, *([TYPES] if self._has_types else [])], widths)
        self._heads = {name: self._open_head(bundle.head(name)) for name in manifest.heads}
        for name, head in manifest.heads.items():
            check_graph(bundle.head(name), self._heads[name], ["rows"], {name: head.width})
        self.n_layers = bundle.n_layers
        self._head_widths = {name: bundle.width(name) for name in manifest.heads}
        if manifest.extraction:
            graph, width = bundle.path / EXTRACTION, manifest.extraction.max_width
            self._extraction, self._head_widths[NAMES] = open_session(graph), width
            check_graph(graph, self._extraction, ["words", "labels"], {"logits": width})
        self._lens: InferenceSession | None = None
        if bundle.has_lens and precision == "fp32":
            # CUDA's Attention cannot show its softmax (onnxruntime 1.31)
            self._lens = open_session(bundle.path / LENS)
        self.fingerprint = Fingerprint.here(
            bundle.manifest_sha256, precision, self._provider_in_words()
        )

    def without_sessions(self) -> "Engine":
        """A copy for the time while its model is unloaded. It cannot run."""
        engine = copy(self)
        for name in SESSIONS & vars(engine).keys():
            delattr(engine, name)
        return engine

    @staticmethod
    def clock() -> float:
        """Seconds, for warm-up. A run is all in its thread: other work of the machine must not
        choose the budget."""
        return time.thread_time()

    def compute(self, batch: Batch) -> AnyRows:
        """A row for each token, pads dropped, where it was computed. The batch must not be empty.
        On one thread."""
        return self._run(self._body, batch)

    def run(self, batch: Batch) -> Rows:
        """The same, on the host."""
        return self.compute(batch).on_host()

    def run_on_all_cores(self, batch: Batch) -> Rows:
        """The same bits, sooner if other cores are idle."""
        return self._run(self._body_on_all_cores, batch)

    def _run(self, body: InferenceSession, batch: Batch) -> Rows:
        assert len(batch)
        grid = batch.grid()
        num_cells = grid.input_ids.size
        outputs = run_session(body, OUTPUTS, self._inputs(grid))
        flat = [output.reshape(num_cells, -1) for output in outputs]
        if num_cells == batch.num_tokens:
            return Rows(*flat)
        real = np.flatnonzero(grid.attention_mask)
        return Rows(*(output.take(real, 0) for output in flat))

    def run_grid(self, grid: Grid) -> list[Floats]:
        """The graph as it is -> activations, norm_mean, norm_rstd `[batch, seq, ...]`. Token types
        have no effect on a model without."""
        return run_session(self._body, OUTPUTS, self._inputs(grid))

    def _inputs(self, grid: Grid) -> dict[str, Ints]:
        input_ids, attention_mask, types = grid
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self._has_types:
            inputs[TYPES] = np.zeros_like(input_ids) if types is None else types
        return inputs

    @property
    def has_lens(self) -> bool:
        return self._lens is not None

    def see(
        self,
        sequence: Batch,
        hidden_layers: Sequence[int] = (),
        attention_layers: Sequence[int] = (),
        heads: Sequence[int] = (),
    ) -> Seen:
        """A batch of one sequence -> the hidden states of some layers, 0 to n_layers, and in
        others, 0 to n_layers - 1, the attention of some heads. On one thread."""
        assert self._lens
        assert len(sequence) == 1
        head_inputs = {f"heads_{layer}": NO_HEADS for layer in range(self.n_layers)}
        head_inputs |= {f"heads_{layer}": np.array(heads, np.int64) for layer in attention_layers}
        names = [
            *(f"hidden_states_{layer}" for layer in hidden_layers),
            *(f"attentions_{layer}" for layer in attention_layers),
        ]
        outputs = run_session(self._lens, names, {**self._inputs(sequence.grid()), **head_inputs})
        length, num_hidden = sequence.num_tokens, len(hidden_layers)
        # attention's grid may be wider than the sequence, with pads on the right
        attentions = [output[0, :, :length, :length] for output in outputs[num_hidden:]]
        return Seen([output[0] for output in outputs[:num_hidden]], attentions)

    def head_rows(self, output: str) -> int:
        """The most rows of one run of this head: some ms of work."""
        num_rows = HEAD_PRODUCTS // (self.d_model * self._head_widths[output])
        return max(MIN_HEAD_ROWS, min(num_rows, HEAD_ROWS))

    def head(self, output: str, rows: Floats) -> Floats:
        """rows `[n, d_model]`, n at most `head_rows` -> `[n, width of the output]`."""
        assert len(rows) <= self.head_rows(output)
        inputs = {"rows": np.ascontiguousarray(rows)}
        return run_session(self._heads[output], None, inputs)[0]

    def extract(self, words: Floats, labels: Floats) -> Floats:
        """words `[W, d_model]` of one sequence, labels `[C, d_model]` -> logits `[C, W, max_width]`
        of `Extraction`. On one thread."""
        inputs = {"words": words, "labels": labels}
        return run_session(self._extraction, None, inputs)[0]

    def nodes(self) -> dict[str, list[Node]]:
        """The nodes of each graph, with their providers: of the body, of the heads by output, of
        the lens."""
        lens = {"lens": self._lens} if self._lens else {}
        sessions = {"body": self._body, **self._heads, **lens}
        return {graph: [*nodes(session)] for graph, session in sessions.items()}

    def empty(self) -> Rows:
        """The rows of a batch without tokens, which no session runs."""
        widths = (self.d_model, self.n_norms, self.n_norms)
        return Rows(*(np.zeros((0, width), np.float32) for width in widths))

    def _graph(self, bundle: Bundle, precision: str) -> Path:
        return bundle.graph(precision)

    def _open_body(self, graph: Path, num_threads: int, fits_16_bits: bool) -> Sessions:
        return open_sessions(graph, num_threads, fits_16_bits)

    def _open_head(self, graph: Path) -> InferenceSession:
        return open_session(graph)

    def _provider_in_words(self) -> str:
        """The provider, as far as it decides bits: a part of the fingerprint."""
        return "cpu"


# bundle, precision, threads of a run on all cores
OpenEngine = Callable[[Bundle, str, int], Engine]


def run_session(
    session: InferenceSession,
    outputs: list[str] | None,
    inputs: dict[str, Any],
    options: RunOptions | None = None,
) -> list[Floats]:
    """The session's outputs. MemoryError, which onnxruntime has no class for."""
    try:
        return session.run(outputs, inputs, options)  # type: ignore[no-any-return]
    except Exception as error:
        if NO_MEMORY in str(error):
            raise MemoryError(NO_MEMORY) from error
        raise


def check_graph(
    graph: Path, session: InferenceSession, inputs: Sequence[str], widths: Mapping[str, int]
) -> None:
    """StartupError if the graph's inputs or outputs differ from the manifest's.

    widths: numbers of each output for a row.
    """
    shapes = {output.name: output.shape for output in session.get_outputs()}
    for name, width in widths.items():
        if name not in shapes or shapes[name][-1] != width:
            raise StartupError(
                f"{graph} returns {name} of shape {shapes.get(name)}, but the manifest has"
                f" {width} numbers per row; export it again"
            )
    input_names = [node.name for node in session.get_inputs()]
    if sorted(input_names) != sorted(inputs):
        raise StartupError(
            f"{graph} takes {', '.join(input_names)}, but the manifest has {', '.join(inputs)};"
            " export it again"
        )
