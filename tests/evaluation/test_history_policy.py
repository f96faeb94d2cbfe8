"""Language policies in repeated games: closed forms, the prompts of episodes, best responses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sepo_jax.domains.ipd import MOVES, IteratedPrisonersDilemma
from sepo_jax.domains.negotiation_v1 import SplitBargaining
from sepo_jax.evaluation.history_policy import HistoryProbabilities
from sepo_jax.policy import render
from sepo_jax.sepo.histories import as_policy, history_game
from sepo_jax.sepo.history_response import best_exploiter

DOMAIN = IteratedPrisonersDilemma(rounds=3)


# All logits equal: a reply of n tokens and the end token has probability V^-(n + 1), whatever the
# prompt, so the policy is one mixture in every context and its best response one move.
def test_uniform_token_model_in_closed_form(flat_policy):
    policy, params = flat_policy
    vocabulary = float(policy.config.vocab_size)
    lengths = [len(policy.tokenizer.encode(word, add_special_tokens=False)) for word in MOVES]
    mass = vocabulary ** -(np.array(lengths) + 1.0)
    ask = HistoryProbabilities(policy, params)
    found = best_exploiter(DOMAIN, ask)
    cooperates = mass[0] / mass.sum()
    assert found.value == pytest.approx(5 * cooperates, rel=1e-4)
    assert found.num_contexts == ask.num_contexts == 21
    assert ask.largest_illegal_mass == pytest.approx(1 - mass.sum(), abs=1e-6)


# At a context in the middle of a match: the tokens' own probabilities after the episode's prompt.
def test_probabilities_are_those_of_the_episodes_prompts(random_policy):
    policy, params = random_policy
    episode = DOMAIN.new_episode("AlwaysDefect", 0)
    episode.step("COOPERATE")
    prompt = render(policy.tokenizer, episode.messages())
    mass = []
    for word in MOVES:
        reply = [*policy.tokenizer.encode(word, add_special_tokens=False), policy.end_ids[0]]
        tokens = jnp.array([prompt + reply], jnp.int32)
        scores = jax.jit(policy.log_probs)(
            params,
            tokens,
            jnp.arange(tokens.shape[1])[None],
            jnp.zeros_like(tokens),
            None,
            (len(prompt) - 1 + jnp.arange(len(reply)))[None],
            jnp.array([reply]),
        )
        mass.append(float(jnp.exp(scores.logp.sum())))
    game = history_game(DOMAIN)
    context = game.root().after(np.array([0]), np.array([0]), np.array([1]))
    found = as_policy(game, HistoryProbabilities(policy, params))(context)
    np.testing.assert_allclose(found, [np.array(mass) / sum(mass)], rtol=1e-4)


def test_moves_that_are_numbers_have_probabilities_too(random_policy):
    policy, params = random_policy
    ask = HistoryProbabilities(policy, params, temperature=2.0)
    found = best_exploiter(SplitBargaining(rounds=2), ask)
    assert found.exact and found.num_contexts == 1 + 81
    assert 0 < found.value < 8


def test_a_diverged_policy_is_refused(random_policy):
    policy, params = random_policy
    broken = jax.tree.map(lambda leaf: leaf * jnp.nan, params)
    with pytest.raises(ValueError, match=r"information set '1/3.*the policy has diverged"):
        best_exploiter(DOMAIN, HistoryProbabilities(policy, broken))
