"""Mistakes of the exporter, which stand in what it writes and in what that is compared with: one
changed number, attribute, node, input or output, by one step of an export.

A mistake that is certified must give equal bits on seeded random batches (two nodes that traded
places, say).
"""

import copy
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from safetensors.numpy import save_file
from torch import nn
from transformers import BertConfig, BertForMaskedLM
from transformers.utils.logging import disable_progress_bar

from addnorm.export import sources
from addnorm.export.certificate import as_written, parity
from addnorm.export.certificate.graph import exact, structure
from addnorm.export.certificate.graph.exact import Expected, Files
from addnorm.export.exporting import export
from addnorm.export.graphs import half_precision, model_file, quantize
from addnorm.export.graphs.authors import Exported, export_graph
from addnorm.export.graphs.model_file import Graph
from addnorm.export.graphs.portable import make_portable
from addnorm.export.graphs.steady import steady
from addnorm.export.reference.modules import open_module
from addnorm.export.reference.reference import Reference
from addnorm.export.sources import Source
from addnorm.export.wishes import Wishes
from addnorm.export.writer import GRAPHS
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine import selfcheck
from addnorm.service.engine.batch import Grid
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.engine import Engine
from addnorm.service.engine.model import Model
from tests.support.bundles import hashed_anew
from tests.support.exports import source_of
from tests.support.families import LARGER, made, save
from tests.support.people.generators import GENERATORS
from tests.support.people.kinds import KINDS as KINDS_OF_MODULES
from tests.support.people.unrecognized import Gated
from tests.support.texts import WORDS, tokenizer

ALL = ("fp32", "fp16", "int8")
AUTHORS = {  # with eps, factors and masks of their own, an LSTM, rotary tables
    "gated": Gated,
    "electra": KINDS_OF_MODULES["ELECTRA"],
    "t5": KINDS_OF_MODULES["T5 encoder"],
    "lstm": KINDS_OF_MODULES["LSTM and attention"],
    "gemma": GENERATORS["Gemma"],
}
SIBLINGS = (  # operators of the same arity, each of which may stand in another's place
    ("Add", "Sub", "Mul", "Div", "Max"),
    ("Relu", "Gelu", "Sqrt", "Reciprocal", "Neg", "Tanh", "Abs", "Identity"),
    ("Less", "LessOrEqual", "Equal", "Greater"), ("And", "Or", "Xor"),
    ("ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean"), ("Unsqueeze", "Squeeze"),
)  # fmt: skip
NEW_ATTRIBUTES = {
    "Attention": ("softcap", 50.0),
    "Gemm": ("alpha", 1.001),
    "LayerNormalization": ("epsilon", 3e-4),
}
WEIGHTS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8)
BATCHES = 20  # random batches that prove bits equal
STEPS = {"fp16": "to_half", "int8": "quantize"}  # that write a precision
Change = Callable[[ModelProto], str]


@dataclass(frozen=True)
class Subject:
    """A certified bundle, and what it is compared with."""

    bundle: Bundle
    files: Files
    expected: Expected

    @classmethod
    def of(cls, bundle: Bundle, source: Source) -> "Subject":
        files = Files.read(bundle)
        bodies = {precision: whole(body) for precision, body in files.bodies.items()}
        expected = Expected.export(source.in_layout("padded"), bundle.manifest)
        return cls(bundle, replace(files, bodies=bodies), expected)

    @property
    def steps(self) -> tuple[str, ...]:
        """The functions of an export that may err, by their names or the heads that they write."""
        others = [STEPS[name] for name in self.files.bodies if name in STEPS]
        return "export_body", "make_portable", *others, *self.files.heads

    def mistaken(self, step: str, change: Change) -> "Mutant":
        """The step errs, and all that follows from it. Raises what the exporter raises there."""
        graphs, words = self.expected.graphs, list[str]()

        def err(graph: Graph) -> Graph:
            changed = whole(graph)
            words.append(change(changed.proto))
            return changed

        precision = next((name for name in STEPS if STEPS[name] == step), "fp32")
        if step == "export_body":
            plain = err(graphs.plain)
            graphs = replace(graphs, plain=plain, body=make_portable(plain))
        elif step == "make_portable":
            graphs = replace(graphs, body=err(graphs.body))
        elif step in graphs.heads:
            graphs = replace(graphs, heads={**graphs.heads, step: err(graphs.heads[step])})
        body = graphs.body
        if precision != "fp32":
            body = err(self.files.bodies[precision])
        gpu = graphs.plain if self.files.gpu else None
        files = replace(self.files, bodies={precision: body}, gpu=gpu, heads=graphs.heads)
        return Mutant(
            self,
            f"{self.bundle.ref}, {step}: {words[0]}",
            files,
            replace(self.expected, graphs=graphs),
        )


