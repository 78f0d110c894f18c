"""All that becomes known of one request on its way. Reported once, at its end (report.py)."""

import random
import re
import time
from asyncio import Task
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from addnorm.service.errors import ServiceError
from addnorm.service.models.usage import Statistics
from addnorm.service.asking.deadline import Deadline
from addnorm.service.asking.gate import Holdings

KEY = "context"
REQUEST_ID = re.compile(rb"[\w.:-]{1,128}")
Envelope = Callable[[ServiceError], dict[str, Any]]  # an error -> the body that tells of it


@dataclass
class RequestContext:
    """Travels with one request. Holds no content, and no model: an idle connection keeps it."""

    request_id: str = ""
    started: float = field(default_factory=time.monotonic)  # the deadline counts from here
    holdings: Holdings = field(default_factory=Holdings)  # with the name of the API key
    envelope: Envelope | None = None  # of errors, where the path does not say which
    # what the connection found
    surplus: ServiceError | None = None  # more connections are open than are answered
    is_closing: Callable[[], bool] | None = None  # whether the connection is lost, or soon is
    # what decoding found
    model: str = ""
    precision: str | None = None  # that the model's name asks for, as the next
    dimensions: int | None = None
    statistics: Statistics | None = None  # of the model's version
    num_sequences: int = 0
    real_tokens: int = 0
    pad_tokens: int = 0
    deadline: Deadline | None = None
    leaving: Task[None] | None = None  # waits for the caller to leave, once the body is whole
    # how it went
    decoded_from: float | None = None  # time.monotonic(); the stages follow each other from there
    stages_s: dict[str, float] = field(default_factory=dict)
    is_inferred: bool = False  # an inference was computed and encoded
    code: str = ""  # of an error
    param: str = ""  # the field that the error is about
    rejection: str = ""  # why it was rejected, if it was: a reason of addnorm_rejections
    status: int | None = None  # of the response, once its head was sent
    first_byte_s: float | None = None  # after `started`; when the body's first bytes were sent

    def note(self, error: ServiceError) -> None:
        """Keeps what is told of the error: the error itself would keep its frames."""
        self.code = error.code
        self.param = (error.param or "") if error.names_own_field else ""
        self.rejection = error.reason if error.is_rejection else ""

    def times_ms(self) -> dict[str, float]:
        """Milliseconds of the stages, and the deadline and the first byte, where they are known."""
        seconds = dict(self.stages_s)
        if self.first_byte_s is not None:
            seconds["first_byte"] = self.first_byte_s
        if self.deadline:
            seconds["timeout"] = self.deadline.timeout_s
        return {f"{name}_ms": round(value * 1000, 3) for name, value in seconds.items()}

    def spans(self) -> dict[str, tuple[float, float]]:
        """Each stage's start and end."""
        ends = accumulate(self.stages_s.values(), initial=self.decoded_from or 0.0)
        return dict(zip(self.stages_s, pairwise(ends), strict=True))


def request_id(sent: bytes) -> str:
    """The caller's, or a new one."""
    return sent.decode() if REQUEST_ID.fullmatch(sent) else f"{random.getrandbits(128):032x}"


def attach_context(state: dict[str, Any]) -> RequestContext:
    """The context of the request whose ASGI scope has this state, created at the first call."""
    context: RequestContext = state.get(KEY) or RequestContext()
    state[KEY] = context
    return context


def context_of(scope: Mapping[str, Any]) -> RequestContext:
    """The context of a request that has one, by its ASGI scope."""
    context: RequestContext = scope["state"][KEY]
    return context
