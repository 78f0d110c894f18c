"""Exports that tests share: PyTorch's exporter takes seconds, and repeats itself."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from hashlib import sha256
from types import ModuleType
from unittest import mock

from torch import nn

from addnorm.export import writer
from addnorm.export.certificate import exact
from addnorm.export.model_file import Graph

Export = Callable[..., Graph]
HEADS = "heads"  # their names begin so
_known: dict[tuple[str, str, str], Graph] = {}


@contextmanager
def shared_exports() -> Iterator[None]:
    """Runs PyTorch's exporter once per model for the writer, and once for the certificate.

    The certificate still compares a written graph with a fresh export, since each has its own.
    Not for tests that patch the model's code: the key is the model's classes and values.
    """
    with ExitStack() as stack:
        for module in (writer, exact):
            for name in ("export_body", "export_head"):
                stack.enter_context(mock.patch.object(module, name, _remembering(module, name)))
        yield


def _remembering(module: ModuleType, name: str) -> Export:
    run: Export = getattr(module, name)

    def export(model: nn.Module, *arguments: int) -> Graph:
        key = module.__name__, name, _digest(model, *arguments)
        if key not in _known:
            made = run(model, *arguments)
            # a graph's values are the model's memory, which a test may change
            values = {name: array.copy() for name, array in made.values.items()}
            _known[key] = Graph(made.proto, values)
        return _known[key].copy()

    return export


def _digest(model: nn.Module, *arguments: int) -> str:
    """Of all that the exporter sees: classes, attributes, weights and buffers. It sees heads alone,
    so that models with different heads share a body.
    """
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
