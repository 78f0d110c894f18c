"""The errors that callers get, with their HTTP status, and the one that ends the operator's start.

    ServiceError                500
    ├── InvalidInput            400
    │   ├── UnknownField        400
    │   ├── EmptyInput          400
    │   ├── InvalidHead         400
    │   └── InvalidHttp         400
    ├── BundleRefused           400
    ├── Unauthenticated         401
    ├── OutOfScope              403
    ├── Forbidden               403
    ├── ForeignPage             403
    ├── NotFound                404
    │   └── ModelNotFound       404
    ├── MethodNotAllowed        405
    ├── NotAcceptable           406
    ├── RequestTimeout          408
    ├── BodyTooLarge            413
    │   └── TooManyWindows      413
    ├── UnsupportedMediaType    415
    ├── Overloaded              429
    │   ├── QueueFull           429
    │   ├── DeadlineNotMet      429
    │   ├── BodiesFull          429
    │   └── ResponsesFull       429
    ├── TooManyAtOnce           429
    ├── HeadTooLarge            431
    ├── ClientGone              499
    ├── InternalError           500
    ├── RunTimedOut             500
    ├── NotFinite               500
    ├── NotReady                503
    │   ├── Draining            503
    │   └── WorkersHung         503
    ├── OutOfMemory             503
    ├── TooManyConnections      503
    └── Expired                 504

    StartupError

Errors are raised where the fault is known. Protocols choose only the envelope. The table in
docs/reference.md is written from here: first paragraph and `remedy` of each class with a code.
"""

from collections.abc import Mapping

MAX_CHARACTERS = 2000  # of a message, whatever of the caller's it repeats
MAX_PARAM_CHARACTERS = 200
LAST_CHARACTERS = 200  # of a message that is cut: they say what to do


class ServiceError(Exception):
    """`status` is HTTP's; `type` and `code` are in OpenAI's vocabulary; `param` names the field."""

    status = 500
    type = "server_error"
    code = "internal_error"
    remedy = ""  # what to do, in the documentation
    ends_connection = False  # the connection is closed after the response
    is_rejection = False  # counted in addnorm_rejections
    names_own_field = True  # param is a name of the API, so it may be logged

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """headers: of the response, beside those that follow from the rest. A message that is too
        long is cut in its middle."""
        if len(message) > MAX_CHARACTERS:
            num_first = MAX_CHARACTERS - LAST_CHARACTERS - len("...")
            message = f"{message[:num_first]}...{message[-LAST_CHARACTERS:]}"
        super().__init__(message)
        self.message = message
        self.param = param and param[:MAX_PARAM_CHARACTERS]
        self.retry_after_s = retry_after_s
        self.headers = headers or {}

    @property
    def reason(self) -> str:
        """The label of the error in the metric addnorm_rejections."""
        return self.code


class InvalidInput(ServiceError):
    """The body, a header or a parameter is wrong."""

    status, type, code = 400, "invalid_request_error", "invalid_input"
    remedy = "Correct it: the message states field, limit and value."


class UnknownField(InvalidInput):
    """`param` is the caller's own text, so it is not logged."""

    names_own_field = False


class EmptyInput(InvalidInput):
    """There is nothing to compute."""


class InvalidHead(InvalidInput):
    """A header is sent twice, or the end of the body is in doubt."""

    is_rejection = True


class InvalidHttp(InvalidInput):
    """This is not an HTTP/1.1 request."""

    code, ends_connection = "invalid_http", True
    remedy = "Correct the client. The server closes the connection."


class BundleRefused(ServiceError):
    """The bundle that `/v2/repository` should load cannot be read or fails a check. The served
    models do not change."""

    status, type, code = 400, "invalid_request_error", "bundle_refused"
    remedy = "Repair or export the bundle as the message says."


class Unauthenticated(ServiceError):
    """There is no API key in the request, or the key is unknown."""

    status, type, code = 401, "authentication_error", "invalid_api_key"
    remedy = "Send `Authorization: Bearer KEY` with a valid key."
    is_rejection = True


class OutOfScope(ServiceError):
    """The API key lacks the scope for this path."""

    status, type, code = 403, "permission_error", "insufficient_permissions"
    remedy = "Use a key with the scope in the message."
    is_rejection = True


class Forbidden(ServiceError):
    """The operator has not opened the model repository."""

    status, type, code = 403, "invalid_request_error", "forbidden"
    remedy = "Start the server with `ADDNORM_ADMIN=true`."


class ForeignPage(ServiceError):
    """A web page of another origin calls a server without API keys, or any caller calls a server of
    127.0.0.1 by a name other than localhost."""

    status, type, code = 403, "permission_error", "foreign_page"
    remedy = "Add the page's origin to `ADDNORM_CORS_ORIGINS`, or set API keys."
    is_rejection = True


class NotFound(ServiceError):
    """There is no such path, or no such bundle in the folder."""

    status, type, code = 404, "invalid_request_error", "not_found"
    remedy = "Check the path and the name."


class ModelNotFound(NotFound):
    """There is no such model or version."""

    code = "model_not_found"  # OpenAI's clients look for it
    remedy = "Use a model from the list in the message."


class MethodNotAllowed(ServiceError):
    """The path exists, but not for this method."""

    status, type, code = 405, "invalid_request_error", "method_not_allowed"
    remedy = "Use the method in the header `allow`."


