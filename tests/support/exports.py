"""Exports that tests share: PyTorch's exporter takes seconds, and repeats itself."""

import gc
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from filelock import FileLock
from onnx import ModelProto
from torch import nn
from torch._export import utils as torch_operators
from torch.export import ExportedProgram
from torch.onnx._internal.exporter._registration import ONNXRegistry

from addnorm.export.certificate.graph import exact
from addnorm.export.graphs import all_graphs, authors, graph
from addnorm.export.graphs.all_graphs import Graphs
from addnorm.export.graphs.model_file import Array, Graph
from addnorm.export.sources import Source
from addnorm.export.words.folder_tokenizer import NoTexts
from addnorm.model.config import Config, Positions
from addnorm.model.transformer import Transformer

Export = Callable[..., Graph]


def source_of(model: Transformer) -> Source:
    """A source that takes no texts, and is compared with itself alone."""
    return Source("reference", model, {}, {}, NoTexts("it takes token ids alone"))


EXPORTS = ("export_body", "export_head", "export_lens")
HEADS = "heads"  # their names begin so
TABLES = ("tokens", "positions", "types")  # how many rows they have changes nothing else in a graph
_known: dict[str, Graph] = {}
_prefix: list[str] = []  # of the exports that are made now
_shared: list[Path] = []  # the folder that the processes of one run share, if they do


def share(folder: Path) -> None:
    """Shares exports with the other processes of this run."""
    _shared[:] = [folder]


@contextmanager
def shared_exports(proved: bool = False, apart: str = "") -> Iterator[None]:
    """Runs PyTorch's exporter once for all models that differ in their weights alone.

    So the certificate compares what was written with the graph that was written, not with a fresh
    export. proved: it has exports of its own, as outside of tests. apart: shared with nobody else,
    for tests that patch the model's code: the key is the model's classes and values.
    """
    with ExitStack() as stack:
        stack.enter_context(_kept_apart(apart))
        for name in EXPORTS:
            stack.enter_context(mock.patch.object(all_graphs, name, _remembering(name)))
        stack.enter_context(mock.patch.object(authors, "export_module", _translate_once))
        # the exporter reads its tables of operators anew for each export, which takes a fifth of it
        table = staticmethod(cache(ONNXRegistry.from_torchlib))
        stack.enter_context(mock.patch.object(ONNXRegistry, "from_torchlib", table))
        operators = cache(torch_operators._materialize_cpp_cia_ops)
        stack.enter_context(
            mock.patch.object(torch_operators, "_materialize_cpp_cia_ops", operators)
        )
        if proved:
            stack.enter_context(mock.patch.object(exact, "Graphs", _Fresh))
        yield


@contextmanager
def fresh_exports() -> Iterator[None]:
    """Runs PyTorch's exporter each time, as outside of tests."""
    with (
        mock.patch.multiple(all_graphs, **{name: getattr(graph, name) for name in EXPORTS}),
        mock.patch.object(authors, "export_module", graph.export_module),
    ):
        yield


@contextmanager
def _kept_apart(name: str) -> Iterator[None]:
    _prefix.append(name)
    try:
        yield
    finally:
        _prefix.pop()


class _Fresh(Graphs):
    @classmethod
    def export(cls, model: Transformer, lens: bool) -> Graphs:
        with _kept_apart("fresh-"):
            return super().export(model, lens)


def _remembering(name: str) -> Export:
    run: Export = getattr(graph, name)

    def export(model: nn.Module, *arguments: int) -> Graph:
        weights = _weights(model)
        key = f"{''.join(_prefix)}{name}-{_digest(model, weights, *arguments)}"
        if key not in _known:
            _known[key] = _made_once(key, lambda: run(model, *arguments), weights)
        return _with_weights(_known[key], weights)

    return export


