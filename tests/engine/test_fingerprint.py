"""The fingerprint: what it is a digest of, and where it is shown."""

from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.device.processor import Processor
from addnorm.service.engine.fingerprint import (
    ANY,
    Fingerprint,
    Recorded,
    from_text,
    moved,
    to_text,
)
from tests.support.metrics import samples

HERE = Fingerprint.here("0" * 64, "fp32", "cpu")


BITS = {"answers": "a", "tokens": "t", "model": "m"}
RECORD = Recorded(HERE.digest, HERE.parts(), BITS).record


@pytest.mark.parametrize("part", HERE.parts())
def test_each_part_changes_the_digest(part: str) -> None:
    assert replace(HERE, **{part: "another"}).digest != HERE.digest
    assert replace(HERE, **{part: getattr(HERE, part)}).digest == HERE.digest


CHANGES = {  # what changes -> the parts that may decide bits, and those that do not
    "a library": ({"numpy": "0"}, [], ["numpy"]),
    "all libraries": (
        {"numpy": "0", "onnxruntime": "0", "tokenizers": "0", "addnorm": "0"},
        [],
        ["onnxruntime", "numpy", "tokenizers", "addnorm"],
    ),
    "the processor": ({"processor": "other"}, [], ["processor"]),
    "the precision": ({"precision": "int8"}, ["precision"], []),
    "an export of the same files": ({"manifest_sha256": "1"}, [], ["manifest_sha256"]),
    "an export of others": (
        {"manifest_sha256": "1", "bits": {**BITS, "model": "n"}}, ["manifest_sha256"], [],
    ),
    "a library, and answers": (
        {"numpy": "0", "bits": {**BITS, "answers": "b"}}, ["numpy"], [],
    ),
    "a library, and tokens": (
        {"tokenizers": "0", "bits": {**BITS, "tokens": "u"}}, ["tokenizers"], [],
    ),
    "a library, and nothing is known": ({"numpy": "0", "bits": None}, ["numpy"], []),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_version_is_no_difference_where_the_known_answers_have_equal_bits(change: str) -> None:
    parts, decisive, harmless = CHANGES[change]
    assert moved(RECORD, {**RECORD, **parts}) == (decisive, harmless)


def test_files_of_earlier_versions_have_the_bits_in_their_processor() -> None:
    """Nothing is known of their tokens, but where the library is the same."""
    old = {**HERE.parts(), "processor": f"{ANY} a", "numpy": "0"}
    new = {**RECORD, "processor": f"{ANY} a"}
    assert moved(old, new) == ([], ["numpy"])
    assert moved({**old, "tokenizers": "0"}, new) == (["numpy", "tokenizers"], [])


def test_a_processor_class_has_instruction_sets_and_no_name() -> None:
    x86 = "processor : 0\nmodel name : Some CPU\nflags : fpu avx2 ht avx512_vnni\n"
    processor = Processor.parse(x86)
    assert processor.instruction_sets == ("avx2", "avx512_vnni")
    assert (processor.name, processor.has_vnni) == ("Some CPU", True)
    assert Processor.parse(x86.replace("Some", "Other").replace(" ht", "")).kind == processor.kind
    without = Processor.parse(x86.replace(" avx512_vnni", ""))
    assert without.kind != processor.kind
    assert not without.has_vnni
    arm = "CPU implementer : 0x41\nFeatures : fp asimd i8mm\nCPU part : 0xd40\n"
    assert Processor.parse(arm).kind.endswith(" 0x41 0xd40 asimd i8mm")


def test_it_is_shown_everywhere(text_client: httpx.Client, text_bundles: Path) -> None:
    entry = text_client.get("/v1/models").json()["data"][0]
    bundle = bundles.read(text_bundles / entry["id"] / entry["versions"][-1])
    assert bundle.certificate
    for precision in entry["precisions"]:
        answers = bundle.certificate["known_digests"][precision]
        fingerprint = Fingerprint.here(bundle.manifest_sha256, precision, "cpu").with_known_answers(
            answers
        )
        body = {"model": entry["id"], "input_ids": [[1]], "precision": precision}
        answer = text_client.post("/v1/infer", json=body)
        assert answer.headers["x-addnorm-fingerprint"] == fingerprint.digest
        assert entry["fingerprint"][precision] == fingerprint.digest
        assert entry["fingerprint_parts"][precision] == fingerprint.parts()
        assert bundle.certificate["fingerprint"][precision] == fingerprint.digest
    answer = text_client.post("/v1/embeddings", json={"model": entry["id"], "input": "a"})
    assert answer.headers["x-addnorm-fingerprint"] in entry["fingerprint"].values()
    info = [
        dict(labels)
        for name, labels in samples(text_client.get("/metrics").text)
        if name == "addnorm_model_info"
    ]
    assert {labels["fingerprint"] for labels in info} >= set(entry["fingerprint"].values())


def test_its_text_is_read_back() -> None:
    assert from_text(to_text(HERE.parts())) == (HERE.digest, HERE.parts(), None)
    assert from_text(to_text(HERE.parts(), BITS)) == (HERE.digest, HERE.parts(), BITS)
    assert from_text(f" {HERE.digest}\n") == (HERE.digest, None, None)
    assert from_text(f'{{"fingerprint": "{HERE.digest}"}}') == (HERE.digest, None, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a fingerprint"),
        (HERE.digest[1:], "32 hexadecimal digits"),
        ("[]", "is not a fingerprint"),
        ('{"precision": "fp32"}', "is not a fingerprint"),
        ('{"fingerprint": 1}', "is not a fingerprint"),
        (to_text(HERE.parts(), {"answers": 1}), "is not a fingerprint"),  # type: ignore[dict-item]
        (to_text(HERE.parts()).replace("fp32", "int8"), "does not match its parts"),
    ],
)
def test_a_text_that_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_text(text)
