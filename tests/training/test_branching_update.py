"""The update on trees of branching rollouts is that on separate paths with the same weights."""

import dataclasses
import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sepo_jax.algorithms import Algorithm, get_algorithm
from sepo_jax.credit import assign_credit
from sepo_jax.domains.corridor import Corridor, CorridorEpisode
from sepo_jax.forest import Forest, fill, pack, paths
from sepo_jax.objective import make_objective
from sepo_jax.policy import Policy
from sepo_jax.rollout import Branching, EngineOptions, play_branching
from sepo_jax.sandbox.environments import domain_environments
from sepo_jax.sandbox.episodes import EpisodeRequest
from sepo_jax.training.batches import BatchMaker, score_parts, to_tokens
from sepo_jax.training.settings import read_settings
from sepo_jax.training.setup import make_policy
from sepo_jax.training.update import init_state, make_update

pytestmark = pytest.mark.usefixtures("compile_fast")
TREES = Branching(2, 3, spacing=0, trees_per_prompt=2)
OPTIONS = EngineOptions(slots=8, capacity=192, max_action_tokens=4, prefill_widths=(32, 64))
SETTINGS = read_settings(
    {
        "policy": {
            "vocab_size": 320, "hidden_size": 16, "num_layers": 1, "num_heads": 2,
            "num_kv_heads": 1, "intermediate_size": 32,
        },
        "rollout": {"row_length": 1536},
    }
)  # fmt: skip
RECURRENT = {
    "num_layers": 2, "layer_types": ("linear", "full"), "linear_key_heads": 2,
    "linear_value_heads": 4, "linear_key_head_dim": 4, "linear_value_head_dim": 4,
    "linear_conv_width": 4, "attention_gate": True, "query_key_norm": True, "rotary_fraction": 0.5,
    "norm_offset": 1.0, "family": "qwen3_5",
}  # fmt: skip
TERMS = {"kl_weight": 0.1, "entropy_weight": 0.05}
ROWS = {
    name: get_algorithm(name, **TERMS)
    for name in ("bpo", "vineppo", "tree_grpo", "gigpo", "grpo", "rloo")
}
ROWS["bpo, lambda"] = get_algorithm("bpo", prefix_credit="lambda", **TERMS)
ROWS["bpo, none"] = get_algorithm("bpo", prefix_credit="none", **TERMS)
ROWS["bpo, uniform"] = get_algorithm("bpo", segment_weight="uniform", **TERMS)
ROWS["bpo, penalised"] = get_algorithm("bpo", kl_place="reward", **TERMS)


class HeardEpisode(CorridorEpisode):
    """Hears one of its words in whatever is said."""

    def step(self, reply):
        words = self.legal_actions()
        return super().step(words[zlib.crc32(reply.encode()) % len(words)])


class Heard(Corridor):
    """A corridor in which an untrained policy gets somewhere."""

    def new_episode(self, task, seed):
        return HeardEpisode(task, self.keys, self.weights, seed)


DOMAIN = Heard(length=4, early=1, prefix_share=0.5)


class Played(NamedTuple):
    """A branching rollout, and parameters that have moved away from those that played it."""

    policy: Policy
    played: Any
    params: Any
    reference: Any
    forest: Forest


