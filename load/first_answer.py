"""Why a server gives no right answer: its own words if it rejects requests, else what differs."""

import json
from collections.abc import Sequence
from http.client import HTTPException
from urllib.error import HTTPError

from addnorm.load.measure.check import WRONG
from addnorm.load.measure.run import Result
from addnorm.load.measure.stream import Stream
from addnorm.load.servers import Server
from addnorm.service.runtime.bundle import Bundle

MODEL = "--model names the model to ask, where a server has several"


def reason(
    server: Server, stream: Stream, result: Result, bundle: Bundle, headers: Sequence[str] = ()
) -> str:
    """result: of this stream, with errors. A rejection's words need one more request."""
    kinds = ", ".join(result.errors)
    if WRONG in result.errors:
        return f"{kinds}: the answers are not those of {bundle.ref}, which --bundle gives; {MODEL}"
    if any(kind.isdigit() for kind in result.errors) and (said := _said(server, stream, headers)):
        return f"{kinds}: {said}. The requests are made for {bundle.ref}; {MODEL}"
    return kinds


def _said(server: Server, stream: Stream, headers: Sequence[str]) -> str:
    """The server's message if it rejects the first request, else nothing."""
    try:
        server.ask(stream.requests[0].body, stream.path, headers)
    except HTTPError as error:
        text = error.read().decode(errors="replace")
        try:
            return str(json.loads(text)["error"]["message"])
        except (ValueError, LookupError, TypeError):  # another server's
            return " ".join(text.split())[:200]
    except (OSError, HTTPException):
        return ""
    return ""
