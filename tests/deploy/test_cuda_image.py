"""The image for a GPU and the services of compose, as far as files say it: no engine runs here."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCKERFILE = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
STAGES = dict(re.findall(r"^FROM (\S+ AS \S+)\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.M | re.S))
BY_NAME = {stage.split(" AS ")[1]: text for stage, text in STAGES.items()}
BASES = {stage.split(" AS ")[1]: stage.split(" AS ")[0] for stage in STAGES}


def copies(stage: str) -> list[str]:
    return re.findall(r"^COPY .*", BY_NAME[stage], re.MULTILINE)


def test_the_default_image_serves_on_the_cpu() -> None:
    """`docker build .` makes the last stage."""
    assert [*BY_NAME][-1] == "serve"
    assert "cuda" not in BY_NAME["serve"] + BY_NAME[BASES["serve"]]


def test_the_two_images_differ_in_their_packages_alone() -> None:
    assert BASES["serve"] == BASES["serve-cuda"] == "served"
    on_cpu = [line.replace("--from=lean /opt/venv", "VENV") for line in copies("serve")]
    on_gpu = [line.replace("--from=lean-cuda /opt/venv", "VENV") for line in copies("serve-cuda")]
    assert on_cpu == on_gpu


def test_one_onnxruntime_is_installed_with_cuda_and_cudnn() -> None:
    """Two would be in one another's place."""
    assert BASES["lean-cuda"] == "lean"
    installed = BY_NAME["lean-cuda"]
    uninstalled, _, rest = installed.partition("uninstall --yes onnxruntime ")
    assert uninstalled
    assert '"onnxruntime-gpu[cuda,cudnn]>=1.31,<2"' in rest
    assert "ADDNORM_PROVIDER=cuda" in BY_NAME["serve-cuda"]  # it does not fall back to the CPU


def test_the_compose_service_reserves_a_gpu_and_differs_in_little_else() -> None:
    gpu, cpu = dict(COMPOSE["addnorm-cuda"]), dict(COMPOSE["addnorm"])
    (device,) = gpu.pop("deploy")["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    assert gpu.pop("profiles") == ["cuda"]
    assert gpu["build"].pop("target") == "serve-cuda"
    for key in ("image", "ports", "networks", "mem_limit"):
        gpu.pop(key)
        cpu.pop(key, None)
    assert gpu == cpu


def test_the_compose_service_for_grpc_publishes_its_port() -> None:
    grpc, plain = dict(COMPOSE["addnorm-grpc"]), dict(COMPOSE["addnorm"])
    assert grpc["environment"].pop("ADDNORM_GRPC_PORT") == "8001"
    assert [port.rpartition(":")[2] for port in grpc["ports"]] == ["8000", "8001"]
    arguments = grpc["build"].pop("args")
    assert arguments.pop("EXTRAS") == "grpc"
    assert {*arguments, "EXTRAS"} == {*plain["build"]["args"]}
    assert not any(arguments.values())  # they come from the environment
    assert grpc.pop("profiles") == ["grpc"]
    for key in ("image", "ports", "environment", "build"):
        grpc.pop(key)
        plain.pop(key, None)
    assert grpc == plain


@pytest.mark.parametrize("name", ["own-model", None])
def test_compose_serves_whichever_bundle_there_is(tmp_path: Path, name: str | None) -> None:
    if name:
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "manifest.json").touch()
    command = COMPOSE["addnorm"]["command"][-1].replace("$$", "$").replace("/models", str(tmp_path))
    shown = command.replace("exec python -m addnorm serve", "echo")
    ended = subprocess.run(["sh", "-c", shown], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["--bundles", str(tmp_path) if name else "/bundles"]
