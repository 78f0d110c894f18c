"""The certificate of HTTPS and gRPC, with its key."""

import ssl
from pathlib import Path
from typing import Any, NamedTuple

from addnorm.service.errors import StartupError
from addnorm.service.server.followed import FollowedFiles
from addnorm.service.settings import Settings


class Pair(NamedTuple):
    """A certificate chain and its key, which fit: for handshakes of HTTPS, and for grpcio."""

    context: ssl.SSLContext
    chain: bytes  # PEM
    key: bytes  # PEM


class Certificate(FollowedFiles[Pair]):
    """A renewed pair is taken for new handshakes; connections that are open keep theirs."""

    def __init__(self, chain: Path, key: Path) -> None:
        """StartupError if the two do not fit."""
        super().__init__("the certificate and its key", (chain, key), lambda: _read(chain, key))
        self.context = self.contents.context  # for listeners: each handshake takes the newest
        self.context.sni_callback = self._take_newest

    def _take_newest(self, handshake: Any, name: str | None, context: ssl.SSLContext) -> None:
        """OpenSSL calls it for callers that name no server too."""
        handshake.context = self.contents.context

    def grpc_credentials(self) -> Any:
        """grpcio asks on a thread of its own, at each handshake, whether the pair has changed."""
        import grpc

        def configuration(pair: Pair) -> Any:
            return grpc.ssl_server_certificate_configuration([(pair.key, pair.chain)])

        last = self.contents

        def newer_configuration() -> Any:
            nonlocal last
            if last is self.contents:
                return None
            last = self.contents
            return configuration(last)

        return grpc.dynamic_ssl_server_credentials(configuration(last), newer_configuration)


def certificate_of(settings: Settings) -> Certificate | None:
    """None: the server speaks no TLS."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise StartupError("one of ADDNORM_TLS_CERT and ADDNORM_TLS_KEY is set: set both, or none")
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return Certificate(settings.tls_cert, settings.tls_key)


def _read(chain: Path, key: Path) -> Pair:
    def reject_passphrase() -> str:  # else OpenSSL would ask at the terminal
        raise ValueError("the key has a passphrase: write it without one")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(chain, key, reject_passphrase)
        return Pair(context, chain.read_bytes(), key.read_bytes())
    except (OSError, ValueError) as error:  # ssl.SSLError too
        raise StartupError(f"ADDNORM_TLS_CERT={chain}, ADDNORM_TLS_KEY={key}: {error}") from None
