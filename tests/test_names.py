"""Names say what they hold: a noun, not a participle, a pronoun or a question word."""

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("model", "export", "service", "corpus", "load", "cluster", "benchmarks")
VAGUE = {
    "asked", "data", "each", "every", "few", "found", "given", "how", "info", "item", "items",
    "kept", "known", "left", "made", "meant", "more", "most", "named", "obj", "one", "ones",
    "other", "others", "ours", "own", "res", "result", "results", "said", "seen", "shown", "some",
    "stuff", "theirs", "thing", "things", "tmp", "told", "val", "what", "where", "whole", "why",
}  # fmt: skip
MOST_VAGUE = 0.02  # of all assigned names and parameters of a package
QUESTIONS = {"What", "Whether", "How", "Where", "Which", "That", "Who"}


def nodes(package: str) -> list[ast.AST]:
    return [
        node
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_names_are_nouns(package: str) -> None:
    names = Counter[str]()
    for node in nodes(package):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] += 1
        elif isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
            names[node.arg] += 1
    vague = {name: names[name] for name in VAGUE & names.keys()}
    assert "found" not in vague
    assert sum(vague.values()) <= MOST_VAGUE * names.total(), vague


# descriptions of request bodies in the OpenAPI document
OF_BODIES = {"HuggingFaceRequest", "RootBody"}


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_begin_with_a_noun_or_a_verb(package: str) -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    first_words = {
        (ast.get_docstring(node) or "-").split()[0]
        for node in nodes(package)
        if isinstance(node, documented) and getattr(node, "name", "") not in OF_BODIES
    }
    assert not first_words & QUESTIONS
