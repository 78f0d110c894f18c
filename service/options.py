"""The parser of every command: its errors have two lines. Types of options that several commands
have."""

import argparse
import math
import re
import sys
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache
from typing import Any, NoReturn


class Renamed(argparse.Action):
    """An option of the version before, which works until the next one. `const`: how it is written
    now."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None
    ) -> None:
        tell_once(f"{parser.prog}: {option} goes with the next version: write {self.const}")
        setattr(namespace, self.dest, values)


@cache
def tell_once(message: str) -> None:
    print(message, file=sys.stderr)


class Parser(argparse.ArgumentParser):
    """Option names must be whole, as an abbreviation would change with the next option.

    needs_model: `--model` must be given, or what it was called before.
    """

    needs_model = False

    def __init__(
        self, command: str, arguments: str, description: str, example: str, **options: Any
    ) -> None:
        """command: behind `addnorm`. arguments: what must be given. description: of several lines
        they stay as they are."""
        has_lines = "\n" in description
        super().__init__(
            prog=f"addnorm {command}",
            usage=f"addnorm {command} [OPTIONS] {arguments}".rstrip(),
            description=description,
            epilog=f"Example: addnorm {command} {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter
            if has_lines
            else argparse.HelpFormatter,
            allow_abbrev=False,
            **options,
        )

    def add_renamed(self, option: str, dest: str, now: str) -> None:
        """Takes an option of the version before. dest: `old_precision` and `old_url` are parts of
        the model's name now."""
        self.add_argument(option, action=Renamed, dest=dest, const=now, help=argparse.SUPPRESS)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """None are unknown: the parser of a subcommand says so itself, with its own options."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        values: dict[str, Any] = options.__dict__
        if url := values.pop("old_url", None):
            values["model"] = f"{url}#{values['model']}" if values["model"] else url
        if self.needs_model and values["model"] is None:
            self.error("the following arguments are required: --model")
        if precision := values.pop("old_precision", None):
            for name in ("model", "checkpoint"):
                if values.get(name):
                    values[name] += f"@{precision}"
            if models := values.get("models"):
                values["models"] = [f"{name}@{precision}" for name in models]
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """Exits with code 2 and two lines: the problem, and where all options are listed."""
        _, unknown, rest = message.partition("unrecognized arguments: ")
        options = re.findall(r"(?<!\S)--[\w-]+", self.format_help())
        if unknown and (close := get_close_matches(rest.split()[0], options, 1)):
            message += f"; did you mean {close[0]}?"
        self.exit(2, f"{self.prog}: {message}\n`{self.prog} --help` lists all options\n")


def _number(kind: type[float], fits: Callable[[float], bool], needed: str) -> Callable[[str], Any]:
    """Reads the number of an option, which must fit."""

    def read(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            number = math.nan
        if not fits(number):
            raise argparse.ArgumentTypeError(f"{text!r} is not {needed}")
        return number

    return read


above_zero = _number(float, lambda x: 0 < x < math.inf, "a finite number above 0")
not_negative = _number(float, lambda x: 0 <= x < math.inf, "a finite number, 0 or more")
positive = _number(int, lambda x: x >= 1, "a whole number above 0")
