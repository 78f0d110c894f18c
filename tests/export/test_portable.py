"""Graphs of portable operators: as PyTorch computes, and equal bits alone and in company."""

import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper, numpy_helper
from onnxruntime import InferenceSession, SessionOptions

from addnorm.export.certificate.graph import attributes, portable_nodes, structure
from addnorm.export.graphs import all_graphs, far_scores
from addnorm.export.graphs import graph as graph_module
from addnorm.export.graphs.half_precision import to_half
from addnorm.export.graphs.model_file import Graph
from addnorm.export.graphs.packed_attention import num_parts
from addnorm.export.graphs.portable import LANES, lane_sums, make_portable
from addnorm.model.config import Bands, Config, Disentangled, Positions, Rotary
from addnorm.model.norms import LayerNorm
from addnorm.model.presets import PRESETS
from addnorm.model.transformer import Transformer, randomize
from addnorm.service.engine.manifest import Limits
from tests.support.bundles import change_constant

SMALL = Config(vocab_size=50, d_model=64, n_heads=2, d_ff=64, n_layers=1, max_positions=300)
DISTANCES = replace(
    SMALL,
    n_layers=2,
    eps=1e-7,
    positions=Positions("none", disentangled=Disentangled(span=16, farthest=90)),
)
BIASED = replace(
    SMALL, d_model=160, n_heads=1, norm="std", norm_bias=False, activation="silu",
    positions=Positions(buckets=8),
)  # fmt: skip
CONFIGS = {  # what no preset has: those are certified
    "relative bias, unbiased deviation, no beta, heads in two parts": BIASED,
    "shared keys of two parts": replace(
        SMALL, n_heads=4, n_kv_heads=2, d_head=160, norm="rms", norm_bias=False, qk_norm=True,
        activation="relu",
    ),
    "distances": DISTANCES,
    "distances of keys alone, heads in two parts": replace(DISTANCES, n_layers=1, d_model=160,
     n_heads=1,
     positions=Positions(disentangled=Disentangled(20, c2p=False, shared=False, norm=False))),
}  # fmt: skip
LENGTHS = [3, 140, 1, 17, 270]
# where windows of 64 and blocks of 128 begin and end
EDGES = [1, 63, 64, 65, 66, 127, 128, 129, 130, 192, 193, 256, 257, 258, 17, 2, 300]
ROTARY = Positions("none", Rotary(160_000.0, 10_000.0))
LOCAL = replace(
    SMALL, d_model=128, n_kv_heads=1, n_layers=2, max_positions=2049, block="pre", first_norm=False,
    embedding_norm=True, final_norm=True, norm_bias=False, attention_bias=False, gated=True,
    ffn_bias="none", positions=ROTARY, window=64, local_layers=(1,),
)  # fmt: skip


def session(graph: Graph) -> InferenceSession:
    options = SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    proto = graph.copy().proto
    for item in proto.graph.initializer:
        if item.name in graph.values:
            item.ClearField("data_location")
            item.raw_data = graph.values[item.name].tobytes()
    return InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def grid(lengths: list[int]) -> dict[str, np.ndarray]:
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    ids = np.random.default_rng(max(lengths)).integers(0, 50, mask.shape)
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_portable_graph_computes_what_pytorch_does(config: Config) -> None:
    same_alone_and_together(config, LENGTHS)


def test_windows_of_shared_keys_give_equal_bits_at_every_length_in_any_company() -> None:
    same_alone_and_together(LOCAL, EDGES)
    same_alone_and_together(LOCAL, [2049, 130, 1])


SHARED = replace(
    SMALL, n_heads=4, n_kv_heads=2, d_head=32, norm="rms", norm_bias=False,
    qk_norm=True, block="pre", causal=True, final_norm=True, attention_bias=False, gated=True,
    ffn_bias="none", activation="silu",
    positions=Positions("none", Rotary(1e6, bands=Bands(8.0, 1.0, 4.0, trained=500))),
)  # fmt: skip


def test_shared_keys_give_equal_bits_in_any_company() -> None:
    same_alone_and_together(SHARED, LENGTHS)


def test_a_norm_of_another_square_and_keys_of_another_head_are_found(
    graphs: dict[str, Graph],
) -> None:
    twin = graphs["shared keys"].copy()
    roots = {node.output[0] for node in twin.proto.graph.node if node.op_type == "Sqrt"}
    scaled = next(node for node in twin.proto.graph.node if {*node.input} & roots)
    scaled.input[0] = "tokens.weight"
    differences = "; ".join(attributes.body(twin, SHARED, "fp32", portable=True))
    assert "is not divided by the root of its mean square" in differences
    twin = graphs["shared keys"].copy()
    for item in twin.proto.graph.initializer:
        if item.name == "portable.[[0],[0],[1],[1]]":
            item.raw_data = np.array([[0], [1], [0], [1]]).tobytes()
    differences = "; ".join(attributes.body(twin, SHARED, "fp32", portable=True))
    assert "heads of queries read the keys [0, 1, 0, 1]" in differences


