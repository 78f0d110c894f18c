"""Modules that are not recognized are served as they are: their own graph, in every company."""

import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest
import torch
from onnxruntime import InferenceSession
from safetensors.numpy import load
from torch import Tensor, nn

from addnorm.export import ExportError, export_bundle, verify_bundle
from addnorm.export.reference.asking import Asking, unwrap, vocab_size
from addnorm.export.reference.modules import open_module
from addnorm.export.wishes import Wishes
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.batch import Batch
from addnorm.service.engine.model import Model
from addnorm.service.engine.own_engine import OwnEngine
from addnorm.service.server.table import PROTOCOLS
from addnorm.service.server.wiring import Service
from addnorm.service.wire.codec.safetensors_body import SAFETENSORS
from addnorm.service.wire.route import Route
from tests.conftest import client_of, inference_of
from tests.support import grpc_client
from tests.support.bundles import hashed_anew
from tests.support.exports import fresh_exports
from tests.support.grpc_client import GrpcClient
from tests.support.people.examples import padded_left
from tests.support.people.unrecognized import (
    LONGEST,
    Autocast,
    Branching,
    BranchingLate,
    Broken,
    Choosing,
    D,
    Gated,
    Loop,
    Normalized,
    Packed,
    Places,
    Random,
    SequenceFirst,
    Several,
    Shaped,
    Unservable,
    Untraceable,
    V,
)

MODULES = {"by-token": Gated, "by-sequence": Normalized, "several": Several}
ROWS = [[3, 4, 5], [9], [7, 8, 9, 10, 11], [5, 4, 3], [2] * 40]


def short() -> nn.Module:
    """Its rows of tokens have the length 1 at most."""
    module = Gated()
    module.tokens = nn.Embedding(V, D, max_norm=1.0)
    return module


def on_the_instance() -> nn.Module:
    """Called in another way, as adapters do."""
    module = Gated()
    own, up = module.forward, nn.Linear(5, 7)
    module.up, module.forward = up, lambda ids: up(own(ids))  # type: ignore[method-assign]
    return module


def quantized() -> nn.Module:
    """A module as `quantize_dynamic` leaves it, which is deprecated."""
    module = Gated()
    with warnings.catch_warnings(action="ignore"):
        module.head = torch.ao.nn.quantized.dynamic.Linear(D, 5)  # type: ignore[assignment]
    return module


class Louder(nn.TransformerEncoderLayer):
    """PyTorch's fast path does not call it."""

    def _ff_block(self, x: Tensor) -> Tensor:
        return 2 * super()._ff_block(x)


class Hashed(Gated):
    """Reads a smaller table too, at ids modulo its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Embedding(7, D)

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) + self.small(ids % 7).sum(-1, keepdim=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles of a tensor for each token, of one for the sequence, and of several."""
    root = tmp_path_factory.mktemp("as-it-is")
    for name, module in MODULES.items():
        export_bundle(module(), root, name, outputs=["rows", "first"] if name == "several" else [])
    return root


def answered(module: nn.Module, row: list[int], *more: Tensor) -> Any:
    with torch.no_grad():
        return module.eval()(torch.tensor([row]), *more)


