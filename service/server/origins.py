"""Pages in browsers: which of them may call, by headers that browsers send and no page chooses.

A browser lets any page send some POSTs anywhere, without asking first. It names the page's origin
in them. Source: the Fetch standard, and Go's `http.CrossOriginProtection`.
"""

import logging
from urllib.parse import urlsplit

from starlette.types import Scope

from addnorm.service.errors import ForeignPage, MethodNotAllowed
from addnorm.service.server.auth import Keys
from addnorm.service.settings import Settings

READS = ("GET", "HEAD", "OPTIONS")
OWN = (b"same-origin", b"none")  # what Sec-Fetch-Site says of the server's own pages
PORTS = {"http": ":80", "https": ":443"}  # which browsers leave out
# ends of names that no page of the internet has; host.docker.internal is one
LOCAL_ENDS = (".localhost", ".internal")
SHOWN_CHARACTERS = 200
log = logging.getLogger("addnorm")


def named_origins(settings: Settings) -> list[str]:
    """Whose pages may call from browsers; `*`: all."""
    return [origin.strip() for origin in (settings.cors_origins or "").split(",") if origin.strip()]


def is_loopback(host: str) -> bool:
    """Only this machine reaches what listens there."""
    return host in ("localhost", "::1") or host.startswith("127.")


class Origins:
    """A server with keys needs no more than these: no page has them. Without keys it answers to its
    own pages and to those that are named, and to all that is no page."""

    def __init__(self, settings: Settings, keys: Keys) -> None:
        self._named, self._keys = named_origins(settings), keys
        self._is_loopback = is_loopback(settings.host)
        self._hosts = {settings.host, *(urlsplit(origin).hostname for origin in self._named)}
        self._warned = False

    def check(self, scope: Scope) -> None:
        """MethodNotAllowed if a browser asks whether a page of another origin may call: where that
        is set, such a request does not come as far as here. ForeignPage if such a page calls
        without asking, or by a name that it has made one of this machine's (DNS rebinding)."""
        method, headers = scope["method"], dict(scope["headers"])
        origin = headers.get(b"origin")
        if method == "OPTIONS" and b"access-control-request-method" in headers:
            what = self._rejection(method, scope["path"], origin or b"")
            raise MethodNotAllowed(what, headers={"allow": "GET, POST"})
        if self._keys.known or "*" in self._named:
            return
        host = headers.get(b"host", b"").decode("latin-1")
        if self._is_loopback and b"host" in headers:
            try:
                name = (urlsplit(f"//{host}").hostname or "").rstrip(".")  # or the address
            except ValueError:  # a bracket that is not closed
                name = host
            is_address = ":" in name or name.replace(".", "").isdigit()
            is_local = "." not in name or name.endswith(LOCAL_ENDS)
            if not (is_address or is_local or name in self._hosts):
                shown = host[:SHOWN_CHARACTERS]
                raise ForeignPage(
                    f"Host is {shown!r}, and a server without API keys that listens on this machine"
                    " alone answers to localhost: ask it by that name, or set API keys, or"
                    f" ADDNORM_CORS_ORIGINS=https://{shown}"
                )
        site = headers.get(b"sec-fetch-site")  # proxies pass it on, whatever they make of Host
        if method in READS or site in OWN or (origin is None and site is None):
            return
        sent = (origin or b"").decode("latin-1")
        scheme, _, authority = sent.lower().partition("://")
        port = PORTS.get(scheme, "none")
        is_own = authority.removesuffix(port) == host.lower().removesuffix(port)
        if sent not in self._named and not (scheme in PORTS and is_own):
            raise ForeignPage(self._rejection(method, scope["path"], origin or b"another origin"))

    def _rejection(self, method: str, path: str, sent: bytes) -> str:
        origin = sent.decode("latin-1")[:SHOWN_CHARACTERS]
        what = (
            f"{method} {path[:SHOWN_CHARACTERS]}: pages of {origin} may not call this server; to"
            f" let them, set ADDNORM_CORS_ORIGINS={origin}"
        )
        if not self._warned:  # browsers do not show the answer, and any caller may ask
            self._warned = True
            log.warning(what)
        return what
