"""A request's deadline, by its header."""

from starlette.requests import Request

from addnorm.service.errors import InvalidInput
from addnorm.service.scheduling.deadline import Deadline
from addnorm.service.telemetry.request_context import RequestContext

TIMEOUT_HEADER = "x-request-timeout-ms"


def begin_deadline(request: Request, context: RequestContext, timeout_s: float) -> Deadline:
    """The request's deadline: what its header says, or timeout_s."""
    sent_s = sent_timeout_s(request)
    context.deadline = Deadline(sent_s or timeout_s, context.started, context.holdings)
    context.deadline.is_callers = sent_s is not None
    return context.deadline


def sent_timeout_s(request: Request) -> float | None:
    """The time that the caller allows, None where it does not say."""
    sent = request.headers.get(TIMEOUT_HEADER)
    if sent is None:
        return None
    digits = sent.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits)):
        raise InvalidInput(
            f"{TIMEOUT_HEADER} is {sent[:60]!r}: a whole number of milliseconds, 1 to 999999999",
            param=TIMEOUT_HEADER,
        )
    return int(digits) / 1000
