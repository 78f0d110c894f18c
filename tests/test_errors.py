"""The tree of errors that errors.py opens with is the classes', with their statuses."""

import re

from addnorm.service import errors
from addnorm.service.errors import ServiceError


def classes(root: type[ServiceError]) -> set[type[ServiceError]]:
    return {root}.union(*(classes(kind) for kind in root.__subclasses__()))


def test_the_tree_has_every_class_below_its_parent_with_its_status() -> None:
    parents: list[str] = []
    told: dict[str, tuple[str, int]] = {}
    for indent, name, status in re.findall(
        r"^( *)([A-Z]\w+) +(\d{3})?", errors.__doc__ or "", re.M
    ):
        parents[len(indent) // 2 :] = [name]
        if len(parents) > 1:
            told[name] = (parents[-2], int(status or told[parents[-2]][1]))
    assert told == {
        kind.__name__: (str(kind.__base__.__name__), kind.status)
        for kind in classes(ServiceError) - {ServiceError}
        if kind.__base__ and kind.__module__ == errors.__name__
    }


def test_every_service_error_is_defined_in_errors() -> None:
    assert {kind.__module__ for kind in classes(ServiceError)} == {errors.__name__}