class NotAcceptable(ServiceError):
    """The header `accept` requires safetensors, which this route does not write."""

    status, type, code = 406, "invalid_request_error", "not_acceptable"
    remedy = "Send a type from the list in the message."


class RequestTimeout(ServiceError):
    """The head or the body did not arrive within `ADDNORM_BODY_TIMEOUT_S`."""

    status, type, code = 408, "invalid_request_error", "request_timeout"
    remedy = "Send faster, or raise the setting. The server closes the connection."
    ends_connection = True


class BodyTooLarge(ServiceError):
    """The body, or the JSON in it, is over its limit."""

    status, type, code = 413, "invalid_request_error", "body_too_large"
    remedy = "Send less in one request, or send tensors as bytes."


class TooManyWindows(BodyTooLarge):
    """A text would be read in more windows than the limit."""

    code = "too_many_windows"
    remedy = "Send the text in parts, or raise ADDNORM_MAX_WINDOWS."


class UnsupportedMediaType(ServiceError):
    """The server cannot read this `content-type` or `content-encoding`."""

    status, type, code = 415, "invalid_request_error", "unsupported_media_type"
    remedy = "Send a type from the list in the message."


class Overloaded(ServiceError):
    """Rejected by admission control or a byte budget: it would be late, or there is no space."""

    status, type = 429, "rate_limit_error"
    is_rejection = True


class QueueFull(Overloaded):
    """The queue has no space for these tokens."""

    code, remedy = "queue_full", "Retry after `Retry-After`."


class DeadlineNotMet(Overloaded):
    """The server predicts that the answer would come after the deadline, because of other
    requests."""

    code, remedy = "deadline_not_met", "Retry after `Retry-After`, or allow more time."


class BodiesFull(Overloaded):
    """The bodies in progress leave this API key no space in `ADDNORM_MAX_PENDING_BODY_BYTES`."""

    code, remedy = "bodies_full", "Retry after `Retry-After`."


class ResponsesFull(Overloaded):
    """The answers in progress leave this API key no space in
    `ADDNORM_MAX_PENDING_RESPONSE_BYTES`."""

    code, remedy = "responses_full", "Retry after `Retry-After`."


class TooManyAtOnce(ServiceError):
    """The API key has reached its limit of requests in progress."""

    status, type, code = 429, "rate_limit_error", "too_many_concurrent_requests"
    remedy = "Send fewer at the same time; retry after `Retry-After`."
    is_rejection = True


class HeadTooLarge(ServiceError):
    """The head is over 32 KiB, or the chunk sizes, chunk extensions and trailers of the body add up
    to more."""

    status, type, code = 431, "invalid_request_error", "head_too_large"
    remedy = "Send fewer or shorter headers, or larger chunks. The server closes the connection."
    ends_connection = is_rejection = True


class ClientGone(ServiceError):
    """The caller closed the connection."""

    status, type, code = 499, "invalid_request_error", "client_gone"  # nginx's number
    remedy = "Nothing: only the log and the metrics show this status."


class InternalError(ServiceError):
    """The server has a fault."""

    code = "internal_error"
    remedy = "Look for the request id in the log: the log has a stack trace."
    ends_connection = True

    def __init__(self, request_id: str) -> None:
        super().__init__(f"internal server error (request id {request_id})")


class RunTimedOut(ServiceError):
    """The session run did not end within `ADDNORM_RUN_TIMEOUT_S`."""

    code, remedy = "run_timed_out", "Retry. If the machine is only slow, raise the setting."


class NotFinite(ServiceError):
    """The model's numbers overflow for a sequence, which the message names. Other sequences are not
    affected."""

    code, remedy = "not_finite", "Send the request without this sequence."

    def __init__(self, output: str, sequence: int) -> None:
        super().__init__(
            f"{output} of sequence {sequence} are not finite: the model's numbers overflow for"
            " its tokens"
        )
        self.output, self.sequence = output, sequence


class NotReady(ServiceError):
    """A model fails its known-answer test (`/readyz`) or cannot be loaded again, or the server is
    shutting down."""

    status, code, remedy = 503, "not_ready", "Send the request to another server."


class Draining(NotReady):
    """The server is shutting down."""

    is_rejection = True

    @property
    def reason(self) -> str:
        return "draining"


class WorkersHung(NotReady):
    """Too many session runs hang (`/livez`)."""

    code, remedy = "workers_hung", "Restart the process."


class OutOfMemory(ServiceError):
    """There is not enough free memory for this request. The server keeps running."""

    status, code = 503, "out_of_memory"
    remedy = (
        "Send less at once; retry after `Retry-After`. Give the server more memory, or lower its"
        " `ADDNORM_MAX_PENDING_` settings."
    )

    def __init__(self) -> None:
        super().__init__(
            "the server has not enough free memory for this request: send less at once, or retry"
            " in 1 s",
            retry_after_s=1,
        )


class TooManyConnections(ServiceError):
    """More than `ADDNORM_MAX_CONNECTIONS` connections are open."""

    status, code = 503, "too_many_connections"
    remedy = "Retry after `Retry-After`, or raise the setting. The server closes the connection."
    ends_connection = is_rejection = True


class Expired(ServiceError):
    """The deadline passed, or this request alone needs more time than it has."""

    status, code, is_rejection = 504, "deadline_exceeded", True
    remedy = "Allow more time, or send less in one request."


class StartupError(Exception):
    """The server must not start. The message is one line with the fault and the remedy."""
