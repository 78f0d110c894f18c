"""Finds what the export would refuse before a graph is made: the model in PyTorch, behind the
server's own endpoints, against its authors' program."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from addnorm.export import writer
from addnorm.export.certificate import parity
from addnorm.export.certificate.forward import refuse_unlike
from addnorm.export.certificate.served import Served, by_head, by_torch, path_of
from addnorm.export.graphs.graph import check_fit
from addnorm.export.sources.sources import Source
from addnorm.export.writer import Plan
from addnorm.model.transformer import Transformer
from addnorm.service.models.model import Model
from addnorm.service.runtime import files
from addnorm.service.runtime.batch import Batch, Floats, Rows
from addnorm.service.runtime.bundle import TOKENIZER, Bundle
from addnorm.service.runtime.engine import Engine
from addnorm.service.runtime.fingerprint import Fingerprint
from addnorm.service.runtime.manifest import FORMAT, Manifest

BUDGET = 512  # tokens of a micro-batch


class TorchEngine(Engine):
    """PyTorch in the place of onnxruntime."""

    on_cores = False

    def __init__(
        self, reference: Transformer, bundle: Bundle, precision: str, num_threads: int = 1
    ) -> None:
        """reference: in the padded layout."""
        manifest = bundle.manifest
        self.d_model, self.n_norms, self.n_layers = (
            manifest.d_model,
            manifest.n_norms,
            bundle.n_layers,
        )
        self._reference, self._lens = reference, None
        self._head_widths = {name: bundle.width(name) for name in manifest.heads}
        self.fingerprint = Fingerprint.here(bundle.manifest_sha256, precision, "PyTorch")

    def compute(self, batch: Batch) -> Rows:
        grid = batch.grid()
        real = grid.attention_mask != 0
        return Rows(*(output[real] for output in by_torch(self._reference, grid)))

    def head(self, output: str, rows: Floats) -> Floats:
        return by_head(self._reference, output, rows)


def check(source: Source) -> Iterator[str]:
    """A line a comparison. UnfitError, StartupError and CertificationError say why such a model is
    not exported."""
    check_fit(source.model)
    with served_by_torch(source) as path:
        reference, limits = source.in_layout("padded"), path.model.bundle.manifest.limits
        for original in source.originals:
            refuse_unlike(reference, original, limits)
            yield f"compared: {original.compared.output} of token ids with {original.name}"
        compared = parity.texts_alike(
            path, reference, source.folder, source.program, source.samples
        )
    for case in dict.fromkeys(check.case for check in compared):
        yield f"compared: {case}"


@contextmanager
def served_by_torch(source: Source) -> Iterator[Served]:
    """The model as a server would have it, without a graph. StartupError if it would refuse it."""
    open_engine = partial(TorchEngine, source.in_layout("padded"))
    with TemporaryDirectory() as folder:
        # all that the server needs to make token ids of texts, and answers of rows
        place = Path(folder)
        limits = writer.limits_of(source, place)
        described = {
            file.name: files.describe(file) for file in place.iterdir() if file.name == TOKENIZER
        }
        facts = writer.manifest_of(source, "checked", 1, Plan(), limits)
        bundle = Bundle(place, Manifest(format=FORMAT, files=described, **facts), "")
        model = Model(bundle, token_budget=BUDGET, open_engine=open_engine)
        with path_of(model) as path:
            yield path
