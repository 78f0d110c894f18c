"""Everything that can go wrong and that a caller, or the operator at start, is told of.

ServiceError                     500  told to the caller, by server/error_response.py
  InvalidInput                   400  the body, or a header, can be corrected
    UnknownField                      a field, or a parameter, that has no meaning here
    EmptyInput                        a list that has nothing to compute
    InvalidHead                       a request head that is ambiguous, or sent wrong
    InvalidHttp                       bytes that are no HTTP request
  BundleRefused                  400  asked to load a bundle that cannot be trusted
  Unauthenticated                401  no API key, or an unknown one
  OutOfScope                     403  the API key has not the scope that the path needs
  Forbidden                      403  the operator has not switched this on
  NotFound                       404  no such path or resource
    ModelNotFound                     no such model or version
  MethodNotAllowed               405  the path has other methods
  NotAcceptable                  406  Accept names no media type that is offered
  RequestTimeout                 408  the request took too long to arrive
  BodyTooLarge                   413  the body is over its limit
  UnsupportedMediaType           415  the body's media type or coding is unknown
  Overloaded                     429  rejected by admission control or a byte budget
  TooManyAtOnce                  429  the API key has too many requests under way
  HeadTooLarge                   431  the head, or what frames the body, is over its limit
  ClientGone                     499  the caller left; for the log only
  InternalError                  500  a bug of the server
  RunTimedOut                    500  the session run did not end in time
  NotFinite                      500  the model's numbers overflowed for these tokens
  NotReady                       503  a model does not give its known answer, or session runs hang
    Draining                          the server is shutting down
  OutOfMemory                    503  there was no memory for the request's work
  TooManyConnections             503  the server has too many open connections
  Expired                        504  the deadline passed, or cannot be met

StartupError                          the process, or a bundle, must not start

Errors are raised where they are known. Protocols choose only the envelope.
"""

from collections.abc import Mapping


class ServiceError(Exception):
    """`status` is HTTP's; `type` and `code` are in OpenAI's vocabulary; `param` names the field."""

    status = 500
    type = "server_error"
    code = "internal_error"
    ends_connection = False  # the connection is closed after the answer
    is_rejection = False  # counted in addnorm_rejections
    names_own_field = True  # param is a name of the API, so it may be logged

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """headers: of the answer, beside those that follow from the rest."""
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.code
        self.retry_after_s = retry_after_s
        self.headers = headers or {}

    @property
    def reason(self) -> str:
        """What addnorm_rejections counts it as."""
        return self.code


class InvalidInput(ServiceError):
    """The caller can correct the request. The message names field, limit and value."""

    status, type, code = 400, "invalid_request_error", "invalid_input"


class UnknownField(InvalidInput):
    """`param` is the caller's own text, so it is not logged."""

    names_own_field = False


class EmptyInput(InvalidInput):
    """There is nothing to compute."""


class InvalidHead(InvalidInput):
    """A header is sent twice, or the end of the body is in doubt."""

    is_rejection = True


class InvalidHttp(InvalidInput):
    """The parser does not accept the bytes."""

    code = "invalid_http"
    ends_connection = True


class BundleRefused(ServiceError):
    """Asked to load a bundle that cannot be trusted. What is served stays as it is."""

    status, type, code = 400, "invalid_request_error", "bundle_refused"


class Unauthenticated(ServiceError):
    """No API key was sent, or an unknown one."""

    status, type, code = 401, "authentication_error", "invalid_api_key"
    is_rejection = True


class OutOfScope(ServiceError):
    """The API key has not the scope that the path needs."""

    status, type, code = 403, "permission_error", "insufficient_permissions"
    is_rejection = True


class Forbidden(ServiceError):
    """The operator has not switched this on."""

    status, type, code = 403, "invalid_request_error", "forbidden"


class NotFound(ServiceError):
    status, type, code = 404, "invalid_request_error", "not_found"


class ModelNotFound(NotFound):
    """OpenAI's clients look for this code."""

    code = "model_not_found"


class MethodNotAllowed(ServiceError):
    status, type, code = 405, "invalid_request_error", "method_not_allowed"


class NotAcceptable(ServiceError):
    status, type, code = 406, "invalid_request_error", "not_acceptable"


class RequestTimeout(ServiceError):
    """The request did not arrive in time."""

    status, type, code = 408, "invalid_request_error", "request_timeout"
    ends_connection = True


class BodyTooLarge(ServiceError):
    status, type, code = 413, "invalid_request_error", "body_too_large"


class UnsupportedMediaType(ServiceError):
    status, type, code = 415, "invalid_request_error", "unsupported_media_type"


class Overloaded(ServiceError):
    """Rejected by admission control or a byte budget: it would be late, or there is no room."""

    status, type, code = 429, "rate_limit_error", "overloaded"
    is_rejection = True


class TooManyAtOnce(ServiceError):
    """One API key has as many requests under way as it may have."""

    status, type, code = 429, "rate_limit_error", "too_many_concurrent_requests"
    is_rejection = True


class HeadTooLarge(ServiceError):
    status, type, code = 431, "invalid_request_error", "head_too_large"
    ends_connection = True
    is_rejection = True


class ClientGone(ServiceError):
    """The caller left. Nobody reads the answer; the status is for the log (nginx's number)."""

    status, type, code = 499, "invalid_request_error", "client_gone"


class InternalError(ServiceError):
    """A bug of the server. The log has the traceback beside the request's id."""

    ends_connection = True

    def __init__(self, request_id: str) -> None:
        super().__init__(f"internal server error (request id {request_id})")


class RunTimedOut(ServiceError):
    """The session run did not end in time and was given up."""

    code = "run_timed_out"


class NotFinite(ServiceError):
    """The model's numbers overflowed for these tokens. No other rows are affected."""

    code = "not_finite"

    def __init__(self, output: str, sequence: int) -> None:
        super().__init__(
            f"{output} of sequence {sequence} are not finite: the model's numbers overflow for its"
            " tokens"
        )
        self.output, self.sequence = output, sequence


class NotReady(ServiceError):
    status, type, code = 503, "server_error", "not_ready"


class Draining(NotReady):
    """The server is shutting down."""

    is_rejection = True

    @property
    def reason(self) -> str:
        return "draining"


class OutOfMemory(ServiceError):
    """There was no memory for the request's work. The server goes on."""

    status, type, code = 503, "server_error", "out_of_memory"

    def __init__(self) -> None:
        super().__init__(
            "the server has not enough free memory for this request: send less at once, or retry"
            " in 1 s",
            retry_after_s=1,
        )


class TooManyConnections(ServiceError):
    status, type, code = 503, "server_error", "too_many_connections"
    ends_connection = True
    is_rejection = True


class Expired(ServiceError):
    """The deadline passed before the answer was made, or cannot be met."""

    status, type, code = 504, "server_error", "deadline_exceeded"
    is_rejection = True


class StartupError(Exception):
    """The server must not start. The message is one line: what is wrong, and what to do."""