def test_what_it_answers_is_served_whatever_the_padding_and_the_company(root: Path) -> None:
    by_token, by_sequence, several = (module() for module in MODULES.values())
    for name in ("by-token", "by-sequence"):
        assert bundles.read(root / name / "1").tasks == ()
    bundle = bundles.read(root / "several" / "1")
    assert bundle.manifest.limits.max_positions == LONGEST
    assert bundle.manifest.limits.vocab_size == V
    created = (bundle.certificate or {})["created"] = "2020-01-01T00:00:00+00:00"
    bundles.write_certificate(bundle, bundle.certificate or {})
    with fresh_exports():
        again = verify_bundle(bundle.path, several).certificate or {}
    assert again["created"] == created, "its files are as they were"
    with pytest.raises(ExportError, match=r"was exported from .*, but this model is"):
        verify_bundle(bundle.path, by_token)
    with client_of(inference_of(root)) as client:

        def outputs(model: str, **body: Any) -> dict[str, Any]:
            answer = client.post("/v1/infer", json={"model": model, **body})
            assert answer.status_code == 200, answer.text
            about = ("model", "version", "usage")
            return {name: own for name, own in answer.json().items() if name not in about}

        def ask(model: str, **body: Any) -> Any:
            return outputs(model, **body)["output"]

        for name, module in (("by-token", by_token), ("by-sequence", by_sequence)):
            together = ask(name, input_ids=ROWS)
            padded = ask(name, **padded_left(ROWS))
            for row, own, among_pads in zip(ROWS, together, padded, strict=True):
                (alone,) = ask(name, input_ids=[row])
                kept = among_pads[-len(row) :] if name == "by-token" else among_pads
                assert own == alone == kept
                expected = answered(module, row)[0].numpy()
                np.testing.assert_allclose(own, expected, atol=1e-5)
        pads = np.array(ask("by-token", **padded_left(ROWS))[1])
        assert not pads[:-1].any()
        assert pads[-1].any()
        types = [[1, 0, 1]]
        answers = outputs("several", input_ids=[[3, 4, 5]], token_type_ids=types)
        expected = answered(several, [3, 4, 5], torch.ones(1, 3), torch.tensor(types))
        assert [*answers] == ["rows", "first"], "tensors of float32 by their names"
        for tensor, values in answers.items():
            np.testing.assert_allclose(values, expected[tensor], atol=1e-5)
        padded = outputs("several", **padded_left([[9], [3, 4, 5]]))
        together = outputs("several", input_ids=[[9], [3, 4, 5]])
        assert padded["first"] == together["first"] == [rows[0] for rows in together["rows"]]
        assert [padded["rows"][0][-1:], padded["rows"][1][-3:]] == together["rows"]
        entry = client.get("/v1/models/by-token").json()
        assert (entry["outputs"], entry["tasks"]) == (["output"], [])
        for path, body, words in (
            ("/v1/infer", {"input_ids": [[V]]}, f"ids of by-token/1 are 0 to {V - 1}"),
            ("/v1/infer", {"input_ids": [[1] * (LONGEST + 1)]}, "the limit of by-token/1 is"),
            ("/v1/infer", {"input_ids": [[1]], "outputs": ["pooled"]}, "by-token/1 has output"),
            ("/v1/embeddings", {"input": [[1, 2]]}, "it has no pooled"),
        ):
            refused = client.post(path, json={"model": "by-token", **body})
            assert refused.status_code == 400
            assert words in refused.text
        shown = client.get("/v2/models/several").json()["outputs"]
        assert [(entry["name"], entry["shape"]) for entry in shown] == [
            ("rows", [-1, -1, 5]), ("first", [-1, 5]),
        ]  # fmt: skip
        tensor = {"name": "input_ids", "shape": [1, 1], "datatype": "INT64", "data": [9]}
        body = {"inputs": [tensor], "outputs": [{"name": "first"}]}
        (only,) = client.post("/v2/models/several/infer", json=body).json()["outputs"]
        np.testing.assert_array_equal(np.float32(only["data"]), np.float32(padded["first"][0]))
        shown = client.get("/v2/models/by-sequence").json()["outputs"]
        assert shown == [{"name": "output", "datatype": "FP32", "shape": [-1, 5]}]
        tensor = {"name": "input_ids", "shape": [1, 3], "datatype": "INT64", "data": [3, 4, 5]}
        answer = client.post("/v2/models/by-sequence/infer", json={"inputs": [tensor]}).json()
        own = np.array(answer["outputs"][0]["data"], np.float32)
        assert (
            own.tobytes()
            == np.array(ask("by-sequence", input_ids=[[3, 4, 5]])[0], np.float32).tobytes()
        )


LETTERS = {"a": 3, "b": 4, "c": 5}
SHAPES = {"rows": [-1, -1, 5], "scores": [-1, -1], "mean": [-1, 5], "odds": [-1]}


