"""The exact comparisons refuse any changed weight, attribute or node, with hashes made anew."""

import copy
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import ModelProto, TensorProto, helper, numpy_helper

from addnorm.export import command, exporting, sources, writer
from addnorm.export.certificate import parity
from addnorm.export.certificate.certificate import Check, refuse_failures
from addnorm.export.certificate.graph import exact, structure
from addnorm.export.certificate.graph.exact import Files
from addnorm.export.certificate.parity import CertificationError
from addnorm.export.certificate.served import PATIENCE_S, path_of
from addnorm.export.graphs import all_graphs, model_file
from addnorm.export.graphs import quantize as quantizing
from addnorm.export.graphs.graph import UnfitError
from addnorm.export.graphs.half_precision import SUFFIX, to_half
from addnorm.export.graphs.model_file import Graph
from addnorm.export.graphs.quantize import quantize
from addnorm.export.wishes import Wishes
from addnorm.export.writer import check_fit
from addnorm.model import presets
from addnorm.model.presets import PRESETS
from addnorm.model.transformer import Transformer
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.batch import Floats
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.model import Model
from tests.support.bundles import change_constant, hashed_anew
from tests.support.exports import source_of
from tests.support.mutation import KINDS, Mutant, Subject, mutants, write

UNSEEN = 7  # an id of `postnorm` that no case of the certificate contains


@pytest.fixture(scope="module")
def notebook_subject(notebook: Path) -> Subject:
    return Subject.of(bundles.read(notebook), sources.preset("notebook"))


@pytest.fixture(scope="module")
def fp16_subject(notebook_in_fp16: Bundle) -> Subject:
    return Subject.of(notebook_in_fp16, sources.preset("notebook"))


@pytest.fixture(scope="module")
def postnorm(preset_in_int8: Callable[[str], Bundle]) -> Subject:
    return Subject.of(preset_in_int8("postnorm"), sources.preset("postnorm"))


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Subject:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


def set_row(model: ModelProto, value: float, name: str = "tokens.weight") -> None:
    def change(table: Floats) -> Floats:
        table[UNSEEN] = value
        return table

    change_constant(model, name, change)


def double_the_last_norm(model: ModelProto) -> None:
    for part in ("gamma", "beta"):
        change_constant(model, f"blocks.1.norm2.{part}", lambda values: values * 2)


def gelu_without_cube(model: ModelProto) -> None:
    change_constant(model, "portable.0.07135481387376785", lambda factor: factor * 0)


def eps_times_thirty(model: ModelProto) -> None:
    root = next(node for node in model.graph.node if node.op_type == "Sqrt").output[0]
    added = next(node for node in model.graph.node if root in node.input and node.op_type == "Add")
    change_constant(model, added.input[1], lambda eps: eps * np.float32(30))


def last_bit(model: ModelProto) -> None:
    """Flips the last bit of one weight in fp16."""

    def change(table: Floats) -> Floats:
        table.view(np.uint16)[2, 3] ^= 1
        return table

    change_constant(model, f"tokens.weight{SUFFIX}", change)


def softmax_in_half(model: ModelProto) -> None:
    for node in structure.nodes(model.graph):
        for item in node.attribute:
            if item.name == "softmax_precision":
                item.i = TensorProto.FLOAT16


def broken(subject: Subject, precision: str, change: Callable[[ModelProto], object]) -> Mutant:
    changed = subject.files.bodies[precision].copy()
    change(changed.proto)
    files = replace(subject.files, bodies={**subject.files.bodies, precision: changed})
    return Mutant(subject, change.__name__, files, subject.expected)


def certified(mutant: Mutant, folder: Path) -> None:
    """Certifies as `verify` does from the files, but for the fresh export, which is made once."""
    bundle = write(mutant, folder / "broken")
    parity.compare(bundle, Files.read(bundle), mutant.subject.expected)


