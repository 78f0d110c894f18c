"""Admission of callers: which API keys for which paths and how many requests at once, and which
pages in browsers. Holds digests of keys only.
"""

import hashlib
import hmac
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.types import Scope

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.gate import Gate
from addnorm.service.errors import (
    ForeignPage,
    MethodNotAllowed,
    OutOfScope,
    StartupError,
    Unauthenticated,
)
from addnorm.service.server.followed import FollowedFiles
from addnorm.service.settings import Settings

SCOPES = ("infer", "admin", "metrics")
LEAST_CHARACTERS = 16  # of a key written out; one drawn at random has more
COMMENT = re.compile(r"(?:^|\s)#.*")  # a # within a word is part of it
READS = ("GET", "HEAD", "OPTIONS")
OWN_SITES = (b"same-origin", b"none")  # what Sec-Fetch-Site says of the server's own pages
PORTS = {"http": ":80", "https": ":443"}  # which browsers leave out
# ends of names that no page of the internet has; host.docker.internal is one
LOCAL_ENDS = (".localhost", ".internal")
SHOWN_CHARACTERS = 200
log = logging.getLogger("addnorm")
Headers = Sequence[tuple[bytes, bytes]]  # names in lower case


class Key(NamedTuple):
    name: str  # for the log
    digest: bytes  # sha256 of the key
    scopes: frozenset[str]
    max_at_once: int  # requests; 0: any number

    @classmethod
    def parse(cls, source: str, line: str) -> "Key":
        """An entry is `name scopes key [limit]`: scopes with commas, the key plain or as
        sha256:HEX. StartupError begins with `source`."""
        name, scopes, secret, limit = (line.split() + [""] * 4)[:4]
        scope_set = frozenset(scopes.split(","))
        if (
            len(line.split()) not in (3, 4)
            or not scope_set <= set(SCOPES)
            or not (limit or "1").isdecimal()
        ):
            raise StartupError(
                f"{source}: an API key is `name {','.join(SCOPES)} KEY-or-sha256:HEX [requests at"
                " once]`"
            )
        if limit and not int(limit):
            raise StartupError(
                f"{source}: the limit is 0 requests at once: write 1 or more, or nothing for no"
                " limit; remove the line to withdraw the key"
            )
        if secret.startswith("sha256:"):
            try:
                digest = bytes.fromhex(secret.removeprefix("sha256:"))
            except ValueError:
                digest = b""
            if len(digest) != hashlib.sha256().digest_size:
                raise StartupError(f"{source}: sha256: must be followed by 64 hexadecimal digits")
        elif len(secret) < LEAST_CHARACTERS:
            raise StartupError(
                f"{source}: the key has {len(secret)} characters, at least {LEAST_CHARACTERS} are"
                " needed"
            )
        else:
            digest = hashlib.sha256(secret.encode()).digest()
        return cls(name, digest, scope_set, int(limit or 0))


class Keys(FollowedFiles[dict[bytes, Key]]):
    """The keys of the settings, by their digests; without any every path is open. A changed file is
    read again, so that a key can be withdrawn."""

    def __init__(self, settings: Settings) -> None:
        files = [settings.api_keys_file] if settings.api_keys_file else []
        super().__init__("the API keys", files, lambda: _read(settings))

    def describe(self) -> str:
        return f"{len(self.contents)} API keys"

    def find(self, authorization: bytes) -> Key:
        """The key in `Bearer KEY`. Unauthenticated unless it is known."""
        kind, _, secret = authorization.partition(b" ")
        if kind.lower() != b"bearer" or not secret:
            raise Unauthenticated("no API key was sent: add the header `Authorization: Bearer KEY`")
        digest = hashlib.sha256(secret.strip()).digest()
        # the time of this look-up tells something of digests, but no key follows from a digest
        key = self.contents.get(digest)
        if key is None or not hmac.compare_digest(key.digest, digest):
            raise Unauthenticated("the API key that was sent is unknown: check the header")
        return key


class Entrance:
    """The place where requests begin, over HTTP and over gRPC."""

    def __init__(self, keys: Keys, gate: Gate) -> None:
        self.keys, self.gate = keys, gate

    def enter(
        self, headers: Headers, needed_scope: str | None, ask: Ask
    ) -> AbstractContextManager[None]:
        """A context within which the request is answered. Unauthenticated, OutOfScope,
        TooManyAtOnce.

        needed_scope: of the key; None: no key is needed.
        """
        if not self.keys.contents or needed_scope is None:
            return self.gate.admit(ask)
        values = dict(reversed(headers))  # of several equal names the first
        # Azure's clients send the key alone, in a header of their own
        bare_key = b"Bearer " + values[b"api-key"] if b"api-key" in values else b""
        key = self.keys.find(values.get(b"authorization", bare_key))
        ask.key = key.name
        if needed_scope not in key.scopes:
            scopes = ", ".join(sorted(key.scopes))
            raise OutOfScope(f"the API key {key.name!r} is for {scopes}; this needs {needed_scope}")
        return self.gate.admit(ask, key.max_at_once)


