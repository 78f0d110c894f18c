"""`--keep-recall`: int8 finds the texts that fp32 finds, or is refused with the figure."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from addnorm.export import recall, sources
from addnorm.export.certificate.graph.exact import RANGES, Expected
from addnorm.export.certificate.served import CertificationError
from addnorm.export.exporting import export
from addnorm.export.graphs import model_file
from addnorm.export.graphs.quantize import read_parts
from addnorm.export.library import ExportError, export_bundle
from addnorm.export.sources import Source
from addnorm.export.wishes import UsageError, Wishes
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import Bundle
from tests.support.bundles import change_constant, hashed_anew
from tests.support.texts import WORDS, checkpoint

PLAIN = [word for word in WORDS if word.isalpha()]
DRAWS = np.random.default_rng(0)
TEXTS = tuple(dict.fromkeys(" ".join(DRAWS.choice(PLAIN, 8)) for _ in range(80)))
WIDE = 192  # of whose matrices int8 pays for each


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = checkpoint(tmp_path_factory.mktemp("wide"), WIDE, 2)
    return sources.checkpoint(folder, Wishes(own_reading=True, samples=TEXTS))


@pytest.fixture(scope="module")
def kept(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle of which more is kept than int8 alone would find."""
    wishes = replace(source.wishes, precisions=("int8",), keep_recall=1.0)
    return export(replace(source, wishes=wishes), tmp_path_factory.mktemp("kept"), "wide")


def test_matrices_stay_fp32_until_int8_finds_the_share(kept: Bundle, source: Source) -> None:
    """The certificate says which, and has the share among its checks."""
    assert kept.certificate
    recall_record, in_fp32 = kept.certificate["recall"], kept.manifest.int8.float_weights
    assert recall_record["shared"] == recall_record["at_least"] == 1
    assert (recall_record["texts"], recall_record["in_fp32"]) == (len(TEXTS), [*in_fp32])
    constants = model_file.load(kept.graph("int8")).constants()
    assert 0 < len(in_fp32) < recall_record["matrices"] == len(in_fp32) + len(read_parts(constants))
    state = source.model.state_dict()
    for name in in_fp32:
        assert constants[name].tobytes() == state[name].numpy().tobytes()
    (check,) = (check for check in kept.certificate["checks"] if check["case"] == "--texts")
    assert check["difference"] == pytest.approx(1 - recall_record["shared"])
    assert kept.recall == recall_record


def test_int8_that_is_worse_fails_with_the_figure(
    kept: Bundle, source: Source, tmp_path: Path
) -> None:
    """Its rows have 7 steps in place of 230."""
    (folder := tmp_path / "wide" / "1").mkdir(parents=True)
    for file in kept.path.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    graph = model_file.load(folder / "model.int8.onnx")
    change_constant(graph.proto, "int8.levels", lambda _: 7)
    model_file.save(graph, folder / "model.int8.onnx")
    worse = hashed_anew(replace(kept, path=folder))
    expected = Expected.export(source.in_layout("padded"), kept.manifest)
    words = (
        r"int8 shares \d\d\.\d\d% of the 10 nearest neighbours among \d+ texts with fp32,"
        r" required are 100\.00%$"
    )
    with pytest.raises(CertificationError, match=words):
        recall.certify(worse, expected.graphs.body, TEXTS)


def test_what_holds_already_keeps_nothing(source: Source, tmp_path: Path) -> None:
    """Its files are those of an export without the option."""
    files = []
    for share in (0.5, None):
        wishes = replace(source.wishes, precisions=("int8",), keep_recall=share)
        bundle = export(replace(source, wishes=wishes), tmp_path / str(share), "wide")
        assert bundle.manifest.int8.float_weights == ()
        assert (bundle.recall is None) == (share is None)
        files.append([bundle.manifest.files[name] for name in ("model.int8.onnx", RANGES)])
        assert ("keep_recall" in (bundle.path / bundles.MANIFEST).read_text()) == (
            share is not None
        )
    assert files[0] == files[1]


def test_a_model_in_memory_keeps_it_among_its_samples(source: Source, tmp_path: Path) -> None:
    """The library's words for it are the command's."""
    with pytest.raises(ExportError, match="needs at least 50 distinct texts, yours are 0"):
        export_bundle(
            source.model, tmp_path, "few", precisions=["int8"], keep_recall=0.5,
            tokenizer=source.folder,
        )  # fmt: skip


class Equal:
    """Stands for `Trials`: int8 finds what fp32 finds."""

    def __init__(self, num: int) -> None:
        self.table = list[str]()
        self.names = [f"matrix {index}" for index in range(num)]
        self.ranges = dict.fromkeys(self.names)

    def size(self, name: str) -> int:
        return 1

    def vectors(self, texts: Sequence[str], in_int8: Sequence[str] = ()) -> np.ndarray:
        return np.eye(len(texts), dtype=np.float32)


@pytest.mark.parametrize("num_needed", range(8))
def test_matrices_stay_fp32_until_the_certificate_passes(num_needed: int) -> None:
    """A share below what the limits of the certificate need is no reason to fail."""
    trials, tried = Equal(8), list[int]()

    def failure(in_fp32: Sequence[str]) -> str:
        tried.append(len(in_fp32))
        return "" if len(in_fp32) >= num_needed else "a norm is too far"

    texts = [str(index) for index in range(60)]
    weights = recall.choose(trials, texts, 0.9, failure)  # type: ignore[arg-type]
    assert weights == trials.names[:num_needed]
    assert len(tried) <= 7
    with pytest.raises(CertificationError, match=r"with one matrix in int8, never"):
        recall.choose(trials, texts, 0.9, lambda _: "never")  # type: ignore[arg-type]


def test_a_recall_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="keep_recall needs int8, but the precisions are fp32"):
        Wishes(keep_recall=0.9)
    with pytest.raises(UsageError, match=r"keep_recall is 1\.5, but must be above 0 and at most 1"):
        Wishes(precisions=("int8",), keep_recall=1.5)
    with pytest.raises(UsageError, match="needs at least 50 distinct texts, yours are 2"):
        recall.texts_to_search(["a", "b", "a", ("a", "b")])
