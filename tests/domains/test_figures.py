"""Figures of tasks against hand-made answers."""

import math

import pytest

from sepo_jax.domains.figures import mean, rate, sampled_figures, task_figures

NAMES = {"success": False, "score": 0.0, "turns": None}


def record(success, score, turns):
    return {"success": success, "score": score, "turns": turns, "more": 9}


def test_a_mean_has_the_normal_interval():
    """Of 1, 2, 3, 6: mean 3, s² = (4 + 1 + 0 + 9) / 3, so 1.959964 s / 2 to either side."""
    found = mean([1, 2, 3, 6])
    margin = 1.959964 * math.sqrt(14 / 3) / 2
    assert found == pytest.approx((3, 3 - margin, 3 + margin, 4))
    alone = mean([0.25])
    assert alone.value == 0.25 and math.isnan(alone.low) and math.isnan(alone.high)
    with pytest.raises(ValueError, match="at least one"):
        mean([])


def test_a_rate_lies_in_its_interval():
    for count in range(1, 300):
        for successes in (0, count // 2, count):
            found = rate(successes, count)
            assert 0 <= found.low <= found.value <= found.high <= 1
    assert rate(200, 200).high == 1.0 and rate(0, 200).low == 0.0


def test_figures_of_known_records():
    records = [record(True, 1.0, 5), None, record(False, 0.5, 15), record(False, 0.0, 10)]
    found = task_figures([1, 2, 3, 4], records, NAMES)
    wilson = rate(1, 4)
    assert (found["success"], found["success_low"], found["success_high"]) == wilson[:3]
    # The episode without record counts as a score of 0, and has no number of turns.
    assert found["score"] == 1.5 / 4 and found["turns"] == 10
    scores = mean([1.0, 0.0, 0.5, 0.0])
    assert (found["score_low"], found["score_high"]) == (scores.low, scores.high)
    assert "more" not in found


def test_intervals_are_left_out_where_tasks_repeat_or_values_lack():
    twice = task_figures([1, 1, 2, 2], [record(True, 1.0, 5)] * 4, NAMES)
    assert twice == {"success": 1.0, "score": 1.0, "turns": 5.0}
    nothing = task_figures([1, 2], [None, None], NAMES)
    assert set(nothing) == {f"{n}{e}" for n in ("success", "score") for e in ("", "_low", "_high")}
    assert "score_low" not in task_figures([1], [record(True, 0.5, 5)], NAMES)


def test_samples_of_tasks():
    """Two tasks of three: 2 of 3 and 0 of 3 succeed, so 1/3 on average, and 1 of 2 in any."""
    tasks = ["a"] * 3 + ["b"] * 3
    found = sampled_figures(tasks, [True, False, True, False, False, False])
    assert found["avg@3"] == pytest.approx(1 / 3)
    # Of the shares 2/3 and 0: s^2 = 2/9, and the mean's interval 1.959964 s / sqrt(2) to a side.
    assert found["avg@3_high"] == pytest.approx(1 / 3 + 1.959964 / 3)
    assert found["pass@3"] == 0.5
    assert (found["pass@3_low"], found["pass@3_high"]) == rate(1, 2)[1:3]
    one = sampled_figures(["a", "a"], [True, False])
    assert one["avg@2"] == 0.5 and "avg@2_low" not in one


@pytest.mark.parametrize("tasks", [[], ["a"], ["a", "b"], ["a", "a", "b"]])
def test_tasks_that_are_not_sampled_alike_have_no_figures_of_samples(tasks):
    assert sampled_figures(tasks, [True] * len(tasks)) == {}
