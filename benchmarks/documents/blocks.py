"""Marked blocks of a page. Knows text only.

`<!-- begin: NAME -->` text `<!-- end -->`. A block whose marker ends a line stands on lines of its
own. Any other stands within a line, but not at its beginning: Markdown would read the whole line
as HTML.
"""

import re
from collections.abc import Callable

BEGIN, END = "<!-- begin: {} -->", "<!-- end -->"
BLOCK = re.compile(r"<!-- begin: (?P<name>[^>\n]+?) -->(?P<text>.*?)<!-- end -->", re.DOTALL)
MARKER = re.compile(r"<!-- (?:begin: [^>\n]+|end) -->")


def filled(page: str, text_of: Callable[[str], str]) -> str:
    """The page with every block as `text_of` has it by its name. ValueError where markers are not
    in pairs, or stand where Markdown does not take them."""
    _refuse_odd_markers(page)
    return BLOCK.sub(lambda found: _block(found, text_of), page)


def _block(found: re.Match[str], text_of: Callable[[str], str]) -> str:
    name, line = found["name"], "\n" if found["text"].startswith("\n") else ""
    before = found.string[: found.start()].rpartition("\n")[2]
    if not line and not before.strip(" \t>*-"):
        raise ValueError(f"the block `{name}` begins a line: put a word before it")
    return "".join((BEGIN.format(name), line, text_of(name), line, END))


def _refuse_odd_markers(page: str) -> None:
    """What is left without the blocks has no marker, and no block has one inside."""
    texts = [BLOCK.sub("", page), *(found["text"] for found in BLOCK.finditer(page))]
    for text in texts:
        if odd := MARKER.search(text):
            raise ValueError(f"`{odd[0]}` has no other half")
