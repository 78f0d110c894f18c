"""Everything a caller can be told went wrong. Raised where it is known, mapped to a protocol's envelope once."""


class ServiceError(Exception):
    """`status` is HTTP's; `type` and `code` are OpenAI's words; `param` names the field at fault."""

    status = 500
    type = "server_error"
    code = "internal_error"
    ends_connection = False
    names_own_field = True  # param is a word of ours, so that the log may repeat it

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.code
        self.retry_after_s = retry_after_s


class InvalidInput(ServiceError):
    """The caller can mend it in the body. The message names field, limit and value."""

    status, type, code = 400, "invalid_request_error", "invalid_input"


class UnknownField(InvalidInput):
    """`param` is as the caller wrote it."""

    names_own_field = False


class Forbidden(ServiceError):
    """The operator has not opened it."""

    status, type, code = 403, "invalid_request_error", "forbidden"


class Unauthenticated(ServiceError):
    """No API key, or none that is known."""

    status, type, code = 401, "authentication_error", "invalid_api_key"


class OutOfScope(ServiceError):
    """The API key is not for this."""

    status, type, code = 403, "permission_error", "insufficient_permissions"


class NotFound(ServiceError):
    status, type, code = 404, "invalid_request_error", "not_found"


class ModelNotFound(NotFound):
    """OpenAI's clients look for this code."""

    code = "model_not_found"


class BundleRefused(ServiceError):
    """Asked to load what cannot be trusted. What is served stays as it is."""

    status, type, code = 400, "invalid_request_error", "bundle_refused"


class ClientGone(ServiceError):
    """The caller left. Nobody reads the answer; the status is for the log (nginx's number)."""

    status, type, code = 499, "invalid_request_error", "client_gone"


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
    """Refused at the door: the queue is full, or the answer would come after the deadline."""

    status, type, code = 429, "rate_limit_error", "overloaded"


class TooManyAtOnce(ServiceError):
    """One API key's requests under way."""

    status, type, code = 429, "rate_limit_error", "too_many_concurrent_requests"


class HeadTooLarge(ServiceError):
    status, type, code = 431, "invalid_request_error", "head_too_large"
    ends_connection = True


class NotReady(ServiceError):
    status, type, code = 503, "server_error", "not_ready"


class TooManyConnections(ServiceError):
    status, type, code = 503, "server_error", "too_many_connections"
    ends_connection = True


class RunTimedOut(ServiceError):
    """Taken, but the session run did not come back."""

    code = "run_timed_out"


class NotFinite(ServiceError):
    """The model's numbers overflowed for these tokens. Nobody else's rows are affected."""

    code = "not_finite"

    def __init__(self, output: str, sequence: int) -> None:
        super().__init__(
            f"{output} of sequence {sequence} are not finite: the model's numbers overflow for its tokens"
        )
        self.output, self.sequence = output, sequence


class Expired(ServiceError):
    """Admitted, but its deadline passed before it was computed."""

    status, type, code = 504, "server_error", "deadline_exceeded"


class StartupError(Exception):
    """The server must not start. The message is one line: what is wrong, and what to do."""
