"""From finished episodes to arrays."""

import numpy as np
import pytest

from sepo_jax.domains import Kuhn
from sepo_jax.sepo import EXPLOITER, TRAIN, SepoWeights, assign_rewards, from_episodes


def finished(domain, opponent, replies, **options):
    episode = domain.new_episode(opponent, seed=0, **options)
    for reply in replies:
        episode.step(reply)
    assert episode.done
    return episode


def two_episodes():
    # Hand 1 of each match: the agent holds the king and moves first; hand 2 it holds the jack and
    # moves second. AlwaysBet: check, bet, call (+2), then fold to a bet (-1).
    # TightPassive: an unparsable reply passes (+1 at showdown), then the jack passes (-1).
    domain = Kuhn(hands=2, collusion="fold_rate")
    return [
        finished(domain, "AlwaysBet", ["PASS", "CALL", "FOLD"], deal="KJ"),
        finished(domain, "TightPassive", ["what?", "PASS"], deal="KJ"),
    ]


def test_rounds():
    arrays = from_episodes(two_episodes(), ["exploiter", "train"], groups=[7, 7])
    assert arrays.own.tolist() == [[2, -1], [1, -1]]
    assert arrays.opponent.tolist() == [[-2, 1], [-1, 1]]
    assert arrays.harmful.tolist() == [[0, 1], [0, 0]]
    assert arrays.invalid.tolist() == [[0, 0], [1, 0]]
    assert arrays.decisions.tolist() == [[2, 1], [1, 1]]
    assert arrays.mask.all() and arrays.weight.tolist() == [1, 1]
    assert arrays.pool.tolist() == [EXPLOITER, TRAIN] and arrays.group.tolist() == [7, 7]
    assert arrays.opponent_names == ("exploiter/AlwaysBet", "train/TightPassive")
    assert arrays.opponent_id.tolist() == [0, 1]


def test_decisions():
    # The first match has three decisions; the result of hand 1 falls on its second decision.
    arrays = from_episodes(two_episodes(), ["exploiter", "train"], unit="decision")
    assert arrays.own.tolist() == [[0, 2, -1], [1, -1, 0]]
    assert arrays.harmful.tolist() == [[0, 0, 1], [0, 0, 0]]
    assert arrays.mask.tolist() == [[True] * 3, [True, True, False]]
    assert arrays.invalid.tolist() == [[0, 0, 0], [1, 0, 0]]
    # The authors average over decisions: (0 + 2 - 1) / 3 here, where a mean over hands is 1/2.
    assert arrays.episode_mean(arrays.own)[0] == pytest.approx(1 / 3)


def test_one_opponent_in_two_pools_has_two_ids():
    domain = Kuhn()
    episodes = [finished(domain, "NashApprox", ["PASS"], seat=1, deal="KJ") for _ in range(2)]
    arrays = from_episodes(episodes, ["train", "exploiter"])
    assert arrays.opponent_id.tolist() == [0, 1]


def test_unparsable_replies_are_penalised_as_configured():
    arrays = from_episodes(two_episodes(), ["exploiter", "train"])
    for penalty in (0.0, 0.5):
        weights = SepoWeights(exploitability=1.0, invalid_penalty=penalty)
        rewards = assign_rewards(arrays, weights, 1.5)
        assert rewards[1].tolist() == [1.5 - penalty, -1.5]


@pytest.mark.parametrize("unit", ["round", "decision"])
def test_an_episode_without_rounds_is_missing(unit):
    # The second one died after a decision, before any round had a result.
    empty = Kuhn().new_episode("AlwaysBet", seed=0, seat=0, deal="KJ")
    empty.done = True
    cut = Kuhn().new_episode("AlwaysBet", seed=0, seat=0, deal="KJ")
    cut.step("PASS")
    cut.done = True
    arrays = from_episodes([*two_episodes(), empty, cut], ["exploiter"] + ["train"] * 3, unit=unit)
    assert arrays.present.tolist() == [True, True, False, False]
    assert not arrays.own[2:].any() and not arrays.decisions[2:].any()
    assert from_episodes([empty], ["train"], unit=unit).mask.shape == (1, 0)


def test_a_round_without_a_decision_keeps_its_payoffs_or_is_refused():
    episodes = two_episodes()
    del episodes[1].decisions[1]
    arrays = from_episodes(episodes, ["exploiter", "train"])
    assert arrays.own[1].tolist() == [1, -1] and arrays.decisions[1].tolist() == [1, 0]
    with pytest.raises(ValueError, match=r"round 1 of episode 1 .* use unit='round'"):
        from_episodes(episodes, ["exploiter", "train"], unit="decision")


def test_empty_batch():
    arrays = from_episodes([], [])
    assert arrays.num_episodes == 0
    weights = SepoWeights(0, 0, 0)
    assert assign_rewards(arrays, weights, 1.5).shape == (0, 0)


def test_bad_input_is_refused_by_name():
    episodes = two_episodes()
    with pytest.raises(ValueError, match="Did you mean 'exploiter'"):
        from_episodes(episodes, ["exploit", "train"])
    with pytest.raises(ValueError, match="must have one length"):
        from_episodes(episodes, ["train"])
    with pytest.raises(ValueError, match="unknown pool 9"):
        from_episodes(episodes, [9, 0])
    with pytest.raises(ValueError, match="unknown unit"):
        from_episodes(episodes, ["train", "train"], unit="hands")
    with pytest.raises(ValueError, match=r"episode 1 .* is not finished"):
        from_episodes([episodes[0], Kuhn().new_episode("AlwaysBet", 3)], ["train", "train"])


def test_arrays_of_missing_episodes():
    arrays = from_episodes(two_episodes(), ["exploiter", "train"])
    mask = arrays.mask.copy()
    mask[0] = False
    missing = type(arrays)(**{**vars(arrays), "mask": mask})
    assert missing.present.tolist() == [False, True]
    assert np.array_equal(missing.members(TRAIN, EXPLOITER), [False, True])
