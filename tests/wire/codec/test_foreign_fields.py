"""What clients of other servers and languages send, whatever the dialect: read as it is meant, or
rejected by name."""

import logging
from typing import Any, Literal

import pytest
from pydantic import Field

from addnorm.service.errors import InvalidInput
from addnorm.service.wire.codec.foreign_fields import FOREIGN, IgnoredFields
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
    return fit(Toy, sent).model_dump(exclude_defaults=True)


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
        ({"text": ""}, {"text": ""}),
        ({"ids": [[1, 2.0], [3.0], []]}, {"ids": [[1, 2], [3], []]}),
        (
            {"parts": [{"text": "a"}, {"text": "b", "keep": "true"}, {"text": "", "user": "me"}]},
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
    ],
    ids=str,
)
def test_what_is_not_clear_or_changes_answers_is_rejected_by_name(
    sent: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInput) as raised:
        read(**sent)
    assert raised.value.message.startswith(words)


@pytest.mark.parametrize("name", FOREIGN)
def test_each_foreign_field_is_left_out_where_it_changes_nothing(name: str) -> None:
    name, told = name.replace("*", "call_id"), list[str]()
    values = FOREIGN.get(name, FOREIGN["litellm_*"]).values
    for value in (*(({"any": [1]}, 7, "x") if values is None else values), "", [], {}):
        assert fit(Toy, {"num": 3, name: value}, told.append).num == 3
    assert set(told) <= set(FOREIGN)
    assert told


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
    assert fit(Toy, {"parts": parts}).parts == [Part(text="a", keep=True)] * 2000


def test_the_log_names_ignored_fields_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    ignored = IgnoredFields(clock=lambda: now[0])
    with caplog.at_level(logging.INFO, "addnorm"):
        for seconds in (0, 1, 30, 59, 60, 61, 119):
            now[0] = 100.0 + seconds
            ignored.add("user" if seconds < 30 else "drop_params")
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "user",
        "drop_params, user",
    ]