def moved(params, seed, scale=0.3):
    """Parameters with noise, relative to the size of each array."""
    leaves, form = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    noisy = [
        leaf + scale * jnp.std(leaf) * jax.random.normal(key, leaf.shape)
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(form, noisy)


def played_by(policy, params):
    tasks = DOMAIN.training_tasks(2, 0)
    requests = [EpisodeRequest(task, 5, group=group) for group, task in enumerate(tasks)]
    environments = domain_environments(DOMAIN)
    rollout = play_branching(policy, params, requests, environments, OPTIONS, TREES, seed=1)
    forest = rollout.forest()
    assert len(forest.leaves()) == 2 * TREES.leaves
    assert all(result.status == "finished" for result in rollout.results)
    return Played(policy, params, moved(params, 1), moved(params, 2), forest)


@pytest.fixture(scope="module")
def grown():
    policy, params = make_policy(SETTINGS, DOMAIN)
    # Wide enough that replies depend on what was said before.
    return played_by(policy, jax.tree.map(lambda leaf: 2.0 * leaf, params))


@pytest.fixture(scope="module")
def as_made():
    return played_by(*make_policy(SETTINGS, DOMAIN))


@pytest.fixture(scope="module")
def recurrent():
    policy, _ = make_policy(SETTINGS, DOMAIN)
    policy = Policy(dataclasses.replace(policy.config, **RECURRENT), policy.tokenizer)
    assert policy.is_recurrent
    # As they are: what float32 leaves grows along the states of a wide one.
    return played_by(policy, policy.init(jax.random.key(0)))


def longest_path(forest: Forest) -> int:
    """Tokens of the longest path."""
    return int((forest.starts() + forest.lengths()).max())


def separate(row: Algorithm, played: Played):
    """The rollout in which every leaf path is a tree and a row of its own, and what its tokens are.

    What several paths share stands in each of them, has the credit that it has in the tree, and a
    part of its weight there: that of the path among the paths that share it.

    Returns:
      A batch [1, B, ...], and the token of the rollout's forest at each of its tokens.
    """
    forest, alone = played.forest, paths(played.forest)
    leaves = [forest.path(int(leaf)) for leaf in forest.leaves()]
    segments = np.concatenate(leaves)
    tokens = np.concatenate([np.arange(*forest.offsets[s : s + 2]) for s in segments])
    np.testing.assert_array_equal(forest.tokens[tokens], alone.tokens)
    batch = pack(alone, row_length=longest_path(forest), parts=1, one_path_per_row=True)
    reference = to_tokens(
        batch, score_parts(played.policy, played.reference, batch, 1.0).logp, alone
    )
    in_tree = np.zeros(forest.num_tokens, np.float32)
    in_tree[tokens] = reference
    credit = assign_credit(row, forest, reference_logp=in_tree)
    path = np.repeat(credit.path_weight, [len(path) for path in leaves])
    below = np.bincount(segments, path, forest.num_segments)
    share = path / np.where(below > 0, below, 1.0)[segments]
    weight = credit.segment_weight[segments] * share
    added = np.bincount(segments, weight, forest.num_segments)
    acts = forest.is_action
    np.testing.assert_allclose(added[acts], credit.segment_weight[acts], rtol=1e-5)
    batch = fill(
        batch,
        reference_logp=reference,
        advantage=credit.advantage[tokens],
        segment_weight=weight,
        path_weight=credit.path_weight,
        path_advantage=credit.path_advantage,
    )
    return batch, tokens


def each_once(batch, tokens):
    """The batch in which one copy of each token counts for metrics."""
    _, first = np.unique(tokens, return_index=True)
    chosen = np.isin(batch.token_index, first) & batch.primary
    return batch.replace(primary=chosen)


def together(row: Algorithm, played: Played):
    """The rollout as a run packs it, in a row that holds all trees where the policy takes them."""
    maker = BatchMaker(SETTINGS, played.policy, row, 1)
    batch, _ = maker.make(played.forest, played.params, played.reference)
    return jax.tree.map(lambda leaf: leaf[0], batch)


def updater(row: Algorithm, played: Played):
    """From a batch to the gradient of an update and its metrics."""
    # The first stage of the optimizer keeps the gradient.
    optimizer = optax.chain(optax.trace(0.0), optax.scale(-0.1))
    update = jax.jit(make_update(make_objective(row, played.policy), optimizer))
    state = init_state(played.params, optimizer)

    def result(batch):
        after, metrics = update(state, {}, batch)
        assert after.step == 1 and after.skipped == 0
        return after.optimizer_state[0].trace, {n: float(m.value) for n, m in metrics.items()}

    return result


def size(array):
    return float(jnp.linalg.norm(jnp.ravel(array)))


def check_same_gradient(found, expected):
    """To 1e-5 of each array, or of a tenth of the whole where an array is smaller."""
    whole = max(size(leaf) for leaf in jax.tree.leaves(expected))
    assert whole > 1e-3
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert size(one - other) <= 1e-5 * max(size(other), 0.1 * whole)


def check_same_update(row: Algorithm, played: Played):
    """The update on the packed rollout and on its separate paths: gradient, loss and metrics."""
    result = updater(row, played)
    gradient, metrics = result(together(row, played))
    batch, tokens = separate(row, played)
    expected, sums = result(batch)
    check_same_gradient(gradient, expected)
    _, means = result(each_once(batch, tokens))
    of_update = ("loss", "gradient_norm")
    assert metrics.keys() == means.keys()
    for name, value in metrics.items():
        wanted = sums if name in of_update or name.startswith("loss/") else means
        assert value == pytest.approx(wanted[name], rel=1e-5, abs=1e-6), name
    return metrics


@pytest.mark.parametrize("name", ROWS)
def test_the_update_on_a_packed_tree_is_that_on_separate_paths(grown, name):
    row = ROWS[name]
    metrics = check_same_update(row, grown)
    # All of the loss is at work.
    assert metrics["advantage_abs"] > 1e-2 and metrics["entropy"] > 1.0
    assert metrics["kl_reference"] > 1e-2
    assert row.kl_place == "reward" or metrics["loss/kl"] > 1e-2
    if row.clip_low is not None:
        assert 0 < metrics["clip_fraction"] < 1


@pytest.mark.parametrize("name", ["bpo", "rloo"])
def test_a_policy_that_takes_one_path_a_row_makes_the_same_update(recurrent, name):
    batch = together(ROWS[name], recurrent)
    assert batch.path_mask.sum(-1).max() == 1
    assert (batch.action_mask & ~batch.primary).any()
    metrics = check_same_update(ROWS[name], recurrent)
    assert metrics["kl_reference"] > 1e-3 and metrics["advantage_abs"] > 1e-2


@pytest.mark.parametrize("of", ["grown", "recurrent"])
def test_forks_are_trained_on_as_they_were_sampled(of, request):
    played = request.getfixturevalue(of)
    played = played._replace(params=played.played)
    _, metrics = updater(ROWS["bpo"], played)(together(ROWS["bpo"], played))
    assert metrics["log_ratio_abs"] < 1e-4
    logp = played.forest.behavior_logp
    assert logp[logp < 0].std() > 0.03


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_comparing_episodes_on_their_separate_paths_gives_the_gradient_of_the_tree(as_made, name):
    # At the policy that sampled, where the mean advantage of a shared token is as good as each.
    # Ratios are 1 to what float32 leaves, which grows with the weights: behaviour is scored as the
    # update scores it.
    played, row = as_made._replace(params=as_made.played), ROWS[name]
    result, (batch, _) = updater(row, played), separate(row, played)
    alone = paths(played.forest)
    batch = fill(batch, **assign_credit(row, alone).arrays())
    apart, joined = (
        each.replace(behavior_logp=score_parts(played.policy, played.params, each, 1.0).logp)
        for each in (batch, together(row, played))
    )
    check_same_gradient(result(apart)[0], result(joined)[0])


def test_rows_shorter_than_a_tree_and_micro_batches_change_nothing(grown):
    row = ROWS["bpo"]
    expected, metrics = updater(row, grown)(together(row, grown))
    rollout = dataclasses.replace(SETTINGS.rollout, row_length=longest_path(grown.forest))
    optimizer = dataclasses.replace(SETTINGS.optimizer, micro_batches=2)
    settings = dataclasses.replace(SETTINGS, rollout=rollout, optimizer=optimizer)
    maker = BatchMaker(settings, grown.policy, row, 1)
    batch, _ = maker.make(grown.forest, grown.params, grown.reference)
    assert batch.tokens.shape[1] == 2 and (batch.action_mask & ~batch.primary).any()
    gradient, again = updater(row, grown)(jax.tree.map(lambda leaf: leaf[0], batch))
    check_same_gradient(gradient, expected)
    assert again == pytest.approx(metrics, rel=1e-5, abs=1e-6)


computed = []


class Counting(Policy):
    """Notes in `computed` how many tokens, padding apart, each of its calls computes."""

    def log_probs(self, params, tokens, positions, segment, *arguments, **options):
        jax.debug.callback(lambda n: computed.append(int(n)), (segment >= 0).sum())
        return super().log_probs(params, tokens, positions, segment, *arguments, **options)


def common_beginning(forest: Forest) -> int:
    """Tokens that the two prompts begin with alike."""
    first, second = (forest.segment_tokens(root) for root in forest.children(-1))
    shorter = min(len(first), len(second))
    differs = np.flatnonzero(first[:shorter] != second[:shorter])
    # One token stays a prompt's own.
    return min([shorter - 1, *differs.tolist()])


@pytest.mark.parametrize("of", ["grown", "recurrent"])
def test_what_leaves_share_is_computed_once_in_scores_and_in_the_update(of, request):
    played = request.getfixturevalue(of)
    forest, row = played.forest, ROWS["bpo"]
    policy = Counting(played.policy.config, played.policy.tokenizer)
    counted = played._replace(policy=policy)
    computed.clear()
    batch = together(row, counted)
    updater(row, counted)(batch)
    jax.effects_barrier()
    apart = sum(forest.lengths()[forest.path(int(leaf))].sum() for leaf in forest.leaves())
    if policy.is_recurrent:
        wanted = apart
    else:
        # Each token of the forest once; what the prompts of both tasks begin with, once for both.
        assert (pack(forest, row_length=1536).column_index >= 0).sum() == forest.num_tokens
        wanted = forest.num_tokens - common_beginning(forest)
        assert wanted < 0.6 * apart
    # The reference's scores; then loss, gradient, divergence and metrics together.
    assert computed == [wanted] * 2
