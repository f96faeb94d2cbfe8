"""The matrix benchmark as a domain: its tasks, experts, figures and training."""

import json

import numpy as np
import pytest

from sepo_jax.domains.matrix_game import parse, reply, workings
from sepo_jax.domains.matrix_rules import MatrixRules, game_of_task, relative_residual
from sepo_jax.evaluation import matrix_domain
from sepo_jax.evaluation.matrix_benchmark import has_saddle, residual_reward
from sepo_jax.evaluation.matrix_domain import MatrixBenchmark
from sepo_jax.games.generate import content_hash
from sepo_jax.training import read_settings, to_dict, train

ARMS = ("dense/2", "dense/3", "dominated/3in8")
DOMAIN = MatrixBenchmark(arms=ARMS)


def payoffs_of(tasks):
    return [np.array(game_of_task(task).payoffs) for task in tasks]


def test_training_games_are_alternately_of_each_size_and_never_judged():
    tasks = DOMAIN.training_tasks(41, seed=3)
    assert [len(table) for table in payoffs_of(tasks)] == [2, 3] * 20 + [2]
    assert tasks == DOMAIN.training_tasks(41, seed=3) != DOMAIN.training_tasks(41, seed=4)
    assert json.loads(json.dumps(tasks)) == tasks
    judged = {content_hash(t) for t in payoffs_of(DOMAIN.evaluation_tasks(50, seed=42))}
    assert not judged & {content_hash(table) for table in payoffs_of(tasks)}


def test_the_expert_answers_with_the_equilibrium_as_printed():
    traces = DOMAIN.expert_traces(30, seed=1)
    tasks = DOMAIN.training_tasks(30, seed=1)
    for (messages, text), task in zip(traces, tasks, strict=True):
        assert messages == MatrixRules().messages(task)
        table = game_of_task(task).payoffs
        # Rounding to hundredths costs at most (m + n) / 400 of the range.
        bound = (len(table) + len(table[0])) / 400
        assert relative_residual(table, parse(text, len(table), len(table[0]))) <= bound + 1e-9


def test_the_worked_expert_writes_best_replies_before_the_same_answer():
    plain = DOMAIN.expert_traces(12, seed=1)
    worked = MatrixBenchmark(arms=ARMS, expert="worked").expert_traces(12, seed=1)
    tasks = DOMAIN.training_tasks(12, seed=1)
    for (asked, answer), (same, text), task in zip(plain, worked, tasks, strict=True):
        assert asked == same
        assert text == f"{workings(game_of_task(task))}\n{answer}"
        assert parse(text, *game_of_task(task).shape) == parse(answer, *game_of_task(task).shape)


def test_the_random_expert_teaches_the_form_and_nothing_of_play():
    domain = MatrixBenchmark(arms=ARMS, expert="random")
    traces = domain.expert_traces(2000, seed=1)
    assert traces == domain.expert_traces(2000, seed=1)
    tasks = domain.training_tasks(2000, seed=1)
    shapes = [game_of_task(task).shape for task in tasks]
    answers = [parse(text, *shape) for (_, text), shape in zip(traces, shapes, strict=True)]
    assert all(answer.valid for answer in answers)
    # Of two actions one in three answers is mixed, of three four in seven.
    for size, share in ((2, 1 / 3), (3, 4 / 7)):
        mixed = [max(answer.row) < 1 for answer in answers if len(answer.row) == size]
        assert abs(np.mean(mixed) - share) < 0.06  # four standard errors over 1000 games
    # Each action is as likely as any other, whatever the game: 1/2 and 1/3, with a deviation of at
    # most sqrt(1/4/1000) = 0.016 over 1000 games.
    for size in (2, 3):
        rows = [answer.row for answer in answers if len(answer.row) == size]
        np.testing.assert_allclose(np.mean(rows, axis=0), np.full(size, 1 / size), atol=0.05)
        best = [np.array(game_of_task(task).payoffs).mean(1).argmax() for task in tasks]
        on_best = [a.row[b] for a, b in zip(answers, best, strict=True) if len(a.row) == size]
        assert abs(np.mean(on_best) - 1 / size) < 0.05


