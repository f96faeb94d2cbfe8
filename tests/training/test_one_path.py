"""One path a row changes nothing but the layout, and is what a recurrent policy needs."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sepo_jax.algorithms import get_algorithm
from sepo_jax.credit import assign_credit
from sepo_jax.domains import Kuhn
from sepo_jax.evaluation import exact_nash_conv
from sepo_jax.forest import ForestBuilder, fill, pack
from sepo_jax.games import KUHN
from sepo_jax.objective import make_objective
from sepo_jax.policy import ModelConfig, Policy, action_log_probs, train_tokenizer
from sepo_jax.rollout import EngineOptions, decision_segments, play
from sepo_jax.sandbox.environments import domain_environments
from sepo_jax.sandbox.episodes import EpisodeRequest
from sepo_jax.training.batches import BatchMaker
from sepo_jax.training.settings import read_settings
from sepo_jax.training.setup import corpus
from sepo_jax.training.stages import SftStage

PLAIN = ModelConfig(
    vocab_size=24, hidden_size=16, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=32
)


def tree_forest():
    """Two trees with branches at two depths and observations between actions."""
    rng = np.random.default_rng(0)
    builder = ForestBuilder()

    def act(parent):
        return builder.add(
            rng.integers(0, 24, 2), parent, is_action=True, behavior_logp=np.full(2, -3.0),
            reward=float(rng.random()),
        )  # fmt: skip

    for group in range(2):
        for _ in range(2):
            trunk = act(builder.add(rng.integers(0, 24, 3), group=group))
            for _ in range(2):
                act(builder.add(rng.integers(0, 24, 2), trunk))
    return builder.build()


def logp_of(policy, params, batch):
    """Log-probability of every action token of the forest, from its primary copy."""
    scores = policy.log_probs(
        params, batch.tokens, batch.positions, batch.segment, batch.ancestors, batch.source,
        batch.target,
    )  # fmt: skip
    found = {}
    for place in zip(*np.nonzero(batch.primary), strict=True):
        found[int(batch.token_index[place])] = float(scores.logp[place])
    return found


@pytest.mark.parametrize("name", ["grpo", "bpo"])
def test_log_probs_loss_and_gradient_are_those_of_the_packed_forest(name):
    policy, forest, algorithm = Policy(PLAIN), tree_forest(), get_algorithm(name)
    params = policy.init(jax.random.key(0))
    credit = assign_credit(algorithm, forest).arrays()
    results = []
    for one_path in (False, True):
        batch = fill(pack(forest, row_length=32, one_path_per_row=one_path), **credit)
        objective = make_objective(algorithm, policy)
        (loss, metrics), gradient = jax.value_and_grad(objective, has_aux=True)(params, batch)
        results.append((logp_of(policy, params, batch), loss, gradient, metrics, batch))
    (packed, loss, gradient, metrics, rows), (alone, own_loss, own_gradient, own, paths) = results
    assert len(paths.tokens) == 8 > len(rows.tokens)
    assert alone.keys() == packed.keys() and len(alone) == forest.is_action.sum() * 2
    assert [alone[token] for token in packed] == pytest.approx(list(packed.values()), abs=1e-5)
    assert float(own_loss) == pytest.approx(float(loss), abs=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), own_gradient, gradient)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient)) > 1e-3
    for key in metrics:
        assert float(own[key].value) == pytest.approx(float(metrics[key].value), abs=1e-5), key


@pytest.fixture(scope="module")
def recurrent():
    """A policy with linear and full layers, and a tokenizer of the domain."""
    domain = Kuhn()
    tokenizer = train_tokenizer(corpus(domain, 0), 300)
    config = dataclasses.replace(
        PLAIN, vocab_size=300, num_layers=3, layer_types=("linear", "full", "linear"),
        linear_key_heads=2, linear_value_heads=4, linear_key_head_dim=4, linear_value_head_dim=4,
        linear_conv_width=4, attention_gate=True, query_key_norm=True, rotary_fraction=0.5,
        norm_offset=1.0, family="qwen3_5",
    )  # fmt: skip
    policy = Policy(config, tokenizer)
    params = policy.init(jax.random.key(0))
    # Wide enough that replies depend on the prompt.
    return domain, policy, jax.tree.map(lambda leaf: 2.0 * leaf, params)


def by_decoding(policy, params, prompt, reply):
    """Log-probability of a reply, one token after another through the cache."""
    cache = policy.init_cache(1, len(prompt) + len(reply))
    tokens = jnp.asarray([prompt], jnp.int32)
    cache, logits = policy.prefill(params, cache, tokens, jnp.asarray([len(prompt)]))
    total = 0.0
    for token in reply:
        total += float(jax.nn.log_softmax(logits[0])[token])
        cache, logits = policy.decode_step(
            params, cache, jnp.asarray([token], jnp.int32), jnp.asarray([True])
        )
    return total


def test_a_recurrent_policy_is_scored_as_it_decodes(recurrent):
    domain, policy, params = recurrent
    assert policy.is_recurrent
    prompts = [(5, 7, 11, 13), (3, 5)]
    words = ["PASS", "BET"]
    scores = action_log_probs(policy, params, prompts, [words, words[:1]])
    assert scores.shape == (2, 2) and np.isnan(scores[1, 1])
    for (row, prompt), (column, word) in itertools.product(enumerate(prompts), enumerate(words)):
        if (row, column) != (1, 1):
            reply = [*policy.tokenizer.encode(word, add_special_tokens=False), *policy.end_ids]
            expected = by_decoding(policy, params, prompt, reply)
            assert scores[row, column] == pytest.approx(expected, abs=1e-4)
    found = exact_nash_conv(policy, params, KUHN, domain)
    assert 0 <= float(found) <= 4 and np.abs(found.probabilities - 0.5).max() > 1e-3


def test_rollouts_of_a_recurrent_policy_are_trained_on_as_sampled(recurrent):
    domain, policy, params = recurrent
    requests = [
        EpisodeRequest({"opponent": "NashApprox", "seat": i % 2}, i, group=i // 2, member=i % 2)
        for i in range(4)
    ]
    options = EngineOptions(slots=4, capacity=256, max_action_tokens=3)
    environments = domain_environments(domain)
    forest = play(policy, params, requests, environments, options, seed=0).forest()
    forest = forest.replace(
        reward=np.where(forest.is_action, np.arange(len(forest.reward)), 0.0).astype(np.float32)
    )
    settings = read_settings({"rollout": {"row_length": 256}})
    maker = BatchMaker(settings, policy, get_algorithm("grpo"), 1)
    batch, _ = maker.make(forest, params)
    assert batch.path_mask.sum(-1).max() == 1
    assert batch.primary.sum() == forest.lengths()[decision_segments(forest)].sum()
    objective = make_objective("grpo", policy)
    part = jax.tree.map(lambda leaf: leaf[0, 0], batch)
    _, metrics = objective(params, part)
    # Ratios of 1: the row scores what the slots sampled.
    assert float(metrics["ratio"].value) == pytest.approx(1.0, abs=1e-4)
    recorded = part.behavior_logp[part.primary]
    assert recorded.std() > 0.03
    settings = read_settings({"sft": {"num_decisions": 10}, "rollout": {"row_length": 256}})
    stage = SftStage(settings, policy, domain)
    assert 0 < stage.evaluate(params)["validation_loss"] < 40
    assert stage._batch.path_mask.sum(-1).max() == 1
