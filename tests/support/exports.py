"""Exports that tests share: PyTorch's exporter takes seconds, and repeats itself."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from unittest import mock

from filelock import FileLock
from onnx import ModelProto
from torch import nn

from addnorm.export.certificate.graph import exact
from addnorm.export.graphs import all_graphs, graph
from addnorm.export.graphs.all_graphs import Graphs
from addnorm.export.graphs.model_file import Graph
from addnorm.model.transformer import Transformer

Export = Callable[..., Graph]
HEADS = "heads"  # their names begin so
_known: dict[str, Graph] = {}
_prefix: list[str] = []  # of the exports that are made now
_shared: list[Path] = []  # the folder that the processes of one run share, if they do


def share(folder: Path) -> None:
    """Shares exports with the other processes of this run."""
    _shared[:] = [folder]


@contextmanager
def shared_exports(proved: bool = False) -> Iterator[None]:
    """Runs PyTorch's exporter once per model.

    So the certificate compares what was written with the graph that was written, not with a fresh
    export. proved: it has exports of its own, as outside of tests.

    Not for tests that patch the model's code: the key is the model's classes and values.
    """
    with ExitStack() as stack:
        for name in ("export_body", "export_head", "export_lens"):
            stack.enter_context(mock.patch.object(all_graphs, name, _remembering(name)))
        if proved:
            stack.enter_context(mock.patch.object(exact, "Graphs", _Fresh))
        yield


class _Fresh(Graphs):
    """Graphs that are remembered apart from others."""

    @classmethod
    def export(cls, model: Transformer, lens: bool) -> Graphs:
        _prefix.append("fresh-")
        try:
            return super().export(model, lens)
        finally:
            _prefix.pop()


def _remembering(name: str) -> Export:
    run: Export = getattr(graph, name)

    def export(model: nn.Module, *arguments: int) -> Graph:
        key = f"{''.join(_prefix)}{name}-{_digest(model, *arguments)}"
        if key not in _known:
            _known[key] = _made_once(key, lambda: run(model, *arguments))
        return _known[key].copy()

    return export


def _made_once(key: str, make: Callable[[], Graph]) -> Graph:
    if not _shared:
        return _own(make())
    file = _shared[0] / f"{key}.pickle"
    with FileLock(f"{file}.lock"):
        if not file.exists():
            made = _own(make())
            file.write_bytes(pickle.dumps((made.proto.SerializeToString(), made.values)))
            return made
    proto, values = pickle.loads(file.read_bytes())
    return Graph(ModelProto.FromString(proto), values)


def _own(made: Graph) -> Graph:
    """A graph's values are the model's memory, which a test may change."""
    return Graph(made.proto, {name: array.copy() for name, array in made.values.items()})


def _digest(model: nn.Module, *arguments: int) -> str:
    """A digest of all that the exporter sees: classes, attributes, weights and buffers. It sees
    heads alone, so that models with different heads share a body."""
    made = sha256(repr(arguments).encode())
    for name, module in model.named_modules():
        if name.startswith(HEADS):
            continue
        public = {key: value for key, value in vars(module).items() if not key.startswith("_")}
        if "config" in public:
            public["config"] = replace(public["config"], heads={})
        made.update(repr((name, type(module), public)).encode())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name.startswith(HEADS):
            continue
        made.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        made.update(tensor.detach().numpy().tobytes())
    return made.hexdigest()