def whole(graph: Graph) -> Graph:
    """The same with all constants in its message, also those that lie in a second file."""
    proto = graph.copy().proto
    for item in proto.graph.initializer:
        item.CopyFrom(numpy_helper.from_array(graph.value(item), item.name))
    return Graph(proto)


@dataclass(frozen=True)
class Mutant:
    """words: what was done. files: what was written. expected: what that is compared with."""

    subject: Subject
    words: str
    files: Files
    expected: Expected

    def verdict(self) -> str:
        """The comparison that refuses it first; else "equal bits" or "SURVIVED"."""
        manifest, (precision, body) = self.subject.bundle.manifest, *self.files.bodies.items()
        with ExitStack() as erring:
            if precision in STEPS:
                owner = {"fp16": half_precision, "int8": quantize}[precision]
                errs = mock.patch.object(owner, STEPS[precision], return_value=body)
                erring.enter_context(errs)
            try:
                for (_, comparison), words in exact.compare(self.files, self.expected, manifest):
                    if words:
                        return comparison.rpartition(", ")[2]
            except KeyError:  # what it is compared with is no graph: the export ends by an error
                return "not written"
        with tempfile.TemporaryDirectory() as folder:
            bundle = write(self, Path(folder) / "mutant")
            try:
                model = Model(bundle)
                parity.compare_answers(model, source_of(self.expected.reference))
            except Exception:  # whatever onnxruntime or the certificate says: it is not served
                return "answers"
            return "equal bits" if equal_bits(self.subject.bundle, bundle) else "SURVIVED"


@dataclass(frozen=True)
class AuthorsSubject:
    """A graph as its authors wrote it, certified."""

    bundle: Bundle
    reference: Reference
    exported: Exported

    steps = ("export_graph", "steady")

    def mistaken(self, step: str, change: Change) -> "AuthorsMutant":
        graph = whole(self.exported.graph)
        if step == "export_graph":
            words = change(graph.proto)
            graph = steady(graph)
        else:
            graph = whole(steady(graph))
            words = change(graph.proto)
        return AuthorsMutant(self, f"{self.bundle.ref}, {step}: {words}", graph)


@dataclass(frozen=True)
class AuthorsMutant:
    """graph: what was written."""

    subject: AuthorsSubject
    words: str
    graph: Graph

    def verdict(self) -> str:
        subject = self.subject
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "mutant"
            shutil.copytree(subject.bundle.path, place)
            model_file.save(self.graph, place / GRAPHS["fp32"])
            bundle = hashed_anew(replace(subject.bundle, path=place))
            exported = replace(subject.exported, graph=self.graph)
            try:
                as_written.certificate_of(bundle, subject.reference, exported)
            except Exception as error:  # whatever onnxruntime or the certificate says
                comparison = str(error).partition(" (fp32): ")[0]
                return comparison if comparison in ("weights", "numbers") else "answers"
            return "equal bits" if equal_rows(subject.bundle, bundle) else "SURVIVED"


def element(draws: random.Random, model: ModelProto) -> str:
    """One number of a weight times 1.001; one int8 number by one step."""
    item = draws.choice([item for item in model.graph.initializer if _is_weight(item)])
    return change_one(draws, item)


