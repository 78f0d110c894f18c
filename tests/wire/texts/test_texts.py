"""Texts and ids in pieces: which work is left to threads, and texts of ids like the library's."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from tokenizers import Tokenizer

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.fair_queue import FairQueue
from addnorm.service.asking.gate import Gate
from addnorm.service.asking.turns import Turns
from addnorm.service.settings import Settings
from addnorm.service.wire.codec.negotiation import fragment, written
from addnorm.service.wire.texts.texts import (
    PIECE_TEXTS,
    QUICK_CHARACTERS,
    QUICK_TEXTS,
    Shown,
    TextReader,
    TextsToTokenize,
    Wish,
    column,
    decoded_ids,
    portions,
)
from tests.support.language_model import tokenizer as of_bytes
from tests.support.pipelines import FAMILIES, LINES
from tests.support.pipelines import tokenizer as of_family
from tests.support.scheduling import gate_of


class Noted:
    """Turns that count what is left to them."""

    num_works = 0

    async def run(self, deadline: Ask, work: Callable[[], Any]) -> Any:
        self.num_works += 1
        return work()


@pytest.mark.parametrize(
    ("num_texts", "num_characters", "is_quick"),
    [
        (QUICK_TEXTS, QUICK_CHARACTERS, True),
        (1, QUICK_CHARACTERS + 1, False),
        (QUICK_TEXTS + 1, 0, False),
    ],
)
def test_many_empty_texts_are_no_quick_work(
    num_texts: int, num_characters: int, is_quick: bool
) -> None:
    turns: Any = Noted()
    reader = TextReader(Settings(), gate_of(1, 1000), turns)
    work = reader.run(num_texts, num_characters, Ask(timeout_s=60), lambda: "done")
    assert asyncio.run(work) == "done"
    assert turns.num_works == (not is_quick)


def test_those_who_end_in_time_share_what_is_read() -> None:
    target = SimpleNamespace(tokens_per_s=100.0)
    model: Any = SimpleNamespace(
        runner=lambda precision: SimpleNamespace(target=target),
        bundle=SimpleNamespace(pair_prompt=""),
    )
    reader = TextReader(Settings(), Gate(FairQueue(1), {"bodies": 1000}), Turns(1, "reads"))
    given = TextsToTokenize.of(Wish(field="texts", texts=["a"], takes_prompt=False), model)
    first, second, third = (Ask(max_time_s=1e6, timeout_s=60) for _ in range(3))
    alone = reader.in_time(given, first)
    beside = reader.in_time(given, second)
    assert beside.enough / alone.enough == pytest.approx(1 / 2, abs=0.1)
    read = reader.tokenize_with(alone, lambda texts: [[1] for _ in texts], first, len)
    assert asyncio.run(read) == 1
    del second
    assert reader.in_time(given, third).enough / alone.enough == pytest.approx(1, abs=0.1)


def test_a_piece_has_few_items_of_little_size_or_one_that_is_large() -> None:
    sizes = [0] * 600 + [5, 6, 20, 1, 2]
    parts = list(portions(range(len(sizes)), sizes, 10))
    assert [index for portion in parts for index in portion] == list(range(len(sizes)))
    assert list(map(len, parts)) == [PIECE_TEXTS, PIECE_TEXTS, 600 - 2 * PIECE_TEXTS + 1, 1, 1, 2]


def fake(library: Tokenizer) -> Any:
    class Fake:
        num_ids = library.get_vocab_size()

    Fake.library = library  # type: ignore[attr-defined]
    return Fake


@pytest.mark.parametrize("family", [*FAMILIES, "bytes"])
@pytest.mark.parametrize("plain", [True, False])
def test_texts_of_ids_are_the_librarys(family: str, plain: bool) -> None:
    library = of_bytes(LINES, 300) if family == "bytes" else of_family(family).backend_tokenizer
    num = library.get_vocab_size()
    rows = [[(7 * place + row) % num for place in range(row % 90)] for row in range(300)]
    rows += [[place % num for place in range(9000)], []]
    texts = decoded_ids("ids", rows, plain, fake(library), "model")
    assert orjson.loads(orjson.dumps(texts)) == [
        library.decode(row, skip_special_tokens=plain) for row in rows
    ]


def test_others_go_on_while_a_long_row_is_decoded() -> None:
    """A call that kept the interpreter's lock would let nobody in from its start to its end."""
    library = of_bytes(LINES, 300)
    row, of = [place % 300 for place in range(200_000)], fake(library)
    assert any(_longest_gap_share(row, of) < 0.5 for _ in range(10))


def _longest_gap_share(row: list[int], of: Any) -> float:
    """The longest time that this thread stood still, of the whole."""
    work = threading.Thread(target=lambda: decoded_ids("ids", [row], True, of, "model"))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        work.start()
        times = [time.monotonic()]
        while work.is_alive():
            times.append(time.monotonic())
            time.sleep(0)
        times.append(time.monotonic())
    finally:
        sys.setswitchinterval(interval)
        work.join()
    gaps = [after - before for before, after in pairwise(times)]
    return max(gaps) / (times[-1] - times[0] + 1e-9)


def test_a_column_lets_go_of_what_is_written() -> None:
    texts = [Shown(1, {"tokens": fragment([index]), "ids": fragment(index)}) for index in range(3)]
    parts = written({"tokens": column(texts, "tokens"), "end": 1})
    assert b"".join(parts) == b'{"tokens":[[0],[1],[2]],"end":1}'
    assert [[*text.fields] for text in texts] == [["ids"]] * 3
