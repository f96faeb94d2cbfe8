"""What a run is trained for: the config's row of the algorithm table, or an own objective."""

import dataclasses
from typing import Any

from ..algorithms import ALGORITHMS, Algorithm, get_algorithm
from ..names import imported
from .settings import Settings


def configured_algorithm(settings: Settings) -> Algorithm:
    """The row of the table that the config names, with its overrides."""
    return get_algorithm(settings.algorithm.name, **settings.algorithm.overrides)


def choose_objective(settings: Settings, objective: Any) -> Any:
    """`objective`, or where that is None the one that the config names."""
    if objective is None and settings.objective:
        objective = imported("objective", settings.objective, "my_module:my_function")
    return configured_algorithm(settings) if objective is None else objective


def row_of(objective: Any) -> Algorithm | None:
    """The row of the table that an objective is made from, None for an own loss."""
    return objective if isinstance(objective, Algorithm) else getattr(objective, "algorithm", None)


def credit_row(settings: Settings, objective: Any) -> Algorithm:
    """The row that assigns advantages: of an own loss without an `algorithm`, the config's."""
    return row_of(objective) or configured_algorithm(settings)


def describe_objective(objective: Any) -> str:
    """What `config.json` says of an objective given in Python: "module:function", or a row of the
    table with the fields that differ from the one of its name."""
    row = row_of(objective)
    if row is None:
        name = getattr(objective, "__qualname__", type(objective).__qualname__)
        return f"{getattr(objective, '__module__', '')}:{name}"
    base = ALGORITHMS.get(row.name)
    changed = []
    for field in dataclasses.fields(row):
        value = getattr(row, field.name)
        if base is None or value != getattr(base, field.name):
            changed.append(f"{field.name}={getattr(value, '__qualname__', value)}")
    return f"Algorithm {row.name} {', '.join(changed)}".strip()


def check_overlap(row: Algorithm | None) -> None:
    """Raises ValueError for a row that takes samples of the policy before the last update for the
    current policy's; an own loss has to correct for itself."""
    if row is not None and row.ratio == "none" and row.importance_cap is None:
        raise ValueError(
            f"rollout.overlap=True trains on samples of the policy before the last update, and "
            f"algorithm {row.name!r} (ratio='none') takes them for samples of the current one: set "
            "importance_cap in algorithm.overrides, choose an algorithm with a ratio, or set "
            "rollout.overlap=False"
        )
