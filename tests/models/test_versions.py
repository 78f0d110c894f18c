"""What a bare name means."""

from pathlib import Path

import pytest

from addnorm.service.errors import StartupError
from addnorm.service.loading.loader import load_all
from addnorm.service.models.versions import Pin, read_pins
from addnorm.service.settings import Settings


def test_a_pin_is_a_version_and_the_share_of_a_shadow() -> None:
    written = Settings.model_validate({"versions": "a=1, b=12?shadow=0.25, c=latest"}).versions
    assert read_pins(written) == {"a": Pin(1), "b": Pin(12, 0.25)}


@pytest.mark.parametrize("written", ["newest", "0", "1?shadow=2", "1?shadow=", "1?share=1", "-1"])
def test_what_is_no_pin_ends_the_start(written: str) -> None:
    with pytest.raises(StartupError, match="write latest, VERSION, or VERSION\\?shadow"):
        read_pins({"notebook": written})


@pytest.mark.parametrize(
    ("name", "words"),
    [("notebook", "has no version '7': it has 1"), ("bert", "'bert/7' is not served")],
)
def test_a_pin_to_what_is_not_served_ends_the_start(small: Path, name: str, words: str) -> None:
    with pytest.raises(StartupError, match=f"ADDNORM_VERSIONS: {name}=7: .*{words}"):
        load_all(small, Settings(versions={name: "7"}))
