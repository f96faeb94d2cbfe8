"""Every domain there is, as its contract is tested: a new one joins `DOMAINS`."""

import hashlib
import random
import sys
from collections.abc import Callable
from typing import Any

from sepo_jax.domains import (
    Domain,
    Episode,
    ItemNegotiation,
    IteratedPrisonersDilemma,
    Kuhn,
    RepeatedAuction,
    SplitBargaining,
)
from sepo_jax.domains.traces import opponent_names
from sepo_jax.sandbox.environments import DomainEnvironment
from sepo_jax.sandbox.protocol import Turn

REPEATED = (IteratedPrisonersDilemma, RepeatedAuction, SplitBargaining, ItemNegotiation)
SETTINGS = {
    "": {},
    " faithful": {"faithful": True},
    " forfeit": {"on_invalid": "forfeit"},
}
CLASSES: dict[str, Callable[..., Domain]] = {Kuhn.name: Kuhn} | {
    domain.name: domain for domain in REPEATED
}
DOMAINS: dict[str, Domain] = {
    f"{name}{suffix}": build(**settings)
    for name, build in CLASSES.items()
    for suffix, settings in SETTINGS.items()
} | {"kuhn match": Kuhn(hands=6), "kuhn match forfeit": Kuhn(hands=6, on_invalid="forfeit")}

UNPARSABLE = "I cannot say."


def reply(stream: random.Random, legal: tuple[str, ...]) -> str:
    """A legal move, or one time in six none."""
    return UNPARSABLE if stream.random() < 1 / 6 else stream.choice(legal)


def play_on(episode: Episode, seed: object) -> Episode:
    """Plays to the end with random moves fixed by the seed; returns the episode."""
    stream = random.Random(f"moves {seed}")
    while not episode.done:
        episode.step(reply(stream, episode.legal_actions()))
    return episode


def episodes(name: str, seeds: range) -> list[Episode]:
    """A finished episode of each seed against each opponent of the domain."""
    domain = DOMAINS[name]
    return [
        play_on(domain.new_episode(opponent, seed), seed)
        for opponent in opponent_names(domain)
        for seed in seeds
    ]


def digest(name: str, seeds: range) -> str:
    """Hash of all that `episodes` and the experts of a domain leave."""
    records = [episode.record() for episode in episodes(name, seeds)]
    traces = DOMAINS[name].expert_traces(40, 5, rationale=True)
    return hashlib.sha256(repr((records, traces)).encode()).hexdigest()


def prefix(environment: DomainEnvironment, number: int) -> Turn:
    """Plays `number` moves against the opponent of that number, or as many as end nothing."""
    opponent = opponent_names(environment.domain)[number]
    for moves in reversed(range(number + 1)):
        turn = environment.reset({"opponent": opponent}, number)
        for _ in range(moves):
            if not turn.done:
                turn = environment.step({0: turn.prompts[0].legal_actions[-1]})
        if not turn.done:
            return turn
    raise AssertionError(f"{environment.name} asks nothing")


def snapshots(name: str) -> list[bytes]:
    """A snapshot in mid-episode against each opponent of a domain (see `prefix`)."""
    environment = DomainEnvironment(DOMAINS[name])
    taken = []
    for number in range(len(opponent_names(environment.domain))):
        prefix(environment, number)
        taken.append(environment.snapshot())
    return taken


def turns(environment: DomainEnvironment, turn: Turn, seed: object) -> list[str]:
    """Plays to the end as `play_on` does; JSON of every turn from `turn` on."""
    stream = random.Random(f"moves {seed}")
    found = [turn]
    while not found[-1].done:
        legal = found[-1].prompts[0].legal_actions
        found.append(environment.step({0: reply(stream, legal)}))
    return [turn.to_json() for turn in found]


def all_of(ranges: dict[str, range], taken: dict[str, list[bytes]]) -> dict[str, Any]:
    """What a process makes of every domain: a digest, and continuations of each snapshot.

    Returns by name {"digest", "continuations": the turns by snapshot and seed}, and under "jax"
    whether the process has loaded jax.
    """
    found: dict[str, Any] = {}
    for name, bodies in taken.items():
        environment = DomainEnvironment(DOMAINS[name])
        continued = [
            [
                turns(environment, environment.restore(body), seed)
                for seed in ranges["continuations"]
            ]
            for body in bodies
        ]
        found[name] = {"digest": digest(name, ranges["seeds"]), "continuations": continued}
    return found | {"jax": "jax" in sys.modules}
