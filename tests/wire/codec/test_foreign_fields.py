"""What clients of other servers and languages send, whatever the dialect: read as it is meant, or
rejected by name."""

import logging
from functools import partial
from typing import Any, Literal

import pytest
from pydantic import AliasChoices, Field

from addnorm.service.errors import InvalidInput
from addnorm.service.wire.codec.foreign_fields import (
    FOREIGN,
    MAX_CHARACTERS,
    MAX_LOGGED,
    MAX_TOLD,
    IgnoredFields,
    header_value,
)
from addnorm.service.wire.codec.validation import Strict, fit


class Part(Strict):
    text: str
    keep: bool = False


class Toy(Strict):
    ids: list[list[int]] | None = None
    num: int | None = Field(None, ge=1)
    any_num: int | None = None
    share: float | None = None
    flag: bool | Literal["END"] | None = None
    kind: Literal["a", "b"] | None = None
    name: str | None = None
    text: str = "default"
    parts: list[Part] = Field(default_factory=list)


def read(**sent: Any) -> dict[str, Any]:
    """What our own routes read."""
    return fit(Toy, sent).model_dump(exclude_defaults=True)


def taken(**sent: Any) -> tuple[dict[str, Any], list[str]]:
    """What the dialects of others read, and the names that they left out."""
    names = list[str]()
    return fit(Toy, sent, partial(IgnoredFields().note, names)).model_dump(
        exclude_defaults=True
    ), names


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({"num": 64.0}, {"num": 64}),
        ({"num": "64"}, {"num": 64}),
        ({"num": "64.0"}, {"num": 64}),
        ({"num": 0}, {}),
        ({"num": 0.0}, {}),
        ({"any_num": 0}, {"any_num": 0}),
        ({"share": "0.5"}, {"share": 0.5}),
        ({"flag": "true"}, {"flag": True}),
        ({"flag": "False"}, {"flag": False}),
        ({"flag": "END"}, {"flag": "END"}),
        ({"kind": ""}, {}),
        ({"name": ""}, {}),
        ({"flag": ""}, {}),
        ({"stream": False, "n": 1, "top_p": 1.0, "tools": []}, {}),
        ({"text": ""}, {"text": ""}),
        ({"ids": [[1, 2.0], [3.0], []]}, {"ids": [[1, 2], [3], []]}),
        (
            {"parts": [{"text": "a"}, {"text": "b", "keep": "true"}, {"text": "", "image": ""}]},
            {"parts": [{"text": "a"}, {"text": "b", "keep": True}, {"text": ""}]},
        ),
    ],
    ids=str,
)
def test_what_other_clients_write_is_taken_for_what_it_means(
    sent: dict[str, Any], meant: dict[str, Any]
) -> None:
    assert read(**sent) == meant


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ({"num": 64.5}, "num: Input should be a valid integer, got 64.5"),
        ({"num": "64.5"}, 'num: Input should be a valid integer, got "64.5"'),
        ({"num": -1}, "num: Input should be greater than or equal to 1, got -1"),
        ({"num": True}, "num: Input should be a valid integer, got true"),
        ({"num": 1e300}, "num: Input should be a valid integer"),
        ({"flag": "yes"}, 'flag: Input should be a valid boolean, got "yes"'),
        ({"ids": [[1, "2"]]}, 'ids[0][1]: Input should be a valid integer, got "2"'),
        ({"ids": [[1.0, 2.5]]}, "ids[0][1]: Input should be a valid integer, got 2.5"),
        ({"nums": 3}, "nums is unknown; known are ids, num"),
        ({"nums": ""}, "nums is unknown"),
        ({"topN": 3}, "topN is unknown; known are ids, num"),
        ({"parts": [{"text": "a", "keeps": True}]}, "parts[0].keeps is unknown; known are text"),
        ({"parts": [{"text": "a", "keepIt": 1}]}, "parts[0].keepIt is unknown; known are text"),
        (
            {"stream": True},
            "stream is true: this server scores, it does not generate; leave stream",
        ),
        ({"images": ["x"]}, 'images is ["x"]: only texts are embedded here; leave images out'),
        ({"parts": [{"text": "a", "stream": True}]}, "parts[0].stream is true"),
        ({"n": True}, "n is true"),
        ({"num": {}}, "num: Input should be a valid integer"),
        ({"parts": {}}, "parts: Input should be a valid list"),
    ],
    ids=str,
)
def test_what_is_not_clear_or_changes_answers_is_rejected_by_name(
    sent: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInput) as raised:
        read(**sent)
    assert raised.value.message.startswith(words)


