"""Item negotiation with chosen items, and two players at it."""

import random

from sepo_jax.domains.negotiation_v2 import ItemNegotiation, Items, demands_within
from sepo_jax.domains.negotiation_v2_players import (
    EXPERTS,
    POOLS,
    write_pool,
    write_values,
)
from sepo_jax.domains.repeated import Situation

OPPONENTS = {name: factory for pool in POOLS.values() for name, factory in pool.items()}
PLAYERS = OPPONENTS | {name: factory for name, (_, factory) in EXPERTS.items()}


class FixedItems(ItemNegotiation):
    """The game with one pool and one pair of values, for answers by hand."""

    def __init__(self, pool, own, opponent):
        super().__init__()
        self.items = Items(pool, own, opponent)

    def situation(self, seed, number):
        """The same for every seed and round."""
        items = self.items
        private = write_values(items.own), write_values(items.opponent)
        return Situation(demands_within(items.pool), write_pool(items.pool), private, items)


def play(domain, agent, opponent, seed=0):
    """The finished episode of two players."""
    episode = domain.new_episode(opponent, seed)
    agent = agent()
    agent.reset(random.Random(0))
    while not episode.done:
        view = episode.view()
        episode.step(view.legal_actions[agent.act(view)])
    assert all(decision.valid for decision in episode.decisions)
    return episode


def means(episode):
    """Mean payoffs of a round, of the agent and of the opponent."""
    rounds = episode.rounds
    return sum(r.own for r in rounds) / len(rounds), sum(r.opponent for r in rounds) / len(rounds)
