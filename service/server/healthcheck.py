"""Docker's health check: exit code 0 if the server of this container is ready, 1 if not.

It runs every few seconds, so it imports the standard library alone.
"""

import http.client
import os
import socket
import ssl
import sys

TIMEOUT_S = 3.0


def main() -> None:
    """Asks /readyz at the address, and in the scheme, that the server's own variables name. Linux
    takes 0.0.0.0 and :: for this machine."""
    # the first that is set; Kubernetes may set ADDNORM_PORT=tcp://10.0.0.1:8000, which the server
    # ignores
    ports = filter(None, map(variable, ("ADDNORM_PORT", "AIP_HTTP_PORT", "PORT")))
    port_text, host = next(ports, ""), variable("ADDNORM_HOST") or "127.0.0.1"
    port = int(port_text) if port_text.isdecimal() else 8000
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    if variable("ADDNORM_TLS_CERT"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # the certificate is for the name that callers use
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
    try:
        if path := variable("ADDNORM_SOCKET"):
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(TIMEOUT_S)
            connection.sock.connect(path)
        connection.request("GET", "/readyz")
        sys.exit(connection.getresponse().status != 200)
    except (OSError, http.client.HTTPException) as error:
        sys.exit(f"no answer from {host} port {port}: {error}")


def variable(name: str) -> str:
    """Empty if it is not set."""
    return os.environ.get(name, "").strip()


if __name__ == "__main__":
    main()
