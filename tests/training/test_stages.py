"""Stages: data that is a function of the step, and what a step leaves out."""

import numpy as np
import pytest
from training.scripted_rollouts import scripted

from sepo_jax.algorithms import get_algorithm
from sepo_jax.forest import ForestBuilder
from sepo_jax.sandbox.protocol import TooManyFailures
from sepo_jax.training.batches import BatchMaker
from sepo_jax.training.sepo_stage import NoSpreadError, SepoStage
from sepo_jax.training.settings import read_settings
from sepo_jax.training.setup import make_domain, make_policy
from sepo_jax.training.stages import SftStage, supervised_forest


def test_replies_to_one_prompt_share_its_tokens():
    forest = supervised_forest([(((1, 2), (3, 9)),), (((1, 2), (4, 9)),), (((5,), (3, 9)),)])
    assert forest.num_tokens == 2 + 2 + 2 + 1 + 2
    assert list(forest.children(0)) == [1, 2]


@pytest.fixture
def made(small_config):
    settings = read_settings(small_config)
    domain = make_domain(settings.domain)
    return settings, domain, *make_policy(settings, domain)


def test_every_pass_over_the_data_is_a_permutation(made):
    settings, domain, policy, params = made
    stage = SftStage(settings, policy, domain)
    assert len(stage.training) == 32 and len(stage.validation) == 8
    seen = []
    for step in range(4):  # 4 steps of 8 decisions: one pass
        forest = stage.data(step, params).forest
        seen += [tuple(forest.segment_tokens(s)) for s in np.flatnonzero(forest.is_action)]
    assert sorted(seen) == sorted(tuple(reply) for ((_, reply),) in stage.training)
    first, again = (stage.data(5, params).forest for _ in range(2))
    np.testing.assert_array_equal(first.tokens, again.tokens)


@pytest.mark.parametrize("credit", ["credited", "per_rollout", "shared"])
def test_episodes_of_a_step(made, small_config, credit):
    _, domain, policy, params = made
    small_config["sepo"]["credit"] = credit
    stage = SepoStage(read_settings(small_config), policy, domain)
    plan = stage.seats(0, params)
    pools = [seat.pool for seat in plan]
    assert pools.count("train") == 3 * 2 * 2
    assert pools.count("exploiter") == (12 if credit == "per_rollout" else 4)
    seats = [seat.request.task["seat"] for seat in plan if seat.pool == "exploiter"]
    assert seats.count(0) == seats.count(1)
    if credit == "per_rollout":
        exploiters = [seat.rollout for seat in plan if seat.pool == "exploiter"]
        assert sorted(exploiters) == list(range(12))
    data = stage.data(0, params)
    decisions = int(data.forest.is_action.sum())
    assert decisions >= (16 if credit == "credited" else 12)
    assert np.isfinite(data.metrics["safety"])
    # Another step deals other hands.
    later = stage.seats(1, params)
    assert [s.request.seed for s in plan] != [s.request.seed for s in later]
    # No two episodes of a step draw the same samples.
    keys = [(s.request.group, s.request.member) for s in plan]
    assert len(set(keys)) == len(keys)
    assert data.metrics["failed_rollouts"] == 0 and data.waited > 0
    again = stage.data(0, params)
    np.testing.assert_array_equal(again.forest.tokens, data.forest.tokens)
    assert again.metrics == data.metrics


