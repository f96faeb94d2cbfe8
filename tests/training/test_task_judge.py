"""What the judge of a run over tasks writes."""

import json

import pytest
from scripted_tasks import ScriptedJudge, matrix_script, write_task_run
from training.parity_tasks import Parity

from sepo_jax.evaluation.matrix_domain import MatrixBenchmark
from sepo_jax.training import read_settings, to_dict
from sepo_jax.training.run_directory import RunDirectory

DOMAIN = MatrixBenchmark(arms=("dense/2", "dense/3"))
SCRIPTS = {"untrained": matrix_script(0), "sft": matrix_script(0.5), "rl": matrix_script(0.9)}


def read(path, name):
    return json.loads((path / name).read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    return write_task_run(path, DOMAIN, SCRIPTS, tasks=5, task_samples=2)


def test_every_task_has_its_records(finished):
    found, summary = read(finished, "tasks.json"), read(finished, "summary.json")
    tasks = DOMAIN.evaluation_tasks(5, read_settings({}).sft.data_seed)
    assert found["tasks"] == tasks and found["task_samples"] == 2
    assert set(found["players"]) == {
        *("uniform", "best_pure", "best_known", "untrained", "sft", "rl"),
    }
    repeated = [task for task in tasks for _ in range(2)]
    for stage in SCRIPTS:
        player = found["players"][stage]
        assert len(player["records"]) == 20 and player["step"] == summary[f"{stage}/step"]
        # Figures and curves are those of the records.
        for name, value in DOMAIN.figures(repeated, player["records"]).items():
            assert summary[f"{stage}/{name}"] == value
        curves = DOMAIN.curves(repeated, player["records"])
        assert player["curves"] == {
            title: json.loads(json.dumps(curve._asdict())) for title, curve in curves.items()
        }
        said = [SCRIPTS[stage](task, member) for task in tasks for member in range(2)]
        assert summary[f"{stage}/tokens"] == pytest.approx(sum(map(len, said)) / 20)
    # Baselines can be had again from the tasks, so their records are not kept.
    assert set(found["players"]["uniform"]) == {"curves"}


def test_some_episodes_are_kept_whole(finished):
    samples = read(finished, "tasks.json")["players"]["sft"]["samples"]
    assert 4 <= len(samples) <= 8
    for sample in samples:
        assert (sample["stage"], sample["step"]) == ("sft", 4)
        (decision,) = sample["decisions"]
        assert "Rows with payoffs:" in decision["prompt"] and decision["reply"]
        assert sample["record"]["valid"] == (decision["reply"] != "no idea")


def judge_of(path, domain):
    settings = read_settings({"evaluation": {"tasks": 4}})
    directory = RunDirectory.create(path, to_dict(settings))
    return ScriptedJudge(settings, None, domain, directory)


def test_a_stage_is_played_once_a_step(tmp_path):
    judge = judge_of(tmp_path / "run", DOMAIN)
    played = []

    def script(task, member):
        played.append(task)
        return "no idea"

    judge.baselines(script)
    judge.final("sft", script, 4)
    assert len(played) == 16
    before = (tmp_path / "run" / "tasks.json").read_bytes()
    # A run that goes on begins with its baselines again.
    judge.baselines(script)
    judge.final("sft", script, 4)
    assert len(played) == 16 and (tmp_path / "run" / "tasks.json").read_bytes() == before
    judge.final("sft", matrix_script(1.0, broken=0.0), 5)
    assert read(tmp_path / "run", "tasks.json")["players"]["sft"]["step"] == 5


class Odd(Parity):
    """Records what JSON does not have, and draws no curves."""

    def figures(self, tasks, records):
        return {"success": 0.0}


def test_what_json_lacks_is_null_and_a_failed_episode_leaves_nothing(tmp_path, monkeypatch):
    from training.parity_tasks import ParityRules

    monkeypatch.setattr(
        ParityRules, "judge", lambda *_: (0.0, {"score": float("nan"), "list": [float("inf"), 1]})
    )
    judge = judge_of(tmp_path / "run", Odd())
    judge.baselines(lambda task, _: None if task["number"] == 2 else "even")
    untrained = read(tmp_path / "run", "tasks.json")["players"]["untrained"]
    left = {"score": None, "list": [None, 1]}
    assert untrained["records"] == [left, left, None, left]
    assert untrained["curves"] == {} and len(untrained["samples"]) == 3
