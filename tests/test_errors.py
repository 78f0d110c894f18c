"""Every class of errors.py that has a code says what it means, and what to do. No message is long,
whatever of the caller's own it repeats."""

import httpx
import pytest

from addnorm.service import errors
from addnorm.service.errors import (
    MAX_CHARACTERS,
    MAX_PARAM_CHARACTERS,
    InvalidInput,
    Overloaded,
    ServiceError,
)
from benchmarks.documents.reference import kinds


def test_every_service_error_is_defined_in_errors() -> None:
    assert {kind.__module__ for kind in kinds(ServiceError)} == {errors.__name__}


def test_the_module_begins_with_the_tree_of_its_classes() -> None:
    assert "\n".join(f"    {line}" for line in tree(ServiceError)) in str(errors.__doc__)


def tree(kind: type[ServiceError], lead: str = "", branch: str = "") -> list[str]:
    """A line for each class below `kind`, with its status."""
    lines, subclasses = [f"{lead + branch + kind.__name__:28}{kind.status}"], kind.__subclasses__()
    lead += {"": "", "├── ": "│   ", "└── ": "    "}[branch]
    for number, subclass in enumerate(subclasses, 1):
        lines += tree(subclass, lead, "└── " if number == len(subclasses) else "├── ")
    return lines


def test_every_code_has_a_meaning_and_a_remedy() -> None:
    with_code = [kind for kind in kinds(ServiceError) if "code" in vars(kind)]
    assert len({kind.code for kind in with_code[1:]}) == len(with_code) - 1
    for kind in with_code[1:]:
        assert kind.__doc__, kind
        assert "remedy" in vars(kind), kind
    assert "code" not in vars(Overloaded), "each rejection says which limit it met"


def test_a_long_message_loses_its_middle_and_keeps_what_to_do() -> None:
    error = InvalidInput(f"first {'x' * 10**6}: send less at once", param="y" * 10**6)
    assert len(error.message) == len(str(error)) == MAX_CHARACTERS
    assert error.message.startswith("first xxx")
    assert error.message.endswith("xxx: send less at once")
    assert error.param == "y" * MAX_PARAM_CHARACTERS


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", ["/", "/v1/models/", "/v2/models/", "/api/", "/hf/", "/models/"])
def test_a_long_path_is_not_repeated_whole(client: httpx.Client, method: str, path: str) -> None:
    answer = client.request(method, path + "x" * 20_000)
    assert answer.status_code in (400, 404, 405)
    assert len(answer.content) < MAX_CHARACTERS + 500
