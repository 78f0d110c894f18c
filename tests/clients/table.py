"""The table of clients, and what runs it in their environment: neither Addnorm nor torch is there.

A client is a function of the server's URL. It uses the client as its documentation says, compares
what comes back with the server's answer to the plain request, and returns a line to show.
"""

import sys
import traceback
from collections.abc import Callable

from tests.clients import haystack_clients, llama_index_clients

CLIENTS: dict[str, Callable[[str], str]] = {
    **llama_index_clients.CLIENTS,
    **haystack_clients.CLIENTS,
}


def main(url: str, *names: str) -> int:
    """The number of clients that failed."""
    num_failed = 0
    for name in names or CLIENTS:
        try:
            print(f"{name}: {CLIENTS[name](url)}", flush=True)
        except Exception:  # shown, and the next client is tried
            num_failed += 1
            print(f"{name}: FAILED\n{traceback.format_exc()}", flush=True)
    print(f"{len(names or CLIENTS) - num_failed} clients work, {num_failed} failed")
    return num_failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