def test_a_size_named_twice_comes_twice_as_often():
    tasks = MatrixBenchmark(sizes=(2, 2, 3)).training_tasks(90, seed=3)
    tables = payoffs_of(tasks)
    assert [len(table) for table in tables] == [2, 2, 3] * 30
    assert len({content_hash(table) for table in tables}) == 90


@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_games_without_a_pure_equilibrium_come_as_often_as_asked(share):
    domain = MatrixBenchmark((2, 2, 3), mixed_share=share)
    tables = payoffs_of(domain.training_tasks(300, seed=3))
    assert len({content_hash(table) for table in tables}) == 300
    for size, count in ((2, 200), (3, 100)):
        mixed = [not has_saddle(table) for table in tables if len(table) == size]
        assert len(mixed) == count and sum(mixed) == round(share * count)
        # Evenly spread: the share holds of every beginning, up to one game.
        assert all(abs(sum(mixed[:k]) - share * k) <= 1 for k in range(count))


def test_a_share_that_hardly_any_game_has_is_refused(monkeypatch):
    # A game of size 12 has a pure equilibrium with probability 12!² / 23! = 9e-6.
    monkeypatch.setattr(matrix_domain, "_MOST_PAYOFFS", 10_000)
    with pytest.raises(ValueError, match=r"mixed_share=0.0: of 40 games of size 12 40 have no"):
        MatrixBenchmark(sizes=(12,), mixed_share=0.0).training_tasks(20, 0)


def test_rewards_of_the_environment_are_those_of_the_benchmark():
    tasks = DOMAIN.evaluation_tasks(5, seed=0)
    texts = []
    for number, table in enumerate(payoffs_of(tasks)):
        m, n = table.shape
        draws = np.random.default_rng(number)
        texts.append(reply(draws.dirichlet(np.ones(m)), draws.dirichlet(np.ones(n))))
    texts[3] = "no idea"
    judged = [MatrixRules().judge(task, text) for task, text in zip(tasks, texts, strict=True)]
    tables = payoffs_of(tasks)
    answers = [parse(text, *table.shape) for text, table in zip(texts, tables, strict=True)]
    np.testing.assert_allclose([r for r, _ in judged], residual_reward(tables, answers), atol=1e-12)
    figures = DOMAIN.figures(tasks, [record for _, record in judged])
    assert figures["dense/2/valid"] == 0.8 and figures["dense/3/valid"] == 1.0
    for arm in ARMS:
        own = [number for number, task in enumerate(tasks) if task["arm"] == arm]
        reward = np.mean([judged[number][0] for number in own])
        assert figures[f"{arm}/reward"] == pytest.approx(reward)
        success = np.mean([judged[number][1]["success"] for number in own])
        assert figures[f"{arm}/success"] == pytest.approx(success)


def test_no_record_counts_as_a_reply_that_cannot_be_read():
    tasks = DOMAIN.evaluation_tasks(2, seed=0)
    figures = DOMAIN.figures(tasks, [None] * len(tasks))
    assert {figures[f"{arm}/valid"] for arm in ARMS} == {0.0}
    assert "dense/2/residual" not in figures and figures["dense/2/reward"] == 0.0


def test_figures_have_intervals_unless_games_are_repeated():
    """Ends are Wilson's; [z² / (n + z²)] is the lower end for n of n."""
    tasks = DOMAIN.evaluation_tasks(4, seed=0)
    records = DOMAIN.baseline_records(tasks)["best_known"]
    figures = DOMAIN.figures(tasks, records)
    assert figures["success"] == figures["valid"] == 1.0
    assert figures["dense/2/success_low"] == pytest.approx(4 / (4 + 1.959964**2), abs=1e-6)
    assert figures["success_low"] == pytest.approx(12 / (12 + 1.959964**2), abs=1e-6)
    assert figures["dense/2/residual_low"] <= figures["dense/2/residual"]
    twice = DOMAIN.figures([t for t in tasks for _ in "ab"], [r for r in records for _ in "ab"])
    assert not [name for name in twice if name.endswith(("_low", "_high"))]
    assert twice == {name: figures[name] for name in twice}


