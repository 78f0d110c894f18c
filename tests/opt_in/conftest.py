"""Proofs export as everybody does, but for those that say that they share exports."""

from collections.abc import Iterator

import pytest

from tests.support.exports import fresh_exports, shared_exports


@pytest.fixture(scope="package", autouse=True)
def exported_as_outside() -> Iterator[None]:
    with fresh_exports():
        yield


@pytest.fixture(scope="module")
def exports_shared() -> Iterator[None]:
    with shared_exports():
        yield
