"""Whether the players that a domain names can be played with; for domains of your own."""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

POOLS = ("train", "exploiter", "collusive")


def check_players(domain: Any) -> None:
    """Checks `pools` and `experts` of a domain (see `domains.base.Domain`).

    Pools other than the train pool may be empty, and so may the experts, where nothing is played
    with them. An opponent may sit in several pools, if one factory makes it in all of them.

    Raises:
      ValueError: a pool that is missing or no mapping, an empty train pool, a player
        without a factory, one name for two opponents, or weights of experts that are not positive
        or do not sum to 1; the message says what to write instead.
    """
    pools = domain.pools
    if not isinstance(pools, Mapping) or not pools.keys() >= set(POOLS):
        given = ", ".join(map(str, pools)) if isinstance(pools, Mapping) else repr(pools)
        raise ValueError(f"{domain.name}.pools must have the keys {', '.join(POOLS)}, not {given}")
    seen: dict[str, Any] = {}
    for pool, players in pools.items():
        place = f"{domain.name}.pools[{pool!r}]"
        if not isinstance(players, Mapping):
            raise ValueError(f"{place} must map names of opponents to factories, not {players!r}")
        for name, factory in players.items():
            _check_factory(f"{place}[{name!r}]", factory)
            if seen.setdefault(name, factory) is not factory:
                raise ValueError(
                    f"{place}[{name!r}] is another opponent than {name!r} of an earlier pool: give "
                    "it a name of its own, or use one factory in both"
                )
    if not pools["train"]:
        raise ValueError(
            f"{domain.name}.pools['train'] is empty; name an opponent to train against"
        )
    _check_experts(domain)


def _check_experts(domain: Any) -> None:
    experts = domain.experts
    if not isinstance(experts, Mapping):
        raise ValueError(f"{domain.name}.experts must map names to (weight, factory): {experts!r}")
    for name, expert in experts.items():
        place = f"{domain.name}.experts[{name!r}]"
        if not isinstance(expert, tuple | list) or len(expert) != 2:
            raise ValueError(f"{place} must be (weight, factory), not {expert!r}")
        weight, factory = expert
        if not isinstance(weight, Real) or not weight > 0:
            raise ValueError(f"the weight of {place} must be a number above 0, not {weight!r}")
        _check_factory(place, factory)
    total = math.fsum(weight for weight, _ in experts.values())
    if experts and not abs(total - 1) <= 1e-6:
        raise ValueError(f"the weights of {domain.name}.experts must sum to 1, not {total:g}")


def _check_factory(place: str, factory: Any) -> None:
    if callable(factory):
        return
    advice = "; give its class or a function that makes one" if hasattr(factory, "act") else ""
    raise ValueError(f"{place} must be a factory of players, not {factory!r}{advice}")