@pytest.mark.parametrize(("credit", "count"), [("credited", 20), ("per_rollout", 36)])
def test_a_step_trains_on_what_its_sandboxes_left(
    made, small_config, monkeypatch, caplog, credit, count
):
    _, domain, policy, params = made
    small_config["sepo"] |= {"credit": credit, "exploiter_pool": ("AlwaysBet", "MaxExploiter")}
    stage = SepoStage(read_settings(small_config), policy, domain)
    scripted(monkeypatch, lambda request: "PASS")
    assert stage.data(0, params).metrics["failed_rollouts"] == 0
    calls = scripted(monkeypatch, lambda request: "PASS", lost=(1, 4, 5))
    data = stage.data(0, params)
    assert data.metrics["failed_rollouts"] == 3 and data.waited == 0.5
    assert f"3 of {count} episodes are missing; the first: no answer in 1 s" in caplog.text
    # The segments of the others that train are there, and they alone are the figures.
    kept = [r for i, r in enumerate(calls[0]) if i not in (1, 4, 5)]
    trained = kept if credit == "credited" else kept[: 12 - 3]
    forest = data.forest.validate()
    assert forest.is_action.sum() == sum(decisions(domain, request) for request in trained)
    assert np.isfinite(data.metrics["reward"]) and np.isfinite(data.metrics["safety"])
    maker = BatchMaker(stage.settings, policy, get_algorithm("rloo"), 1)
    batch, _ = maker.make(forest, params)
    assert np.isfinite(batch.advantage).all()
    scripted(monkeypatch, lambda request: "PASS", lost=range(count))
    with pytest.raises(TooManyFailures, match="no episode that trains"):
        stage.data(0, params)


def decisions(domain, request):
    """Number of decisions of an episode in which the agent always passes."""
    episode = domain.new_episode(seed=request.seed, **request.task)
    while not episode.done:
        episode.step("PASS")
    return len(episode.decisions)


def test_episodes_that_teach_nothing_are_played_anew(made, small_config, monkeypatch, caplog):
    """Replies depend on the member, and only fresh samples differ."""
    _, domain, policy, params = made
    small_config["sepo"] |= {
        "max_resample": 3, "group_by": "deal", "rollouts_per_group": 2,
        "exploiter_pool": ("AlwaysBet",),
    }  # fmt: skip
    stage = SepoStage(read_settings(small_config), policy, domain)
    count = len(stage.seats(0, params))

    def late(request):  # legal, but for one of two in the second replay
        return "hmm" if request.member >= 5 else ""

    calls = scripted(monkeypatch, late)
    data = stage.data(0, params)
    # Two members of a deal answer alike in the first play and the first replay (members 0, 1 and
    # 2, 3); in the second one replies (4) and the other not (5): it is not played a third time.
    assert [len(call) for call in calls] == [count] * 3
    assert {request.member for request in calls[1]} == {2, 3}
    assert data.metrics["resampled_rollouts"] == 2 * count
    for first, again in zip(calls[0], calls[2], strict=True):
        assert (first.task, first.seed, first.group) == (again.task, again.seed, again.group)
    assert "0 of 8 groups have no spread after 2 replays" in caplog.text


def test_a_step_without_any_spread_ends_the_run_after_bounded_replays(
    made, small_config, monkeypatch
):  # G05
    _, domain, policy, params = made
    small_config["sepo"] |= {"group_by": "deal", "exploiter_pool": ("AlwaysBet",)}
    calls = scripted(monkeypatch, lambda request: "hmm")
    stage = SepoStage(read_settings(small_config), policy, domain)
    assert "resampled_rollouts" not in stage.data(0, params).metrics and len(calls) == 1
    small_config["sepo"]["max_resample"] = 3
    stage = SepoStage(read_settings(small_config), policy, domain)
    with pytest.raises(
        NoSpreadError, match=r"step 1 .* 8 of 8 groups .* after 3 replays.*opponents"
    ):
        stage.data(0, params)
    assert len(calls) == 1 + 4


def test_shapes_of_batches_repeat(made):  # H01
    settings, _, policy, params = made
    maker = BatchMaker(settings, policy, get_algorithm("rloo"), 1)
    rng = np.random.default_rng(0)
    shapes = []
    for length in range(1, 51):
        builder = ForestBuilder()
        prompt = builder.add(rng.integers(0, 9, length))
        for _ in range(2):
            builder.add(rng.integers(0, 9, 3), prompt, is_action=True)
        forest = builder.build()
        batch, _ = maker.make(forest, params)
        shapes.append(tuple(leaf.shape for leaf in batch.values()))
    # Row lengths 4, 6, 8, 12, ..., 64: at most one shape a bucket, and none in a second pass.
    assert len(set(shapes)) <= 12
    batch, _ = maker.make(forest, params)
    assert tuple(leaf.shape for leaf in batch.values()) == shapes[-1]
