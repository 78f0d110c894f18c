"""The checks of tests/deploy/chart, in an environment that can render the Helm chart."""

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.findings import BUILD

pytestmark = pytest.mark.chart
ROOT = Path(__file__).parents[2]
PYTEST = ("-m", "pytest", "-c", "/dev/null", "--rootdir", ".", "--noconftest", "-p")


def test_every_check_of_the_chart_passes() -> None:
    files = sorted(str(file) for file in (ROOT / "tests/deploy/chart").glob("check_*.py"))
    assert files
    command = [BUILD / "chart/bin/python", *PYTEST, "no:cacheprovider", "-ra", *files]
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
