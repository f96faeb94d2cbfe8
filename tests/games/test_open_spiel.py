"""OpenSpiel's games and numbers, where the extra is installed."""

import subprocess
import sys

import numpy as np
import pytest

from sepo_jax.games import (
    KUHN,
    LEDUC,
    best_response_values,
    exploitability,
    from_open_spiel,
    gains,
    matrix,
    nash_conv,
    normal_form,
    solve_sequence_form,
)
from sepo_jax.games.kuhn import KuhnState
from sepo_jax.games.leduc import LeducState


# G07: the package imports without OpenSpiel; the adapter names the extra in one line.
def test_missing_package_names_the_extra():
    code = (
        "import sys; sys.modules['pyspiel'] = None\n"
        "from sepo_jax.games import KUHN, from_open_spiel\n"
        "try: from_open_spiel('kuhn_poker')\n"
        "except ImportError as error: print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip().splitlines() == [
        'from_open_spiel needs OpenSpiel: pip install "sepo_jax[openspiel]"'
    ]


@pytest.fixture(scope="module")
def pyspiel():
    return pytest.importorskip("pyspiel")


def names_in_open_spiel(pyspiel, own_root, name):
    """{own information set: OpenSpiel's} by walking both trees, comparing rules on the way."""
    found = {}

    def walk(own, other):
        if own.is_terminal():
            assert other.is_terminal()
            np.testing.assert_allclose(own.returns(), other.returns())
        elif own.current_player() == -1:
            assert other.is_chance_node()
            assert dict(own.chance_outcomes()) == pytest.approx(dict(other.chance_outcomes()))
            for outcome, _ in own.chance_outcomes():
                walk(own.child(outcome), other.child(outcome))
        else:
            assert own.current_player() == other.current_player()
            assert list(own.legal_actions()) == other.legal_actions()
            text = other.information_state_string()
            assert found.setdefault(own.information_state(), text) == text
            for action in own.legal_actions():
                walk(own.child(action), other.child(action))

    if isinstance(own_root, KuhnState):  # cards are dealt as a pair here, one by one there
        for deal, _ in own_root.chance_outcomes():
            own = own_root.child(deal)
            other = pyspiel.load_game(name).new_initial_state()
            walk(own, other.child(own.cards[0]).child(own.cards[1]))
    else:
        walk(own_root, pyspiel.load_game(name).new_initial_state())
    return found


def tabular(pyspiel, names, game, table):
    return pyspiel.TabularPolicy(
        {
            name: [(int(a), float(row[a])) for a in np.flatnonzero(legal)]
            for name, legal, row in zip(names, game.legal_mask, table, strict=True)
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "root", "name"),
    [(KUHN, KuhnState(), "kuhn_poker"), (LEDUC, LeducState(), "leduc_poker")],
    ids=["kuhn", "leduc"],
)
def test_own_games_on_100_random_policies(pyspiel, oracle, game, root, name):
    mapping = names_in_open_spiel(pyspiel, root, name)
    assert len(mapping) == len(set(mapping.values())) == game.num_infosets
    names = [mapping[infoset] for infoset in game.infoset_names]
    compiled = from_open_spiel(name)
    assert set(names) == set(compiled.infoset_names)
    policies = oracle.random_policies(game, 100, seed=7, pure=0.2)
    policies[:2] = oracle.random_policies(game, 2, seed=8, pure=0.9)
    ours = np.asarray(nash_conv(game, policies))
    reordered = policies[:, [names.index(infoset) for infoset in compiled.infoset_names]]
    np.testing.assert_allclose(nash_conv(compiled, reordered), ours, atol=1e-5)
    theirs = pyspiel.load_game(name)
    for table, value in zip(policies, ours, strict=True):
        policy = tabular(pyspiel, names, game, table)
        np.testing.assert_allclose(value, pyspiel.nash_conv(theirs, policy), atol=2e-5)


def test_small_liars_dice_on_100_random_policies(pyspiel, oracle):
    game = from_open_spiel("liars_dice", dice_sides=3)
    theirs = pyspiel.load_game("liars_dice", {"dice_sides": 3})
    policies = oracle.random_policies(game, 100, seed=9, pure=0.2)
    for table, value in zip(policies, np.asarray(nash_conv(game, policies)), strict=True):
        policy = tabular(pyspiel, game.infoset_names, game, table)
        np.testing.assert_allclose(value, pyspiel.nash_conv(theirs, policy), atol=1e-5)


@pytest.mark.slow
def test_liars_dice(pyspiel, oracle):
    game = from_open_spiel("liars_dice")
    theirs = pyspiel.load_game("liars_dice")
    assert game.num_infosets == 24576
    (table,) = oracle.random_policies(game, 1, seed=10)
    policy = tabular(pyspiel, game.infoset_names, game, table)
    np.testing.assert_allclose(nash_conv(game, table), pyspiel.nash_conv(theirs, policy), atol=1e-5)
    # Value from an OpenSpiel test (cases 4.2).
    solution = solve_sequence_form(game)
    np.testing.assert_allclose(solution.values[0], -0.027131782945736, atol=1e-9)


def test_python_exploitability_agrees(pyspiel, oracle):
    policy_module = pytest.importorskip("open_spiel.python.policy")
    from open_spiel.python.algorithms import exploitability as reference

    theirs = pyspiel.load_game("kuhn_poker")
    game = from_open_spiel("kuhn_poker")
    for table in oracle.random_policies(game, 3, seed=11, pure=0.2):
        policy = policy_module.TabularPolicy(theirs)
        for name, row in zip(game.infoset_names, table, strict=True):
            policy.policy_for_key(name)[:] = row
        np.testing.assert_allclose(
            exploitability(game, table), reference.exploitability(theirs, policy), atol=1e-6
        )
        per_player = reference.nash_conv(theirs, policy, return_only_nash_conv=False)
        np.testing.assert_allclose(gains(game, table), per_player.player_improvements, atol=1e-6)


def test_goofspiel(pyspiel):
    # Imperfect information, 4 cards, descending points: symmetric, so the value is 0 (cases 4.2).
    game = from_open_spiel("goofspiel", imp_info=True, num_cards=4, points_order="descending")
    assert game.zero_sum
    solution = solve_sequence_form(game)
    np.testing.assert_allclose(solution.values[0], 0, atol=1e-9)


def test_matrix_games_become_trees(pyspiel):
    game = from_open_spiel("matrix_sh")  # stag hunt, moves at the same time
    assert game.num_infosets == 2 and sorted(game.infoset_players.tolist()) == [0, 1]
    first, second = normal_form(game)
    np.testing.assert_allclose(first, second.T)
    np.testing.assert_allclose(
        gains(game, [[0, 1], [1, 0]]), matrix.bimatrix_gains(first, second, [0, 1], [1, 0])
    )
    assert best_response_values(game, game.uniform_policy()).shape == (2,)


def test_refusals(pyspiel):
    with pytest.raises(ValueError, match=r"no game 'kuhn_pokr'.*kuhn_poker"):
        from_open_spiel("kuhn_pokr")
    with pytest.raises(ValueError, match=r"cannot load 'kuhn_poker'.*decks"):
        from_open_spiel("kuhn_poker", decks=3)
    with pytest.raises(ValueError, match="3 players"):
        from_open_spiel("kuhn_poker", players=3)
