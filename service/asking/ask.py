"""One request, from its head to its report: who asks, what is asked, what it costs, where its rows
go, and what became of it. Knows no wire."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field as default
from functools import partial
from typing import Any, Literal, TypeVar, cast

from addnorm.service.asking.rows import AskedRows
from addnorm.service.engine.batch import Batch, Padding
from addnorm.service.engine.engine import Engine
from addnorm.service.engine.manifest import InputType, RowKind, Task
from addnorm.service.engine.model import Model
from addnorm.service.engine.names import Alias
from addnorm.service.engine.outputs import DType, Output, Value
from addnorm.service.engine.outputs.output import Size
from addnorm.service.engine.registry import Models
from addnorm.service.engine.target import Statistics, Target
from addnorm.service.engine.windows import Windows
from addnorm.service.errors import ClientGone, Expired, InvalidInput, ServiceError

# what a request may hold: see `gate.py`
Account = Literal["requests", "calls", "bodies", "responses", "answer_s", "bulk_s", "tokens"]
Envelope = Callable[[ServiceError], dict[str, Any]]  # an error -> the body that tells of it
Made = TypeVar("Made", bound=Value)
Result = TypeVar("Result")


@dataclass(eq=False, slots=True)
class QueueEntry:
    """The part of an ask that waits for workers. The queue alone writes it."""

    number: int  # in order of arrival
    submitted: float
    waiting: list[Any]  # `Waiting`: sequences that no worker has taken
    size: int  # tokens that must be computed
    num_left: int  # sequences that are not computed
    rank: int  # among the oldest of its backlog
    num_tokens: int = 0  # of `waiting`
    taken: float | None = None  # when its first sequence was
    computed: float = 0.0  # when its last sequence was
    future: "Future[None]" = default(default_factory=Future)  # done once its rows are there


@dataclass(eq=False, slots=True)
class Record:
    """The part of an ask that its report reads: log line, metrics, trace."""

    model_name: str = ""
    statistics: Statistics | None = None  # of the model's version
    num_sequences: int = 0
    real_tokens: int = 0
    pad_tokens: int = 0
    decoded_from: float | None = None  # time.monotonic(); the stages follow each other from there
    stages_s: dict[str, float] = default(default_factory=dict)
    is_inferred: bool = False  # an answer was computed and encoded
    code: str = ""  # of an error
    param: str = ""  # the field that the error is about
    rejection: str = ""  # why it was rejected, if it was: a reason of addnorm_rejections
    status: int | None = None  # of the answer, once its head was sent
    first_byte_s: float | None = None  # after `started`; when the answer's first bytes were sent


@dataclass(eq=False, slots=True, weakref_slot=True)
class Ask:
    """Above each group stands who writes it; all others read. The event loop alone writes, but for
    what the queue and its workers do."""

    # whoever receives it
    id: str = ""
    route: str = ""  # how long an answer takes is predicted from others of its route
    key: str = ""  # the name of the caller's API key, for fairness among keys
    started: float = default(default_factory=time.monotonic)  # the deadline counts from here
    timeout_s: float = math.inf
    is_callers: bool = True  # False: the caller named no deadline, and a bulk ask gets more time
    # that the route's path has: a model, a version
    names: Mapping[str, str] = default(default_factory=dict)
    num_body_bytes: int = 0  # decompressed
    # of fields that no body has and that are left out; None: such a field is rejected
    ignored: list[str] | None = None
    max_time_s: float = math.inf  # after `started`: what a reranker scored until then is told
    anew: bool = False  # whether all is computed, whatever the cache holds
    coding: str | None = None  # of the answer, if it is compressed
    # the connection
    is_closing: Callable[[], bool] | None = None  # whether the connection is lost, or soon is
    has_left: bool = False
    # the decode of its dialect; None: as the bundle says
    model: Model = default(init=False)
    precision: str | None = None
    dimensions: int | None = None  # that the model's name asks for
    alias: Alias = default(init=False)  # the model's name, with what else it asks for
    is_substitute: bool = False  # the model stands for a name that no model has
    batch: Batch = default(init=False)
    padding: Padding = default(init=False)
    outputs: tuple[Output[Value], ...] = ()
    encode: Callable[["Ask"], Any] = default(init=False)  # its outputs -> what the caller gets
    dtype: DType = "float32"  # of activations, logits and pooled vectors as they are sent
    binary: bool = False  # whether numbers are sent as bytes, not as text
    answer_bytes: int | None = None  # of the answer, where it is not the outputs themselves
    field: str = "input_ids"  # the caller's name for the sequences, for errors
    input_type: InputType | None = None  # of its texts, where the model tells them apart
    cut: list[int] = default(default_factory=list)  # characters of each text that was cut
    windows: Windows | None = None  # its sequences, where its texts may be longer than the model
    num_windows: int = 0  # of texts that have several
    hint: str = ""  # why one of the caller's ids may be outside the vocabulary
    # its sequences run in their order, and those that are not there in `max_time_s` are left out
    in_time: bool = False
    envelope: Envelope | None = None  # of errors, where the path does not say which
    # `limits.py` and the gate
    engine: Engine = default(init=False)
    target: Target = default(init=False)
    sizes: Sequence[Size] = ()  # of its outputs
    num_bytes: int = 0  # of the answer, estimated
    picks: tuple[RowKind, ...] = ()  # what must be kept of its rows
    kept_bytes: int = 0  # of the rows and of what else is kept until the answer is made
    answer_s: float = 0.0  # predicted, of making and writing the answer
    held: dict[Account, float] = default(default_factory=dict)
    # cache, queue and workers
    rows: AskedRows = default(init=False)
    backlog: Any = None  # of the queue, also while it runs; None: it goes before all others
    is_bulk: bool = False  # it leaves a worker to others, and runs on one core, with no other asks
    until: float = math.inf  # when its rows must be there; in time: when the next must be begun
    ends: float = math.inf  # when it is answered, if it is to be in time
    entry: QueueEntry = default(init=False)
    # by class, in the order asked for
    values: Mapping[type[Output[Any]], Value] = default(init=False)
    there: Sequence[int] | None = None  # the sequences that it is answered with; None: all
    order: Sequence[int] | None = None  # of the caller's texts, by a first stage
    scored: tuple[int, int] | None = None  # texts with a score, of how many; None: all must have
    num_late: int = 0  # texts without one as its time was over
    # whoever passes
    record: Record = default(default_factory=Record)
    # `Handover.result`
    stop: Callable[[], object] | None = None  # ends the present wait

    def check(self) -> None:
        """ClientGone or Expired if nobody waits for the answer any more."""
        if self.has_left:
            raise ClientGone("the caller left before the answer")
        if time.monotonic() >= self.started + self.timeout_s:
            raise self.expiry()

    def expiry(self) -> Expired:
        return Expired(
            f"deadline: no answer within {self.timeout_s:g} s: allow more time, or ask for less"
        )

    def end(self) -> None:
        """Its time is over: it is answered with what is there."""
        self.entry.computed = time.monotonic()
        with suppress(InvalidStateError):  # all is there
            self.entry.future.set_result(None)

    def leave(self) -> None:
        """The caller has left."""
        self.has_left = True
        if self.stop:
            self.stop()

    def find_model(self, models: Models, ref: str | None, task: Task | None = None) -> Model:
        """The model that is meant. The log names it from now on, even if the request fails."""
        model, prompt_name = self.find_model_and_prompt(models, ref, None, task)
        if prompt_name is not None:
            raise InvalidInput(
                f"model has the prompt {prompt_name[:60]!r}, which has no effect here: send"
                f" {model.name!r}",
                param="model",
            )
        return model

    def find_model_and_prompt(
        self,
        models: Models,
        ref: str | None,
        prompt_name: str | None,
        task: Task | None = None,
    ) -> tuple[Model, str | None]:
        """The model as `find_model` finds it, and its prompt, which its name may say too."""
        selection = models.meant(ref, task, of_request=True)
        if selection.prompt_name is not None and prompt_name is not None:
            raise InvalidInput(
                f"prompt_name is {prompt_name[:60]!r}, but model already has the prompt"
                f" {selection.prompt_name[:60]!r}: send one of them",
                param="prompt_name",
            )
        self.model, self.record.model_name = selection.model, selection.model.name
        self.alias, self.is_substitute = selection.alias, selection.is_substitute
        self.precision, self.dimensions = selection.alias.precision, selection.alias.dimensions
        return selection.model, selection.prompt_name if prompt_name is None else prompt_name

    def value(self, kind: type[Output[Made]]) -> Made:
        """The value of the one output of this class."""
        return cast(Made, self.values[kind])

    def note(self, error: ServiceError) -> None:
        """Keeps what is told of the error: the error itself would keep its frames."""
        self.record.code = error.code
        self.record.param = (error.param or "") if error.names_own_field else ""
        self.record.rejection = error.reason if error.is_rejection else ""

    def forget(self) -> None:
        """Lets go of the model and of all that is large: who reads the answer may be slow."""
        for name in ("model", "batch", "padding", "encode", "engine", "target", "rows", "values"):
            if hasattr(self, name):
                delattr(self, name)
        self.outputs, self.backlog, self.windows = (), None, None


class Handover:
    """Results of other threads -> the event loop. Those that come close together wake it once: each
    wake-up is a system call, after which both threads want the interpreter's lock.

    Appending to a deque and assigning need no lock.
    """

    def __init__(self) -> None:
        self._settled: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._woken: asyncio.AbstractEventLoop | None = None  # that will hand over

    async def result(self, future: "Future[Result]", ask: Ask, cancels: bool = True) -> Result:
        """The result that another thread gives the future. Expired or ClientGone, and it is
        cancelled, as soon as nobody waits for it. Whatever waits for another thread waits here.
        cancels: False for work that others will want too."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Result] = loop.create_future()
        future.add_done_callback(partial(self._note, loop, waiter))
        left_s = ask.started + ask.timeout_s - time.monotonic()
        timer, ask.stop = loop.call_later(left_s, waiter.cancel), waiter.cancel
        try:
            return await waiter
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():  # the task was cancelled, not what it waits for
                raise
            ask.check()
            raise ask.expiry() from None  # timers may be some milliseconds early
        finally:
            timer.cancel()
            ask.stop = None
            if cancels:
                future.cancel()  # no effect on one that is done

    def _note(
        self, loop: asyncio.AbstractEventLoop, waiter: "asyncio.Future[Any]", future: "Future[Any]"
    ) -> None:
        """On the thread that settled the future."""
        self._settled.append((waiter, future))
        if self._woken is not loop:
            self._woken = loop
            with suppress(RuntimeError):  # the loop is closed, and all that waited are gone
                loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        self._woken = None  # first: what is noted from now on may not be seen below
        while self._settled:
            waiter, future = self._settled.popleft()
            if waiter.done() or waiter.get_loop().is_closed():
                continue
            if future.cancelled():
                waiter.cancel()
            elif error := future.exception():
                waiter.set_exception(error)
            else:
                waiter.set_result(future.result())
