"""`python -m addnorm.load.ray_serve [NAME ...]`: runs these parts, or all, each in a new cluster.

Writes load/report/ray-*.
"""

import argparse
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from addnorm.load import servers
from addnorm.load.bench.stream import PROFILES, make
from addnorm.load.machine import machine
from addnorm.load.ray_serve import autoscaling, changes, overhead
from addnorm.load.ray_serve.callers import Known
from addnorm.load.ray_serve.nodes import Nodes, three_nodes
from addnorm.load.stress.findings import Findings
from addnorm.service.models.folders import find
from addnorm.service.runtime import bundle as bundles
from addnorm.service.runtime.bundle import Bundle

PARTS = ("overhead", "update", "deaths", "autoscaling")


def main() -> None:
    arguments = _parser().parse_args()
    servers.end_on_sigterm()
    minilm, tiny, newer = (
        bundles.read(getattr(arguments, name)) for name in ("bundle", "tiny", "newer")
    )
    is_missed = False
    for part in arguments.parts or PARTS:
        with TemporaryDirectory() as root, three_nodes() as nodes:
            findings = _run(part, nodes, Path(root), minilm, tiny, newer)
        print(machine())
        print(findings.write(arguments.out, f"ray-{part}"))
        is_missed |= bool(findings.missed)
    sys.exit(is_missed)


def _run(
    part: str, nodes: Nodes, root: Path, minilm: Bundle, tiny: Bundle, newer: Bundle
) -> Findings:
    if part == "overhead":
        return overhead.measure(nodes, minilm, tiny, _folder(root / "both", minilm, tiny))
    if part == "update":
        folders = {one.ref: _folder(root / str(n), one) for n, one in enumerate((tiny, newer))}
        return changes.update(nodes, _known("small", folders), *folders.values())
    folder = _folder(root / "one", minilm)
    if part == "deaths":
        return changes.deaths(nodes, _known("small", {minilm.ref: folder}), folder)
    return autoscaling.scale(nodes, _known("big", {minilm.ref: folder}), folder)


def _folder(root: Path, *found: Bundle) -> Path:
    for bundle in found:
        link = root / bundle.ref
        link.parent.mkdir(parents=True)
        link.symlink_to(bundle.path.resolve())
    return root


def _known(profile: str, folders: Mapping[str, Path]) -> list[Known]:
    """The profile's requests, and what `addnorm serve` answers by each of the folders."""
    with ExitStack() as stack:
        running = {
            ref: stack.enter_context(servers.folder(folder)) for ref, folder in folders.items()
        }
        path = next(iter(folders.values()))
        first = bundles.read(find(path).paths[0])
        fields = {"model": first.ref.partition("/")[0]}
        requests = make(PROFILES[profile], first.manifest.limits, fields=fields).requests
        return [
            Known(request.body, {ref: server.ask(request.body) for ref, server in running.items()})
            for request in requests
        ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m addnorm.load.ray_serve", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="NAME", help=", ".join(PARTS))
    for name, what in (
        ("bundle", "minilm"),
        ("tiny", "notebook"),
        ("newer", "notebook, another version"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, help=f"a bundle: {what}")
    parser.add_argument("--out", type=Path, default=Path("load/report"))
    return parser


if __name__ == "__main__":
    main()
