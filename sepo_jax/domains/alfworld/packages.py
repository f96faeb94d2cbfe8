"""What is used of the packages textworld and alfworld (extra `alfworld`)."""

import contextlib
import functools
import importlib.util
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

HINT = "ALFWorld needs textworld and alfworld: pip install sepo_jax[alfworld]"
_PACKAGES = ("textworld", "fast_downward", "alfworld")
_DATA = "ALFWORLD_DATA"


class Library(NamedTuple):
    """What ALFWorld brings.

    Attributes:
      domain: the rules of every game, in PDDL.
      grammar: texts and commands of every game; "UNKNOWN GOAL" stands for its task.
      goals: task type -> {"pddl": goal, "templates": sentences}, with names to fill in.
      holds: class of receptacles -> classes of objects that they hold.
      treatable: "Heatable", "Coolable", "Cleanable", "Toggleable", "Sliceable" -> classes of
        objects.
      openable: classes of receptacles.
      rooms_of: task type -> kinds of rooms that it is set in.
      demangler: names the things of a game.
    """

    domain: str
    grammar: str
    goals: Mapping[str, Mapping[str, Any]]
    holds: Mapping[str, frozenset[str]]
    treatable: Mapping[str, frozenset[str]]
    openable: frozenset[str]
    rooms_of: Mapping[str, frozenset[str]]
    demangler: Any


def require() -> None:
    """Raises ImportError with what to install where a package is missing; imports none."""
    if any(importlib.util.find_spec(name) is None for name in _PACKAGES):
        raise ImportError(HINT)


@functools.cache
def library() -> Library:
    """What ALFWorld brings; ImportError with what to install where it is missing."""
    require()
    with _no_new_directory():
        from alfworld import info
        from alfworld.agents.utils.misc import Demangler
        from alfworld.gen import constants, goal_library
    return Library(
        domain=Path(info.ALFRED_PDDL_PATH).read_text(encoding="utf-8"),
        grammar=Path(info.ALFRED_TWL2_PATH).read_text(encoding="utf-8"),
        goals=goal_library.gdict,
        holds=_frozen(constants.VAL_RECEPTACLE_OBJECTS),
        treatable=_frozen(constants.VAL_ACTION_OBJECTS),
        openable=frozenset(constants.OPENABLE_CLASS_LIST),
        rooms_of=_frozen(constants.GOALS_VALID),
        demangler=Demangler,
    )


def _frozen(sets: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    return {name: frozenset(members) for name, members in sets.items()}


@contextlib.contextmanager
def _no_new_directory() -> Iterator[None]:
    """alfworld makes its data directory when it is imported, in the home by default, and names it
    in the environment. Nothing is made where one is named that exists."""
    before = os.environ.get(_DATA)
    if before is None or not os.path.isdir(before):
        os.environ[_DATA] = tempfile.gettempdir()
    try:
        yield
    finally:
        os.environ.pop(_DATA, None)
        if before is not None:
            os.environ[_DATA] = before