@pytest.fixture(scope="module")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a tensor of each shape, and its copy as exporters wrote it before."""
    out = tmp_path_factory.mktemp("shaped")
    few = {"max_positions": 8}
    export_bundle(Shaped(), out, "shaped", as_it_is=True, config=few, vocabulary=LETTERS)
    shutil.copytree(out / "shaped", out / "older")
    bundle = bundles.read(out / "older/1")
    tensors = [
        tensor.model_dump(exclude={"row_shape"}) for tensor in bundle.manifest.as_it_is or ()
    ]
    older = hashed_anew(bundle, name="older", as_it_is=tensors)
    certificate = {**(bundle.certificate or {}), "bundle": older.ref}
    bundles.write_certificate(older, {**certificate, "manifest_sha256": older.manifest_sha256})
    return out


@pytest.fixture(scope="module")
def shaped_service(shaped: Path) -> Service:
    return inference_of(shaped, grpc_port=0)


@pytest.fixture(scope="module")
def client(shaped_service: Service) -> Iterator[httpx.Client]:
    with client_of(shaped_service) as client:
        yield client


def sizes(values: Any) -> list[int]:
    return [*np.array(values).shape]


def test_each_tensor_is_an_output_with_the_shape_that_the_module_gives(
    client: httpx.Client,
) -> None:
    row, expected = [3, 4, 5], answered(Shaped(), [3, 4, 5])
    body = {"model": "shaped", "input_ids": [row]}
    answer = client.post("/v1/infer", json=body).json()
    assert [*answer] == ["model", "version", *SHAPES, "usage"], "by default all, in their order"
    for name, values in expected.items():
        np.testing.assert_allclose(answer[name], values, atol=1e-5)
        assert sizes(answer[name]) == [*values.shape]
    some = client.post("/v1/infer", json={**body, "outputs": ["odds", "scores"]}).json()
    assert {name: some[name] for name in ("odds", "scores")} == {
        name: answer[name] for name in ("odds", "scores")
    }
    assert not {"rows", "mean", "output"} & some.keys()
    assert client.get("/v1/models/shaped").json()["outputs"] == [*SHAPES]
    grid = {"input_ids": [[*row, 0], [0] * 4], "attention_mask": [[1, 1, 1, 0], [0] * 4]}
    padded = client.post("/v1/infer", json={**body, **grid}).json()
    assert {name: sizes(padded[name]) for name in SHAPES} == {
        "rows": [2, 4, 5], "scores": [2, 4], "mean": [2, 5], "odds": [2],
    }  # fmt: skip
    assert padded["scores"] == [[*answer["scores"][0], 0], [0] * 4]
    assert padded["odds"] == [*answer["odds"], 0]
    half = {"dtype": "float16", "outputs": ["scores"]}
    as_tensors = {"accept": SAFETENSORS}
    tensors = load(client.post("/v1/infer", json=body, headers=as_tensors).content)
    assert {name: [*values.shape] for name, values in tensors.items()} == {
        "rows": [3, 5], "scores": [3], "mean": [1, 5], "odds": [1], "lengths": [1],
    }  # fmt: skip
    small = load(client.post("/v1/infer", json={**body, **half}, headers=as_tensors).content)
    assert small["scores"].tolist() == tensors["scores"].astype(np.float16).tolist()
    unknown = client.post("/v1/infer", json={**body, "outputs": ["output"]})
    assert unknown.status_code == 400
    assert f"shaped/1 has {', '.join(SHAPES)}" in unknown.json()["error"]["message"]


@pytest.mark.parametrize("binary", [False, True])
def test_v2_tells_and_sends_the_same_shapes(
    client: httpx.Client, shaped_service: Service, binary: bool
) -> None:
    about = client.get("/v2/models/shaped").json()["outputs"]
    assert {output["name"]: output["shape"] for output in about} == SHAPES
    config = client.get("/v2/models/shaped/config").json()["output"]
    assert {output["name"]: output["dims"] for output in config} == {
        name: shape[1:] for name, shape in SHAPES.items()
    }
    ids = np.array([[3, 4, 5], [6, 7, 8]])
    native = client.post("/v1/infer", json={"model": "shaped", "input_ids": ids.tolist()}).json()
    tensor = {"name": "input_ids", "shape": [2, 3], "datatype": "INT64", "data": ids.tolist()}
    body = {"inputs": [tensor], "parameters": {"binary_data_output": binary}}
    answer = client.post("/v2/models/shaped/infer", json=body)
    length = int(answer.headers.get("inference-header-content-length", len(answer.content)))
    tail, shapes = answer.content[length:], dict[str, list[int]]()
    for output in json.loads(answer.content[:length])["outputs"]:
        shapes[output["name"]] = output["shape"]
        if binary:
            size = output["parameters"]["binary_data_size"]
            output["data"], tail = np.frombuffer(tail[:size], np.float32), tail[size:]
        values = np.array(output["data"], np.float32).reshape(output["shape"])
        assert values.tobytes() == np.array(native[output["name"]], np.float32).tobytes()
    expected = {"rows": [2, 3, 5], "scores": [2, 3], "mean": [2, 5], "odds": [2]}
    assert shapes == expected
    call = GrpcClient(shaped_service.grpc.port)
    sent = grpc_client.inputs(binary, input_ids=(ids, "INT64"))
    arrays = grpc_client.tensors(call("ModelInfer", model_name="shaped", **sent))
    assert {name: [*values.shape] for name, values in arrays.items()} == expected
    outputs_listed = call("ModelMetadata", name="shaped").outputs
    assert {output.name: [*output.shape] for output in outputs_listed} == SHAPES
    call.close()
    texts = {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["abc", "a"]}
    answer = client.post("/v2/models/shaped/infer", json={"inputs": [texts]})
    shapes = {output["name"]: output["shape"] for output in answer.json()["outputs"]}
    assert shapes == expected, "texts without logits or vectors get every tensor too"


def test_older_bundles_are_served_as_they_were(client: httpx.Client, shaped: Path) -> None:
    body = {"model": "older", "input_ids": [[3, 4, 5]]}
    (output,) = client.get("/v1/models/older").json()["outputs"]
    parts = client.post("/v1/infer", json={**body, "outputs": [output]}).json()["output"]
    assert {name: sizes(values) for name, values in parts.items()} == {
        "rows": [1, 3, 5], "scores": [1, 3, 1], "mean": [1, 5], "odds": [1, 1],
    }  # fmt: skip
    newer = client.post("/v1/infer", json={**body, "model": "shaped"}).json()
    assert {name: np.ravel(values).tolist() for name, values in parts.items()} == {
        name: np.ravel(newer[name]).tolist() for name in SHAPES
    }
    about = client.get("/v2/models/older").json()["outputs"]
    assert {each["name"]: each["shape"] for each in about} == {
        **SHAPES, "scores": [-1, -1, 1], "odds": [-1, 1],
    }  # fmt: skip
    verify_bundle(shaped / "older/1", Shaped(), vocabulary=LETTERS)


def test_what_cannot_be_served_ends_the_export_in_words(tmp_path: Path) -> None:
    others = {
        "best": r"best \[2, 3\] and \[2, 5\] of int64", "high": r"high \[2, 3, 5\] .* of bool",
        "heads": r"heads \[2, 3, 3, 5\] .* of float32", "half": r"half \[2, 3, 5\] .* of float16",
        "states": r"states \(a tuple of tensors\)",
    }  # fmt: skip
    way_on = r", which cannot be served: .*with outputs=\['rows'\], or .* reference=lambda ids"
    every = "; ".join(others.values()) + way_on
    for outputs, words in (([], every), *((["rows", n], others[n] + way_on) for n in others)):
        with pytest.raises(ExportError, match=rf"with {words}"):
            export_bundle(Unservable(), tmp_path, "own", as_it_is=True, outputs=outputs)
    place = r"1 \[2, 3\] and \[2, 5\] of int64.*outputs=\['0', '2'\]"
    for outputs, words in (
        ([], place),
        (["rows", "mean"], place),  # names are of places: the second is not the mean
        (["0", "0"], "'0' twice"),
        (["usage"], "'usage' which is the name of another field of answers"),
    ):
        with pytest.raises(ExportError, match=words):
            export_bundle(Places(), tmp_path, "own", as_it_is=True, outputs=outputs)
    assert not list(tmp_path.iterdir())


class Pair(Gated):
    def forward(self, ids: Tensor) -> Any:
        rows = super().forward(ids)
        return rows, None, rows.mean(1)


def test_every_route_says_what_it_is(root: Path) -> None:
    """Also where others list what a model can do, of which there is nothing."""
    with client_of(inference_of((root / "by-token",), admin=True)) as client:
        posts = [route for each in PROTOCOLS for route in each.routes if isinstance(route, Route)]
        for route, model in product(posts, ({"model": "by-token"}, {})):
            path = re.sub(r"\{version[^}]*\}", "1", route.path)
            path = re.sub(r"\{model[^}]*\}", "by-token", path)
            for example in route.examples.values():
                answer = client.post(path, json={**without_model(example), **model})
                assert answer.status_code < 500, (path, answer.text)
                assert not re.search(r'(can|are|has|with|of) *"', answer.text), (path, answer.text)
        for path in ("/info", "/info?model=by-token", "/hf/by-token/info", "/v1/models/by-token"):
            assert client.get(path).status_code == 200
        assert client.get("/info").json()["model_type"] == {"as_it_is": {}}
        ask = {"model": "by-token", "query": "a", "texts": ["b"]}
        message = client.post("/rerank", json=ask).text
        assert (
            "by-token/1 cannot rerank: it is a module without a task: use /v1/infer or KServe V2,"
            " or export it again with a tokenizer and labels=, pooling= or task=" in message
        )
        assert client.post("/api/show", json={"model": "by-token"}).json()["capabilities"] == []
        pin = client.post("/v2/repository/models/by-token/1/pin", json={"x": 1})
        assert "x is unknown; known are none" in pin.text


def without_model(example: Any) -> dict[str, Any]:
    return {name: value for name, value in example.items() if name != "model"}


def test_tensors_are_picked_and_named(tmp_path: Path) -> None:
    few: Any = {"as_it_is": True, "config": {"max_positions": 8}}
    for module, outputs, expected in (
        (Pair(), (), [("0", "token"), ("2", "sequence")]),
        (Pair(), ("scores", "mean"), [("scores", "token"), ("mean", "sequence")]),
        (Places(), ("2",), [("2", "sequence")]),
    ):
        tensors = open_module(module, Wishes(graph="authors", outputs=outputs)).tensors
        assert [(tensor.name, tensor.of) for tensor in tensors.values()] == expected
    bundle = export_bundle(module, tmp_path, "own", outputs=outputs, **few)
    assert [tensor.name for tensor in bundle.manifest.as_it_is or ()] == ["2"]
    verify_bundle(bundle.path, module)
    for module, outputs, words in (
        (Several(), ["last"], "outputs has last, but the module answers with rows, first, ids"),
        (Pair(), ["a", "b", "c"], "outputs has a, b, c, but the module answers with 0, 2"),
    ):
        with pytest.raises(ExportError, match=words):
            export_bundle(module, tmp_path, "own", outputs=outputs)
    bundle = export_bundle(Shaped(), tmp_path, "own", outputs=["odds"], task="rerank", **few)
    assert (bundle.tasks[0], bundle.manifest.heads["logits"].width) == ("rerank", 1)
    verify_bundle(bundle.path, Shaped())
    with pytest.raises(ExportError, match="or outputs or task is set"):
        export_bundle(Pair(), tmp_path, "own", outputs=["a"], as_it_is=False)


def test_without_its_fast_path_pytorch_calls_a_layers_own_methods() -> None:
    layer = Louder(D, 4, 64, batch_first=True)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        assert unwrap(layer) is layer
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_a_layer_whose_norm_has_no_weight_is_taken() -> None:
    layer = nn.TransformerEncoderLayer(D, 4, 64, batch_first=True)
    layer.norm1 = nn.Identity()  # type: ignore[assignment]
    assert unwrap(layer) is layer


def test_ids_are_those_of_the_table_that_is_read_at_all_of_them() -> None:
    module = Hashed()
    assert vocab_size(Asking(module, module)) == V


def test_sequences_run_alone_where_company_changes_bits(root: Path) -> None:
    engine = Model(bundles.read(root / "by-sequence" / "1")).engine(None)
    assert isinstance(engine, OwnEngine)
    sizes, body = list[int](), engine._body

    def run(outputs: list[str], inputs: dict[str, Any], options: Any = None) -> Any:
        sizes.append(len(inputs["input_ids"]))
        return body.run(outputs, inputs, options)

    engine._body = cast(InferenceSession, SimpleNamespace(run=run))
    for runs_alone, expected in ((True, [1, 1, 1, 1]), (False, [1, 2, 1])):
        sizes.clear()
        engine.runs_alone = runs_alone
        engine.run(Batch.of([np.array(row) for row in ROWS[:4]]))
        assert sorted(sizes) == sorted(expected)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Branching, "branches on the length.* forward for 7.* <= 20"),
        (BranchingLate, "41 tokens: the graph's answer differs .* may branch on the length"),
        (Random, "Random gives two different answers to the same sequence: it is random"),
        (lambda: Gated().half(), r"has weights of float16: call \.float\(\)"),
        (lambda: Gated().to("meta"), "is on the meta device"),
        (lambda: nn.Sequential(nn.Embedding(V, D), nn.LazyLinear(4)), "has lazy layers without"),
        (Packed, "pack_padded_sequence removes padding by the values of ids or of a mask"),
        (nn.Module, "Module has no forward"),
        (Choosing, r"tokens: the graph's answer differs .* choose among equal numbers"),
        (Loop, "for one length only: forward turns the length into a Python number"),
        (Autocast, "Autocast computes in bfloat16, as under torch.autocast"),
        (quantized, r"has quantized layers \(Linear\)"),
        (
            lambda: nn.Sequential(nn.Embedding(V, D), Louder(D, 4, 64, batch_first=True)),
            r"Sequential\.1 \(Louder\): .* a fast path, .* answer differs by 0\.\d+ of",
        ),
        (Broken, "answers 7 tokens with NaN or infinity"),
        (lambda: torch.jit.script(nn.Sequential(nn.Embedding(V, D))), "a TorchScript module"),
        (SequenceFirst, "depends on the other sequences in the batch.* set batch_first=False"),
        (lambda: nn.Conv2d(1, 2, 3), "fails on a sequence of"),
        (lambda: nn.Bilinear(4, 4, 4), "forward needs input1, input2: show how it is called"),
    ],
)
def test_what_would_be_served_wrongly_is_refused(
    tmp_path: Path, make: Callable[[], nn.Module], words: str
) -> None:
    with pytest.raises(ExportError, match=words):
        export_bundle(make(), tmp_path, "own", as_it_is=True)
    assert not list(tmp_path.iterdir())


def test_what_an_exporter_writes_for_one_length_is_served_for_all(tmp_path: Path) -> None:
    module = Untraceable()
    bundle = export_bundle(module, tmp_path, "own", config={"max_positions": 40}, as_it_is=True)
    engine = Model(bundle).engine(None)
    for row in ROWS:
        got = engine.run(Batch.of([np.array(row)])).activations
        np.testing.assert_allclose(got, answered(module, row)[0], atol=2e-5)


@pytest.mark.parametrize("make", [short, on_the_instance])
def test_what_each_call_changes_and_what_an_instance_calls_are_served(
    tmp_path: Path, make: Callable[[], nn.Module]
) -> None:
    module = make()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    bundle = export_bundle(module, tmp_path, "own")
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    got = Model(bundle).engine(None).run(Batch.of([np.array(ROWS[2])])).activations
    np.testing.assert_allclose(got, answered(module, ROWS[2])[0], atol=1e-5)


def test_sequences_first_are_served_where_it_is_said(tmp_path: Path) -> None:
    module = SequenceFirst()
    bundle = export_bundle(module, tmp_path, "own", as_it_is=True, batch_first=False)
    got = Model(bundle).engine(None).run(Batch.of([np.array(ROWS[0])])).activations
    with torch.no_grad():
        expected = module.eval()(torch.tensor([ROWS[0]]).T)[:, 0].numpy()
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"precisions": ("fp32", "fp16")}, "no fp16: leave fp16 out"),
        (
            {"task": "reranker"},
            "task is 'reranker', but must be one of embed, rerank, classify, tag",
        ),
        (
            {"precisions": ("fp32", "int8")},
            "int8 does not pay: no weight of the body has at least 32768",
        ),
        ({"labels": ["a", "b"]}, r"2 labels, but Gated answers with \[B, S, 5\]"),
        ({"task": "classify"}, r"task 'classify' needs an answer \[B, labels\]"),
        ({"vocabulary": {"a": V}}, f"the tokenizer has ids up to {V}"),
        ({"config": {"n_heads": 2}}, "config has n_heads"),
    ],
)
def test_options_without_meaning_are_refused(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ExportError, match=words):
        export_bundle(Gated(), tmp_path, "own", as_it_is=True, **options)


class ZerosHidden(nn.Module):
    """A series in which PyTorch's own encoder hides zeros. unit: rows of the length 1 in place of
    it, of which zeros have none."""

    def __init__(self, unit: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(D, 2, 2 * D, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.unit = unit

    def forward(self, x: Tensor) -> Tensor:
        if self.unit:
            return x / x.norm(dim=-1, keepdim=True)
        rows: Tensor = self.encoder(x, src_key_padding_mask=x.abs().sum(-1) == 0)
        return rows


def test_rows_that_see_nothing_have_numbers_on_both_sides_or_on_none(tmp_path: Path) -> None:
    config = {"input_width": D, "max_positions": 16}
    with pytest.raises(ExportError, match=r"^all 0: the module answers with NaN .* fast path"):
        export_bundle(ZerosHidden(unit=False), tmp_path, "own", config=config)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        bundle = export_bundle(ZerosHidden(unit=False), tmp_path, "own", config=config)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    checks = {check["case"]: check for check in (bundle.certificate or {})["checks"]}
    assert {"all 0", "the last 0", "equal vectors", "vectors times 10000"} <= checks.keys()
    assert checks["all 0"]["limit"] < checks["vectors times 10000"]["limit"]
    export_bundle(ZerosHidden(unit=True), tmp_path, "unit", config=config)
    with client_of(inference_of(tmp_path)) as client:
        body = {"model": "unit", "inputs": [[[0.0] * D]]}
        answer = client.post("/v1/infer", json=body)
    assert answer.json()["error"]["code"] == "not_finite"
