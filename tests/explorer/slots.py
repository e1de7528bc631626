"""Numbered slots that are put if absent, as the stores have them: None is a free one."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

T = TypeVar("T")

Slots: TypeAlias = tuple[T | None, ...]


def there(slots: Slots[T], at: int) -> bool:
    """Whether something stands at the place."""
    return at < len(slots) and slots[at] is not None


def found(slots: Slots[T], at: int) -> T:
    """What stands at the place."""
    value = slots[at]
    assert value is not None
    return value


def put(slots: Slots[T], at: int, value: T) -> Slots[T]:
    """The slots with one more; the place must be free."""
    assert not there(slots, at)
    slots = slots + (None,) * (at + 1 - len(slots))
    return (*slots[:at], value, *slots[at + 1 :])


def without(slots: Slots[T], at: int) -> Slots[T]:
    """The slots with one less."""
    slots = (*slots[:at], None, *slots[at + 1 :])
    while slots and slots[-1] is None:
        slots = slots[:-1]
    return slots


def taken(slots: Slots[T]) -> list[int]:
    """What LIST shows."""
    return [at for at, value in enumerate(slots) if value is not None]


def first_free(slots: Slots[T], start: int) -> int | None:
    """The first free place; None: something stands above it, so that it is a hole."""
    while there(slots, start):
        start += 1
    return start if start >= len(slots) else None
