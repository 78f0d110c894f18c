"""Every class of errors.py that has a code says what it means, and what to do."""

from addnorm.service import errors
from addnorm.service.errors import Overloaded, ServiceError
from benchmarks.documents.reference import kinds


def test_every_service_error_is_defined_in_errors() -> None:
    assert {kind.__module__ for kind in kinds(ServiceError)} == {errors.__name__}


def test_every_code_has_a_meaning_and_a_remedy() -> None:
    with_code = [kind for kind in kinds(ServiceError) if "code" in vars(kind)]
    assert len({kind.code for kind in with_code[1:]}) == len(with_code) - 1
    for kind in with_code[1:]:
        assert kind.__doc__, kind
        assert "remedy" in vars(kind), kind
    assert "code" not in vars(Overloaded), "each rejection says which limit it met"
