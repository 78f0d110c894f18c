"""Parts, each in a new cluster: update, deaths."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from addnorm.load.stream import PROFILES, make
from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.bundle import Bundle
from addnorm.service.loading.folders import find
from benchmarks import processes
from benchmarks.findings import BUILD, Findings, Options, newest
from benchmarks.ray_serve import changes
from benchmarks.ray_serve.callers import Known
from benchmarks.ray_serve.nodes import three_nodes

PARTS = ("update", "deaths")


def run(options: Options) -> Findings:
    findings = {part: _part(part, options) for part in PARTS if options.wants(part)}
    return Findings(
        "\n\n".join(f"{part}:\n\n{entry.tables}" for part, entry in findings.items()),
        [goal for entry in findings.values() for goal in entry.missed],
        {part: entry.figures for part, entry in findings.items()},
    )


def _part(part: str, options: Options) -> Findings:
    minilm, tiny = options.bundle, options.tiny
    with TemporaryDirectory() as place, three_nodes() as nodes:
        root = Path(place)
        if part == "update":
            newer = newest("notebook", BUILD / "ray/bundles")
            folders = {
                bundle.ref: _folder(root / str(n), bundle) for n, bundle in enumerate((tiny, newer))
            }
            return changes.update(nodes, _cases(folders), *folders.values())
        folder = _folder(root / "one", minilm)
        return changes.deaths(nodes, _cases({minilm.ref: folder}), folder)


def _folder(root: Path, bundle: Bundle) -> Path:
    link = root / bundle.ref
    link.parent.mkdir(parents=True)
    link.symlink_to(bundle.path.resolve())
    return root


def _cases(folders: Mapping[str, Path]) -> list[Known]:
    """Requests, and what `addnorm serve` answers by each of the folders."""
    with ExitStack() as stack:
        running = {
            ref: stack.enter_context(processes.folder(folder)) for ref, folder in folders.items()
        }
        path = next(iter(folders.values()))
        first = bundles.read(find(path).paths[0])
        fields = {"model": first.ref.partition("/")[0]}
        requests = make(PROFILES["small"], first.manifest.limits, fields=fields).requests
        return [
            Known(request.body, {ref: server.ask(request.body) for ref, server in running.items()})
            for request in requests
        ]
