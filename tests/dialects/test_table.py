"""How the row of a path is found."""

import pytest
from pydantic import BaseModel

from addnorm.service.server.table import Table
from addnorm.service.wire.dialect_errors import OPENAI_ERRORS
from addnorm.service.wire.route import Protocol, Route


async def nothing(*_: object) -> None:
    raise AssertionError("nothing is decoded")


def route(path: str, name: str) -> Route:
    return Route(path=path, name=name, summary="", body=BaseModel, decode=nothing)


TABLE = Table(
    [
        Protocol(
            tag="",
            errors=OPENAI_ERRORS,
            routes=(
                route("/one", "first"),
                route("/one", "second"),
                route("/of/{name}/{number:int}", "numbered"),
                route("/of/{name:path}/all", "all"),
                route("/of/{name:path}", "named"),
            ),
        )
    ]
)


@pytest.mark.parametrize(
    ("path", "found", "names"),
    [
        ("/one", "first", {}),
        ("/two", None, {}),
        ("/one/", None, {}),
        ("/of/a", "named", {"name": "a"}),
        ("/of/a/b", "named", {"name": "a/b"}),
        ("/of/a/007", "numbered", {"name": "a", "number": "7"}),
        ("/of/a/b/all", "all", {"name": "a/b"}),
        ("/off/a", None, {}),
    ],
)
def test_a_row_is_found_by_its_path(path: str, found: str | None, names: dict[str, str]) -> None:
    """A path without names first; of several that fit, the first."""
    answer = TABLE.find(path)
    assert (answer and (answer[0].name, answer[1])) == (found and (found, names))
