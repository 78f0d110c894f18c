"""Which version of a model its bare name means. Knows no models."""

import re
from collections.abc import Mapping

from addnorm.service.errors import StartupError

LATEST = "latest"
VERSION = re.compile(r"[1-9]\d{0,16}")


def read_pin(written: str) -> int | None:
    """None for `latest`. ValueError says how it is written."""
    if written == LATEST:
        return None
    if not VERSION.fullmatch(written):
        raise ValueError(f"{written[:60]!r}: write latest or VERSION")
    return int(written)


def read_pins(written: Mapping[str, str]) -> dict[str, int]:
    """name -> version, of the setting's values. StartupError for what is none."""
    try:
        pins = {name: read_pin(value) for name, value in written.items()}
    except ValueError as error:
        raise StartupError(f"ADDNORM_VERSIONS: {error}") from None
    return {name: version for name, version in pins.items() if version}
