"""Settings come from the environment, once."""

import logging
from pathlib import Path

import pytest
from pydantic import ValidationError

from addnorm.service.command import OPTIONS
from addnorm.service.environment import (
    check_metrics_folder,
    describe,
    read_settings,
    vertex_routes,
)
from addnorm.service.errors import StartupError
from addnorm.service.server.auth import Keys
from addnorm.service.settings import Settings, descriptions


def test_a_kubernetes_service_link_is_ignored_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ADDNORM_PORT", "tcp://10.0.0.1:8000")
    monkeypatch.setenv("ADDNORM_PORT_8000_TCP_ADDR", "10.0.0.1")
    monkeypatch.setenv("ADDNORM_SERVICE_HOST", "10.0.0.1")
    assert read_settings().port == 8000
    assert len(caplog.records) == 1
    assert "service link" in caplog.text
    monkeypatch.setenv("ADDNORM_GRPC_PORT", "tcp://10.0.0.2:8001")
    assert read_settings().grpc_port is None


def test_misspelt_names_get_a_warning_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ADDNORM_WORKER_THREAD", "2")
    monkeypatch.setenv("ADDNORM_XYZZY", "2")
    with caplog.at_level(logging.WARNING):
        read_settings()
    assert (
        "ADDNORM_WORKER_THREAD is not a setting: did you mean ADDNORM_WORKER_THREADS?"
        in caplog.text
    )
    assert "ADDNORM_XYZZY is not a setting: `addnorm settings`" in caplog.text


@pytest.mark.parametrize("level", ["INFO", "info", "Warning"])
def test_the_log_level_may_be_in_any_case(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setenv("ADDNORM_LOG_LEVEL", level)
    assert read_settings().log_level == level.lower()


@pytest.mark.parametrize(
    ("name", "value"),
    [("PORT", "70000"), ("WORKER_THREADS", "-1"), ("PROVIDER", "tpu"), ("TIMEOUT_S", "0")],
)
def test_a_value_that_does_not_fit_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"ADDNORM_{name}", value)
    with pytest.raises(StartupError, match=f"ADDNORM_{name}={value}: "):
        read_settings()


def test_an_option_wins_over_the_environment_and_is_named_when_it_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ADDNORM_MAX_TOKENS", "5")
    assert read_settings(max_tokens="7").max_tokens == 7
    with pytest.raises(StartupError, match="--max-tokens=0: "):
        read_settings(max_tokens="0")


@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_setting_is_not_set(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, empty: str
) -> None:
    for name in ("PORT", "AIP_HTTP_PORT", *(f"ADDNORM_{name.upper()}" for name in OPTIONS)):
        monkeypatch.setenv(name, empty)
    assert read_settings() == Settings()
    assert not read_settings().model_fields_set
    assert read_settings(**dict.fromkeys(OPTIONS, empty)) == Settings()
    for name in ("API_KEYS_FILE", "TRUSTED_KEYS"):
        assert f"ADDNORM_{name} is empty, so it is treated as not set" in caplog.text


@pytest.mark.parametrize("empty", ["", " "])
def test_empty_api_keys_open_the_server_to_nobody(
    monkeypatch: pytest.MonkeyPatch, empty: str
) -> None:
    monkeypatch.setenv("ADDNORM_API_KEYS", empty)
    with pytest.raises(StartupError, match="the settings for API keys contain no key"):
        Keys(read_settings())


def test_every_setting_is_described_with_its_value_and_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ADDNORM_WORKER_THREADS", "3")
    monkeypatch.setenv("ADDNORM_API_KEYS", "a infer 0123456789abcdef")
    text = describe(read_settings(port=9000), ["port"])
    assert "ADDNORM_WORKER_THREADS=3  (environment; default 0)\n" in text
    assert "ADDNORM_PORT=9000  (command line; default 8000)\n" in text
    assert "ADDNORM_TOKEN_BUDGET=0  (default)\n" in text
    assert "0123456789abcdef" not in text
    for name, meaning in descriptions().items():
        assert f"ADDNORM_{name.upper()}=" in text
        assert meaning
        assert f"    {meaning}\n" in f"{text}\n"


def test_only_the_loader_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADDNORM_MAX_SEQUENCES", "1")
    assert read_settings().max_sequences == 1
    assert Settings().max_sequences == 2048
    with pytest.raises(ValidationError, match="no_such"):
        Settings(no_such=1)


def test_default_models_are_read_by_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADDNORM_DEFAULT_MODELS", " rerank = a/2, embed=b:c ,")
    assert read_settings().default_models == {"rerank": "a/2", "embed": "b:c"}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("rerank", "'rerank' is not of the form task=NAME"),
        ("embed=a,=b", "'=b' is not of the form task=NAME"),
        ("embed=a,rerank=", "'rerank=' is not of the form task=NAME"),
        ("embed=a,embed=b", "embed occurs twice"),
    ],
)
def test_default_models_that_cannot_be_read_are_named(
    monkeypatch: pytest.MonkeyPatch, value: str, words: str
) -> None:
    monkeypatch.setenv("ADDNORM_DEFAULT_MODELS", value)
    with pytest.raises(StartupError, match=f"ADDNORM_DEFAULT_MODELS={value}: .*{words}"):
        read_settings()


def test_what_vertex_ai_says_counts_where_our_own_is_not_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = "/v1/endpoints/1/deployedModels/2"
    for name, value in (
        ("HTTP_PORT", "8080"), ("PREDICT_ROUTE", f"{path}:predict"), ("HEALTH_ROUTE", path),
    ):  # fmt: skip
        monkeypatch.setenv(f"AIP_{name}", value)
    assert read_settings().port == 8080
    assert vertex_routes() == {("POST", f"{path}:predict"): "/vertex", ("GET", path): "/health"}
    monkeypatch.setenv("ADDNORM_PORT", "9000")
    assert read_settings().port == 9000
    monkeypatch.setenv("PORT", "7000")
    for name, port in (("ADDNORM_PORT", 8080), ("AIP_HTTP_PORT", 7000), ("PORT", 8000)):
        monkeypatch.setenv(name, "")
        assert read_settings().port == port
    monkeypatch.setenv("PORT", "x")
    with pytest.raises(StartupError, match=r"^PORT=x: "):
        read_settings()
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "health")
    with pytest.raises(StartupError, match="AIP_HEALTH_ROUTE=health: "):
        vertex_routes()


def test_a_folder_of_metrics_that_is_not_there_ends_the_start_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in ("", str(tmp_path)):
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", folder)
        check_metrics_folder()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "none"))
    with pytest.raises(StartupError, match=r"^PROMETHEUS_MULTIPROC_DIR=.*/none: this user"):
        check_metrics_folder()
