"""Credit of every row of the table on small forests with answers worked out by hand."""

import dataclasses
import warnings

import numpy as np
import pytest
from credit_forests import assign, of_actions, samples

from sepo_jax.algorithms import ALGORITHMS, get_algorithm
from sepo_jax.credit import assign_credit, prepare
from sepo_jax.forest import ForestBuilder, concatenate

NAN = float("nan")
COMPARED = [name for name, row in ALGORITHMS.items() if row.compare != "none"]


pytestmark = pytest.mark.usefixtures("compile_fast")


EIGHT = [1, 1, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("name", "changes", "high", "low"),
    [  # cases 4.3: k = 8
        ("dr_grpo", {}, 0.625, -0.375),
        ("rloo", {}, 0.714286, -0.428571),
        ("bpo", {}, 0.714286, -0.428571),
        ("vineppo", {}, 0.625, -0.375),
        ("grpo", {"scale": "sample"}, 1.207615, -0.724569),
        *[
            (name, {}, 1.290994, -0.774597)
            for name in ("grpo", "gspo", "tree_grpo", "dr_mas", "at_grpo", "srpo")
        ],
        # Every sample saw the same prompt: the comparison of episodes and of anchors add up.
        ("gigpo", {}, 2 * 1.290994, -2 * 0.774597),
        ("gigpo", {"observation_weight": 0.0}, 1.290994, -0.774597),
    ],
)
def test_worked_group_of_eight(name, changes, high, low):
    if name == "tree_grpo":  # one tree holds all samples, else a tree is a group of one
        changes = {"compare": "root"}
    for shared in (True, False):
        forest = samples(EIGHT, shared=shared)
        advantage = of_actions(assign(name, forest, **changes), forest)
        np.testing.assert_allclose(advantage, [high] * 3 + [low] * 5, atol=2e-6)


def test_leave_one_out_of_three():  # cases 4.3
    forest = samples([1, 2, 3], [4, 5, 6])
    advantage = of_actions(assign("rloo", forest), forest)
    np.testing.assert_allclose(advantage, [-1.5, 0, 1.5] * 2, atol=1e-6)


@pytest.mark.parametrize("name", COMPARED)
@pytest.mark.parametrize("value", [3.0, 0.1, 0.3, 0.35, 0.95, 1 / 3])
def test_no_spread_is_exactly_zero(name, value):  # A01
    forest = samples([value] * 7)
    credit = assign(name, forest, count_no_spread=True)
    assert not credit.advantage.any() and not credit.path_advantage.any()
    assert credit.metrics["no_spread_fraction"].value == 1.0
    assert (credit.segment_weight[forest.is_action] > 0).all()


def test_reward_parts_that_sum_to_the_same():  # A01: parts [1,2],[2,1],[1,2],[2,1]
    builder = ForestBuilder()
    prompt = builder.add([0])
    for first, second in ((1, 2), (2, 1), (1, 2), (2, 1)):
        action = builder.add([5], prompt, is_action=True, reward=first)
        builder.add([6], action, reward=second)
    credit = assign("grpo", builder.build())
    assert not credit.advantage.any()
    assert credit.metrics["no_spread_fraction"].value == 1.0


@pytest.mark.parametrize("name", COMPARED)
def test_no_spread_groups_can_be_left_out(name):  # A02: decided per group
    forest = samples([1, 1, 1, 1], [0, 1, 0, 1])
    acts = forest.is_action
    if name == "tree_grpo":
        return  # trees of one sample each never spread: see test_tree_grpo
    for keep, flat_counts in ((True, True), (False, False)):
        credit = assign(name, forest, count_no_spread=keep)
        weight = credit.segment_weight[acts] > 0
        np.testing.assert_array_equal(weight, [flat_counts] * 4 + [True] * 4)
        assert credit.metrics["no_spread_fraction"].value == 0.5
        assert of_actions(credit, forest)[4:].all()
    assert not assign("dapo", forest).path_weight[:4].any()


