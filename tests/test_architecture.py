"""The arrow model <- export -> service, and no cycle."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from service import VERSION

ROOT = Path(__file__).parent.parent
OURS = {"model", "export", "service", "load"}
MAY_IMPORT = {
    "model": {"model"},
    "service": {"service"},
    "export": {"export", "model", "service"},
}


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_packages_import_along_the_arrow_only(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        ours = {name.partition(".")[0] for name in imported(path)} & OURS
        assert ours <= MAY_IMPORT[package], path
        if package == "service":
            assert not {name.partition(".")[0] for name in imported(path)} & {"torch", "onnx", "onnxscript"}, path


def test_the_version_stands_in_the_package_and_in_pyproject() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION


def test_no_import_cycle() -> None:
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): imported(path)
        for package in MAY_IMPORT
        for path in (ROOT / package).rglob("*.py")
    }
    needs = {name: {other for other in modules if other in uses and other != name} for name, uses in modules.items()}
    while needs:
        free = [name for name, others in needs.items() if not others & needs.keys()]
        assert free, f"cycle among {sorted(needs)}"
        for name in free:
            del needs[name]


def test_service_imports_without_torch_onnx_model_and_export() -> None:
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (ROOT / "service").rglob("*.py")]
    blocked = ("torch", "onnx", "onnxscript", "model", "export")
    program = f"""
import importlib, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ImportError(f"{{name}} is blocked")
sys.meta_path.insert(0, Block())
for module in {modules}:
    importlib.import_module(module.removesuffix(".__init__"))
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)


def test_functions_stay_short() -> None:
    for package in OURS:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    assert node.end_lineno is not None
                    assert node.end_lineno - node.lineno < 60, f"{path}:{node.lineno} {node.name}"
