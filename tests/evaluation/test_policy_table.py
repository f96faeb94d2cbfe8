"""Exact tables of language policies: closed forms, known NashConv, bad profiles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.domains import Kuhn
from sepo_jax.evaluation import (
    exact_nash_conv,
    nash_conv_of_table,
    policy_table,
    table_from_named,
)
from sepo_jax.evaluation.nash_family import kuhn_member
from sepo_jax.evaluation.policy_table import normalize_actions
from sepo_jax.games import tree
from sepo_jax.games.kuhn import KUHN
from sepo_jax.games.leduc import LEDUC
from sepo_jax.policy import render


def test_uniform_token_model_in_closed_form(flat_policy):
    # All logits equal: each token has probability 1/V, a reply of n tokens and the end token
    # V^-(n + 1), whatever the prompt.
    policy, params = flat_policy
    vocabulary = policy.config.vocab_size
    table = policy_table(policy, params, KUHN)
    domain = Kuhn()
    for row, name in enumerate(KUHN.infoset_names):
        lengths = [
            len(policy.tokenizer.encode(word, add_special_tokens=False))
            for word in domain.action_words(name)
        ]
        mass = np.array([float(vocabulary) ** -(length + 1) for length in lengths])
        np.testing.assert_allclose(table.probabilities[row], mass / mass.sum(), rtol=1e-4)
        np.testing.assert_allclose(table.illegal_mass[row], 1 - mass.sum(), atol=1e-6)


def test_untrained_uniform_model_scores_eleven_twelfths(flat_policy):  # F22
    policy, params = flat_policy
    lengths = {
        len(policy.tokenizer.encode(word, add_special_tokens=False))
        for word in ("PASS", "BET", "FOLD", "CALL")
    }
    assert len(lengths) == 1, "the tokenizer gives every action word one length"
    exact = exact_nash_conv(policy, params, KUHN)
    assert exact == pytest.approx(11 / 12, abs=1e-5)
    assert exact.exploitability == pytest.approx(11 / 24, abs=1e-5)
    # Best-response gains of uniform play, first and second player: 3/8 and 13/24.
    assert exact.gains == pytest.approx((3 / 8, 13 / 24), abs=1e-5)
    assert exact.values[0] == pytest.approx(1 / 8, abs=1e-5)
    assert exact.illegal_mass.min() > 0.999


def test_table_equals_the_models_own_token_probabilities(random_policy):
    policy, params = random_policy
    table = policy_table(policy, params, KUHN)
    name = "Qpb"
    domain, row = Kuhn(), KUHN.infoset_names.index("Qpb")
    prompt = render(policy.tokenizer, domain.infoset_messages(name))
    mass = []
    for word in domain.action_words(name):
        reply = [*policy.tokenizer.encode(word, add_special_tokens=False), policy.end_ids[0]]
        tokens = jnp.array([prompt + reply], jnp.int32)
        count = len(reply)
        scores = jax.jit(policy.log_probs)(
            params,
            tokens,
            jnp.arange(tokens.shape[1])[None],
            jnp.zeros_like(tokens),
            None,
            (len(prompt) - 1 + jnp.arange(count))[None],
            jnp.array([reply]),
        )
        mass.append(float(jnp.exp(scores.logp.sum())))
    np.testing.assert_allclose(table.probabilities[row], np.array(mass) / sum(mass), rtol=1e-4)
    np.testing.assert_allclose(table.illegal_mass[row], 1 - sum(mass), atol=1e-5)


def test_temperature_reaches_the_table(random_policy):
    policy, params = random_policy
    warm = policy_table(policy, params, KUHN).probabilities
    cold = policy_table(policy, params, KUHN, temperature=0.25).probabilities
    assert (cold.max(axis=1) > warm.max(axis=1)).mean() > 0.9


LOGS = st.lists(st.floats(-400, 0), min_size=24, max_size=24)


@given(LOGS)
@settings(deadline=None, max_examples=50)
def test_normalisation_is_exact_where_probabilities_underflow(values):
    logs = np.array(values).reshape(12, 2)
    names = KUHN.infoset_names
    table = normalize_actions(logs - 2000.0, names)
    np.testing.assert_allclose(table.probabilities.sum(axis=1), 1)
    np.testing.assert_allclose(
        np.log(table.probabilities[:, 0]) - np.log(table.probabilities[:, 1]),
        np.clip(logs[:, 0] - logs[:, 1], -745, 745),
        atol=1e-6,
    )
    np.testing.assert_array_equal(table.illegal_mass, 1.0)


def test_illegal_mass_is_what_the_legal_replies_leave():
    logs = np.log(np.array([[0.3, 0.2], [0.5, 0.5 + 1e-8]]))
    table = normalize_actions(logs, ["J", "Q"])
    np.testing.assert_allclose(table.illegal_mass, [0.5, 0.0], atol=1e-12)
    np.testing.assert_allclose(table.probabilities[0], [0.6, 0.4])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_diverged_policy_is_named_by_its_information_set(bad):
    logs = np.array([[-1.0, -1.0], [bad, -1.0]])
    with pytest.raises(ValueError, match=r"'Q'.*diverged"):
        normalize_actions(logs, ["J", "Q"])
    with pytest.raises(ValueError, match="'J'"):
        normalize_actions(np.full((2, 2), -np.inf), ["J", "Q"])


def test_exact_nash_conv_of_a_full_profile():  # F01
    assert float(nash_conv_of_table(KUHN, _table(kuhn_member(0.2)))) == pytest.approx(0, abs=1e-12)
    mixed = dict(kuhn_member(0.2))
    for name, player in zip(KUHN.infoset_names, KUHN.infoset_players, strict=True):
        if player == 1:
            mixed[name] = [0.5, 0.5]
    exact = nash_conv_of_table(KUHN, _table(mixed))
    assert float(exact) == pytest.approx(5 / 9, abs=1e-12)
    assert exact.gains == pytest.approx((17 / 45, 8 / 45), abs=1e-12)
    assert exact.exploitability == pytest.approx(5 / 18, abs=1e-12)


@pytest.mark.parametrize("missing", ["uniform", "error"])
@pytest.mark.parametrize("player", [0, 1])
def test_one_players_policy_is_no_profile(player, missing):  # F01
    rows = {
        name: row
        for name, row in kuhn_member(0.2).items()
        if KUHN.infoset_players[KUHN.infoset_names.index(name)] == player
    }
    with pytest.raises(ValueError, match=f"player {1 - player}"):
        table_from_named(KUHN, rows, missing=missing)
    with pytest.raises(ValueError, match="player"):
        nash_conv_of_table(KUHN, np.array(list(rows.values())))


def test_missing_information_sets_are_filled_uniformly_and_reported():  # F18
    rows = dict(kuhn_member(0.1))
    for name in ("Q", "Jb", "Kpb"):
        del rows[name]
    table, missing = table_from_named(KUHN, rows, missing="uniform")
    assert len(missing) == 3 and set(missing) == {"Q", "Jb", "Kpb"}
    filled = rows | {name: [0.5, 0.5] for name in missing}
    np.testing.assert_array_equal(table, _table(filled))
    assert nash_conv_of_table(KUHN, table) == nash_conv_of_table(KUHN, _table(filled))
    with pytest.raises(ValueError, match=r"3 of 12 information sets have no row: .*Kpb"):
        table_from_named(KUHN, rows)


def test_uniform_filling_is_over_legal_actions():  # F18
    row = LEDUC.legal_mask.sum(axis=1).tolist().index(2)
    name, player = LEDUC.infoset_names[row], LEDUC.infoset_players[row]
    other = LEDUC.infoset_names[LEDUC.infoset_players.tolist().index(1 - player)]
    legal = {n: LEDUC.uniform_policy()[LEDUC.infoset_names.index(n)] for n in (other,)}
    own = next(
        n for n, p in zip(LEDUC.infoset_names, LEDUC.infoset_players, strict=True)
        if p == player and n != name
    )  # fmt: skip
    legal[own] = LEDUC.uniform_policy()[LEDUC.infoset_names.index(own)]
    table = table_from_named(LEDUC, legal, missing="uniform").table
    np.testing.assert_allclose(table, LEDUC.uniform_policy(), atol=1e-7)
    assert float(nash_conv_of_table(LEDUC, table)) == pytest.approx(1709 / 360, abs=1e-6)


def test_an_exploitable_profile_is_not_called_safe():  # F20
    # Always betting loses 2/3 to best responses: 1/3 at each seat.
    always_bet = np.tile([0.0, 1.0], (12, 1))
    assert float(nash_conv_of_table(KUHN, always_bet)) == pytest.approx(2 / 3, abs=1e-12)


def test_host_and_device_computations_agree():
    generator = np.random.default_rng(0)
    for _ in range(5):
        table = generator.dirichlet([1, 1], size=12)
        device = float(tree.nash_conv(KUHN, table))
        assert float(nash_conv_of_table(KUHN, table)) == pytest.approx(device, abs=1e-5)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"J": [0.5, 0.5], "Jbp": [0.5, 0.5]}, "Did you mean 'Jpb'|Did you mean 'J"),
        ({"J": [1.0], "Jp": [0.5, 0.5]}, "1 entries"),
        ({"J": [0.7, 0.7], "Jp": [0.5, 0.5]}, "does not sum to 1"),
        ({"J": [np.nan, 0.5], "Jp": [0.5, 0.5]}, "NaN"),
    ],
)
def test_bad_rows_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        table_from_named(KUHN, rows, missing="uniform")


def test_unknown_rule_offers_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'uniform'"):
        table_from_named(KUHN, {}, missing="uniforn")


def test_domains_of_other_games_are_refused(flat_policy):
    policy, params = flat_policy
    with pytest.raises(ValueError, match="renders 'kuhn_poker', not the game 'leduc_poker'"):
        policy_table(policy, params, LEDUC, Kuhn())
    with pytest.raises(ValueError, match="game with a text domain 'leduc_poker'"):
        policy_table(policy, params, LEDUC)


class _Mute(Kuhn):
    """A domain that gives one reply for two actions."""

    def action_words(self, name):
        return ("PASS", "PASS")


def test_replies_must_name_every_legal_action_once(flat_policy):
    policy, params = flat_policy
    with pytest.raises(ValueError, match="one distinct reply for each"):
        policy_table(policy, params, KUHN, _Mute())


def test_a_policy_of_nan_is_refused(random_policy):
    policy, params = random_policy
    broken = jax.tree.map(lambda leaf: leaf * jnp.nan, params)
    with pytest.raises(ValueError, match="diverged"):
        exact_nash_conv(policy, broken, KUHN)


def _table(rows):
    return table_from_named(KUHN, rows).table
