"""What `payload=` takes: a type, which is checked, or a callable, which is called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, NewType, Protocol, TypedDict, TypeVar

import pydantic
import pytest

from trio_monque.payloads.libraries import MOST_PROBLEMS, pydantic_reader, without_long_list
from trio_monque.payloads.payload_type import PayloadType
from trio_monque.payloads.problems import ValueProblem

T = TypeVar("T")


@dataclass
class Order:
    number: int


@dataclass
class Box(Generic[T]):
    content: T


class OrderDict(TypedDict):
    number: int


class Numbered(Protocol):
    number: int


Key = NewType("Key", int)


@pytest.mark.parametrize(
    ("declared", "data", "expected"),
    [
        (Order, Order(1), True),
        (Order, {"number": 1}, False),
        (Box[int], Box(1), True),
        (Box[int], {"content": 1}, False),
        (OrderDict, {"number": 1}, True),  # These cannot be asked.
        (Numbered, Order(1), True),
        (Order | None, None, True),
    ],
    ids=str,
)
def test_data_of_another_class_is_not_taken(declared: Any, data: object, expected: bool) -> None:
    assert PayloadType(declared).takes(data) is expected


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (Order, True),
        (OrderDict, True),
        (Key, True),
        (list[Order], True),
        (Order | None, True),
        (bytes, False),
        (int, False),
        (set, False),
        (Order(1).__eq__, False),
    ],
    ids=str,
)
def test_types_and_callables_are_distinguished(declared: Any, expected: bool) -> None:
    """Builtin types are callables: as a payload, `int` also reads "7"."""
    assert PayloadType(declared).is_type is expected


def test_payload_of_a_callable_is_stored_without_a_type() -> None:
    payload = PayloadType(set)
    assert payload.store({2, 1}) == [1, 2]
    assert payload.store({"a": 1}) == {"a": 1}
    assert payload.store(Order(1)) == {"number": 1}


# --- Errors with many problems ---


class Numbers(pydantic.BaseModel):
    numbers: list[int]


def _problem(count: int) -> ValueProblem:
    with pytest.raises(ValueProblem) as caught:
        pydantic_reader(Numbers)({"numbers": ["x"] * count})
    return caught.value


def test_error_of_pydantic_stays_the_cause_up_to_a_limit() -> None:
    few, many = _problem(MOST_PROBLEMS), _problem(MOST_PROBLEMS + 1)
    assert isinstance(few.__cause__, pydantic.ValidationError)
    assert not hasattr(few, "__notes__")
    assert (many.__cause__, many.__context__) == (None, None)
    [note] = many.__notes__
    head, *lines = note.splitlines()
    assert head == f"The next {MOST_PROBLEMS - 1} of {MOST_PROBLEMS} more problems:"
    assert lines[0].startswith("  .numbers[1]: ")
    assert len(lines) == MOST_PROBLEMS - 1


def test_first_problem_stands_for_the_others() -> None:
    assert "more)" not in str(_problem(1))
    assert str(_problem(2)).endswith(" (and 1 more)")
    assert str(_problem(2)).startswith("data.numbers[0]: ")


def test_long_list_of_problems_is_shortened_in_errors_of_pydantic_only() -> None:
    def caught(count: int) -> pydantic.ValidationError:
        with pytest.raises(pydantic.ValidationError) as error:
            Numbers.model_validate({"numbers": ["x"] * count})
        return error.value

    few, other = caught(MOST_PROBLEMS), ValueError("v")
    assert without_long_list(few) is few
    assert without_long_list(other) is other
    assert isinstance(without_long_list(caught(MOST_PROBLEMS + 1)), ValueProblem)