def distances(**fields: Any) -> dict[str, Any]:
    shape = DISTANCES.positions.disentangled
    assert shape
    return {"positions": replace(DISTANCES.positions, disentangled=replace(shape, **fields))}


NAMED = {"windows": LOCAL, "shared keys": SHARED, "distances": DISTANCES}
UNLIKE: list[tuple[str, dict[str, Any], str]] = [  # what is changed of its Config, what is said
    ("shared keys", {"n_kv_heads": 1}, "'kv_heads': 2, .*, 'kv_heads': 1, .* expected"),
    ("shared keys", {"eps": 1e-6}, r"\(RMSNorm\) has eps 9.99.*e-06, 9.99.*e-07 expected"),
    ("shared keys", {"norm": "layer"}, "is not a LayerNorm: .* not by Sub"),
    ("shared keys", {"norm": "std"}, r"the norms add \[\] to the deviation"),
    ("shared keys", {"qk_norm": False}, "Sqrt occurs 5 times, 3 expected"),
    ("shared keys", {"d_head": 64, "n_kv_heads": None}, r"RMSNorms are of \[32, 32, .* expected"),
    ("shared keys", {"positions": Positions("none", Rotary(1e6))},
     "layer 0: rotary.local.cos is not cos of the places' angles"),
    ("windows", {"positions": Positions("none", Rotary(160_000.0, 10_010.0))},
     "layer 1: rotary.local.cos is not cos of the places' angles"),
    ("windows", {"positions": Positions("none")}, "2 layers rotate queries and keys, 0 expected"),
    ("windows", {"window": 63}, r"distances are compared with \[64\], \[63\] expected"),
    ("windows", {"local_layers": (0, 1), "positions": replace(ROTARY, rotary=Rotary(10_000.0))},
     r"'local': False\}, \{.*'local': True\} expected"),
    ("windows", {"gated": False}, "2 rows are split in halves, 0 expected"),
    ("distances", distances(farthest=91), "distances have other vectors than those of the Config"),
    ("distances", distances(c2p=False),
     r"'terms': \['c2p', 'p2c'\].*'terms': \['p2c'\].* expected"),
    ("distances", distances(norm=False), "Sqrt occurs 5 times, 4 expected"),
    ("distances", {"positions": Positions("none")},
     r"'terms': \['c2p', 'p2c'\].*'terms': \[\].* expected"),
]  # fmt: skip


@pytest.fixture(scope="module")
def graphs() -> dict[str, Graph]:
    graphs = {name: graph_of(config) for name, config in NAMED.items()}
    for name, config in NAMED.items():
        assert [*attributes.body(graphs[name], config, "fp32", portable=True)] == []
    return graphs


@pytest.mark.parametrize(("name", "changed", "message"), UNLIKE)
def test_what_a_graph_computes_is_read_back(
    graphs: dict[str, Graph], name: str, changed: dict[str, Any], message: str
) -> None:
    config = replace(NAMED[name], **changed)
    differences = attributes.body(graphs[name], config, "fp32", portable=True)
    assert re.search(message, "; ".join(differences))


@pytest.mark.parametrize("name", NAMED)
def test_graphs_of_the_layout_padded_are_read_back_too(name: str) -> None:
    config = NAMED[name]
    graph = graph_of(config, "padded")
    assert [*attributes.body(graph, config, "fp32", portable=False)] == []
    for changed in [{"eps": 1e-3}, *(changed for of, changed, _ in UNLIKE if of == name)]:
        assert [*attributes.body(graph, replace(config, **changed), "fp32", portable=False)], (
            changed
        )
    if name != "distances":
        assert [*attributes.body(to_half(graph), config, "fp16", portable=False)] == []


def test_a_lens_of_terms_of_distances_is_read_back_too() -> None:
    """An export that kept one width had a table of its distances alone. Its scores are clipped as
    those of the body are."""
    model = model_of(replace(DISTANCES, n_layers=1))
    lens = make_portable(graph_module.export_lens(model))
    for graph in (lens, far_scores.clip(lens, (0,))):
        assert [*attributes.body(graph, model.config, "fp32", portable=True)] == []


def test_swapped_terms_of_distances_are_found(graphs: dict[str, Graph]) -> None:
    """Queries times what keys are multiplied with, and the other way round."""
    twin = graphs["distances"].copy()
    scan = next(node for node in twin.proto.graph.node if node.op_type == "Scan")
    body = next(item.g for item in scan.attribute if item.name == "body")
    first, second = (node for node in body.node if node.op_type == "Gather")
    first.input[1], second.input[1] = second.input[1], first.input[1]
    assert [*attributes.body(twin, DISTANCES, "fp32", portable=True)]


