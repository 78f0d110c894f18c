"""The engine of a module that is served as it is: its own graph, which knows neither pads nor a
mask."""

from itertools import product

import numpy as np
from onnxruntime import InferenceSession

from addnorm.service.engine.batch import Batch, Floats, Grid, Rows
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.engine import INPUTS, TYPES, Engine, check_graph, run_session
from addnorm.service.engine.fingerprint import Fingerprint
from addnorm.service.engine.selfcheck import sequences
from addnorm.service.engine.session import giving_back

IDS, VECTORS, ANSWER = INPUTS[0], "inputs", "activations"
# lengths and numbers of sequences that are run together, to see whether that changes bits
LENGTHS, TOGETHER = (1, 2, 3, 5, 16, 17, 33, 65, 128, 257, 512), (2, 5, 16)
MOST_TOKENS = 1024  # of such a run: micro-batches have no more, but for a single longer sequence,
# whose memory, which grows with the square of its length, is given back after it


class OwnEngine(Engine):
    """Sequences of one length run together, where that changes no bits on this processor; else each
    runs alone. So the bits of a sequence depend on nothing but its tokens.

    On the CPU it runs on one thread: on several, kernels may add numbers in another order.
    """

    on_cores = False

    def __init__(self, bundle: Bundle, precision: str, num_threads: int = 1) -> None:
        """StartupError as of `open_session`."""
        limits, graph = bundle.manifest.limits, bundle.graph(precision)
        self.d_model, self.n_norms, self.n_layers = bundle.manifest.d_model, 0, 0
        self._has_types = limits.type_vocab_size > 1
        self._tokens = VECTORS if limits.input_width else IDS
        self._body, self._body_on_all_cores = self._open_body(
            graph, 1, bundle.manifest.int8.fits_16_bits
        )
        types = [TYPES] if self._has_types else []
        check_graph(graph, self._body, [self._tokens, *types], {ANSWER: self.d_model})
        self._head_widths = {name: head.width for name, head in bundle.manifest.heads.items()}
        ends = np.cumsum([tensor.width for tensor in bundle.manifest.as_it_is or ()]).tolist()
        self._columns = {
            tensor.name: slice(end - tensor.width, end)
            for tensor, end in zip(bundle.manifest.as_it_is or (), ends, strict=True)
        }
        heads = {
            name: head.width
            for name, head in bundle.manifest.heads.items()
            if name not in self._columns
        }
        self._heads = {name: self._open_head(bundle.head(name)) for name in heads}
        for name, width in heads.items():
            check_graph(bundle.head(name), self._heads[name], ["rows"], {name: width})
        self._lens = None
        self.fingerprint = Fingerprint.here(
            bundle.manifest_sha256, precision, self._provider_in_words()
        )
        self._giving_back = giving_back() if self.exact else None
        self.runs_alone = False
        lengths = sorted({min(length, limits.max_positions) for length in LENGTHS})
        for length, num in product(lengths, TOGETHER):
            if self.exact and num * length <= MOST_TOKENS and not self.runs_alone:
                # whether sequences of one length have other bits together than alone
                batch = sequences(limits, num * [length], seed=num)
                rows_together = self.run(batch).activations
                rows_alone = [self.run(batch.sequence(index)).activations for index in range(num)]
                self.runs_alone = rows_together.tobytes() != np.concatenate(rows_alone).tobytes()

    def _run(self, body: InferenceSession, batch: Batch) -> Rows:
        rows = np.empty((batch.num_tokens, self.d_model), np.float32)
        for length in np.unique(batch.lengths).tolist():
            starts = batch.offsets[:-1][batch.lengths == length]
            places = starts[:, None] + np.arange(length)
            options = self._giving_back if length > MOST_TOKENS else None
            for at in places[:, None] if self.runs_alone else [places]:
                inputs = {self._tokens: batch.tokens[at]}
                if self._has_types:
                    types = batch.types
                    inputs[TYPES] = np.zeros_like(at) if types is None else types[at]
                # `[num_sequences, length, d_model]` of the tokens at these places
                rows[at] = run_session(body, [ANSWER], inputs, options)[0]
        no_norms = np.zeros((batch.num_tokens, 0), np.float32)
        return Rows(rows, no_norms, no_norms)

    def head(self, output: str, rows: Floats) -> Floats:
        """Its columns of the rows, which the graph has made already; or a graph of its own."""
        if output not in self._columns:
            return super().head(output, rows)
        return np.ascontiguousarray(rows[:, self._columns[output]])

    def run_grid(self, grid: Grid) -> list[Floats]:
        """The pads are left out, and 0 in the answer."""
        real = grid.attention_mask != 0
        lengths = real.sum(1)
        offsets = np.concatenate([[0], lengths[lengths > 0].cumsum()])
        types = None if grid.token_type_ids is None else grid.token_type_ids[real]
        batch = Batch(grid.input_ids[real], offsets, types)
        rows = self.run(batch) if len(batch) else self.empty()
        parts = [np.zeros((*real.shape, part.shape[1]), np.float32) for part in rows]
        for part, values in zip(parts, rows, strict=True):
            part[real] = values
        return parts


def open_engine(bundle: Bundle, precision: str, num_threads: int = 1) -> Engine:
    """The engine of a bundle on the CPU."""
    kind = OwnEngine if bundle.manifest.as_it_is else Engine
    return kind(bundle, precision, num_threads)
