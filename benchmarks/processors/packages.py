"""`python -m benchmarks.processors.packages` prints what serving and `addnorm embed` import, at the
versions of this environment, as requirements."""

import re
from collections.abc import Iterator
from importlib.metadata import distribution

from packaging.requirements import Requirement

OWN, EXTRAS = "addnorm", ("corpus",)


def needed_versions(name: str = OWN, extras: tuple[str, ...] = EXTRAS) -> dict[str, str]:
    """Normalized name -> version, of all that the distribution needs. Without itself."""
    versions: dict[str, str] = {}
    waiting = [*_requirements(name, extras)]
    while waiting:
        requirement = waiting.pop()
        key = re.sub("[-_.]+", "-", requirement.name).lower()
        if key not in versions:
            versions[key] = distribution(key).version
            waiting += _requirements(key, tuple(requirement.extras))
    return versions


def _requirements(name: str, extras: tuple[str, ...]) -> Iterator[Requirement]:
    """Requirements whose markers hold here, for these extras."""
    for line in distribution(name).requires or ():
        requirement, marker = Requirement(line), Requirement(line).marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


if __name__ == "__main__":
    print(*(f"{name}=={version}" for name, version in sorted(needed_versions().items())), sep="\n")
