"""The exact action table of a language policy, and the exact NashConv of that table.

    table, illegal_mass = policy_table(policy, params, KUHN)
    exact_nash_conv(policy, params, KUHN)      # a float, with details attached

Nothing is sampled. At every information set the prompt is the domain's own, and the probability of
an action is that of its canonical reply followed by the end token.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import chex
import numpy as np

from ..domains import Kuhn
from ..games import tree
from ..games.tree import TreeGame
from ..names import unknown
from ..policy import Policy, render
from ..policy.constrained import action_log_probs

MISSING = ("uniform", "error")
# Compiled game -> the domain that renders it as text, when no domain is given.
DOMAINS: dict[str, Callable[[], Any]] = {"kuhn_poker": Kuhn}


class PolicyTable(NamedTuple):
    """What a policy does at every information set.

    Attributes:
      probabilities: float64 [infosets, actions] in the game's order, each row normalised over the
        legal actions; illegal actions have probability 0.
      illegal_mass: float64 [infosets], probability of any reply that is no canonical legal action.
        A parser that tolerates other spellings accepts some of this mass, so it is an upper bound
        on the share of refused replies.
    """

    probabilities: np.ndarray
    illegal_mass: np.ndarray


class NamedTable(NamedTuple):
    """A table made from named rows.

    Attributes:
      table: float64 [infosets, actions] in the game's order.
      missing_infosets: names of the information sets that were filled in, in the game's order.
    """

    table: np.ndarray
    missing_infosets: tuple[str, ...]


class ExactNashConv(float):
    """NashConv as a float, with what it was computed from.

    Attributes:
      exploitability: NashConv / 2 in a constant-sum game, None in a general-sum one.
      gains: best-response gain of each player, (first, second), each >= 0.
      values: expected payoff of each player when the policy plays itself.
      probabilities: the action table [infosets, actions].
      illegal_mass: [infosets].
    """

    exploitability: float | None
    gains: tuple[float, float]
    values: tuple[float, float]
    probabilities: np.ndarray
    illegal_mass: np.ndarray


def policy_table(
    policy: Policy,
    params: chex.ArrayTree,
    game: TreeGame,
    domain: Any = None,
    *,
    temperature: float = 1.0,
) -> PolicyTable:
    """Exact probabilities of a language policy's actions at every information set of a game.

    With l(I, a) the log-probability of the canonical reply of action a followed by the end token,

        π(a | I) = exp l(I, a) / Σ_legal exp l(I, b),    illegal mass = 1 − Σ_legal exp l(I, b).

    Args:
      policy, params: the language policy.
      game: a compiled game.
      domain: renders the game as text: `infoset_messages(name)` gives the prompt of an information
        set, `action_words(name)` the canonical replies of its legal actions in the game's order.
        Default: the domain that the package has for this game. Prompts are those of single hands,
        also when the domain plays matches of several.
      temperature: of the softmax over tokens; 1 is the policy as trained, another value judges
        play at that temperature.

    Returns:
      PolicyTable, which unpacks to (probabilities, illegal_mass).

    Raises:
      ValueError: no domain for this game, a domain of another game, a set whose replies are not one
        for each legal action, or log-probabilities that are not numbers (a diverged policy).
    """
    domain = _domain_of(game, domain)
    words = [tuple(domain.action_words(name)) for name in game.infoset_names]
    for row, name in enumerate(game.infoset_names):
        legal = int(game.legal_mask[row].sum())
        if len(set(words[row])) != legal:
            raise ValueError(
                f"domain {domain.name!r} gives the replies {words[row]} at information set "
                f"{name!r}, which has {legal} legal actions; give one distinct reply for each"
            )
    prompts = [
        render(policy.tokenizer, domain.infoset_messages(name)) for name in game.infoset_names
    ]
    scores = action_log_probs(policy, params, prompts, words, temperature=temperature)
    logs = np.full(game.legal_mask.shape, -np.inf)
    for row, replies in enumerate(words):
        legal = np.flatnonzero(game.legal_mask[row])
        logs[row, legal] = np.asarray(scores[row, : len(replies)], np.float64)
    return normalize_actions(logs, game.infoset_names)


def normalize_actions(logs: np.ndarray, names: Sequence[str]) -> PolicyTable:
    """Probabilities over legal actions and the mass left over, from log-probabilities.

    Works on differences to the row's largest entry, so that a policy which gives every legal reply
    a probability below the smallest float still has a table.

    Args:
      logs: float64 [infosets, actions], -inf at illegal actions.
      names: the information sets, for errors.

    Raises:
      ValueError: NaN or +inf, or a row whose legal actions all have probability exactly 0.
    """
    best = logs.max(axis=1, keepdims=True)
    bad = ~np.isfinite(best[:, 0])
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"information set {names[row]!r}: log-probabilities of the actions are {logs[row]}; "
            "the policy has diverged or gives no legal action any probability"
        )
    weights = np.exp(logs - best)
    probabilities = weights / weights.sum(axis=1, keepdims=True)
    # float32 sums may exceed 1 by rounding.
    illegal = np.clip(1.0 - np.exp(logs).sum(axis=1), 0.0, 1.0)
    return PolicyTable(probabilities, illegal)


def exact_nash_conv(
    policy: Policy,
    params: chex.ArrayTree,
    game: TreeGame,
    domain: Any = None,
    *,
    temperature: float = 1.0,
) -> ExactNashConv:
    """Exact NashConv of a language policy: the sum of both players' best-response gains.

    The policy sits in both seats. Halve it for exploitability. Its action table is taken as it is
    after normalising over legal actions; what illegal replies would lose is not in this number, so
    read it together with `illegal_mass`.

    Args and errors as in `policy_table`.

    Returns:
      ExactNashConv: a float, in the game's payoff unit, with the details as attributes.
    """
    table = policy_table(policy, params, game, domain, temperature=temperature)
    return nash_conv_of_table(game, table.probabilities, table.illegal_mass)


def nash_conv_of_table(
    game: TreeGame, table: np.ndarray, illegal_mass: np.ndarray | None = None
) -> ExactNashConv:
    """Exact NashConv of a full profile given as a table, in float64.

    Args:
      game: a compiled game.
      table: [infosets, actions], the rows of both players.
      illegal_mass: [infosets], carried along; 0 when left out.

    Raises:
      ValueError: a table that is no full profile (shape, NaN, rows that do not sum to 1, a player
        without rows).
    """
    table = np.asarray(table, np.float64)
    gains = tree.evaluate_on_host(game, "gains", table)
    values = tree.evaluate_on_host(game, "expected", table)
    result = ExactNashConv(gains.sum())
    result.gains = (float(gains[0]), float(gains[1]))
    result.values = (float(values[0]), float(values[1]))
    result.exploitability = float(result) / 2 if game.payoff_sum is not None else None
    result.probabilities = table
    result.illegal_mass = np.zeros(len(table)) if illegal_mass is None else illegal_mass
    return result


def table_from_named(
    game: TreeGame, rows: Mapping[str, Sequence[float]], *, missing: str = "error"
) -> NamedTable:
    """A policy table in the game's order from rows by information-set name.

    Policies learned by sampling miss sets that were never visited. The rule for those is explicit,
    and what was filled in is reported.

    Args:
      game: a compiled game.
      rows: information set -> probability of each action [actions].
      missing: "error" refuses a table with gaps; "uniform" fills them with the uniform
        distribution over legal actions.

    Returns:
      NamedTable, which unpacks to (table, missing_infosets).

    Raises:
      ValueError: an information set that the game does not have (the nearest is offered), a row of
        the wrong length, a gap under "error", no row at all for one of the players (that is no
        profile under either rule), or rows that are no distributions.
    """
    if missing not in MISSING:
        raise unknown("rule for missing information sets", missing, MISSING)
    names = list(game.infoset_names)
    for name, row in rows.items():
        if name not in names:
            raise unknown(f"information set of {game.name}", name, names)
        if len(row) != game.num_actions:
            raise ValueError(
                f"row {name!r} has {len(row)} entries; {game.name} has {game.num_actions} actions"
            )
    absent = tuple(name for name in names if name not in rows)
    players = np.asarray(game.infoset_players)
    for player in sorted({int(p) for p in players if p >= 0}):
        if all(names[index] in absent for index in np.flatnonzero(players == player)):
            raise ValueError(
                f"no row for any information set of player {player}; a profile needs the rows of "
                "both players, and filling in a whole player would judge a policy nobody gave"
            )
    if absent and missing == "error":
        raise ValueError(
            f"{len(absent)} of {len(names)} information sets have no row: {', '.join(absent)}. "
            'Add them, or pass missing="uniform".'
        )
    legal = np.asarray(game.legal_mask, np.float64)
    table = legal / legal.sum(axis=1, keepdims=True)
    for name, row in rows.items():
        table[names.index(name)] = row
    tree.check_policy(game, table)
    return NamedTable(table, absent)


def _domain_of(game: TreeGame, domain: Any) -> Any:
    """The domain that renders `game`, checked to be of that game."""
    if domain is None:
        if game.name not in DOMAINS:
            raise unknown("game with a text domain", game.name, DOMAINS)
        return DOMAINS[game.name]()
    if getattr(domain, "game", None) != game.name:
        raise ValueError(
            f"domain {getattr(domain, 'name', domain)!r} renders "
            f"{getattr(domain, 'game', None)!r}, not the game {game.name!r}"
        )
    return domain