def _translate_once(
    program: ExportedProgram, arguments: tuple[()], inputs: list[str], outputs: list[str]
) -> Graph:
    """A program that PyTorch followed, as a graph. Following it is a third of the time, and is done
    each time; of equal programs with equal numbers one alone is translated."""
    digest = sha256(f"{program}{inputs}{outputs}".encode())
    for name, values in {**program.state_dict, **program.constants}.items():
        if not isinstance(values, torch.Tensor):
            return graph.export_module(program, arguments, inputs, outputs)
        digest.update(f"{name} {values.dtype}{tuple(values.shape)}".encode())
        digest.update(values.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    key = f"translated-{digest.hexdigest()}"
    if key not in _known:
        _known[key] = _made_once(
            key, lambda: graph.export_module(program, arguments, inputs, outputs), {}
        )
    return _known[key].copy()


def _weights(model: nn.Module) -> dict[str, Array]:
    """The model's own memory, but for its heads', which the exporter sees alone: models with
    different heads share a body."""
    return {
        name: tensor.detach().numpy()
        for name, tensor in model.named_parameters()
        if not name.startswith(HEADS)
    }


def _made_once(key: str, make: Callable[[], Graph], weights: dict[str, Array]) -> Graph:
    if not _shared:
        return _without_weights(_uncollected(make), weights)
    file = _shared[0] / f"{key}.pickle"
    with FileLock(f"{file}.lock"):
        if not file.exists():
            model = _without_weights(_uncollected(make), weights)
            file.write_bytes(pickle.dumps((model.proto.SerializeToString(), model.values)))
            return model
    proto, values = pickle.loads(file.read_bytes())
    return Graph(ModelProto.FromString(proto), values)


def _uncollected(make: Callable[[], Graph]) -> Graph:
    """A tenth of the exporter's time is spent on searching what it has just made for garbage."""
    gc.disable()
    try:
        return make()
    finally:
        gc.enable()


def _without_weights(made: Graph, weights: dict[str, Array]) -> Graph:
    """Other values are the memory of the model's buffers, which a test may change."""
    arrays = {name: array.copy() for name, array in made.values.items() if name not in weights}
    return Graph(made.proto, arrays)


def _with_weights(made: Graph, weights: dict[str, Array]) -> Graph:
    proto, values = made.copy().proto, {**made.values}
    for item in proto.graph.initializer:
        if item.name in weights:
            item.dims[:] = weights[item.name].shape
            if item.HasField("raw_data"):
                item.raw_data = weights[item.name].tobytes()
            else:
                values[item.name] = weights[item.name]
    for info in proto.graph.value_info:
        if info.name in weights:
            sizes = zip(info.type.tensor_type.shape.dim, weights[info.name].shape, strict=True)
            for dim, size in sizes:
                dim.dim_value = size
    return Graph(proto, values)


def _digest(model: nn.Module, weights: dict[str, Array], *arguments: int) -> str:
    """A digest of all that the exporter looks at: classes, attributes and buffers; of weights their
    shapes, which of them are equal, and what is the same everywhere in one, such as zeros. Models
    whose TABLES differ in their rows alone have one."""
    digest = sha256(repr(arguments).encode())
    for name, module in model.named_modules():
        if name.startswith(HEADS):
            continue
        public = {key: value for key, value in vars(module).items() if not key.startswith("_")}
        if "config" in public:
            public["config"] = _without_rows(public["config"])
        if name in TABLES:
            del public["num_embeddings"]
        digest.update(repr((name, type(module), public)).encode())
    first: dict[tuple[str, bytes], str] = {}
    for name, array in weights.items():
        shape = array.shape[1:] if name.partition(".")[0] in TABLES else array.shape
        kind, values = f"{array.dtype}{shape}", array.tobytes()
        digest.update(f"{name} {kind} {first.setdefault((kind, values), name)}".encode())
        if values == values[: array.itemsize] * array.size:
            digest.update(values[: array.itemsize])
    for name, tensor in model.named_buffers():
        if not name.startswith(HEADS):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()


def _without_rows(config: Config) -> dict[str, Any]:
    """The fields that graphs of bodies depend on."""
    fields = {**vars(config), "type_vocab_size": config.type_vocab_size > 1}
    without = ["heads", "vocab_size"]
    if replace(config.positions, added="learned") == Positions():  # nothing but a table
        without.append("max_positions")
    return {name: value for name, value in fields.items() if name not in without}
