"""The server: numpy, onnxruntime, Starlette. Never imports torch, `model` or `export`."""

import os

VERSION = "0.2.0"


def to_install(extra: str) -> str:
    """The commands that install an extra's packages. No index has Addnorm: it comes as a clone or a
    wheel."""
    wheel = f"addnorm-{VERSION}-py3-none-any.whl"
    return f"run `pip install '.[{extra}]'` in a clone, or `pip install './{wheel}[{extra}]'`"


# prometheus_client keeps metrics in files of this folder, and reads it when it is first imported.
# Empty, it counts as not set, as our own variables do
if not os.environ.get("PROMETHEUS_MULTIPROC_DIR", "x").strip():
    del os.environ["PROMETHEUS_MULTIPROC_DIR"]
# onnxruntime sends telemetry by default; it reads this when it is first imported
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
