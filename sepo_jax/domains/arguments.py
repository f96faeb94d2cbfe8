"""Numbers that a domain is given, checked."""

import operator
from collections.abc import Iterable, Sequence
from numbers import Real

from sepo_jax.names import check_option


def check_integer(name: str, value: object, minimum: int) -> int:
    """Returns `value` as an int; ValueError when it is no integer or is below `minimum`."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{name} must be an integer, not {value!r}") from None
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, not {number}")
    return number


def check_rates(**rates: float) -> tuple[float, ...]:
    """Returns the rates in order; ValueError where one is no number between 0 and 1."""
    for name, value in rates.items():
        if not (isinstance(value, Real) and 0 <= value <= 1):
            raise ValueError(f"{name}={value!r} must lie between 0 and 1")
    return tuple(rates.values())


def check_names(option: str, kind: str, names: object, allowed: Iterable[str]) -> tuple[str, ...]:
    """Returns the names in order; ValueError where `option` is no list of them, or one is none of
    this kind."""
    allowed = list(allowed)
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ValueError(f"{option}={names!r} must list names, such as ({allowed[0]!r},)")
    return tuple(check_option(kind, name, allowed) for name in names)


def check_distinct(name: str, values: Sequence[str]) -> None:
    """Raises ValueError naming the first value that is listed twice."""
    for place, value in enumerate(values):
        if value in values[:place]:
            raise ValueError(f"{name} lists {value!r} twice; keep one of them")
