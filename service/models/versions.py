"""Which version of a model its bare name means. Knows no models.

A pin is written as VERSION, or as VERSION?shadow=SHARE: then the newest version also computes a
share of the requests, whose answers nobody gets.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from addnorm.service.errors import StartupError

LATEST = "latest"
PIN = re.compile(r"([1-9]\d{0,16})(?:\?shadow=(\d*\.?\d+))?")


class Pin(NamedTuple):
    """The version that a bare name means, and the share of its requests that the newest version
    computes too."""

    version: int
    shadow_share: float = 0.0


def read_pin(written: str) -> Pin | None:
    """None for `latest`. ValueError says how it is written."""
    if written == LATEST:
        return None
    if not (found := PIN.fullmatch(written)) or not 0 <= (share := float(found[2] or 0)) <= 1:
        raise ValueError(f"{written[:60]!r}: write latest, VERSION, or VERSION?shadow=0.1")
    return Pin(int(found[1]), share)


def read_pins(written: Mapping[str, str]) -> dict[str, Pin]:
    """name -> pin, of the setting's values. StartupError for what is none."""
    try:
        pins = {name: read_pin(value) for name, value in written.items()}
    except ValueError as error:
        raise StartupError(f"ADDNORM_VERSIONS: {error}") from None
    return {name: pin for name, pin in pins.items() if pin}
