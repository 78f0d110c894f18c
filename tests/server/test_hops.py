"""How many functions of ours one request passes: who reads its road must read so many. The limits
are what it takes now; a change that adds a function takes one away, or says here why not."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import httpx

import addnorm
from tests.conftest import inference_of, serving
from tests.support import web
from tests.support.waiting import eventually

MAX_FUNCTIONS, MAX_FILES = 156, 36  # of one short text
OURS = str(Path(addnorm.__file__).parent)
# whatever is asked
ON_A_TIMER = {
    "on_tick", "flush", "_handlers", "_watch", "_sweep", "sweep", "_sweep_accepted",
    "sweep_accepted", "refresh", "_read_stamp", "_stamp", "tick",
}  # fmt: skip
Function = tuple[str, str]  # its file, its name


@contextmanager
def passed() -> Iterator[set[Function]]:
    """The functions of ours that any thread begins, of those that start meanwhile too.
    Comprehensions are part of their functions."""
    functions = set[Function]()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        is_own = OURS in code.co_filename and not code.co_name.endswith(("comp>", "genexpr>"))
        if event == "call" and is_own:
            functions.add((code.co_filename.removeprefix(OURS), code.co_qualname))

    before = sys.getprofile()
    threading.setprofile(note)
    try:
        yield functions
    finally:
        threading.setprofile(before)


def test_one_short_text_passes_few_functions(text_bundles: Path) -> None:
    with (
        passed() as functions,
        serving(inference_of(text_bundles, worker_threads=2)) as url,
        # a new connection on a slow machine would count
        web.client(base_url=url, limits=httpx.Limits(keepalive_expiry=None)) as client,
    ):
        for text in ("What is made once is not counted.", "Pads are dropped."):
            functions.clear()
            assert client.post("/v1/embeddings", json={"input": [text]}).status_code == 200
            assert eventually(lambda: any("Reporter.report" in name for _, name in functions))
    on_the_way = {
        function for function in functions if function[1].rpartition(".")[2] not in ON_A_TIMER
    }
    assert ("/service/asking/answer.py", "Answers.answer") in on_the_way
    assert len(on_the_way) <= MAX_FUNCTIONS, sorted(on_the_way)
    assert len({path for path, _ in on_the_way}) <= MAX_FILES
