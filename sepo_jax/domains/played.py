"""What a finished episode leaves, read back from the record that crossed processes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from sepo_jax.domains.base import Decision, Round

MESSAGE_FIELDS = {"role", "content"}


@dataclass(frozen=True)
class Played:
    """A finished episode without its rules: it serves wherever finished episodes are read.

    Attributes:
      seed: of the episode.
      opponent_name: in reports.
      decisions: of the agent, in order.
      rounds: results of the rounds, in order.
      done: always True.
    """

    seed: int
    opponent_name: str
    decisions: tuple[Decision, ...]
    rounds: tuple[Round, ...]
    done: bool = field(default=True, init=False)

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> "Played":
        """The episode whose `Episode.record()` this is, before or after a trip through JSON.

        Raises:
          ValueError: anything else; the message names the field.
        """
        _check_fields("the record", record, [f.name for f in fields(Played) if f.init])
        _check("seed", record["seed"], _is_count)
        _check("opponent_name", record["opponent_name"], _is_text)
        _check("decisions", record["decisions"], _is_list)
        _check("rounds", record["rounds"], _is_list)
        return Played(
            seed=record["seed"],
            opponent_name=record["opponent_name"],
            decisions=tuple(_decision(*numbered) for numbered in enumerate(record["decisions"])),
            rounds=tuple(_round(*numbered) for numbered in enumerate(record["rounds"])),
        )


def _decision(number: int, values: Any) -> Decision:
    place = f"decision {number}"
    _check_fields(place, values, [f.name for f in fields(Decision)])
    _check(f"{place}: turn", values["turn"], lambda turn: _is_count(turn) and turn == number)
    _check(f"{place}: round", values["round"], _is_count)
    _check(f"{place}: observation", values["observation"], _is_text)
    _check(f"{place}: messages", values["messages"], _are_messages)
    _check(f"{place}: text", values["text"], _is_text)
    _check(f"{place}: action", values["action"], lambda action: action is None or _is_count(action))
    _check(f"{place}: valid", values["valid"], lambda valid: isinstance(valid, bool))
    messages = tuple(dict(message) for message in values["messages"])
    return Decision(**{**values, "messages": messages})


def _round(number: int, values: Any) -> Round:
    _check_fields(f"round {number}", values, [f.name for f in fields(Round)])
    for name, value in values.items():
        _check(f"round {number}: {name}", value, _is_number)
    return Round(**values)


def _check_fields(place: str, values: Any, names: list[str]) -> None:
    if not isinstance(values, Mapping) or values.keys() != set(names):
        given = sorted(map(str, values)) if isinstance(values, Mapping) else repr(values)[:80]
        raise ValueError(f"{place} of a played episode must have the fields {names}, not {given}")


def _check(place: str, value: Any, allowed) -> None:
    if not allowed(value):
        raise ValueError(f"the record of a played episode holds {place} = {repr(value)[:80]}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole or (isinstance(value, float) and math.isfinite(value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _are_messages(value: Any) -> bool:
    return _is_list(value) and all(
        isinstance(message, Mapping)
        and message.keys() == MESSAGE_FIELDS
        and all(map(_is_text, message.values()))
        for message in value
    )
