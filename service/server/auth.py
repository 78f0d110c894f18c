"""API keys: which callers may use which paths, and how many requests at once.

Holds digests only. Knows no HTTP but the headers that carry a key.
"""

import hashlib
import hmac
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from addnorm.service.asking.ask import Ask
from addnorm.service.asking.gate import Gate
from addnorm.service.errors import OutOfScope, StartupError, Unauthenticated
from addnorm.service.settings import Settings

SCOPES = ("infer", "admin", "metrics")
LEAST_CHARACTERS = 16  # of a key written out; one drawn at random has more
COMMENT = re.compile(r"(?:^|\s)#.*")  # a # within a word is part of it
log = logging.getLogger("addnorm")
Headers = Sequence[tuple[bytes, bytes]]  # names in lower case


class Key(NamedTuple):
    name: str  # for the log
    digest: bytes  # sha256 of the key
    scopes: frozenset[str]
    max_at_once: int  # requests; 0: any number


class Keys:
    """The keys of the settings. A changed file is read again, so that a key can be withdrawn."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stamp = self._read_stamp()
        self.known = _read(settings)  # by their digests; without any every path is open

    def find(self, authorization: bytes) -> Key:
        """The key in `Bearer KEY`. Unauthenticated unless it is known."""
        kind, _, sent = authorization.partition(b" ")
        if kind.lower() != b"bearer" or not sent:
            raise Unauthenticated("no API key was sent: add the header `Authorization: Bearer KEY`")
        digest = hashlib.sha256(sent.strip()).digest()
        # the time of this look-up tells something of digests, but no key follows from a digest
        key = self.known.get(digest)
        if key is None or not hmac.compare_digest(key.digest, digest):
            raise Unauthenticated("the API key that was sent is unknown: check the header")
        return key

    def refresh(self) -> None:
        """Reads a changed file again. A broken one is logged, and the keys stay as they were."""
        stamp = self._read_stamp()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self.known = _read(self._settings)
            log.info("read %d API keys again", len(self.known))
        except StartupError as error:
            log.error("the API keys stay as they were: %s", error)

    def _read_stamp(self) -> tuple[int, int, int] | None:
        """Changes when the file does. None: there is no file."""
        try:
            status = self._settings.api_keys_file.stat() if self._settings.api_keys_file else None
        except OSError:
            return None
        return status and (status.st_mtime_ns, status.st_size, status.st_ino)


class Entrance:
    """Where requests begin, over HTTP and over gRPC."""

    def __init__(self, keys: Keys, gate: Gate) -> None:
        self.keys, self.gate = keys, gate

    def enter(self, headers: Headers, needed: str | None, ask: Ask) -> AbstractContextManager[None]:
        """A context within which the request is answered. Unauthenticated, OutOfScope,
        TooManyAtOnce.

        needed: a scope; None: no key.
        """
        if not self.keys.known or needed is None:
            return self.gate.admit(ask)
        sent = dict(reversed(headers))  # of several equal names the first
        # Azure's clients send the key alone, in a header of their own
        alone = b"Bearer " + sent[b"api-key"] if b"api-key" in sent else b""
        key = self.keys.find(sent.get(b"authorization", alone))
        ask.key = key.name
        if needed not in key.scopes:
            allowed = ", ".join(sorted(key.scopes))
            raise OutOfScope(f"the API key {key.name!r} is for {allowed}; this needs {needed}")
        return self.gate.admit(ask, key.max_at_once)


def _read(settings: Settings) -> dict[bytes, Key]:
    """digest -> key, of the setting and the file. StartupError names the line, never its text."""
    written = settings.api_keys.get_secret_value() if settings.api_keys else ""
    lines = [(f"ADDNORM_API_KEYS, entry {number}", line) for number, line in _entries(written)]
    if path := settings.api_keys_file:
        try:
            lines += [(f"{path}:{number}", line) for number, line in _entries(path.read_text())]
        except (OSError, UnicodeDecodeError) as error:
            raise StartupError(f"ADDNORM_API_KEYS_FILE={path} cannot be read: {error}") from None
    keys = [_parse_key(where, line) for where, line in lines]
    if not keys and (settings.api_keys is not None or settings.api_keys_file):
        raise StartupError(
            "there is no API key where the settings say: unset them to open the server to all"
        )
    known = {key.digest: key for key in keys}
    if len(known) != len(keys) or len({key.name for key in keys}) != len(keys):
        raise StartupError("the API keys have a name or a key twice: each needs its own")
    return known


def _entries(text: str) -> Iterator[tuple[int, str]]:
    """Entries, one a line or separated by semicolons, with their numbers, without comments."""
    for number, line in enumerate(text.replace(";", "\n").splitlines(), 1):
        if entry := COMMENT.sub("", line).strip():
            yield number, entry


def _parse_key(where: str, line: str) -> Key:
    """An entry is `name scopes key [limit]`: scopes with commas, the key plain or as sha256:HEX."""
    name, scopes, secret, limit = (line.split() + [""] * 4)[:4]
    wanted = frozenset(scopes.split(","))
    if (
        len(line.split()) not in (3, 4)
        or not wanted <= set(SCOPES)
        or not (limit or "1").isdecimal()
    ):
        raise StartupError(
            f"{where}: an API key is `name {','.join(SCOPES)} KEY-or-sha256:HEX [requests at once]`"
        )
    if limit and not int(limit):
        raise StartupError(
            f"{where}: the limit is 0 requests at once: write 1 or more, or nothing for no limit;"
            " remove the line to withdraw the key"
        )
    if secret.startswith("sha256:"):
        try:
            digest = bytes.fromhex(secret.removeprefix("sha256:"))
        except ValueError:
            digest = b""
        if len(digest) != hashlib.sha256().digest_size:
            raise StartupError(f"{where}: sha256: must be followed by 64 hexadecimal digits")
    elif len(secret) < LEAST_CHARACTERS:
        raise StartupError(
            f"{where}: the key has {len(secret)} characters, at least {LEAST_CHARACTERS} are needed"
        )
    else:
        digest = hashlib.sha256(secret.encode()).digest()
    return Key(name, digest, wanted, int(limit or 0))
