"""Every file that a graph takes weights from is found, wherever and however the graph says it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from addnorm.service.engine.files import files_beside


def outside(location: str = "w.bin") -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("offset", "0"), ("location", location), ("length", "4")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def constant(tensor: TensorProto) -> NodeProto:
    return helper.make_node("Constant", [], ["w"], value=tensor)


def graph(**parts: object) -> GraphProto:
    return GraphProto(name="graph", **parts)  # type: ignore[arg-type]


def node_of(**parts: object) -> NodeProto:
    return NodeProto(op_type="If", attribute=[AttributeProto(name="a", **parts)])  # type: ignore[arg-type]


def sparse(**parts: object) -> list[object]:
    sparse_tensor = helper.make_sparse_tensor(
        TensorProto(dims=[1], data_type=1, float_data=[1.0]),
        TensorProto(dims=[1], data_type=7, int64_data=[0]),
        [1],
    )
    sparse_tensor.MergeFrom(type(sparse_tensor)(**parts))  # type: ignore[arg-type]
    return [sparse_tensor]


def in_function() -> ModelProto:
    model = ModelProto(graph=graph())
    model.functions.add(name="f").node.append(constant(outside()))
    return model


def in_training() -> ModelProto:
    model = ModelProto(graph=graph())
    model.training_info.add().algorithm.initializer.append(outside())
    return model


PLACES: dict[str, Callable[[], ModelProto]] = {
    "initializer": lambda: ModelProto(graph=graph(initializer=[outside()])),
    "constant": lambda: ModelProto(graph=graph(node=[constant(outside())])),
    "tensors of an attribute": lambda: ModelProto(graph=graph(node=[node_of(tensors=[outside()])])),
    "branch": lambda: ModelProto(
        graph=graph(
            node=[node_of(g=graph(node=[node_of(graphs=[graph(initializer=[outside()])])]))]
        )
    ),
    "sparse initializer": lambda: ModelProto(
        graph=graph(sparse_initializer=sparse(values=outside()))
    ),
    "indices": lambda: ModelProto(graph=graph(sparse_initializer=sparse(indices=outside()))),
    "sparse attribute": lambda: ModelProto(
        graph=graph(node=[node_of(sparse_tensor=sparse(values=outside())[0])])
    ),
    "function": in_function,
    "training": in_training,
}


def found(content: bytes, folder: Path) -> set[str]:
    (folder / "model.onnx").write_bytes(content)
    return files_beside(folder / "model.onnx")


@pytest.mark.parametrize("place", PLACES)
def test_weights_outside_are_found_wherever_they_stand(place: str, tmp_path: Path) -> None:
    assert found(PLACES[place]().SerializeToString(), tmp_path) == {"w.bin"}


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def with_entry(entry: bytes) -> bytes:
    """A model whose one initializer has this entry of its external data."""
    return field(7, field(5, field(13, entry)))


KEY, VALUE = field(1, b"location"), field(2, b"w.bin")


@pytest.mark.parametrize(
    "entry",
    [
        KEY + VALUE,
        VALUE + KEY,
        KEY + field(2, b"listed.data") + VALUE,
        field(1, b"offset") + KEY + VALUE,
        b"\x0a\x88\x00location" + VALUE,
        b"\x8a\x00\x08location" + VALUE,
        field(3, b"\x6a\x1b" + KEY + field(2, b"a.data")) + KEY + VALUE,
    ],
    ids=["usual", "value first", "two values", "two keys", "long length", "long tag", "a decoy"],
)
def test_an_entry_means_what_protobuf_takes_it_for(entry: bytes, tmp_path: Path) -> None:
    entry_of_graph = ModelProto.FromString(with_entry(entry)).graph.initializer[0].external_data[0]
    assert (entry_of_graph.key, entry_of_graph.value) == ("location", "w.bin")
    assert found(with_entry(entry), tmp_path) == {"w.bin"}


def test_names_that_only_look_like_it_are_none(tmp_path: Path) -> None:
    model = ModelProto(graph=graph(node=[helper.make_node("Add", ["location"], ["allocation"])]))
    assert found(model.SerializeToString(), tmp_path) == set()
    assert found(b"", tmp_path) == set()


@pytest.mark.parametrize("content", [b"\x3a\x7f" + KEY, b"\x3b" + KEY, KEY + b"\xff" * 11])
def test_what_is_no_graph_is_said_to_be_none(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a field|a number"):
        found(content, tmp_path)