def test_a_constant_times_one_column_is_found(graphs: dict[str, Graph]) -> None:
    """A session computes it when it is made, and by another way on ARM."""
    twin = graphs["distances"].copy()
    item = next(it for it in twin.proto.graph.initializer if it.name.endswith("_x64"))
    assert item.dims == [LANES, 64]
    item.CopyFrom(numpy_helper.from_array(np.full((LANES, 1), 1 / 64, np.float32), item.name))
    assert len([*portable_nodes.foreign_operators(twin)]) == 2  # of the mean, of the variance


@pytest.mark.parametrize("kind", ["Sub", "Split"])
def test_a_turned_rotation_and_a_swapped_gate_are_found(
    graphs: dict[str, Graph], kind: str
) -> None:
    """b sin - a cos; act(second) * first."""
    twin = graphs["windows"].copy()
    nodes = [node for node in twin.proto.graph.node if node.op_type == kind]
    if kind == "Split":
        names = nodes[0].output[:]
        del nodes[0].output[:]
        nodes[0].output.extend(names[::-1])
    for node in nodes if kind == "Sub" else []:
        names = node.input[:]
        del node.input[:]
        node.input.extend(names[::-1])
    assert [*attributes.body(twin, LOCAL, "fp32", portable=True)] != []


def model_of(config: Config, layout: str = "packed") -> Transformer:
    return randomize(Transformer(config, layout), seed=1).eval()


def graph_of(config: Config, layout: str = "packed") -> Graph:
    return all_graphs.Graphs.export(model_of(config, layout), lens=False).body


def same_alone_and_together(config: Config, lengths: list[int]) -> None:
    model, graph = model_of(config), graph_of(config)
    assert [*portable_nodes.foreign_operators(graph)] == []
    run, given = session(graph).run, grid(lengths)
    with torch.no_grad():
        expected = model(*map(torch.from_numpy, given.values()))
    rows = run(None, given)
    for ours, theirs in zip(rows, expected, strict=True):
        assert np.abs(ours - theirs.numpy()).max() <= 1e-5 * np.abs(theirs.numpy()).max()
    for index, length in enumerate(lengths):
        alone = run(None, {name: x[index : index + 1, :length] for name, x in given.items()})
        for one, all_of_them in zip(alone, rows, strict=True):
            assert one[0].tobytes() == all_of_them[index, :length].tobytes()


@cache
def norm(width: int, eps: float) -> InferenceSession:
    """rows `[n, width]` -> y, mean and rstd of a portable LayerNorm."""

    class Norm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = LayerNorm(width, eps)

        def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.norm(rows)  # type: ignore[no-any-return]

    shapes = {"rows": {0: torch.export.Dim("n")}}
    rows, outputs = (torch.zeros(2, width),), ["y", "mean", "rstd"]
    return session(
        make_portable(graph_module.export_module(Norm(), rows, ["rows"], outputs, shapes))
    )


@pytest.mark.parametrize(("shift", "outlier"), [(0, 0), (0, 3000), (100, 0)])
def test_norms_are_exact_at_outliers_and_far_from_zero(shift: float, outlier: float) -> None:
    """x is shifted by so many deviations, and one of its numbers is replaced."""
    x = np.random.default_rng(0).standard_normal((50, 384)).astype(np.float32) + np.float32(shift)
    if outlier:
        x[:, 7] = outlier
    exact = x.astype(np.float64)
    mean, deviation = exact.mean(1, keepdims=True), exact.std(1, keepdims=True)
    y, found_mean, rstd = norm(384, eps=1e-12).run(None, {"rows": x})
    expected = (exact - mean) / deviation
    assert np.abs(y - expected).max() <= 1e-5 * np.abs(expected).max()
    assert (np.abs(found_mean - mean) <= 3e-5 * deviation).all()
    assert np.abs(rstd * deviation - 1).max() <= 1e-5


def test_parts_and_partial_sums() -> None:
    assert [num_parts(dims) for dims in (1, 64, 128, 130, 256, 384)] == [1, 1, 1, 2, 2, 3]
    assert lane_sums(48).sum(0).tolist() == [3.0] * 16
    assert lane_sums(48).sum(1).tolist() == [1.0] * 48
    assert lane_sums(20).sum() == 20


def limits_of(config: Config) -> Limits:
    return Limits(max_positions=config.max_positions, vocab_size=config.vocab_size)


