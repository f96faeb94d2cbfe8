"""The benchmark of whole models: the exact oracle, and a policy that has learned nothing."""

import json

import numpy as np
import pytest
from chat_server import oracle, serve
from tiny_policies import tiny_policy

from sepo_jax.domains.matrix_game import anonymous, messages, named, reply
from sepo_jax.evaluation.endpoint import Endpoint
from sepo_jax.evaluation.matrix_report import (
    RESULT_COLUMNS,
    endpoint_replies,
    judge_replies,
    merge_result_rows,
    policy_replies,
    render_table,
    result_rows,
)
from sepo_jax.evaluation.matrix_tasks import BenchmarkGame
from sepo_jax.games.solve import solve_zero_sum
from sepo_jax.policy import Sampling, render, train_tokenizer

RPS = [[0, -1, 1], [1, 0, -1], [-1, 1, 0]]


def make_arms(sizes=(2, 3), count=4):
    rng = np.random.default_rng(0)
    arms = {}
    for n in sizes:
        tasks = [anonymous(table) for table in rng.uniform(-1, 1, (count, n, n)).round(2)]
        arms[f"dense/{n}"] = [BenchmarkGame(task, np.array(task.payoffs)) for task in tasks]
    return arms


def test_an_oracle_behind_an_endpoint_solves_every_game():
    pytest.importorskip("openai")
    arms = make_arms((2, 3, 7, 12), 5)
    with serve(oracle) as served:
        replies = endpoint_replies(Endpoint(served.url, "oracle", concurrency=4), arms)
    record = judge_replies(arms, replies)
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    for row in record["rows"]:
        assert row["valid"][0] == row["success"][0] == row["success_given_valid"][0] == 1
        assert row["residual"][0] <= 24 / 400
        # The oracle is the exact baseline, word for word.
        assert row["residual"] == row["baselines"]["exact"]["residual"]


def test_rows_say_what_the_replies_are():
    """One optimal reply, one that loses half the range, one broken, one unanswered."""
    tasks = [named(RPS, "RPS", "rps", "rps"), *[anonymous(RPS)] * 3]
    arms = {"rps": [BenchmarkGame(task, np.array(RPS, float)) for task in tasks]}
    third = [1 / 3] * 3
    texts = [reply(third, third), "so " + reply([1, 0, 0], third), "rock!", None]
    record = judge_replies(arms, {"rps": texts}, threshold=0.2)
    (row,) = record["rows"]
    assert (row["count"], row["unanswered"], row["saddle_points"]) == (3, 1, 0)
    assert row["valid"][0] == pytest.approx(2 / 3) and row["success"][0] == pytest.approx(1 / 3)
    assert row["baselines"]["uniform"]["success"][0] == 1
    assert row["baselines"]["best_pure"]["success"][0] == 0
    # Of three answers one is off by 0.01 of the range, one by 0.505.
    assert row["curve"]["0"] == 0 and row["curve"]["0.01"] == pytest.approx(1 / 3)
    assert row["curve"]["0.5"] == pytest.approx(1 / 3) and len(row["curve"]) == 51
    assert row["baselines"]["uniform"]["curve"]["0"] == 1
    statuses = [each["status"] for each in record["replies"]["rps"]]
    assert statuses == ["valid", "valid", "not_parsable"]
    first, second, third = record["replies"]["rps"]
    # 0.34, 0.33, 0.33 for either player: a hundredth for each of a range of 2.
    assert first["residual"] == pytest.approx(0.01) and third["residual"] is None
    assert second["row_residual"] == pytest.approx(0.5) and second["reply"].startswith("so ")
    assert first["task"]["title"] == "RPS"
    table = render_table(record)
    assert "33%" in table and "0.2 of the payoff range" in table
    assert "games without an answer, which are left out: 1." in table
    # Baselines stand in the same line, and the label says which measure it is.  F22
    assert "uniform  saddle  best pure  exact" in table and "NashConv" in table
    assert table.splitlines()[1].split()[-4:] == ["100%", "100%", "0%", "100%"]
    assert "not halved" in table and "exploitability" not in table
    assert len({len(line) for line in table.splitlines()[:2]}) == 1


def test_rows_of_a_results_table():
    """Half of the games are answered, and well; rows of other models and arms stay."""
    arms = make_arms((2,), 2)
    games = arms["dense/2"]
    solved = solve_zero_sum(games[0].payoffs)
    texts = {"dense/2": [reply(solved.row, solved.col), "no idea"]}
    (row,) = result_rows(judge_replies(arms, texts), "mine")
    found = dict(zip(RESULT_COLUMNS, row, strict=True))
    assert (found["arm"], found["policy"], found["games"]) == ("dense/2", "mine", 2)
    assert found["valid"] == found["success"] == 0.5 and found["given valid"] == found["exact"] == 1
    # Wilson's interval of one in two at 95%: 0.5 -+ 1.96 sqrt(1/8 + 1.96^2/16) / (1 + 1.96^2/2).
    assert found["success low"] == pytest.approx(0.0945, abs=1e-4)
    (unread,) = result_rows(judge_replies(arms, {"dense/2": ["no", "no"]}), "other")
    assert dict(zip(RESULT_COLUMNS, unread, strict=True))["residual"] is None
    old = [["named", "mine", 9], ["dense/2", "mine", 9], ["dense/2", "other", 9]]
    assert merge_result_rows(old, [row]) == [row, old[2], old[0]]


def test_a_fresh_policy_answers_nothing_that_can_be_read(compile_fast):
    arms = make_arms((2, 3), 3)
    texts = [m["content"] for games in arms.values() for g in games for m in messages(g.task)]
    policy, params = tiny_policy(texts, 448)
    for sampling in (Sampling(greedy=True), Sampling()):
        replies = policy_replies(policy, params, arms, sampling=sampling, max_tokens=8)
        record = judge_replies(arms, replies)
        for row in record["rows"]:
            assert row["valid"][0] == row["success"][0] == row["reward"] == 0
            assert row["success_given_valid"] is None and row["residual"] is None
            assert row["baselines"]["exact"]["success"][0] == 1
        assert "–" in render_table(record)
    with pytest.raises(ValueError, match=r"arm dense/2: max_tokens=512 .*Leave the arm out"):
        policy_replies(policy, params, arms, max_tokens=512)


def test_seven_by_seven_prompts_fit_a_small_context():
    """With a tokenizer of 512 ids trained on prompts of all sizes."""
    arms = make_arms((2, 3, 7, 12), 40)
    prompts = {arm: [messages(game.task) for game in games] for arm, games in arms.items()}
    texts = [m["content"] for batch in prompts.values() for each in batch for m in each]
    tokenizer = train_tokenizer(texts, 512)
    tokens = {
        arm: max(len(render(tokenizer, each)) for each in batch) for arm, batch in prompts.items()
    }
    assert tokens["dense/7"] <= 450 and tokens["dense/12"] <= 1024


@pytest.mark.parametrize(
    ("replies", "message"),
    [
        ({}, r"replies \{\} do not fit the games of \['dense/2'\]"),
        ({"dense/2": ["x"]}, r"replies \{'dense/2': 1\} do not fit"),
        ({"dense/2": [None] * 4}, "no game of arm dense/2 has a reply"),
    ],
)
def test_bad_input(replies, message):
    with pytest.raises(ValueError, match=message):
        judge_replies(make_arms((2,)), replies)
