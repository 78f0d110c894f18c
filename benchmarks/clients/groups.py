"""All groups of client packages: which environment each has, and the table of what came of them."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from benchmarks.clients.rows import ABSENT, BITS, ORDER, REFUSED, Row
from benchmarks.tables import bullets

ENVIRONMENTS = Path("benchmarks/environments")
GROUPS = {  # module -> environment
    "sdks": "clients-sdks",
    "open_inference": "clients-sdks",
    "litellm_providers": "clients-langchain",
    "langchain": "clients-langchain",
    "llama_index": "clients-llama-index",
}
# nothing is fetched, and nobody is told that a package was used
QUIET = {
    "ANONYMIZED_TELEMETRY": "False",
    "DO_NOT_TRACK": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OTEL_SDK_DISABLED": "true",
    "TELEMETRY_DISABLED": "1",
}


def rows_of(group: str) -> tuple[Row, ...]:
    return import_module(f"benchmarks.clients.{group}").ROWS  # type: ignore[no-any-return]


def packages() -> list[tuple[str, str]]:
    """Groups and their packages."""
    pairs = ((group, row.package) for group in GROUPS for row in rows_of(group))
    return list(dict.fromkeys(pairs))


def clients_list() -> str:
    """Each package as the mark `client_packages` asserts it: whether all calls give the vectors and
    rankings of the plain routes, else how many do, and what came of others."""
    lines = dict[str, tuple[list[Row], list[Row], dict[str, list[str]]]]()
    for group, environment in GROUPS.items():
        versions = dict(_versions(ENVIRONMENTS / f"{environment}.txt"))
        for row in rows_of(group):
            package = f"{row.package} {versions[row.package]}"
            vectors, rankings, outcomes = lines.setdefault(package, ([], [], {}))
            if row.outcome in (BITS, ORDER):
                (vectors if row.outcome == BITS else rankings).append(row)
            else:
                reason = f" ({row.reason})" if row.outcome in (REFUSED, ABSENT) else ""
                outcomes.setdefault(f"{row.outcome}{reason}", []).append(row.name)
    equal_packages = [package for package, (*_, outcomes) in lines.items() if not outcomes]
    entries = [
        (
            package,
            len(vectors) + len(rankings) or "",
            "; ".join(f"{'; '.join(names)}: {outcome}" for outcome, names in outcomes.items()),
        )
        for package, (vectors, rankings, outcomes) in lines.items()
        if outcomes
    ]
    equal = f"Equal in all calls: {', '.join(equal_packages)}."
    return f"{equal}\n\n{bullets(entries)}"


def _versions(path: Path) -> Iterator[tuple[str, str]]:
    """Packages and versions."""
    for line in path.read_text().splitlines():
        name, _, version = line.partition("#")[0].strip().partition("==")
        yield name.partition("[")[0], version