def with_far_scores(config: Config, layer: int, factor: float) -> Transformer:
    """Queries of this layer times the factor."""
    model = model_of(config)
    queries = config.n_heads * config.head_dims
    with torch.no_grad():
        model.blocks[layer].attention.qkv.weight[:queries] *= factor
        model.blocks[layer].attention.qkv.bias[:queries] *= factor
    return model


def lowest_exponents(graph: Graph, given: dict[str, np.ndarray]) -> list[float]:
    """The smallest exponent of each layer."""
    probe = graph.copy()
    for scan in [node for node in probe.proto.graph.node if node.op_type == "Scan"]:
        body = next(item.g for item in scan.attribute if item.name == "body")
        power = next(node.input[0] for node in body.node if node.op_type == "Exp")
        body.node.append(helper.make_node("Identity", [power], [f"{scan.name}.seen"]))
        body.output.append(helper.make_empty_tensor_value_info(f"{scan.name}.seen"))
        scan.output.append(f"{scan.name}.power")
        probe.proto.graph.output.append(helper.make_empty_tensor_value_info(scan.output[-1]))
    rows = session(probe).run(None, given)
    return [float(x.min()) for x in rows[len(graph.proto.graph.output) :]]


def test_scores_far_apart_are_clipped_where_they_are_and_change_no_bit() -> None:
    config, given = PRESETS["postnorm"], grid(LENGTHS)
    graphs = all_graphs.Graphs.export(with_far_scores(config, 1, 120.0), lens=False)
    layers = far_scores.layers(graphs.body, limits_of(config))
    assert layers == (1,)
    before = lowest_exponents(graphs.body, given)
    assert before[1] < -95
    assert before[0] > far_scores.FAR
    clipped = graphs.clip(layers)
    assert lowest_exponents(clipped.body, given) == [before[0], -87.0]
    for one, other in zip(
        session(graphs.body).run(None, given), session(clipped.body).run(None, given), strict=True
    ):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    "config",
    [SHARED, LOCAL, BIASED],
    ids=["causal", "windows", "relative bias"],
)
def test_masked_keys_that_are_clipped_weigh_nothing_and_no_bit_changes(config: Config) -> None:
    limits = limits_of(replace(config, max_positions=300))
    graphs = all_graphs.Graphs.export(model_of(config), lens=False)
    assert far_scores.layers(graphs.body, limits) == ()  # unless they are named
    layers = tuple(range(config.n_layers)) if config.causal else config.local_layers or (0,)
    assert far_scores.layers(graphs.body, limits, layers) == layers
    clipped, given = graphs.clip(layers), grid(LENGTHS)
    lowest = lowest_exponents(clipped.body, given)
    assert [exponent for layer, exponent in enumerate(lowest) if layer in layers] == [-87.0] * len(
        layers
    )
    assert [*attributes.body(clipped.body, config, "fp32", portable=True)] == []
    for one, other in zip(
        session(graphs.body).run(None, given), session(clipped.body).run(None, given), strict=True
    ):
        assert one.tobytes() == other.tobytes()


def test_a_clip_at_another_number_and_masked_keys_that_weigh_something_are_found(
    graphs: dict[str, Graph],
) -> None:
    far = all_graphs.Graphs.export(with_far_scores(BIASED, 0, 120.0), lens=False).clip((0,)).body
    assert [*attributes.body(far, BIASED, "fp32", portable=True)] == []
    change_constant(far.proto, "portable.-87.0", lambda _: -8)
    differences = "; ".join(attributes.body(far, BIASED, "fp32", portable=True))
    assert "clips scores at a number other than -87.0" in differences
    clipped = far_scores.clip(graphs["shared keys"], (0,))
    masked = graphs["shared keys"].copy()
    masked.proto.graph.initializer.append(
        numpy_helper.from_array(np.array(-87, np.float32), "floor")
    )
    scan = next(node for node in masked.proto.graph.node if node.op_type == "Scan")
    body = next(item.g for item in scan.attribute if item.name == "body")
    power = next(node for node in body.node if node.op_type == "Exp")
    clip = helper.make_node("Clip", [power.input[0], "floor"], ["clipped"], "clip")
    body.node.insert([*body.node].index(power), clip)
    power.input[0] = "clipped"
    differences = "; ".join(attributes.body(masked, SHARED, "fp32", portable=True))
    assert "is of masked scores that are clipped, which do not count as 0" in differences
    threshold = next(
        node for node in structure.nodes(clipped.proto.graph) if node.op_type == "ThresholdedRelu"
    )
    threshold.attribute[0].f = 1e-38
    differences = "; ".join(attributes.body(clipped, SHARED, "fp32", portable=True))
    assert "which do not count as 0" in differences
    threshold.op_type = "Identity"
    del threshold.attribute[:]
    assert "count as 0" in "; ".join(attributes.body(clipped, SHARED, "fp32", portable=True))
