"""Unmodified packages with a URL, a key and a model set, each group in its own environment."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.clients.groups import GROUPS, QUIET, packages, rows_of
from benchmarks.clients.rows import ALIASES, KEY, MODEL, RANKER, Site
from benchmarks.findings import BUILD, BUNDLES
from tests.conftest import inference_of, linked, serving

CLIENTS = Path(__file__).parents[2] / "docs" / "clients.md"
SDKS = BUILD / "clients-sdks/bin/python"
pytestmark = pytest.mark.client_packages


@pytest.fixture(scope="module")
def site(task_bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    pytest.importorskip("grpc")
    tiny = [task_bundles / name for name in (RANKER, "masked-lm")]
    root = linked(tmp_path_factory.mktemp("site"), [BUNDLES / MODEL, *tiny])
    with_keys = inference_of(root, aliases=ALIASES, api_keys=f"caller infer {KEY}")
    without = inference_of(root, aliases=ALIASES, grpc_port=0)
    with ExitStack() as stack:
        url, without_key = (stack.enter_context(serving(each)) for each in (with_keys, without))
        yield Site(url, without_key, f"127.0.0.1:{without.grpc.port}")


@pytest.mark.parametrize(("group", "package"), packages())
def test_a_package_gets_what_the_plain_route_gives(site: Site, group: str, package: str) -> None:
    """Or is refused, where the table says so."""
    program = [BUILD / GROUPS[group] / "bin/python", "-m", f"benchmarks.clients.{group}"]
    command = [*program, *site, package]
    done = subprocess.run(command, env={**os.environ, **QUIET}, capture_output=True, text=True)
    came = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith('["'))
    print(json.dumps(came, indent=1))
    expected = {row.name: row.outcome for row in rows_of(group) if row.package == package}
    assert came == expected, done.stderr


def test_the_program_of_the_clients_page_runs_over_grpc(small: Path) -> None:
    pytest.importorskip("grpc")
    programs = re.findall(r"```python\n(.+?)```", CLIENTS.read_text(), re.DOTALL)
    (program,) = (each for each in programs if "tritonclient.http" in each)
    service = inference_of(small, grpc_port=0)
    with serving(service):
        address = f"localhost:{service.grpc.port}"
        program = program.replace("tritonclient.http", "tritonclient.grpc")
        program = program.replace("localhost:8000", address)
        subprocess.run([SDKS, "-c", program], check=True, timeout=60)
