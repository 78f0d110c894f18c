"""Unmodified clients, in an environment of their own, against a server with tiny models.

`make clients` runs it. The argument is the interpreter of the clients' environment; names of
clients may follow.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conftest import inference_of, serving
from tests.support.exports import shared_exports
from tests.support.task_models import DEFAULTS, export_task_models


def main(interpreter: str, *names: str) -> int:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "bundles"
        with shared_exports():
            export_task_models(root, Path(place))
        with serving(inference_of(root, default_models=DEFAULTS)) as url:
            command = [interpreter, "-m", "tests.clients.table", url, *names]
            return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
