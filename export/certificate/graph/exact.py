"""Compares what must be exact: every weight, attribute and node. Runs no graph.

    manifest    shape and limits: as in the reference's Config
    weights     every float constant: the bits of the reference's state_dict, in fp16 rounded; int8
                within rounding, and the constants of its formula
    attributes  of norms, activations, attention and products: as in the reference's Config
    ranges      those that int8 was made with: equal to new ones up to rounding
    graph       node by node: as in an export of the reference; for fp16, `to_half` of that, and for
                int8, `quantize`
    types       the fp16 graph is the fp32 one, but for the types of its numbers

The first three and the last know nothing of the exporter's steps, so they show their mistakes.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxscript
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from torch import nn

from addnorm.export.certificate.graph import attributes, places, portable_nodes, structure
from addnorm.export.graphs import half_precision, model_file, quantize
from addnorm.export.graphs.all_graphs import Graphs
from addnorm.export.graphs.model_file import Graph
from addnorm.model.config import Config
from addnorm.model.grid import OPSET
from addnorm.model.layout import LAYOUTS
from addnorm.model.transformer import Transformer
from addnorm.service.engine.batch import Floats
from addnorm.service.engine.bundle import GPU_GRAPH, LENS, Bundle
from addnorm.service.engine.manifest import Int8, Manifest

Array = NDArray[Any]
RANGES = "model.int8.ranges.safetensors"
OLDER_INT8 = (
    "an older version of addnorm wrote its int8 graph. It is served as before, but cannot be"
    " verified here: verify it with that version, or export it again"
)
INT8_STEPS, FLOAT_ROWS = 0.501, 1e-5  # rounding is half a step
# of the column's range or the mean of all, whichever is larger; processors differ by some 1e-6
RANGES_RTOL = 1e-4
ONE_ELEMENT = 1  # a float constant of this size need not be in the state_dict: it is in the code


@dataclass(frozen=True)
class Files:
    """The graphs of a bundle as they lie on disk, and the ranges that int8 was made with."""

    bodies: dict[str, Graph]  # by precision
    gpu: Graph | None  # fp32 as a GPU runs it
    lens: Graph | None
    heads: dict[str, Graph]  # by output
    ranges: dict[str, Floats]

    @classmethod
    def read(cls, bundle: Bundle) -> "Files":
        """ValueError for what is no graph, and for data files that the manifest does not know."""
        file_names = bundle.manifest.files
        bodies = {name: _load(bundle, bundle.graph(name)) for name in bundle.manifest.precisions}
        made_apart = () if bundle.manifest.as_it_is else bundle.manifest.heads
        heads = {name: _load(bundle, bundle.head(name)) for name in made_apart}
        gpu, lens = (
            _load(bundle, bundle.path / name, bundle.graph("fp32")) if name in file_names else None
            for name in (GPU_GRAPH, LENS)
        )
        ranges = load_file(bundle.path / RANGES) if RANGES in file_names else {}
        return cls(bodies, gpu, lens, heads, ranges)


def _load(bundle: Bundle, path: Path, owner: Path | None = None) -> Graph:
    graph = model_file.load(path, owner)
    data_name = model_file.data_file(owner or path).name
    if graph.values and data_name not in bundle.manifest.files:
        raise ValueError(f"the manifest has no sha256 of {data_name}")
    return graph


@dataclass(frozen=True)
class Expected:
    """The graphs that those files must hold, by the exporter installed here."""

    reference: Transformer
    graphs: Graphs  # fp32
    ranges: dict[str, Floats]  # measured here; empty without int8

    @classmethod
    def export(cls, reference: Transformer, manifest: Manifest) -> "Expected":
        twin = copy.copy(reference)  # the same weights
        twin.layout = LAYOUTS[manifest.layout]
        graphs = Graphs.export(twin, lens=LENS in manifest.files).clip(manifest.clipped_layers)
        has_int8 = "int8" in manifest.precisions
        ranges = quantize.measure(graphs.body, manifest.limits) if has_int8 else {}
        return cls(reference, graphs, ranges)


def heads(config: Config) -> dict[str, dict[str, Any]]:
    """The heads as the manifest has them."""
    return {name: {"pick": head.pick, "width": head.width} for name, head in config.heads.items()}


def versions() -> dict[str, str]:
    """The packages that decide what a graph looks like."""
    return {
        "torch": torch.__version__,
        "onnx": onnx.__version__,
        "onnxscript": onnxscript.__version__,
        "onnxruntime": onnxruntime.__version__,
    }


Finding = tuple[tuple[str, str], list[str]]  # (precision, comparison), and what differs, in words


def compare(files: Files, expected: Expected, manifest: Manifest) -> Iterator[Finding]:
    """Every comparison, the cheapest first, with an empty list where nothing differs."""
    config, is_packed = expected.reference.config, manifest.layout == "packed"
    yield ("fp32", "manifest"), _manifest(manifest, config)
    yield from _heads(files.heads, expected, is_packed)
    for precision, body in files.bodies.items():
        yield (precision, "weights"), compare_weights(body, expected.reference, leaving="heads.")
        portable = is_packed and precision != "fp16"
        yield (precision, "attributes"), [*attributes.body(body, config, precision, portable)]
        if precision == "int8":
            yield from compare_int8(files, expected.graphs.body, expected.ranges, manifest)
            continue
        is_half = precision == "fp16"
        expected_body = (
            half_precision.to_half(expected.graphs.plain) if is_half else expected.graphs.body
        )
        yield (precision, "graph"), [*structure.differences(body, expected_body)]
        if is_half:
            yield (precision, "types"), [*beyond_types(body, expected.graphs.plain)]
    for name, graph, expected_graph in (
        ("gpu", files.gpu, expected.graphs.plain),
        ("lens", files.lens, expected.graphs.lens),
    ):
        if graph and expected_graph:
            weights = compare_weights(graph, expected.reference, leaving="heads.")
            yield ("fp32", f"{name}, weights"), weights
            comparison = attributes.body(graph, config, "fp32", portable=name == "lens")
            yield ("fp32", f"{name}, attributes"), [*comparison]
            yield ("fp32", f"{name}, graph"), [*structure.differences(graph, expected_graph)]


def beyond_types(half: Graph, fp32: Graph) -> Iterator[str]:
    """Nodes and constants in which both differ by more than the types of numbers."""
    nodes = zip_longest(_typeless_nodes(half), _typeless_nodes(fp32), fillvalue="nothing")
    for node, expected_node in nodes:
        if node != expected_node:
            yield f"there is {node}, where fp32 has {expected_node}"
            return  # all that follow are displaced
    values = fp32.constants()
    for name, value in half.constants().items():
        if name in half_precision.RANGE:
            expected_value = np.array(half_precision.RANGE[name], np.float32)
        elif (base := half_precision.typeless(name)) in values:
            is_half = value.dtype == np.float16
            expected_value = half_precision.round_to_half(values[base]) if is_half else values[base]
        else:
            yield f"{name} is not in fp32"
            continue
        if not _same_bits(value, expected_value):
            yield f"{name} differs from fp32{_where(value, expected_value)}"


def _typeless_nodes(graph: Graph) -> Iterator[str]:
    """Operator, inputs, outputs and attributes of each node, without casts and marks of types."""
    for node in structure.nodes(graph.proto.graph):
        inputs, outputs = (
            [*map(half_precision.typeless, names)] for names in (node.input, node.output)
        )
        if node.op_type == "Cast" and inputs == outputs:
            continue
        if node.op_type == "Clip" and inputs == [*outputs, *half_precision.RANGE]:
            continue
        # nodes of a graph that is an attribute come by themselves
        bodies = {attribute.name for attribute in node.attribute if attribute.HasField("g")}
        fields = {
            name: value
            for name, value in sorted(structure.attributes(node).items())
            if name not in bodies | {"softmax_precision"}
        }
        yield f"{node.op_type} of {inputs} to {outputs}, {fields}"


def compare_int8(
    files: Files, fp32: Graph, measured: Mapping[str, Floats], manifest: Manifest
) -> Iterator[Finding]:
    """The int8 graph is what `quantize` makes of the fp32 one by the stored ranges, and those are
    the ones measured here."""
    body, in_fp32 = files.bodies["int8"], {*manifest.int8.float_weights}
    ranges = {name: columns for name, columns in measured.items() if name not in in_fp32}
    unknown = [
        f"{name} is listed as fp32, but there is no such matrix"
        for name in sorted(in_fp32 - {quantize.TABLE, *measured})
    ]
    yield ("int8", "ranges"), [*unknown, *_ranges(files.ranges, ranges)]
    if files.ranges.keys() != ranges.keys():
        yield ("int8", "graph"), ["cannot be recomputed without its ranges"]
        return
    expected_graph = quantize.quantize(fp32, files.ranges, with_table=quantize.TABLE not in in_fp32)
    if quantize.TABLE in body.constants().keys() - expected_graph.constants().keys():
        yield ("int8", "graph"), [OLDER_INT8]
        return
    yield ("int8", "graph"), [*structure.differences(body, expected_graph)]


def _heads(heads: dict[str, Graph], expected: Expected, portable: bool) -> Iterator[Finding]:
    modules, config = dict(expected.reference.named_heads()), expected.reference.config
    if heads.keys() != modules.keys():
        words = f"the bundle has heads of {sorted(heads)}, {sorted(modules)} expected"
        yield ("fp32", "heads"), [words]
        return
    for name, head in heads.items():
        yield ("fp32", f"{name}, weights"), compare_weights(head, modules[name])
        settings = config.heads[name]
        yield ("fp32", f"{name}, attributes"), [*attributes.head(head, config, settings, portable)]
        graph = [*structure.differences(head, expected.graphs.heads[name])]
        yield ("fp32", f"{name}, graph"), graph


def _manifest(manifest: Manifest, config: Config) -> list[str]:
    """Fields of the manifest that differ from the model."""
    stored = {
        **manifest.model_dump(include={"config", "d_model", "n_norms", "opset", "heads"}),
        **dict(manifest.limits),
    }
    expected = {
        "config": json.loads(json.dumps(asdict(config))),
        "d_model": config.d_model,
        "n_norms": config.n_norms,
        "opset": OPSET,
        "heads": heads(config),
        "max_positions": config.max_positions,
        "vocab_size": config.vocab_size,
        "type_vocab_size": config.type_vocab_size,
    }
    differing = [
        f"{name} is {stored[name]}, {value} expected"
        for name, value in expected.items()
        if stored[name] != value
    ]
    # what int8 needs of onnxruntime, as exporters have written it since they wrote it down
    needs = quantize.needs(manifest.precisions)
    int8 = manifest.int8.model_copy(update={"float_weights": (), "keep_recall": None})
    if int8 == needs:
        return differing
    if int8 == Int8():
        return [*differing, OLDER_INT8]
    return [*differing, f"int8 is {manifest.int8!r}, {needs!r} expected"]


def compare_weights(graph: Graph, reference: nn.Module, leaving: str = " ") -> list[str]:
    """leaving: what the names begin with that belong to another graph."""
    state = {
        name: tensor.numpy()
        for name, tensor in reference.state_dict().items()
        if not name.startswith(leaving)
    }
    config = reference.config if isinstance(reference, Transformer) else None
    try:
        return [*_weights_of(graph, state, config)]
    except (LookupError, TypeError, ValueError, onnx.checker.ValidationError) as error:
        return [f"its constants cannot be read: {error}"]


def _weights_of(graph: Graph, state: Mapping[str, Array], config: Config | None) -> Iterator[str]:
    """Every tensor of the state_dict, and every float constant that is more than one number.
    config: of a body, whose tables of angles are no weights.

    The exporter leaves out a bias of zeros, and keeps one of several equal tensors.
    """
    constants = graph.constants()
    parts, halves = quantize.read_parts(constants), half_precision.read_weights(constants)
    table = quantize.split_table(state[quantize.TABLE]) if quantize.ROWS in constants else {}
    formula = {name: quantize.CONSTANTS[name] for name in quantize.CONSTANTS if name in constants}
    for name, value in (*table.items(), *formula.items()):
        if not _same_bits(constants[name], value):
            yield f"{name} differs from the reference{_where(constants[name], value)}"
    for name, tensor in state.items():
        if name == quantize.TABLE and table and name not in constants:
            continue
        if uses := [use for use in parts if quantize.weight_of(use) == name]:
            for use in uses:
                yield from _int8(use, parts[use], tensor, state)
            # a product of constants reads the weight itself
            if name in constants and not _same_bits(constants[name], tensor):
                yield f"{name} differs from the reference{_where(constants[name], tensor)}"
        elif name in constants:
            if not _same_bits(constants[name], tensor):
                yield f"{name} differs from the reference{_where(constants[name], tensor)}"
        elif name in halves:
            if not _same_bits(halves[name], expected := half_precision.round_to_half(tensor)):
                yield f"{name} differs from the reference{_where(halves[name], expected)}"
        else:
            # the parts of a quantized weight hold its bias
            is_in_parts = name.removesuffix("bias") + "weight" in parts
            if name.endswith(".bias") and (is_in_parts or not tensor.any()):
                continue
            candidates = state.keys() & (constants.keys() | halves.keys())
            if not any(_same_bits(state[candidate], tensor) for candidate in candidates):
                yield f"{name} is missing"
    expected_names = {
        *state,
        *(f"{name}{half_precision.SUFFIX}" for name in state),
        *table,
        *(f"{name}.{part}" for name in parts for part in quantize.Parts.__dataclass_fields__),
    }
    for name, value in constants.items():
        is_weight = value.dtype.kind == "f" and value.size > ONE_ELEMENT
        if name in expected_names or not is_weight or portable_nodes.is_of_a_formula(value):
            continue
        if config is None or not places.is_table(value, config):
            yield f"{name} does not occur in the reference"


def _int8(
    name: str, parts: quantize.Parts, weight: Array, state: Mapping[str, Array]
) -> Iterator[str]:
    """Finds one wrong column scale, which is within the noise of the outputs, and what would
    saturate in 16 bits."""
    if (
        pair := int(quantize.largest_pairs(parts.weight.astype(np.int64)).max())
    ) > quantize.MAX_PAIR:
        yield f"{name}: neighbours add up to {pair}, {quantize.MAX_PAIR} allowed"
    bias = quantize.weight_of(name).removesuffix("weight") + "bias"
    floats, expected = parts.rest[: len(parts.columns)], weight.T[parts.columns]
    if not _same_bits(floats, expected):
        yield f"{name}: float rows differ from the reference{_where(floats, expected)}"
    steps, sums = parts.deviation(weight.T, state.get(bias, 0.0))
    for entries, gap, unit, limit in (
        ("int8 entries", steps, " steps", INT8_STEPS),
        ("rows of sums and bias", sums, "", FLOAT_ROWS),
    ):
        if not gap <= limit:
            yield f"{name}: {entries} are up to {gap:.3g}{unit} from the reference, {limit} allowed"


def _ranges(stored: Mapping[str, Floats], measured: Mapping[str, Floats]) -> Iterator[str]:
    """Compared as `quantize.split` reads them: a range below the mean counts as the mean."""
    if stored.keys() != measured.keys():
        yield f"there are ranges of {len(stored)} weights, {len(measured)} expected"
        return
    for name, expected in measured.items():
        got = stored[name]
        if _kind(got) != _kind(expected):
            yield f"{name} has ranges {_kind(got)}, {_kind(expected)} expected"
            continue
        limits = RANGES_RTOL * np.maximum(expected, expected.mean())
        if not (np.abs(got - expected) <= limits).all():
            yield f"the ranges of {name} are not those measured here{_where(got, expected)}"


def _same_bits(first: Array, second: Array) -> bool:
    """Bit for bit: as integers, because a NaN is unlike itself and -0 like 0."""
    if _kind(first) != _kind(second):
        return False
    bits = f"u{first.itemsize}"
    return np.array_equal(first.view(bits), second.view(bits))


def _kind(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _where(got: Array, expected: Array) -> str:
    """The first entry that differs."""
    if _kind(got) != _kind(expected):
        return f": {_kind(got)}, {_kind(expected)} expected"
    index = tuple(np.argwhere(~(got == expected))[:1].flatten().tolist())
    if not index:
        return " in the sign of a zero"
    return f" at {list(index)}: {got[index]}, {expected[index]} expected"