@pytest.mark.parametrize(
    ("sent", "meant", "names"),
    [
        ({"rid": "7", "num": 3}, {"num": 3}, ["rid"]),
        ({"topN": 3, "nums": [1]}, {}, ["topN", "nums"]),
        ({"num": {}, "kind": {}, "ids": {}}, {}, []),
        ({"extra_body": {}, "user": {"a": {"b": 1}}}, {}, ["extra_body", "user"]),
        ({"stream": False, "n": 1}, {}, ["stream", "n"]),
        (
            {"parts": [{"text": "a", "x": 1}, {"text": "b", "x": 2, "keep": "true"}]},
            {"parts": [{"text": "a"}, {"text": "b", "keep": True}]},
            ["parts.x"],
        ),
        ({"a\r\nset-cookie: b": 1}, {}, ["a??set-cookie??b"]),
        ({"näme": 1, "\u2028": 1}, {}, ["n?me", "?"]),
        ({"x" * 500: 1}, {}, ["x" * MAX_CHARACTERS]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_name_that_nobody_knows_is_left_out_and_told(
    sent: dict[str, Any], meant: dict[str, Any], names: list[str]
) -> None:
    assert taken(**sent) == (meant, names)


@pytest.mark.parametrize("sent", [{"stream": True}, {"parts": [{"text": "a", "stream": True}]}])
def test_what_is_known_to_change_answers_is_rejected_in_others_dialects_too(
    sent: dict[str, Any],
) -> None:
    with pytest.raises(InvalidInput, match="stream is true: this server scores"):
        taken(**sent)


def test_a_header_tells_of_so_many_names_and_that_there_are_more() -> None:
    assert header_value(taken(**{f"name{at}": 1 for at in range(MAX_TOLD)})[1]).endswith(
        f"name{MAX_TOLD - 1}"
    )
    header = header_value(taken(**{f"name{at}": 1 for at in range(900)})[1])
    assert header.endswith(f"name{MAX_TOLD - 1}, ...")


@pytest.mark.parametrize("name", FOREIGN)
def test_each_foreign_field_is_left_out_where_it_changes_nothing(name: str) -> None:
    class Bare(Strict):
        count: int

    names = list[str]()
    for value in (*FOREIGN[name].values, "", [], {}):
        sent = {"count": 3, name: value}
        assert fit(Bare, sent, names.append).count == 3
    assert set(names) == {name}
    with pytest.raises(InvalidInput) as raised:
        fit(Bare, {"count": 3, name: {"some": "thing"}}, names.append)
    assert FOREIGN[name].reason in raised.value.message


def test_a_field_of_the_bodys_own_is_never_foreign() -> None:
    class Own(Strict):
        stream: bool = True
        user: str | None = None

    assert fit(Own, {"stream": True, "user": "me"}, lambda name: pytest.fail(name)).user == "me"


def test_many_rows_of_whole_floats_are_mended_at_once() -> None:
    ids = [[float(index)] * 10 for index in range(2000)]
    assert read(ids=ids) == {"ids": [[index] * 10 for index in range(2000)]}


def test_a_field_that_many_parts_have_is_left_out_of_all_at_once() -> None:
    parts = [{"text": "a", "user": "me", "priority": 1, "keep": "true"} for _ in range(2000)]
    kept, names = taken(parts=parts)
    assert kept["parts"] == [{"text": "a", "keep": True}] * 2000
    assert sorted(names) == ["parts.priority", "parts.user"]


def test_names_that_an_alias_has_are_the_bodys_own() -> None:
    class Named(Strict):
        text_1: str = Field(validation_alias=AliasChoices("text_1", "queries"))

    assert fit(Named, {"queries": "a"}, pytest.fail).text_1 == "a"


def test_the_log_names_each_field_once(caplog: pytest.LogCaptureFixture) -> None:
    """And no more of them than so many, as callers choose them."""
    ignored = IgnoredFields()
    with caplog.at_level(logging.INFO, "addnorm"):
        for name in ("user", "rid", "user", "a\nb", "rid"):
            ignored.note([], name)
        assert [record.message.rpartition(": ")[2] for record in caplog.records] == [
            "user", "rid", "a?b",
        ]  # fmt: skip
        for at in range(2 * MAX_LOGGED):
            ignored.note([], str(at))
    assert len(caplog.records) == MAX_LOGGED