@pytest.mark.parametrize(
    ("subject", "precision", "change", "words"),
    [
        ("postnorm", "fp32", lambda m: set_row(m, 0.0),
         r"weights \(fp32\): tokens.weight differs .* at \[7, 0\]: 0.0"),
        ("postnorm", "fp32", lambda m: set_row(m, np.nan),
         r"weights \(fp32\): tokens.weight differs .*: nan"),
        ("postnorm", "int8", lambda m: set_row(m, 0, quantizing.ROWS),
         r"weights \(int8\): tokens.weight.rows differs .* at \[7, 0\]: 0"),
        ("postnorm", "int8", lambda m: set_row(m, 0.01, quantizing.ROW_SCALES),
         r"weights \(int8\): tokens.weight.scales differs"),
        ("postnorm", "int8", double_the_last_norm,
         r"weights \(int8\): blocks.1.norm2.gamma differs"),
        ("postnorm", "fp32", eps_times_thirty, r"attributes \(fp32\): the norms add \[2.99"),
        ("notebook_subject", "fp32", gelu_without_cube,
         r"attributes \(fp32\): .*\(Gelu\) has .*float32\(0.0\)\]"),
        ("fp16_subject", "fp16", last_bit,
         r"weights \(fp16\): tokens.weight differs .*\[2, 3\]"),
        ("fp16_subject", "fp16", softmax_in_half,
         r"attributes \(fp16\): .*Attention.* has .*'softmax_precision': 10"),
    ],
    ids=["row zeroed", "row nan", "int8 row zeroed", "int8 row scaled", "int8 norm doubled", "eps",
         "gelu", "fp16 last bit", "fp16 softmax"],
    indirect=["subject"],
)  # fmt: skip
def test_what_numbers_hardly_show_is_refused_by_name(
    subject: Subject,
    precision: str,
    change: Callable[[ModelProto], object],
    words: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(CertificationError, match=words):
        certified(broken(subject, precision, change), tmp_path)


def test_int8_is_measured_in_length_too(postnorm: Subject, tmp_path: Path) -> None:
    """A cosine is blind to scale: what is served is refused without a look at the weights."""
    bundle = write(broken(postnorm, "int8", double_the_last_norm), tmp_path / "broken")
    with pytest.raises(CertificationError, match=r"length ratio - 1 .int8.: (0\.99\d*|1), the"):
        parity.compare_answers(parity.Model(bundle), source_of(postnorm.expected.reference))


@pytest.mark.parametrize("subject", ["fp16_subject", "postnorm"], indirect=True)
def test_a_mistake_of_the_exporter_is_refused_or_changes_no_bit(subject: Subject) -> None:
    """Some of those that `pytest -m mutants` tries: what is written is compared with the same."""
    verdicts = [
        (kind, mutant.verdict() if mutant else "not written")
        for kind, mutant in mutants([subject], len(KINDS), seed=1)
    ]
    assert {kind for kind, _ in verdicts} == set(KINDS)
    assert "SURVIVED" not in {verdict for _, verdict in verdicts}


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_every_single_constant_attribute_and_node_counts(
    notebook_subject: Subject, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each constant changed, each attribute dropped and each node dropped, one at a time."""
    graphs, body = notebook_subject.expected.graphs, notebook_subject.files.bodies["fp32"]
    wanted = graphs.body
    if precision == "int8":
        monkeypatch.setattr(quantizing, "MIN_ENTRIES", 1)  # none pays in so small a model
        ranges = quantizing.measure(wanted, notebook_subject.bundle.manifest.limits)
        wanted = quantize(wanted, ranges)
        model_file.save(wanted, tmp_path / "model.int8.onnx")
        body = model_file.load(tmp_path / "model.int8.onnx")
    if precision == "fp16":
        wanted = to_half(graphs.plain)
        model_file.save(wanted, tmp_path / "model.fp16.onnx")
        body = model_file.load(tmp_path / "model.fp16.onnx")
    assert not list(structure.differences(body, wanted))
    for index, item in enumerate(body.proto.graph.initializer):
        changed = body.copy()
        values = numpy_helper.to_array(item) * 3 + 1
        changed.proto.graph.initializer[index].CopyFrom(numpy_helper.from_array(values, item.name))
        assert list(structure.differences(changed, wanted)), item.name
    for index, node in enumerate(body.proto.graph.node):
        for place in range(len(node.attribute)):
            changed = body.copy()
            del changed.proto.graph.node[index].attribute[place]
            assert list(structure.differences(changed, wanted)), node.name
        changed = body.copy()
        del changed.proto.graph.node[index]
        assert list(structure.differences(changed, wanted)), node.name


@pytest.mark.parametrize(
    ("precisions", "ending"),
    [
        (("fp16", "fp16"), "the limit is 0.1: leave fp16 out"),
        (("int8",), "the limit is 0.1: leave int8 out, or keep some matrices in fp32"),
        (("fp32", "fp16"), "the limit is 0.1$"),
    ],
)
def test_a_refusal_names_the_precision_to_leave_out_if_it_fails_alone(
    precisions: tuple[str, ...], ending: str
) -> None:
    checks = [Check("ragged", "logits", precision, 0.2, 0.1) for precision in precisions]
    with pytest.raises(CertificationError, match=ending):
        refuse_failures(checks)


def test_ranges_of_another_processor_are_accepted_and_others_not(postnorm: Subject) -> None:
    """int8 made from ranges that differ by rounding is certified, though its bits are others."""
    draws = np.random.default_rng(0)

    def found(scatter: float) -> dict[str, list[str]]:
        ranges = {
            name: (values * (1 + scatter * draws.uniform(-1, 1, values.shape))).astype(np.float32)
            for name, values in postnorm.files.ranges.items()
        }
        int8 = quantize(postnorm.expected.graphs.body, ranges)
        assert list(structure.differences(int8, postnorm.files.bodies["int8"]))
        files = replace(
            postnorm.files, bodies={**postnorm.files.bodies, "int8": int8}, ranges=ranges
        )
        compared = exact.compare(files, postnorm.expected, postnorm.bundle.manifest)
        return {comparison: words for (_, comparison), words in compared if words}

    assert found(1e-5) == {}
    (words,) = found(1e-2).items()
    assert words[0] == "ranges"
    assert "are not those measured here" in words[1][0]


def test_int8_needs_its_ranges(postnorm: Subject, tmp_path: Path) -> None:
    bundle = write(Mutant(postnorm, "", postnorm.files, postnorm.expected), tmp_path / "bare")
    (bundle.path / exact.RANGES).unlink()
    bundle = hashed_anew(bundle)
    with pytest.raises(
        CertificationError, match=r"ranges \(int8\): there are ranges of 0 weights, 6 expected"
    ):
        parity.compare(bundle, Files.read(bundle), postnorm.expected)


def test_a_manifest_must_say_what_the_model_is(notebook_subject: Subject) -> None:
    manifest = notebook_subject.bundle.manifest
    changes = {
        "config": {**manifest.config, "eps": 1e-3},
        "n_norms": 3,
        "limits": manifest.limits.model_copy(update={"vocab_size": 7}),
    }
    for name, value in changes.items():
        changed = manifest.model_copy(update={name: value})
        first = next(
            iter(exact.compare(notebook_subject.files, notebook_subject.expected, changed))
        )
        assert first[0] == ("fp32", "manifest")
        assert name in first[1][0] or "vocab_size" in first[1][0]


def test_a_refusal_says_which_versions_wrote_the_graph(
    notebook_subject: Subject, tmp_path: Path
) -> None:
    """Another exporter may write other nodes. If it writes the same, its version is no matter."""
    manifest = notebook_subject.bundle.manifest.model_copy(
        update={"versions": {**notebook_subject.bundle.manifest.versions, "torch": "2.9.0"}}
    )
    older = replace(notebook_subject, bundle=replace(notebook_subject.bundle, manifest=manifest))
    certified(Mutant(older, "", older.files, older.expected), tmp_path / "same")
    mutant = broken(
        older, "fp32", lambda model: model.graph.node.add().CopyFrom(model.graph.node[0])
    )
    with pytest.raises(
        CertificationError,
        match=r"graph \(fp32\).*exported with torch 2\.9\.0 \(here .*verify it with",
    ):
        certified(mutant, tmp_path / "other")


def test_names_and_order_mean_nothing(notebook_subject: Subject) -> None:
    """A graph with other names and another order of independent nodes is the same graph."""
    expected = notebook_subject.expected.graphs.body
    graph = expected.copy()
    other = graph.proto
    outside = {
        item.name for item in (*other.graph.input, *other.graph.output, *other.graph.initializer)
    }
    for body in [item.g for node in other.graph.node for item in node.attribute if item.g.node]:
        for value in (*body.input, *body.output):
            value.name = f"another {value.name}"
    for node in structure.nodes(other.graph):
        node.name = f"another {node.name}"
        for names in (node.input, node.output):
            names[:] = [
                name if name in outside or not name else f"another {name}" for name in names
            ]
    for item in other.graph.value_info:
        item.name = item.name if item.name in outside else f"another {item.name}"
    first, second, *rest = (
        other.graph.node
    )  # the two parts of a shape's first size, and the second's
    nodes = [*map(node_copy, (other.graph.node[2], first, second, *rest[1:]))]
    assert first.output[0] not in other.graph.node[2].input
    del other.graph.node[:]
    other.graph.node.extend(nodes)
    assert list(structure.differences(graph, expected)) == []


@pytest.mark.parametrize("lacking", ["a value that a node reads", "an output"])
def test_an_expected_graph_that_lacks_a_value_is_said_to(
    notebook_subject: Subject, lacking: str
) -> None:
    """An exporter's mistake is refused in words, also where both graphs have it."""
    graph = notebook_subject.expected.graphs.body
    expected = graph.copy()
    nodes = expected.proto.graph.node
    node = nodes[0 if lacking == "a value that a node reads" else -1]
    name = node.output[0]
    nodes.remove(node)
    words = f"{name} of the expected graph is undefined, or defined twice"
    assert words in [*structure.differences(graph, expected)]
    assert words in [*structure.differences(expected, expected)]


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.node[1].input.reverse(),
        lambda body: body.node[2].input.__setitem__(1, body.node[1].input[1]),
        lambda body: body.node[0].attribute.pop(),
        lambda body: setattr(body.node[5], "op_type", "Neg"),
        lambda body: body.node.add().CopyFrom(body.node[0]),
        lambda body: setattr(body.output[0], "name", body.input[0].name),
        lambda body: body.input.append(body.input[0]),
        lambda body: body.initializer.append(helper.make_tensor("x", 1, [1], [1.0])),
    ],
)
def test_the_body_of_a_scan_counts(
    notebook_subject: Subject, change: Callable[[onnx.GraphProto], object]
) -> None:
    expected = notebook_subject.expected.graphs.body
    changed = expected.copy()
    scan = next(node for node in changed.proto.graph.node if node.op_type == "Scan")
    body = next(item.g for item in scan.attribute if item.name == "body")
    change(body)
    assert list(structure.differences(changed, expected))