class Origins:
    """The pages in browsers that may call, by headers that browsers send and no page chooses. A
    browser lets any page send some POSTs anywhere without asking first, and names its origin.

    A server with keys needs no more than these: no page has them. Without keys it answers to its
    own pages and to those that are named, and to all that is no page. Source: the Fetch standard,
    and Go's `http.CrossOriginProtection`.
    """

    def __init__(self, settings: Settings, keys: Keys) -> None:
        self._origins, self._keys = named_origins(settings), keys
        self._is_loopback = is_loopback(settings.host)
        self._hosts = {settings.host, *(urlsplit(origin).hostname for origin in self._origins)}
        self._warned = False

    def check(self, scope: Scope) -> None:
        """MethodNotAllowed if a browser asks whether a page of another origin may call: where that
        is set, such a request does not come as far as here. ForeignPage if such a page calls
        without asking, or by a name that it has made one of this machine's (DNS rebinding)."""
        method, headers = scope["method"], dict(scope["headers"])
        origin = headers.get(b"origin")
        if method == "OPTIONS" and b"access-control-request-method" in headers:
            message = self._rejection(method, scope["path"], origin or b"")
            raise MethodNotAllowed(message, headers={"allow": "GET, POST"})
        if self._keys.contents or "*" in self._origins:
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
                shown_host = host[:SHOWN_CHARACTERS]
                raise ForeignPage(
                    f"Host is {shown_host!r}, and a server without API keys that listens on this"
                    " machine only is reached as localhost: use that name, or set API keys, or"
                    f" ADDNORM_CORS_ORIGINS=https://{shown_host}"
                )
        site = headers.get(b"sec-fetch-site")  # proxies pass it on, whatever they make of Host
        if method in READS or site in OWN_SITES or (origin is None and site is None):
            return
        origin_text = (origin or b"").decode("latin-1")
        scheme, _, authority = origin_text.lower().partition("://")
        port = PORTS.get(scheme, "none")
        is_own = authority.removesuffix(port) == host.lower().removesuffix(port)
        if origin_text not in self._origins and not (scheme in PORTS and is_own):
            raise ForeignPage(self._rejection(method, scope["path"], origin or b"another origin"))

    def _rejection(self, method: str, path: str, raw_origin: bytes) -> str:
        origin = raw_origin.decode("latin-1")[:SHOWN_CHARACTERS]
        message = (
            f"{method} {path[:SHOWN_CHARACTERS]}: pages of {origin} may not call this server; to"
            f" allow them, set ADDNORM_CORS_ORIGINS={origin}"
        )
        if not self._warned:  # browsers do not show the answer, and any caller may ask
            self._warned = True
            log.warning(message)
        return message


def named_origins(settings: Settings) -> list[str]:
    """Whose pages may call from browsers; `*`: all."""
    return [origin.strip() for origin in (settings.cors_origins or "").split(",") if origin.strip()]


def is_loopback(host: str) -> bool:
    """Only this machine reaches what listens there."""
    return host in ("localhost", "::1") or host.startswith("127.")


def _read(settings: Settings) -> dict[bytes, Key]:
    """digest -> key, of the setting and the file. StartupError names the line, never its text."""
    setting = settings.api_keys.get_secret_value() if settings.api_keys else ""
    lines = [(f"ADDNORM_API_KEYS, entry {number}", line) for number, line in _entries(setting)]
    if path := settings.api_keys_file:
        try:
            lines += [(f"{path}:{number}", line) for number, line in _entries(path.read_text())]
        except (OSError, UnicodeDecodeError) as error:
            raise StartupError(f"ADDNORM_API_KEYS_FILE={path} cannot be read: {error}") from None
    keys = [Key.parse(source, line) for source, line in lines]
    if not keys and (settings.api_keys is not None or settings.api_keys_file):
        raise StartupError(
            "the settings for API keys contain no key: add one, or unset them to open the"
            " server to all"
        )
    keys_by_digest = {key.digest: key for key in keys}
    if len(keys_by_digest) != len(keys) or len({key.name for key in keys}) != len(keys):
        raise StartupError(
            "the API keys have the same name or the same key twice: each must differ"
        )
    return keys_by_digest


def _entries(text: str) -> Iterator[tuple[int, str]]:
    """Entries, one a line or separated by semicolons, with their numbers, without comments."""
    for number, line in enumerate(text.replace(";", "\n").splitlines(), 1):
        if entry := COMMENT.sub("", line).strip():
            yield number, entry
