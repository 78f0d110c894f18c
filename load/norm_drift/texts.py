"""The traffic: English prose as the reference, and what it may change to. Knows no model.

A book in English and other languages comes from Debian's package debian-handbook, quotes from its
package fortunes, licences from /usr/share/common-licenses, code from this project.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
LICENCES = Path("/usr/share/common-licenses")
BOOK = "usr/share/doc/debian-handbook/html"
QUOTES = "usr/share/games/fortunes"
LANGUAGES = {
    "French": "fr-FR",
    "German": "de-DE",
    "Spanish": "es-ES",
    "Russian": "ru-RU",
    "Japanese": "ja-JP",
}
SHORTEST, LONGEST = 20, 60  # words of a text
TYPO_SHARES = (0.01, 0.03, 0.1, 0.3)  # of the characters
PROMPT = "Represent this sentence for searching relevant passages: "
LETTERS = list("abcdefghijklmnopqrstuvwxyz")
Draws = np.random.Generator


@dataclass(frozen=True)
class Traffic:
    """Texts in random order."""

    reference: list[str]
    changed: dict[str, list[str]]  # what it may change to; "none": texts like the reference's


def of_book(packages: Path, prose: Sequence[Path], draws: Draws) -> Traffic:
    """The reference is the book. packages: unpacked. prose: English of another subject."""
    return _traffic(_english(packages), "other subject", _all_prose(prose), packages, draws, 600)


def of_prose(packages: Path, prose: Sequence[Path], draws: Draws) -> Traffic:
    """The reference is the prose, which is shorter."""
    return _traffic(_all_prose(prose), "other subject", _english(packages), packages, draws, 180)


def _traffic(
    paragraphs: list[str], name: str, others: list[str], packages: Path, draws: Draws, number: int
) -> Traffic:
    """number: of texts of each change. Faults are made of texts that are used nowhere else."""
    texts = _some(pieces(paragraphs, draws), draws)
    held_out, reference = texts[:number], texts[number:]
    changed = {"none": held_out}
    for share in TYPO_SHARES:
        changed[f"typos {share:.0%}"] = [mistyped(text, share, draws) for text in held_out]
    for fault, how in FAULTS.items():
        changed[fault] = [how(text, draws) for text in held_out]
    for kind, parts in {name: others, **_other_kinds(packages)}.items():
        changed[kind] = _some(pieces(parts, draws), draws, number)
    return Traffic(reference, changed)


def _other_kinds(packages: Path) -> dict[str, list[str]]:
    return {
        "quotes": _quotes(packages),
        "licences": _all_prose(_files(LICENCES, "*")),
        "code": [_read(path) for path in _files(ROOT / "service", "**/*.py")],
        **{name: _translated(packages, code) for name, code in LANGUAGES.items()},
    }


def pieces(paragraphs: Iterable[str], draws: Draws) -> Iterator[str]:
    """Texts of 20 to 60 words, across paragraphs. Where words are not set apart, a word is two
    characters."""
    words = [word for paragraph in paragraphs for part in paragraph.split() for word in _cut(part)]
    start = 0
    while start + LONGEST <= len(words):
        end = start + int(draws.integers(SHORTEST, LONGEST, endpoint=True))
        yield " ".join(words[start:end])
        start = end


def mistyped(text: str, share: float, draws: Draws) -> str:
    """Each character with this probability dropped, or replaced by a random letter."""
    hit, dropped = draws.random(len(text)) < share, draws.random(len(text)) < 0.5
    new = draws.choice(LETTERS, len(text))
    return "".join(
        ("" if dropped[at] else str(new[at])) if hit[at] else character
        for at, character in enumerate(text)
    )


def _shuffled(text: str, draws: Draws) -> str:
    words = text.split()
    return " ".join(words[index] for index in draws.permutation(len(words)))


def _marked_up(text: str, draws: Draws) -> str:
    """As a web page has it."""
    words = text.split()
    at = int(draws.integers(len(words)))
    words[at] = f'<a href="/{words[at]}">{words[at]}</a>'
    return f'<div class="para"><p>{" ".join(words)}</p></div>'


FAULTS: dict[str, Callable[[str, Draws], str]] = {
    "words shuffled": _shuffled,
    "cut to 8 words": lambda text, _: " ".join(text.split()[:8]),
    "prompt added": lambda text, _: PROMPT + text,
    "HTML left in": _marked_up,
}


def _cut(word: str) -> list[str]:
    """A run of Chinese or Japanese in parts of two characters."""
    if len(word) < 8 or not re.search(r"[\u3040-\u30ff\u4e00-\u9fff]", word):
        return [word]
    return [word[at : at + 2] for at in range(0, len(word), 2)]


def _some(texts: Iterable[str], draws: Draws, number: int | None = None) -> list[str]:
    """In random order. number: None: all of them."""
    found = list(texts)
    return [found[index] for index in draws.permutation(len(found))[:number]]


def _english(packages: Path) -> list[str]:
    return [paragraph for page in _book(packages, "en-US").values() for paragraph in page]


def _translated(packages: Path, language: str) -> list[str]:
    """Paragraphs that are not left in English."""
    english, pages = _book(packages, "en-US"), _book(packages, language)
    return [
        paragraph
        for name, page in pages.items()
        for paragraph in page
        if paragraph not in english.get(name, [])
    ]


def _book(packages: Path, language: str) -> dict[str, list[str]]:
    """Page -> paragraphs."""
    return {path.name: _paragraphs(path) for path in _files(packages / BOOK / language, "*.html")}


def _paragraphs(page: Path) -> list[str]:
    reader = Paragraphs()
    reader.feed(page.read_text())
    return [text for text in (" ".join(found.split()) for found in reader.found) if text]


class Paragraphs(HTMLParser):
    """The text of `<div class="para">`."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._depth = 0  # of div elements inside a paragraph

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "div":
            if not self._depth and ("class", "para") in attrs:
                self.found.append("")
                self._depth = 1
            elif self._depth:
                self._depth += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "div" and self._depth:
            self._depth -= 1

    def handle_data(self, data: str) -> None:
        if self._depth:
            self.found[-1] += data


def _all_prose(files: Iterable[Path]) -> list[str]:
    return [part for path in files for part in _prose(_read(path))]


def _prose(markdown: str) -> list[str]:
    """Paragraphs without blocks of code and tables."""
    plain = re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)
    return [part for part in re.split(r"\n\s*\n", plain) if not part.lstrip().startswith("|")]


def _quotes(packages: Path) -> list[str]:
    files = [path for path in _files(packages / QUOTES, "*") if not path.suffix]
    return [quote for path in files for quote in _read(path).split("\n%\n")]


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.glob(pattern) if path.is_file() and not path.is_symlink())


def _read(path: Path) -> str:
    return path.read_text(errors="replace")