def node_copy(node: onnx.NodeProto) -> onnx.NodeProto:
    made = onnx.NodeProto()
    made.CopyFrom(node)
    return made


def keep_elsewhere(model: ModelProto) -> None:
    item = model.graph.initializer[0]
    item.data_location = TensorProto.EXTERNAL
    item.external_data.add(key="location", value="/etc/passwd")


@pytest.mark.parametrize(
    "change",
    [
        keep_elsewhere,
        lambda model: setattr(model.opset_import[0], "version", 22),
        lambda model: setattr(model.graph.input[0], "name", "ids"),
        lambda model: model.graph.output.add().CopyFrom(model.graph.output[0]),
        lambda model: model.graph.initializer[0].dims.reverse(),
        lambda model: model.graph.value_info.append(
            helper.make_tensor_value_info("getitem", TensorProto.FLOAT, [None, 16])
        ),
        lambda model: model.metadata_props.add(key="x", value="y"),
        lambda model: model.functions.add(name="Gelu", domain="x"),
        lambda model: model.graph.initializer.append(
            helper.make_tensor("more", 1, [2], [1.0, 2.0])
        ),
        lambda model: setattr(model.graph.node[9], "domain", "com.microsoft"),
        lambda model: setattr(model.graph.initializer[1], "raw_data", b"short"),
    ],
)
def test_all_that_a_file_may_say_counts(
    notebook_subject: Subject, change: Callable[[ModelProto], object]
) -> None:
    """Nothing but names is left out of the comparison, and no change makes it stumble."""
    mutant = broken(notebook_subject, "fp32", change)
    compared = exact.compare(
        mutant.files, notebook_subject.expected, notebook_subject.bundle.manifest
    )
    assert any(words for _, words in compared)


