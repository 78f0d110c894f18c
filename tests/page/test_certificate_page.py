"""The page of a certificate: its verdict, every check with its margin, and what is new to it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import web

pytest.importorskip("selenium", reason="selenium is not installed: `make browser`")

from addnorm.service.engine.model import Reproduction
from addnorm.service.engine.registry import Models
from tests.support.pages import Playground


@pytest.fixture
def certificate(models: Models) -> Iterator[dict[str, Any]]:
    """That of a served model, as a copy that may be changed."""
    bundle = models.find("embedder").bundle
    own = bundle.certificate or {}
    changed = {**own, "checks": [dict(check) for check in own["checks"]]}
    object.__setattr__(bundle, "certificate", changed)
    yield changed
    object.__setattr__(bundle, "certificate", own)


def test_every_check_has_its_row(driver: Any, url: str) -> None:
    page = Playground(driver, f"{url}/models/embedder/1/certificate")
    checks = web.get(f"{url}/v1/models/embedder/certificate").json()["checks"]
    assert len(page.all(".margins tbody tr td:last-child")) == len(checks)
    assert len(page.all(".margins .meter")) == sum(check["limit"] > 0 for check in checks)
    assert page.text(".verdict").startswith(f"Passed. {len(checks)} checks")
    assert page.texts(".card h2") == ["What was certified", "fp32"]
    message = "fp32: this server computes the bits that the certificate records."
    assert page.texts(".bits-here") == [message]
    assert "onnxruntime" in page.text(".facts")
    assert "fp32 body: " in page.text(".facts")
    assert "nodes on CPUExecutionProvider" in page.text(".facts")
    assert page.console() == []


def test_other_bits_on_this_server_are_named(driver: Any, url: str, models: Models) -> None:
    model = models.find("embedder")
    before = model.reproductions["fp32"]
    names = tuple(f"activations of length {length}" for length in range(7))
    model.reproductions["fp32"] = Reproduction(False, different=names)
    try:
        page = Playground(driver, f"{url}/models/embedder/1/certificate")
    finally:
        model.reproductions["fp32"] = before
    assert "of length 0, activations of length 1, " in page.text(".bits-here.found")
    assert page.text(".bits-here.found").endswith("activations of length 4 and 2 more.")
    assert page.console() == []


def test_what_holds_on_a_gpu_is_shown(driver: Any, url: str, certificate: dict[str, Any]) -> None:
    held = {"bits": "differ", "largest_difference": 0.00125, "of_largest_value": 0.0005}
    case = {"case": "200 drawn batches", "output": "unequal sequences", "precision": "fp32"}
    bits = {"compared": 3448, "unequal": 17, "largest_difference": 0.00125, "largest_value": 2.5}
    certificate["cuda"] = {
        "gpu": "NVIDIA H100",
        "onnxruntime": "1.31.1",
        "tf32": False,
        "nodes": {"fp32": {"body": {"CUDAExecutionProvider": {"Attention": 2, "Gemm": 8}}}},
        "checks": [dict(check) for check in certificate["checks"] if check["limit"]],
        "bits": [{**case, **bits}],
        "holds": {"fp32": held, "fp16": {**held, "bits": "equal"}},
    }
    page = Playground(driver, f"{url}/models/embedder/1/certificate")
    assert page.texts(".card h2")[2:] == ["On NVIDIA H100", "fp32 on NVIDIA H100"]
    assert page.texts(".holds") == [
        "fp32: bits differ in company, by at most 0.0013, 5.0e-4 of the largest value.",
        "fp16: equal bits alone, co-batched and padded, in all that was compared.",
    ]
    cells = page.texts(".bits-in-company td")
    assert cells == ["fp32", "3,448", "17", "0.0013"]
    assert "10 nodes on CUDAExecutionProvider" in page.all(".facts")[1].text
    assert "NVIDIA" not in page.all(".facts")[0].text
    assert page.console() == []


def test_a_check_over_its_limit_and_a_new_field_are_shown(
    driver: Any, url: str, certificate: dict[str, Any]
) -> None:
    check = next(check for check in certificate["checks"] if check["limit"])
    check["difference"] = 2 * check["limit"]
    certificate["lens"] = {"outputs": ["hidden_states"], "layers": 3}
    page = Playground(driver, f"{url}/models/embedder/certificate")
    assert page.text(".verdict") == "Not passed. 1 check over the limit."
    assert page.texts(".margins .found") == ["200 %"]
    assert "lens" in page.texts(".facts dt")
    assert "hidden_states" in page.text(".facts")


def test_a_model_that_is_not_served_is_said_in_the_servers_words(driver: Any, url: str) -> None:
    page = Playground(driver, f"{url}/models/nothing/certificate")
    refused = web.get(f"{url}/v1/models/nothing/certificate").json()["error"]
    assert page.text("#error strong") == refused["message"]
    page.driver.get(f"{url}/models/embedder%2F1/certificate")
    page.settled()
    assert page.text("#error strong") == "No model is named embedder/1: names have no slash."
    page.console()


def test_a_certificate_that_did_not_pass_never_reads_as_if_it_had(
    driver: Any, url: str, certificate: dict[str, Any]
) -> None:
    certificate["passed"] = False
    page = Playground(driver, f"{url}/models/embedder/certificate")
    assert page.text(".verdict") == "Not passed, though no check is over its limit."
    assert page.find(".verdict").get_attribute("class") == "verdict different"
