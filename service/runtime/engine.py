"""The onnxruntime sessions of one bundle. Knows batches and rows; no requests, no queue."""

import numpy as np
from onnxruntime import InferenceSession

from addnorm.service.runtime.batch import Batch, Floats, Grid, Rows
from addnorm.service.runtime.bundle import Bundle
from addnorm.service.runtime.fingerprint import Fingerprint
from addnorm.service.runtime.session import PROVIDERS, open_session, open_sessions

HEAD_ROWS = 256  # of one head run: bounds the logits in memory; larger matrices are no faster
OUTPUTS = list(Rows._fields)


class Engine:
    """The body in one precision, and the heads. Thread-safe."""

    def __init__(self, bundle: Bundle, precision: str, provider: str, num_threads: int = 1) -> None:
        """provider: cpu, cuda or auto; num_threads: of a run on all cores. StartupError as of
        `open_sessions`."""
        manifest = bundle.manifest
        self.d_model, self.n_norms = manifest.d_model, manifest.n_norms
        self._has_types = manifest.limits.type_vocab_size > 1
        graph = bundle.graph(precision)
        self._body, self._body_on_all_cores = open_sessions(graph, provider, num_threads)
        self._heads = {name: open_session(bundle.head(name), provider) for name in manifest.heads}
        self.provider = "cuda" if PROVIDERS["cuda"] in self._body.get_providers() else "cpu"
        self.fingerprint = Fingerprint.here(bundle.manifest_sha256, precision, self.provider)

    def run(self, batch: Batch) -> Rows:
        """A row for each token, pads dropped. The batch must not be empty. On one thread."""
        return self._run(self._body, batch)

    def run_on_all_cores(self, batch: Batch) -> Rows:
        """The same bits, sooner if other cores are idle."""
        return self._run(self._body_on_all_cores, batch)

    def _run(self, body: InferenceSession, batch: Batch) -> Rows:
        assert len(batch)
        grid = batch.grid()
        num_cells = grid.input_ids.size
        flat = [output.reshape(num_cells, -1) for output in self._outputs(body, grid)]
        if num_cells == batch.num_tokens:
            return Rows(*flat)
        real = np.flatnonzero(grid.attention_mask)
        return Rows(*(output.take(real, 0) for output in flat))

    def run_grid(self, grid: Grid) -> list[Floats]:
        """The graph as it is -> activations, norm_mean, norm_rstd `[batch, seq, ...]`. Token types
        have no effect on a model without."""
        return self._outputs(self._body, grid)

    def _outputs(self, body: InferenceSession, grid: Grid) -> list[Floats]:
        input_ids, attention_mask, types = grid
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self._has_types:
            inputs["token_type_ids"] = np.zeros_like(input_ids) if types is None else types
        return body.run(OUTPUTS, inputs)  # type: ignore[no-any-return]

    def head(self, output: str, rows: Floats) -> Floats:
        """rows `[n, d_model]`, n at most HEAD_ROWS -> `[n, width of the output]`."""
        assert len(rows) <= HEAD_ROWS
        inputs = {"rows": np.ascontiguousarray(rows)}
        return self._heads[output].run(None, inputs)[0]  # type: ignore[no-any-return]

    def empty(self) -> Rows:
        """The rows of a batch without tokens, which no session runs."""
        widths = (self.d_model, self.n_norms, self.n_norms)
        return Rows(*(np.zeros((0, width), np.float32) for width in widths))
