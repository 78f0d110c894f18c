"""The onnxruntime sessions of one bundle. Knows batches and rows; no requests, no queue."""

from pathlib import Path

import numpy as np
import onnxruntime as ort

from addnorm.service.errors import StartupError
from addnorm.service.runtime.batch import Batch, Floats, Grid, Rows
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.fingerprint import Fingerprint
from addnorm.service.runtime.processor import processor

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
HEAD_ROWS = 256  # of one head run: bounds the logits in memory; larger matrices are no faster
OUTPUTS = list(Rows._fields)


class Engine:
    """The body in one precision, and the heads. Thread-safe."""

    def __init__(self, bundle: Bundle, precision: str, provider: str) -> None:
        """provider: cpu, cuda or auto. StartupError if cuda is wanted and not available."""
        manifest = bundle.manifest
        self.d_model, self.n_norms = manifest.d_model, manifest.n_norms
        self._has_types = manifest.limits.type_vocab_size > 1
        self._body = _session(bundle.graph(precision), provider, manifest.int8.fits_16_bits)
        self._heads = {name: _session(bundle.head(name), provider) for name in manifest.heads}
        self.provider = "cuda" if PROVIDERS["cuda"] in self._body.get_providers() else "cpu"
        self.fingerprint = Fingerprint.here(bundle.manifest_sha256, precision, self.provider)

    def run(self, batch: Batch) -> Rows:
        """A row for each token, pads dropped. The batch must not be empty."""
        assert len(batch)
        grid = batch.grid()
        num_cells = grid.input_ids.size
        flat = [output.reshape(num_cells, -1) for output in self.run_grid(grid)]
        if num_cells == batch.num_tokens:
            return Rows(*flat)
        real = np.flatnonzero(grid.attention_mask)
        return Rows(*(output.take(real, 0) for output in flat))

    def run_grid(self, grid: Grid) -> list[Floats]:
        """The graph as it is -> activations, norm_mean, norm_rstd `[batch, seq, ...]`. Token types
        have no effect on a model without."""
        input_ids, attention_mask, types = grid
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self._has_types:
            inputs["token_type_ids"] = np.zeros_like(input_ids) if types is None else types
        return self._body.run(OUTPUTS, inputs)  # type: ignore[no-any-return]

    def head(self, output: str, rows: Floats) -> Floats:
        """rows `[n, d_model]`, n at most HEAD_ROWS -> `[n, width of the output]`."""
        assert len(rows) <= HEAD_ROWS
        inputs = {"rows": np.ascontiguousarray(rows)}
        return self._heads[output].run(None, inputs)[0]  # type: ignore[no-any-return]

    def empty(self) -> Rows:
        """The rows of a batch without tokens, which no session runs."""
        widths = (self.d_model, self.n_norms, self.n_norms)
        return Rows(*(np.zeros((0, width), np.float32) for width in widths))


def _session(graph: Path, provider: str, fits_16_bits: bool = False) -> ort.InferenceSession:
    """fits_16_bits: of the manifest."""
    options = ort.SessionOptions()
    # worker threads run in parallel: threads within a run would compete with them for the cores
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    # onnxruntime would keep a pattern for each shape: it costs memory and saves no time
    options.enable_mem_pattern = False
    options.log_severity_level = 3  # errors only; warnings are about fallbacks, checked below
    if not (fits_16_bits or int8_is_exact()):
        options.add_session_config_entry("session.x64quantprecision", "1")
    available = PROVIDERS["cuda"] in ort.get_available_providers()
    if provider == "cuda" and not available:
        raise StartupError(
            "ADDNORM_PROVIDER=cuda, but this onnxruntime has no CUDA:"
            " install onnxruntime-gpu, or set ADDNORM_PROVIDER=cpu"
        )
    wanted = [PROVIDERS["cuda"]] if available and provider != "cpu" else []
    try:
        session = ort.InferenceSession(graph, options, providers=[*wanted, PROVIDERS["cpu"]])
    except Exception as error:  # onnxruntime has no base class of its own
        raise StartupError(
            f"onnxruntime cannot load {graph}: {_first_line(error)}; export it again"
        ) from error
    if provider == "cuda" and PROVIDERS["cuda"] not in session.get_providers():
        raise StartupError(
            "ADDNORM_PROVIDER=cuda, but onnxruntime fell back to the CPU:"
            " check the GPU and its driver, or set ADDNORM_PROVIDER=cpu"
        )
    return session


def int8_is_exact() -> bool:
    """Whether onnxruntime sums any uint8 x int8 products in 32 bits on this processor.

    On x86 without VNNI its default kernels saturate 16-bit sums, so the exact, slower kernels must
    be asked for. On x86 with VNNI they must not be, because onnxruntime would then not use VNNI.
    Elsewhere the option has no effect.
    """
    return processor().has_vnni


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
