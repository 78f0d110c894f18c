"""The table of all routes: which row serves a path, how its errors are worded, and what an API key
needs for it.
"""

from collections.abc import Iterator, Mapping, Sequence

from starlette.routing import compile_path

from addnorm.service.asking.ask import Envelope
from addnorm.service.dialects import (
    cohere,
    huggingface,
    kserve,
    model_list,
    native,
    nvidia,
    ollama,
    openai,
    operations,
    shared_paths,
    systemone,
    tei,
    tokenize_route,
    vllm,
)
from addnorm.service.wire.dialect_errors import OPENAI_ERRORS
from addnorm.service.wire.route import Protocol, Route, Scope

PROTOCOLS: tuple[Protocol, ...] = (  # in the documentation's order
    native.PROTOCOL,
    openai.PROTOCOL,
    tokenize_route.PROTOCOL,
    cohere.PROTOCOL,
    tei.PROTOCOL,
    shared_paths.PROTOCOL,
    vllm.PROTOCOL,
    systemone.PROTOCOL,
    openai.AZURE,
    nvidia.PROTOCOL,
    ollama.PROTOCOL,
    huggingface.PROTOCOL,
    model_list.PROTOCOL,
    kserve.PROTOCOL,
    operations.PROTOCOL,
)


class Table:
    def __init__(self, protocols: Sequence[Protocol]) -> None:
        self.protocols = protocols
        self.health = tuple(path for protocol in protocols for path in protocol.health)
        self.probes = (
            *self.health,
            *(path for protocol in protocols for path in protocol.other_probes),
        )
        rows = [row for protocol in protocols for row in protocol.routes if isinstance(row, Route)]
        # by the route as the report calls it
        self.tags = {
            row.path_format: protocol.tag
            for protocol in reversed(protocols)
            for row in protocol.routes
            if isinstance(row, Route)
        }
        # of several with one path the first
        self._by_path = {row.path: row for row in reversed(rows) if "{" not in row.path}
        self._by_pattern = [(*compile_path(row.path), row) for row in rows if "{" in row.path]
        envelopes = list(_envelopes(protocols))
        default = OPENAI_ERRORS.envelope
        self._root = next((envelope for path, envelope in envelopes if path == "/"), default)
        by_start = {"": default} | {path: envelope for path, envelope in envelopes if path != "/"}
        self._envelopes = sorted(by_start.items(), key=lambda pair: -len(pair[0]))
        scopes = {path: scope for protocol in protocols for path, scope in protocol.scopes.items()}
        below = sorted((path for path in scopes if path.endswith("/*")), key=len, reverse=True)
        self._scopes_below = [(path.removesuffix("*"), scopes.pop(path)) for path in below]
        self._scopes = scopes

    def find(self, path: str) -> tuple[Route, Mapping[str, str]] | None:
        """The row that is asked by POST, and the names that the path has: a model, a version. None:
        a plain route has the path, or nobody."""
        if row := self._by_path.get(path):
            return row, {}
        for pattern, _, convertors, row in self._by_pattern:
            if match := pattern.match(path):
                parts = match.groupdict().items()
                return row, {name: str(convertors[name].convert(part)) for name, part in parts}
        return None

    def envelope(self, path: str) -> Envelope:
        """The envelope of a path's errors: that of the protocol whose path it begins with, the
        longest one if there are several. All paths begin with the root, which has its own."""
        if path == "/":
            return self._root
        return next(envelope for start, envelope in self._envelopes if path.startswith(start))

    def scope(self, method: str, path: str) -> Scope | None:
        """The scope that an API key needs: `infer` unless a protocol says otherwise. None: the path
        is open to all."""
        if (by_method := f"{method} {path}") in self._scopes:
            return self._scopes[by_method]
        if path in self._scopes:
            return self._scopes[path]
        return next(
            (scope for start, scope in self._scopes_below if path.startswith(start)), "infer"
        )


def _envelopes(protocols: Sequence[Protocol]) -> Iterator[tuple[str, Envelope]]:
    """Envelopes by the beginning of a path: what stands before its first parameter."""
    for protocol in protocols:
        if protocol.beginning:
            yield protocol.beginning, protocol.errors.envelope
        for row in protocol.routes:
            row_errors = row.errors if isinstance(row, Route) else None
            yield row.path.partition("{")[0], (row_errors or protocol.errors).envelope