def row(draws: random.Random, model: ModelProto) -> str:
    """A row of a weight, or a whole vector, zeroed."""
    item = draws.choice([item for item in model.graph.initializer if _is_weight(item)])
    values = numpy_helper.to_array(item).copy()
    rows = values.reshape(-1, values.shape[-1])
    index = draws.randrange(len(rows))
    rows[index] = 0
    return _put(item, values, f"{item.name}[{index}] = 0")


def constant(draws: random.Random, model: ModelProto) -> str:
    """One number of a shape, an axis, an index, or of what stands in the model's code."""
    return change_one(
        draws, draws.choice([item for item in model.graph.initializer if not _is_weight(item)])
    )


def attribute(draws: random.Random, model: ModelProto) -> str:
    """Changed, dropped, or one more."""
    node = draws.choice([node for node in structure.nodes(model.graph) if node.attribute])
    if node.op_type in NEW_ATTRIBUTES and draws.random() < 0.2:
        name, value = NEW_ATTRIBUTES[node.op_type]
        kept = [item for item in node.attribute if item.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, value)])
        return f"{node.name}: {name} = {value}"
    item = draws.choice(list(node.attribute))
    if draws.random() < 0.2:
        node.attribute.remove(item)
        return f"{node.name}: without {item.name}"
    return f"{node.name}: {_change_attribute(draws, item)}"


