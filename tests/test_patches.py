"""What tests change of the code that they test: nothing, but for what stands here with its reason.

A part that a test needs another one of is an argument: a class, a function, a clock, a table.
"""

import ast
from pathlib import Path

import pytest

from tests.support.patches import patches

TESTS = Path(__file__).parent
ERRS = "a step of the export errs, which no caller may choose"
REMAINING = {  # file -> how many, why
    "cluster/test_ray_serve.py": (1, "logging's own state, put back afterwards"),
    "corpus/embed/test_embed_command.py": (1, "the system's rename, and a kill within any step"),
    "export/test_certificate.py": (4, ERRS),
    "export/test_command_lines.py": (1, "the current folder, from which code is imported"),
    "export/test_download.py": (2, "constants of huggingface_hub, read from the environment"),
    "export/test_export.py": (4, ERRS),
    "export/test_program.py": (2, "a package that is absent, a folder of transformers"),
    "export/test_large_models.py": (1, "protobuf's limit of 2 GiB"),
    "export/recognition/test_examples.py": (2, "the words of a command line"),
    "export/recognition/test_from_code.py": (1, "the current folder, from which code is imported"),
    "loading/test_repository.py": (1, "the system's listing of a folder, which root may read"),
    "wire/codec/test_large.py": (2, "how large the steps within one body are"),
    "dialects/test_own_ids.py": (1, "tiktoken's table of encodings, which it downloads"),
    "engine/test_signature.py": (3, "a package that is absent, a link that moves between checks"),
    "asking/test_faults.py": (1, "the system's wall clock"),
    "support/instrumented.py": (1, "FastAPI's class, as auto-instrumentation replaces it"),
    "support/mutation.py": (1, ERRS),
    "support/exports.py": (7, "PyTorch's exporter runs, and reads its tables, once"),
    "wire/telemetry/test_logs.py": (1, "a switch of logging"),
    "test_docs.py": (1, "the programs of a page call the real export"),
}


def test_tests_change_nothing_else() -> None:
    num_lines = {
        path.relative_to(TESTS).as_posix(): len(lines)
        for path in sorted(TESTS.rglob("*.py"))
        if (lines := list(patches(path)))
    }
    assert num_lines == {file: num for file, (num, _) in REMAINING.items()}


@pytest.mark.parametrize(
    "line",
    [
        'monkeypatch.setattr(bundle, "read", other)',
        'patched.setitem(bundle.KINDS, "a", 1)',
        'mock.patch.object(bundle, "read")',
        "bundle.read = other",
        'bundle["a"] = other',
    ],
)
def test_each_way_to_patch_is_found(line: str, tmp_path: Path) -> None:
    (file := tmp_path / "test_one.py").write_text(f"from some import bundle\n{line}\n")
    assert [ast.unparse(line) for line in patches(file)]
    file.write_text("from some import bundle\nown = bundle.read()\nown.name = 1\n")
    assert not list(patches(file))