@pytest.mark.parametrize("name", COMPARED)
def test_missing_rewards_mask_their_own_sample(name):  # A04
    forest = samples([1, NAN, 0, 1], [NAN, NAN, NAN, 1], [NAN, NAN])
    whole = samples([1, 0, 1])
    credit = assign(name, forest, count_no_spread=True)
    advantage = of_actions(credit, forest)
    assert np.isfinite(advantage).all() and np.isfinite(credit.path_advantage).all()
    np.testing.assert_array_equal(advantage[[1, 4, 5, 6, 7, 8, 9]], 0)
    expected = of_actions(assign(name, whole, count_no_spread=True), whole)
    np.testing.assert_allclose(advantage[[0, 2, 3]], expected, atol=1e-6)
    present = ~np.isnan(forest.reward[forest.is_action])
    np.testing.assert_array_equal(credit.segment_weight[forest.is_action] > 0, present)
    assert credit.metrics["missing_rewards"].value == 6
    assert credit.metrics["return_mean"].value == pytest.approx(3 / 4)


@pytest.mark.parametrize("infinity", [float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["grpo", "tree_grpo", "reinforce", "bpo", "srpo"])
def test_infinite_rewards_are_refused(name, infinity):
    # Segments: the prompt, then the actions.
    with pytest.raises(ValueError, match=r"segment 2 has reward -?inf.*NaN means missing"):
        assign(name, samples([1, infinity, 0]))


@pytest.mark.parametrize("name", ["grpo", "dr_mas"])
def test_large_rewards_are_scaled_by_their_deviation(name):
    # Mean 0, population std 1e30 sqrt(2/3).
    forest = samples([1e30, 0, -1e30])
    expected = np.sqrt(3 / 2) * np.array([1, 0, -1])
    np.testing.assert_allclose(of_actions(assign(name, forest), forest), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["reinforce", "ppo"])
def test_missing_rewards_without_groups(name):  # A04
    forest = samples([1, NAN, 2])
    credit = assign(name, forest, values=np.zeros(forest.num_tokens))
    np.testing.assert_allclose(of_actions(credit, forest), [1, 0, 2])
    np.testing.assert_array_equal(credit.segment_weight[forest.is_action], [1, 0, 1])


@pytest.mark.parametrize("name", COMPARED)
def test_order_of_samples_does_not_matter(name):  # A17: ids shuffled across the batch
    rewards, groups = [3, 1, 4, 1, 5, 9], [0, 0, 0, 1, 1, 1]

    def of(order):
        builder = ForestBuilder()
        for sample in order:
            prompt = builder.add([groups[sample]], group=groups[sample])
            builder.add(
                [5],
                prompt,
                is_action=True,
                reward=rewards[sample],
                event=sample,
                event_size=1,
            )
        forest = builder.build()
        result = np.zeros(6)
        result[order] = of_actions(assign(name, forest), forest)
        return result

    np.testing.assert_allclose(of([4, 0, 3, 2, 5, 1]), of(range(6)), atol=1e-6)


def test_groups_of_one_are_zero_and_counted():  # A17
    forest = samples([3], [1, 2])
    with pytest.warns(UserWarning, match="1 groups have a single episode"):
        credit = assign_credit("rloo", forest)
    np.testing.assert_array_equal(of_actions(credit, forest), [0, -1, 1])
    assert credit.metrics["groups_of_one"].value == 1


@pytest.mark.parametrize(
    ("name", "unit"),
    [("bpo", "sample"), ("dr_mas", "action"), ("at_grpo", "action"), ("srpo", "event")],
)
def test_groups_of_one_warn_whatever_is_compared(name, unit):  # A17
    with pytest.warns(UserWarning, match=f"1 groups have a single {unit}") as caught:
        assign_credit(name, samples([3], [1, 2]))
    assert caught[0].filename == __file__


def test_an_observation_seen_once_is_no_reason_to_warn():
    # Both prompts have two episodes; GiGPO's anchors are states that happen to repeat.
    forest = samples([1, 2], [3, 4])
    forest = forest.replace(observation=np.arange(forest.num_segments))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        credit = assign_credit("gigpo", forest)
    assert credit.metrics["observation_groups_of_one"].value == 4


def test_group_size_is_checked():  # A17
    forest = samples([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="group 1 has 3 episodes, expected 2"):
        assign_credit("grpo", forest, group_size=2)
    assign_credit("grpo", samples([1, 2], [3, 4]), group_size=2)


def token_chain(mask, rewards):
    """Each model token an action of its own, observations (mask 0) between."""
    builder = ForestBuilder()
    above = builder.add([0])
    for acts, reward in zip(mask, rewards, strict=True):
        above = builder.add([1], above, is_action=bool(acts), reward=reward)
    return builder.build()


@pytest.mark.parametrize(
    ("rewards", "mask", "expected"),
    [  # A18 and cases 4.3
        ([0, 0, 1], [1, 0, 1], [0.5, 0, 1]),
        ([0, 0, 0, 0, 2], [1, 1, 0, 0, 1], [0.5, 1, 0, 0, 2]),
    ],
)
def test_reward_to_go_crosses_observations(rewards, mask, expected):
    forest = token_chain(mask, rewards)
    credit = assign("reinforce", forest, gamma=0.5)
    np.testing.assert_allclose(credit.advantage[1:], expected)


@pytest.mark.parametrize(
    ("gamma", "lam", "expected"),
    [  # cases 4.3: generalised advantages over observations
        (1.0, 1.0, [-2.6, -3.7, -4.8, -5.9, -8.0]),
        (0.9, 0.95, [-2.205239, -3.280981, -4.4222, -5.64, -8.0]),
    ],
)
@pytest.mark.parametrize("garbage", [0.0, 100.0, -100.0])
def test_generalised_advantages_cross_observations(gamma, lam, expected, garbage):  # A18
    forest = token_chain([1, 1, 1, 0, 0, 1, 1, 0, 0], [0.1, 0.1, 0.1, 0, 0, 0.1, 1, 0, 0])
    values = np.full(forest.num_tokens, garbage)
    values[[1, 2, 3, 6, 7]] = [4, 5, 6, 7, 9]
    credit = assign("ppo", forest, values=values, gamma=gamma, gae_lambda=lam)
    np.testing.assert_allclose(credit.advantage[[1, 2, 3, 6, 7]], expected, atol=1e-5)
    np.testing.assert_allclose(
        credit.value_target[[1, 2, 3, 6, 7]], np.add(expected, [4, 5, 6, 7, 9]), atol=1e-5
    )
    assert not credit.advantage[[0, 4, 5, 8, 9]].any()


def test_truncated_episodes_can_be_left_out():  # A05, A06
    builder = ForestBuilder()
    prompt = builder.add([0])
    for reward, cut in ((1.0, False), (0.0, True), (3.0, False)):
        builder.add([1], prompt, is_action=True, reward=reward, truncated=cut)
    forest = builder.build()
    credit = assign("dr_grpo", forest, mask_truncated=True)
    np.testing.assert_array_equal(of_actions(credit, forest), [-1, 0, 1])
    np.testing.assert_array_equal(credit.path_weight, [1, 0, 1])
    assert credit.metrics["truncated_fraction"].value == pytest.approx(1 / 3)
    everything = forest.replace(truncated=np.ones(4, bool))
    with pytest.warns(UserWarning, match="nothing to learn from"):
        credit = assign_credit("dapo", everything)
    assert not credit.advantage.any() and not credit.segment_weight.any()


def test_divergence_in_the_reward():  # A21: the KL term offered inside the reward
    forest = samples([1, 2], length=2)
    acted = forest.is_action[forest.segment_of_token()]
    behavior = np.where(acted, np.float32(-1.0), np.float32(0.0))
    reference = np.where(acted, [9, -1.5, -1.0, -3.0, -2.0], 0.0)
    forest = forest.replace(behavior_logp=behavior)
    changes = {"kl_weight": 0.1, "kl_place": "reward", "kl_kind": "k1", "reference_logp": reference}
    # k1 = logp - ref: 0.5 + 0 for the first sample, 2 + 1 for the second.
    shaped = np.array([1 - 0.05, 2 - 0.3])
    credit = assign("dr_grpo", forest, **changes)
    np.testing.assert_allclose(of_actions(credit, forest), shaped - shaped.mean(), atol=1e-6)
    # Token by token: the first token answers for both penalties, the second for its own.
    credit = assign("reinforce", forest, **changes)
    np.testing.assert_allclose(credit.advantage, [0, 0.95, 1.0, 1.7, 1.9], atol=1e-6)
    with pytest.raises(ValueError, match="needs reference_logp"):
        assign("dr_grpo", forest, kl_weight=0.1, kl_place="reward")


def test_ratios_of_whole_paths_take_the_mean_advantage():
    forest = token_chain([1, 0, 1], [1, 2, 4])
    for returns, expected in (("episode", 7), ("to_go", 5.5), ("immediate", 3.5)):
        row = get_algorithm("ppo", returns=returns, ratio="sequence", gae_lambda=1.0)
        if returns != "to_go":
            row = dataclasses.replace(row, baseline="none", value_weight=0.0)
        credit = assign_credit(row, forest, values=np.zeros(4))
        np.testing.assert_allclose(credit.path_advantage, [expected])


def test_imitation_ignores_rewards():
    forest = samples([NAN, 0, 3])
    credit = assign("sft", forest)
    np.testing.assert_array_equal(of_actions(credit, forest), 1)
    np.testing.assert_array_equal(credit.segment_weight[forest.is_action], 1)


def test_returns_of_reinforce():
    forest = token_chain([1, 0, 1], [1, 2, 4])
    for returns, expected in (("episode", [7, 7]), ("to_go", [7, 4]), ("immediate", [3, 4])):
        credit = assign("reinforce", forest, returns=returns)
        np.testing.assert_allclose(credit.advantage[[1, 3]], expected)


def test_refusals():
    forest = samples([1, 2])
    with pytest.raises(ValueError, match="baseline='critic' needs values"):
        assign_credit("ppo", forest)
    with pytest.raises(ValueError, match=r"values has shape \(2,\); the forest has 3 tokens"):
        assign_credit("ppo", forest, values=np.zeros(2))
    with pytest.raises(ValueError, match="unknown algorithm 'grop'"):
        assign_credit("grop", forest)


def test_prepare_is_pack_and_fill():
    forest = samples([1, 2, 4], [0, 1], length=2)
    values = np.arange(forest.num_tokens) / 10
    batch, metrics = prepare("grpo", forest, row_length=8, parts=2, values=values)
    assert batch.tokens.ndim == 3 and len(batch.tokens) == 2
    credit = assign_credit("grpo", forest)
    real = batch.action_mask
    np.testing.assert_array_equal(batch.advantage[real], credit.advantage[batch.token_index[real]])
    np.testing.assert_allclose(batch.value[real], values[batch.token_index[real]], rtol=1e-6)
    np.testing.assert_array_equal(
        batch.path_advantage[batch.path_mask],
        credit.path_advantage[batch.path_index[batch.path_mask]],
    )
    assert metrics["return_mean"].value == pytest.approx(8 / 5)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_forests_of_other_prompts_change_nothing(name):
    first, second = samples([1, 2, 4], length=2), samples([0, 7], length=2)
    joined = concatenate([first, second])
    values = np.linspace(0, 1, joined.num_tokens)
    apart = [
        assign(name, forest, values=part)
        for forest, part in zip((first, second), np.split(values, [first.num_tokens]), strict=True)
    ]
    whole = assign(name, joined, values=values)
    for field in ("advantage", "value_target", "segment_weight", "path_weight", "path_advantage"):
        expected = np.concatenate([getattr(credit, field) for credit in apart])
        np.testing.assert_allclose(getattr(whole, field), expected, atol=1e-6)


def test_rows_can_be_replaced():
    row = dataclasses.replace(ALGORITHMS["grpo"], scale="none")
    forest = samples([0, 1])
    np.testing.assert_allclose(of_actions(assign_credit(row, forest), forest), [-0.5, 0.5])


def test_an_empty_forest():
    for name in ALGORITHMS:
        credit = assign(name, ForestBuilder().build(), values=np.zeros(0))
        assert credit.advantage.shape == (0,)