def node(draws: random.Random, model: ModelProto) -> str:
    """Another operator in its place, gone, doubled, or at its neighbour's place."""
    graph = model.graph
    index = draws.randrange(len(graph.node) - 1) if len(graph.node) > 1 else 0
    target = graph.node[index]
    act = draws.choice(["other", "other", "gone", "double", "neighbour"])
    if act == "other":
        family = next((family for family in SIBLINGS if target.op_type in family), ())
        if not family:
            return ""
        before, target.op_type = (
            target.op_type,
            draws.choice([name for name in family if name != target.op_type]),
        )
        return f"{target.name}: {target.op_type} for {before}"
    if act == "double":
        twin = graph.node.add()
        twin.CopyFrom(target)
        twin.name = f"{target.name} again"
        del twin.output[:]
        twin.output.extend(f"{name} again" if name else "" for name in target.output)
        return f"{target.name} twice"
    nodes = list(graph.node)
    if act == "gone":
        if not target.input:
            return ""
        _rename(nodes, target.output[0], target.input[0])
        nodes.remove(target)
    elif len(nodes) > 1:
        nodes[index], nodes[index + 1] = nodes[index + 1], nodes[index]
    kept = [copy.deepcopy(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)
    return f"{target.name} {act}"


def input_(draws: random.Random, model: ModelProto) -> str:
    """Two inputs of a node swapped, or one read from elsewhere."""
    graph, nodes = model.graph, list(structure.nodes(model.graph))
    index = draws.choice([index for index, node in enumerate(nodes) if node.input])
    target = nodes[index]
    place = draws.randrange(len(target.input))
    if len(target.input) > 1 and draws.random() < 0.5:
        other = (place + 1) % len(target.input)
        target.input[place], target.input[other] = target.input[other], target.input[place]
        return f"{target.name}: inputs {place} and {other} swapped"
    names = [name for node in nodes[:index] for name in node.output if name]
    names += [item.name for item in (*graph.initializer, *graph.input)]
    target.input[place] = draws.choice(names)
    return f"{target.name}: input {place} is {target.input[place]}"


def output(draws: random.Random, model: ModelProto) -> str:
    """Two outputs of the graph, of a node, or of two nodes swapped."""
    graph = model.graph
    act = draws.choice(["graph", "node", "nodes"])
    if act == "graph" and len(graph.output) > 1:
        one, other = draws.sample(range(len(graph.output)), 2)
        graph.output[one].name, graph.output[other].name = (
            graph.output[other].name,
            graph.output[one].name,
        )
        return f"outputs {one} and {other} of the graph swapped"
    several = [node for node in graph.node if len(node.output) > 1]
    if act == "node" and several:
        output_node = draws.choice(several)
        one, other = draws.sample(range(len(output_node.output)), 2)
        output_node.output[one], output_node.output[other] = (
            output_node.output[other],
            output_node.output[one],
        )
        return f"{output_node.name}: outputs {one} and {other} swapped"
    if len(graph.node) < 2:
        return ""
    left, right = draws.sample(list(graph.node), 2)
    left.output[0], right.output[0] = right.output[0], left.output[0]
    return f"first outputs of {left.name} and {right.name} swapped"


KINDS: dict[str, Callable[[random.Random, ModelProto], str]] = {
    "element x 1.001": element,
    "row zeroed": row,
    "attribute": attribute,
    "node": node,
    "input": input_,
    "constant": constant,
    "output": output,
}


def mutants(
    subjects: Sequence[Subject | AuthorsSubject], count: int, seed: int
) -> Iterator[tuple[str, Mutant | AuthorsMutant | None]]:
    """Kinds and mistakes of it, `count` in all, each kind and each subject in turn. None where the
    exporter raises: nothing is written."""
    draws, num_mutants = random.Random(seed), 0
    kinds = list(KINDS)
    while num_mutants < count:
        subject, kind = (
            subjects[num_mutants % len(subjects)],
            kinds[num_mutants // len(subjects) % len(kinds)],
        )
        step, change = draws.choice(subject.steps), _Change(kind, draws)
        try:
            mutant = subject.mistaken(step, change)
        except Exception:  # of a step that follows, or nothing of that kind is in this graph
            mutant = None
        if change.words:
            num_mutants += 1
            yield kind, mutant


class _Change:
    """A change of a kind. words: of it; empty where it does not fit, or changes nothing."""

    def __init__(self, kind: str, draws: random.Random) -> None:
        self._change, self._draws, self.words = KINDS[kind], draws, ""

    def __call__(self, model: ModelProto) -> str:
        before = model.SerializeToString(deterministic=True)
        words = self._change(self._draws, model)
        if model.SerializeToString(deterministic=True) != before:
            self.words = words
        return words


def write(mutant: Mutant, place: Path) -> Bundle:
    """The bundle on disk, its hashes made anew, in the precisions of the mutant."""
    shutil.copytree(mutant.subject.bundle.path, place)
    for precision, body in mutant.files.bodies.items():
        model_file.save(body, place / GRAPHS[precision])
    for output, head in mutant.files.heads.items():
        model_file.save(head, place / bundles.head_file(output))
    if mutant.files.ranges:
        save_file(mutant.files.ranges, place / exact.RANGES)
    precisions = {name: GRAPHS[name] for name in mutant.files.bodies}
    fields = {"precisions": precisions, "default_precision": next(iter(precisions))}
    return hashed_anew(replace(mutant.subject.bundle, path=place), **fields)


def equal_bits(one: Bundle, other: Bundle) -> bool:
    """Whether both give the same bytes on random batches: all outputs and precisions, the heads."""
    draws, limits = np.random.default_rng(0), one.manifest.limits
    for precision in other.manifest.precisions:
        left, right = (Engine(bundle, precision) for bundle in (one, other))
        for _ in range(BATCHES):
            shape = (
                int(draws.integers(1, 7)),
                int(draws.integers(1, min(limits.max_positions, 48) + 1)),
            )
            ids, mask = draws.integers(0, limits.vocab_size, shape), draws.integers(0, 2, shape)
            answers = [engine.run_grid(Grid(ids, mask)) for engine in (left, right)]
            if any(a.tobytes() != b.tobytes() for a, b in zip(*answers, strict=True)):
                return False
            rows = draws.normal(size=(5, left.d_model)).astype(np.float32)
            for output in one.manifest.heads:
                if left.head(output, rows).tobytes() != right.head(output, rows).tobytes():
                    return False
    return True


def equal_rows(one: Bundle, other: Bundle) -> bool:
    """Whether both authors' graphs give the same bytes for random sequences."""
    draws, limits = np.random.default_rng(0), one.manifest.limits
    lengths = [int(n) for n in draws.integers(1, min(limits.max_positions, 48) + 1, BATCHES)]
    left, right = (Model(bundle).engine("fp32") for bundle in (one, other))
    batch = selfcheck.sequences(limits, lengths)
    pairs = zip(left.run(batch), right.run(batch), strict=True)
    return all(a.tobytes() == b.tobytes() for a, b in pairs)


def change_one(draws: random.Random, item: TensorProto) -> str:
    """One number x 1.001, or by one where it is whole; "" if that is the same number."""
    values = numpy_helper.to_array(item).copy()
    index = draws.randrange(values.size)
    before = values.flat[index]
    if values.dtype.kind == "f":
        values.flat[index] = before * np.float32(1.001)
    else:
        step = draws.choice([-1, 1])
        values.flat[index] = (
            before - step if before + step > np.iinfo(values.dtype).max else before + step
        )
    return _put(item, values, f"{item.name}[{index}] = {values.flat[index]} for {before}")


def _put(item: TensorProto, values: Any, words: str) -> str:
    if values.tobytes() == numpy_helper.to_array(item).tobytes():
        return ""
    item.CopyFrom(numpy_helper.from_array(values, item.name))
    return words


def _is_weight(item: TensorProto) -> bool:
    return item.data_type in WEIGHTS and np.prod(item.dims) > 1


def _change_attribute(draws: random.Random, item: AttributeProto) -> str:
    before = helper.get_attribute_value(item)
    if item.type == AttributeProto.FLOAT:
        item.f *= draws.choice([1.001, 0.0, 30.0, -1.0])
    elif item.type == AttributeProto.INT:
        item.i = draws.choice([item.i + 1, item.i - 1, 1 - item.i])
    elif item.type == AttributeProto.STRING:
        item.s = {b"tanh": b"none", b"none": b"tanh"}.get(item.s, item.s + b"x")
    else:
        values = list(item.ints)
        del item.ints[:]
        item.ints.extend(
            reversed(values) if len(set(values)) > 1 else [value + 1 for value in values]
        )
    return f"{item.name} = {helper.get_attribute_value(item)} for {before}"


def _rename(nodes: list[NodeProto], before: str, after: str) -> None:
    for item in nodes:
        for place, name in enumerate(item.input):
            if name == before:
                item.input[place] = after


def checkpoint(folder: Path) -> Path:
    """A two-layer BERT with a language model's head and a tokenizer, every parameter drawn."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=64,
    )  # fmt: skip
    disable_progress_bar()
    model = BertForMaskedLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def subjects(folder: Path) -> Iterator[Subject]:
    """The models of the campaign, exported and certified."""
    windowed = made("ModernBertForTokenClassification", **LARGER["ModernBert"])
    shared = made("Qwen3ForTokenClassification", **LARGER["Qwen3"])
    disentangled = made("DebertaV2Model", **{**LARGER["DebertaV2"], "num_hidden_layers": 2})
    chosen = [
        (sources.preset("notebook"), ("fp32", "fp16")),  # int8 does not pay there
        (sources.preset("gpt"), ALL),
        (sources.preset("postnorm"), ALL),
        (sources.checkpoint(checkpoint(folder / "two-layer-bert")), ALL),
        (sources.checkpoint(save(windowed, folder / "windowed")), ALL),
        (sources.checkpoint(save(shared, folder / "shared-keys")), ALL),
        (sources.checkpoint(save(disentangled, folder / "disentangled")), ALL),
    ]
    for source, precisions in chosen:
        source = replace(source, wishes=Wishes(precisions=precisions))
        yield Subject.of(export(source, folder, source.name), source)


def authors_subjects(folder: Path) -> Iterator[AuthorsSubject]:
    """Modules of people, as their authors wrote them."""
    for name, make in AUTHORS.items():
        torch.manual_seed(0)
        yield authors_subject(make(), folder, name)


def authors_subject(module: nn.Module, folder: Path, name: str) -> AuthorsSubject:
    reference = open_module(module.eval())
    return AuthorsSubject(export(reference, folder, name), reference, export_graph(reference))