def test_a_file_that_is_no_graph_is_refused(notebook_subject: Subject, tmp_path: Path) -> None:
    bundle = write(
        Mutant(notebook_subject, "", notebook_subject.files, notebook_subject.expected),
        tmp_path / "broken",
    )
    (bundle.path / "model.onnx").write_bytes(b"\xff" * 100)
    bundle = hashed_anew(bundle)
    with pytest.raises(CertificationError, match=r"model\.onnx is not an ONNX file"):
        parity.compare_all(bundle, source_of(notebook_subject.expected.reference))


def test_an_exporter_that_writes_another_eps_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mistake is in the fresh export too: the comparison with the Config finds it."""

    def mistaken(model: Transformer) -> Graph:
        source = original(model)
        nodes = source.proto.graph.node
        norm = next(node for node in nodes if node.op_type == "LayerNormalization")
        next(item for item in norm.attribute if item.name == "epsilon").f = 1.2e-5
        return source

    original = all_graphs.export_body
    monkeypatch.setattr(all_graphs, "export_body", mistaken)
    with pytest.raises(CertificationError, match=r"attributes \(fp32\): .*has eps 1.2"):
        exporting.export(sources.preset("notebook"), tmp_path, "broken")


def test_weights_that_are_not_finite_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_model(name: str, *, seed: int) -> Transformer:
        model = original(name, seed=seed)
        with torch.no_grad():
            model.tokens.weight[3, 5] = torch.nan
            bias: torch.Tensor = model.blocks[0].ffn.up.bias  # type: ignore[union-attr, assignment]
            bias[2:4] = -torch.inf
        return model

    original = presets.build
    monkeypatch.setattr(presets, "build", broken_model)
    monkeypatch.setattr(
        all_graphs, "export_body", lambda model: pytest.fail("exported before it was refused")
    )
    with pytest.raises(SystemExit) as ended:
        command.export(["--preset", "notebook", "--out", str(tmp_path)])
    assert str(ended.value) == (
        "addnorm export: the model cannot be exported: tokens.weight[3, 5] is nan (1 of 96 are not"
        " finite); blocks.0.ffn.up.bias[2] is -inf (2 of 64 are not finite)"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("d_model", "n_heads", "layout", "words"),
    [(384, 2, "packed", ""), (384, 1, "packed", ""), (384, 4, "padded", ""),
     (384, 384, "packed", ""), (384, 6, "packed", ""), (254, 1, "packed", ""),
     (384, 2, "padded", "a head has 192 dimensions (d_model 384 / n_heads 2): more than"),
     (131, 1, "packed", "a head has 131 dimensions")],
)  # fmt: skip
def test_heads_of_more_than_128_dimensions_are_made_of_parts_where_there_are_no_pads(
    d_model: int, n_heads: int, layout: str, words: str
) -> None:
    model = Transformer(replace(PRESETS["notebook"], d_model=d_model, n_heads=n_heads), layout)
    if not words:
        return check_fit(model)
    with pytest.raises(UnfitError, match=re.escape(words)):
        check_fit(model)


def test_certificate_lines_have_one_form(
    notebook: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command.verify([str(shutil.copytree(notebook, tmp_path / "notebook" / "1"))])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fp32")]
    assert len(lines) == 20
    assert all(re.search(r" of +\S+  ok, worst of \d+ measures$", line) for line in lines)


def test_no_time_limit_of_serving_ends_a_certificate(notebook: Path) -> None:
    """A run of a long sequence takes longer than a server lets it, on a slow machine."""
    with path_of(Model(bundles.read(notebook))) as path:
        settings = path.service.settings
        limits = [settings.timeout_s, settings.bulk_timeout_s, path.service.scheduler.run_timeout_s]
    assert limits == [PATIENCE_S] * 3


def test_clipped_scores_are_certified_and_their_layers_stand_in_the_manifest(
    tmp_path: Path,
) -> None:
    source = sources.preset("postnorm")
    model = copy.deepcopy(source.model)
    first = model.blocks[0].attention.qkv
    with torch.no_grad():
        first.weight[: model.config.d_model] *= 600
    far = replace(source, model=model, wishes=Wishes(precisions=("fp32", "int8")))
    bundle, expected = writer.write_uncertified(far, tmp_path, "far", 1)
    assert bundle.manifest.clipped_layers == (0,)
    assert all(check.passed for check in parity.compare_files(bundle, expected))
    again = exact.Expected.export(far.in_layout("padded"), bundle.manifest)
    assert all(check.passed for check in parity.compare_files(bundle, again))
    elsewhere = bundle.manifest.model_copy(update={"clipped_layers": (1,)})
    other = exact.Expected.export(far.in_layout("padded"), elsewhere)
    with pytest.raises(CertificationError, match="Clip"):
        parity.compare_files(bundle, other)
