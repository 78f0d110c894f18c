"""Writes the marked blocks of all documents: what they take from the code and from kept figures.

--check writes nothing, and exits with 1 if a page would change, or if README quotes a figure that
is older than the code. --keep takes over the last runs of experiments first, from build/benchmarks.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.clients import groups
from benchmarks.documents import figures, proofs, reference
from benchmarks.report import Report

BEGIN, END = "<!-- begin: {} -->", "<!-- end -->"
BLOCK = re.compile(r"<!-- begin: (?P<name>[^>\n]+?) -->(?P<text>.*?)<!-- end -->", re.DOTALL)
MARKER = re.compile(r"<!-- (?:begin: [^>\n]+|end) -->")
ROOT = Path(__file__).parents[2]
TABLES: Mapping[str, Callable[[], str]] = {
    "settings": reference.settings_list,
    "routes": reference.routes_list,
    "errors": reference.errors_list,
    "foreign fields": reference.foreign_fields_list,
    "metrics": reference.metrics_list,
    "clients": groups.clients_list,
}


def fill(page: str, text_of: Callable[[str], str]) -> str:
    """The page with every block as `text_of` has it by its name. ValueError where markers are not
    in pairs, or stand where Markdown does not take them."""
    _refuse_odd_markers(page)
    return BLOCK.sub(lambda match: _block(match, text_of), page)


def _block(match: re.Match[str], text_of: Callable[[str], str]) -> str:
    name, line = match["name"], "\n" if match["text"].startswith("\n") else ""
    before = match.string[: match.start()].rpartition("\n")[2]
    if not line and not before.strip(" \t>*-"):
        raise ValueError(f"the block `{name}` begins a line: put a word before it")
    return "".join((BEGIN.format(name), line, text_of(name), line, END))


def _refuse_odd_markers(page: str) -> None:
    """ValueError if a marker stands outside a block, or within one."""
    texts = [BLOCK.sub("", page), *(match["text"] for match in BLOCK.finditer(page))]
    for text in texts:
        if odd := MARKER.search(text):
            raise ValueError(f"`{odd[0]}` has no other half")


def pages(root: Path = ROOT) -> list[Path]:
    return sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])


def text_of(name: str, runs: figures.Kept, root: Path = ROOT) -> str:
    """The text of a block by its name. ValueError if nothing is so called."""
    kind, _, rest = name.partition(" ")
    if name in TABLES:
        return TABLES[name]()
    if name == "proofs":
        return proofs.proofs_table(runs, pages(root), root)
    if name == "headlines":
        return figures.headlines_table(runs)
    if name == "models":
        return figures.models_table(runs)
    if kind == "folders":
        return reference.folders_list(root, rest)
    if kind in figures.OF_RUNS:
        return figures.OF_RUNS[kind](runs, rest)
    return figures.figure(runs, name)


def main(
    words: Sequence[str] | None = None,
    root: Path = ROOT,
    most_commits: int = figures.MOST_COMMITS,
) -> int:
    arguments = _parser().parse_args(words)
    if arguments.keep:
        figures.keep(arguments.keep, Report(arguments.runs), root / figures.KEPT)
    runs = figures.with_ages(figures.read(root / figures.KEPT), root, most_commits)
    old = list(_old_figures(root / "README.md", runs, most_commits))
    print(*old, sep="\n", end="\n" * bool(old), file=sys.stderr)
    stale = list(map(str, _write(root, runs, arguments.check)))
    if stale and arguments.check:
        print(f"`make docs` would change {', '.join(stale)}", file=sys.stderr)
    return int(bool(stale or old) and arguments.check)


def _old_figures(page: Path, runs: figures.Kept, most_commits: int) -> Iterator[str]:
    """A sentence for each run that the page quotes and whose code has changed since."""
    blocks = (block["name"] for block in BLOCK.finditer(page.read_text()))
    for name in sorted({name for block in blocks for name in figures.experiments_of(block)}):
        if runs.get(name, {}).get("is_old"):
            yield (
                f"{page.name} quotes `{name}`, measured {runs[name]['age']} commits of its code"
                f" ago, at most {most_commits}: `python -m benchmarks {name}`, then"
                f" `python -m benchmarks.documents --keep {name}`"
            )


def _write(root: Path, runs: figures.Kept, check: bool) -> list[Path]:
    """The pages that were, or would be, changed. SystemExit names a block that cannot be made."""
    changed = []
    if unknown := [name for name, entry in runs.items() if entry["age"] is None]:
        print(f"git does not know how old these figures are: {', '.join(unknown)}", file=sys.stderr)
    for page in pages(root):
        before = page.read_text()
        try:
            after = fill(before, partial(text_of, runs=runs, root=root))
        except ValueError as error:
            raise SystemExit(f"{page.relative_to(root)}: {error}") from None
        # where git does not know the ages, a page is as good with the mark as without
        if after != before and not (unknown and _unmarked(after) == _unmarked(before)):
            changed.append(page.relative_to(root))
            if not check:
                page.write_text(after)
    return changed


def _unmarked(page: str) -> str:
    return page.replace(figures.OLD, "")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.documents", description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--keep", nargs="+", metavar="NAME", help="experiments, or groups of them")
    parser.add_argument("--runs", type=Path, default=Path("build/benchmarks"), metavar="DIR")
    return parser


if __name__ == "__main__":
    sys.exit(main())
