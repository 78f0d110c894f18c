"""The Ray Serve deployment. What needs Ray itself is shown by `python -m benchmarks ray`."""

import asyncio
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from addnorm.cluster import queued_tokens, ray_serve
from addnorm.cluster.ray_serve import Options, Replica
from addnorm.service.errors import NotReady, StartupError
from addnorm.service.settings import Settings
from tests.support.imports import imported

ROOT = Path(__file__).parents[2]
EXAMPLE = yaml.safe_load((ROOT / "deploy" / "ray-serve.yaml").read_text())


def test_the_example_gives_bulk_requests_their_time() -> None:
    assert EXAMPLE["http_options"]["request_timeout_s"] > Settings().bulk_timeout_s


@pytest.fixture
def log_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is afterwards as it was."""
    log = logging.getLogger("addnorm")
    for name in ("handlers", "propagate", "level"):
        monkeypatch.setattr(log, name, getattr(log, name))


async def call(app: Any, path: str) -> int:
    sent: list[Any] = []
    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return int(sent[0]["status"])


@pytest.mark.usefixtures("log_kept")
def test_a_replica_serves_is_healthy_while_ready_and_ends(small: Path) -> None:
    async def life() -> None:
        replica = Replica(Options(bundles=small, settings={"cache_bytes": 0}), lambda: 2)
        service = replica._service
        assert service.settings.worker_threads == 2
        app = replica.__serve_build_asgi_app__()
        assert await call(app, "/readyz") == 200
        await replica.check_health()
        assert replica.record_autoscaling_stats() == {
            queued_tokens.TOKENS: 0,
            queued_tokens.BUSY: 0.0,
        }
        replica.__del__()
        with pytest.raises(NotReady, match="shutting down"):
            await replica.check_health()
        assert await call(app, "/readyz") == 503

    asyncio.run(life())


@pytest.mark.usefixtures("log_kept")
def test_a_setting_wins_over_the_share_of_cores(small: Path) -> None:
    async def life() -> None:
        replica = Replica(Options(bundles=small, settings={"worker_threads": 1}), lambda: 2)
        assert replica._service.settings.num_cores == 1
        replica.__del__()

    asyncio.run(life())


def test_wrong_args_are_refused() -> None:
    with pytest.raises(ValidationError, match="bundle"):
        Options(bundle="bundles")  # type: ignore[call-arg]


@pytest.mark.usefixtures("log_kept")
def test_a_wrong_setting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="timeout-s"):
        Replica(Options(bundles=tmp_path, settings={"timeout_s": -1}), lambda: 2)


def test_the_example_names_what_there_is() -> None:
    (application,) = EXAMPLE["applications"]
    module, _, name = application["import_path"].partition(":")
    assert (module, name) == (ray_serve.__name__, ray_serve.application.__name__)
    options = Options(**application["args"])
    Settings(**options.settings)
    (deployment,) = application["deployments"]
    policy = deployment["autoscaling_config"]["policy"]
    module, _, name = policy["policy_function"].partition(":")
    assert module == queued_tokens.__name__
    getattr(queued_tokens, name)(**policy["policy_kwargs"])
    seconds = deployment["graceful_shutdown_timeout_s"]
    assert seconds >= options.settings["timeout_s"] + ray_serve.AFTER_DEADLINE_S


def test_it_imports_without_ray_and_the_policy_without_addnorm() -> None:
    program = "import sys; sys.modules['ray'] = None; import addnorm.cluster.ray_serve"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)
    names = imported(ROOT / "cluster" / "queued_tokens.py")
    assert not any(name.startswith("addnorm") for name in names)


def test_serve_takes_the_application(tmp_path: Path) -> None:
    pytest.importorskip("ray.serve")
    app = ray_serve.application(Options(bundles=tmp_path))
    deployment = app._bound_deployment
    assert deployment.name == EXAMPLE["applications"][0]["deployments"][0]["name"]
    assert deployment.max_ongoing_requests == ray_serve.MAX_ONGOING_REQUESTS