def test_curves_of_known_answers():
    """Of three 2x2 and three 3x3 games each: solved, as far off as uniform play, not readable."""
    domain = MatrixBenchmark(arms=("dense/3", "dense/2"))
    tasks = domain.evaluation_tasks(3, seed=0)
    best, uniform = (domain.baseline_records(tasks)[name] for name in ("best_known", "uniform"))
    records = [best[0], uniform[1], None, None, uniform[4], uniform[5]]
    curves = domain.curves(tasks, records)
    by_size = curves["Success by size, dense games"]
    far = [uniform[place]["residual"] for place in (1, 4, 5)]
    assert min(far) > 0.1  # no success at the threshold
    assert by_size.x == [2, 3] and by_size.y == [0.0, 1 / 3]
    assert set(curves) == {"Success by size, dense games", "Success by threshold, dense/3",
                           "Success by threshold, dense/2"}  # fmt: skip
    for arm, residuals in (("dense/3", [best[0]["residual"], far[0]]), ("dense/2", far[1:])):
        x, y, x_label, _ = curves[f"Success by threshold, {arm}"]
        assert (x[0], x[-1], len(x)) == (0.0, 0.5, 51) and "NashConv" in x_label
        for threshold, share in zip(x, y, strict=True):
            solved = sum(residual <= threshold + 1e-9 for residual in residuals)
            assert share == pytest.approx(solved / 3)
    # One size is no curve over sizes.
    assert "Success by size, dense games" not in DOMAIN.__class__(arms=("dense/2",)).curves(
        tasks[3:], records[3:]
    )


def test_baselines_record_what_an_environment_would():
    tasks = DOMAIN.evaluation_tasks(3, seed=1)
    records = DOMAIN.baseline_records(tasks)
    for task, record in zip(tasks, records["best_known"], strict=True):
        _, said = MatrixRules().judge(task, reply(record["row"], record["col"]))
        assert set(said) == set(record) and said["status"] == record["status"] == "valid"
        for name in ("row", "col", "residual"):
            assert said[name] == pytest.approx(record[name], abs=1e-12)
    for player, figures in DOMAIN.baselines(tasks).items():
        assert figures == DOMAIN.figures(tasks, records[player])


def test_baselines_of_the_same_games():
    figures = DOMAIN.baselines(DOMAIN.evaluation_tasks(20, seed=0))
    assert set(figures) == {"uniform", "best_pure", "best_known"}
    for arm in ARMS:
        assert figures["best_known"][f"{arm}/success"] == 1.0
        assert figures["uniform"][f"{arm}/residual"] > figures["best_known"][f"{arm}/residual"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sizes": ()}, "sizes names no size"),
        ({"sizes": (0,)}, "size must be at least 1"),
        ({"arms": ("dense/13",)}, "arm 'dense/13'.*dense/1?2"),
        ({"expert": "solved"}, "expert 'solved'.*solver"),
        ({"mixed_share": 1.5}, "mixed_share=1.5.*from 0 to 1"),
        ({"sizes": (1, 2), "mixed_share": 0.5}, "two or more actions"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        MatrixBenchmark(**arguments)


@pytest.mark.slow
def test_a_policy_is_trained_and_judged(tmp_path):
    config = to_dict(
        read_settings(
            {
                "policy": {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1,
                           "intermediate_size": 32},
                "domain": {"name": "matrix", "options": {"sizes": (2,), "arms": ("dense/2",)}},
                "sft": {"steps": 3, "num_decisions": 40, "batch_size": 8},
                "sepo": {"steps": 0},
                "rl": {"steps": 2, "tasks_per_step": 2, "rollouts_per_task": 2},
                "rollout": {"slots": 16, "max_action_tokens": 8, "prefill_widths": (128,)},
                "evaluation": {"tasks": 4},
                "parallel": {"kind": "single"},
            }
        )
    )  # fmt: skip
    run = train(config, run_directory=tmp_path / "run", progress=False)
    for stage in ("untrained", "sft", "rl"):
        assert 0 <= run.summary[f"{stage}/dense/2/success"] <= 1
    assert run.summary["best_known/dense/2/success"] == 1.0
    assert (tmp_path / "run" / "report.html").exists()
