"""ALFWorld in sandboxes: snapshots that any process takes, their price, and data that stay as they
are. What every environment's snapshots must do is tested with `environment_cases.CASES`."""

import functools
import hashlib
import shutil
import stat
import time

import alfworld_extra  # noqa: F401
import pytest
from sandbox.alfworld_jobs import TASK, first_restore, many_episodes, oracle, refusal
from sandbox.elsewhere import result, scratch_directory, start
from sandbox.pools import Client

from sepo_jax.domains.alfworld import AlfWorld
from sepo_jax.domains.alfworld.export import write_games
from sepo_jax.domains.alfworld.games import TASK_TYPES
from sepo_jax.sandbox.environments import domain_environments
from sepo_jax.sandbox.isolation import Limits
from sepo_jax.sandbox.process_pool import ProcessPool


def least_seconds(run, times=5):
    """CPU seconds of the fastest of several runs."""
    found = []
    for _ in range(times):
        before = time.process_time()
        run()
        found.append(time.process_time() - before)
    return min(found)


def test_a_snapshot_is_small_and_going_back_costs_less_than_a_step_of_textworld(tmp_path):
    environment = domain_environments(AlfWorld())(tmp_path)
    turn = environment.reset(TASK, 0)
    for place in range(15):  # goes about, wins nothing
        going = [each for each in turn.prompts[0].legal_actions if each.startswith("go to")]
        turn = environment.step({0: going[place % len(going)]})
    snapshot = environment.snapshot()
    assert len(snapshot) < 8000
    assert least_seconds(environment.snapshot) < 0.026  # what a step of textworld takes
    assert least_seconds(lambda: environment.restore(snapshot)) < 0.026
    assert environment.restore(snapshot).prompts == turn.prompts


def test_a_fresh_process_replays_a_snapshot_in_less_time_than_loading_takes(tmp_path):
    domain = AlfWorld()
    environment = domain_environments(domain)(tmp_path)
    environment.reset(TASK, 0)
    for command in oracle(domain, TASK)[:-1]:
        turn = environment.step({0: command})
    loading, restoring, found = result(start(first_restore, environment.snapshot()), 600)
    assert found == turn.to_json()
    assert restoring < loading


def test_a_game_that_was_exchanged_refuses_its_snapshots(tmp_path):
    write_games(tmp_path, 1)
    domain = AlfWorld(data=str(tmp_path), task_types=TASK_TYPES[:1])
    environment = domain_environments(domain)(tmp_path)
    environment.reset(domain.training_tasks(1, 0)[0], 0)
    environment.step({0: "look"})
    snapshot = environment.snapshot()
    (path,) = (tmp_path / "json_2.1.1/train").glob("pick_and_place_simple*/*/game.tw-pddl")
    path.write_text(path.read_text().replace("you see", "there is"))
    process = start(refusal, str(tmp_path), snapshot)
    assert "is another than the one that was played" in result(process, 600)


def checksums(directory):
    """Contents, times and modes of all that a directory holds."""
    return {
        str(path): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_mtime_ns,
            stat.S_IMODE(path.stat().st_mode),
        )
        for path in sorted(directory.rglob("*"))
    }


@pytest.fixture
def protected_games():
    """A directory of games that nobody may write, in a place that everybody may enter."""
    place = scratch_directory()
    write_games(place, 1)
    inside = sorted(place.rglob("*"))
    for path in (place, *inside):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield place
    for path in (place, *inside):
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(place)


def test_two_processes_play_on_data_that_nobody_may_write(protected_games):  # C06
    before = checksums(protected_games)
    jobs = [start(many_episodes, str(protected_games), 50, hash_seed=seed) for seed in (1, 2)]
    first, second = (result(process, 600) for process in jobs)
    assert first == second and len(first) == 50
    assert all(record == first[0] and record["success"] for record in first)
    assert checksums(protected_games) == before


def test_confined_workers_play_and_take_over_from_one_another(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    domain = AlfWorld()
    plan = oracle(domain, TASK)
    with ProcessPool(domain_environments(domain), workers=2, limits=Limits(300.0)) as pool:
        ask = functools.partial(Client(pool).ask, seconds=300.0)
        ask(1, "reset", (TASK, 0))
        for command in plan[:3]:
            ask(1, "step", {0: command})
        state = ask(1, "snapshot").state
        for episode in (2, 3):
            assert ask(episode, "restore", state).failure is None
        for episode in (1, 2, 3):
            for command in plan[3:]:
                turn = ask(episode, "step", {0: command}).turn
            assert turn.done and turn.record["success"] and turn.rewards == {0: 1.0}
