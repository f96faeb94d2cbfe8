"""Environments beside others, in threads and processes, are what they are alone."""

import hashlib
import shutil
import sys
import threading
from pathlib import Path

import pytest
from domains.webshop_files import content, item, write
from extras import needs
from sandbox.elsewhere import result, scratch_directory, start
from sandbox.environment_cases import CASES, all_episodes, interleaved, many_resets, many_visits
from sandbox.pools import Client
from sandbox.toys_files import WORDS, Chatty, Notes

from sepo_jax.sandbox.in_process import InProcessPool
from sepo_jax.sandbox.process_pool import ProcessPool

pytestmark = pytest.mark.usefixtures("watchdog")


def test_a_seed_fixes_an_episode_in_every_process():  # C09
    here = {seed: all_episodes(seed) for seed in (7, 9)}
    processes = [start(all_episodes, 7, hash_seed=seed) for seed in (1, 4242)]
    assert [result(process) for process in processes] == [here[7], here[7]]
    assert all((here[7][name] != here[9][name]) == case.seeded for name, case in CASES.items())


@pytest.fixture
def hasty_threads():
    """Threads take turns every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("name", list(CASES))
def test_environments_of_four_threads_do_not_disturb_each_other(name, tmp_path, hasty_threads):
    """C07: four threads with four environments each."""
    expected = {}
    for seed in range(16):
        expected |= interleaved(name, [seed], tmp_path)
    found, ready = {}, threading.Barrier(4)

    def play(number):
        place = tmp_path / f"thread {number}"
        place.mkdir()
        ready.wait(30)
        found.update(interleaved(name, range(4 * number, 4 * number + 4), place))

    threads = [threading.Thread(target=play, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def checksum(directory: Path) -> str:
    paths = sorted(directory.rglob("*"))
    parts = [f"{path} {path.lstat().st_mode}" for path in [directory, *paths]]
    parts += [path.read_text() for path in paths if path.is_file()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@pytest.fixture
def protected_data():
    """A write-protected directory of notes that every user may read."""
    data = scratch_directory()
    (data / "deep").mkdir()
    for name, text in {"a": "ivy", "b": "moss", "deep/c": "fern"}.items():
        (data / name).write_text(text)
        (data / name).chmod(0o444)
    (data / "deep").chmod(0o555)
    data.chmod(0o555)
    yield data
    (data / "deep").chmod(0o755)
    shutil.rmtree(data)


def test_processes_share_write_protected_data_and_leave_it_as_it_is(protected_data):  # C06
    before = checksum(protected_data)
    processes = [start(many_resets, str(protected_data), 50, hash_seed=seed) for seed in (0, 1)]
    first, second = (result(process) for process in processes)
    assert first == second and len(set(map(str, first))) == 1
    assert first[0]["solved"] and first[0]["notes"].keys() == {"a", "b", "deep/c", "deep/d"}
    assert checksum(protected_data) == before


def test_workers_share_write_protected_data_and_leave_it_as_it_is(protected_data, place):  # C06
    before = checksum(protected_data)
    task = {"data": str(protected_data), "name": "b", "steps": 2}
    with ProcessPool(Notes, workers=2) as pool:
        client, records = Client(pool), []
        for _ in range(50):  # an episode in each worker, at once
            asked = [client.send(episode, "reset", (task, 3)) for episode in (0, 1)]
            assert all(client.receive(number).turn for number in asked)
            for text in ("append a more", "write deep/d more"):
                asked = [client.send(episode, "step", {0: text}) for episode in (0, 1)]
                last = [client.receive(number).turn for number in asked]
            records += [turn.record for turn in last]
        assert pool.counters["constructed"] == 2
    notes = {"a": "ivymore", "b": "moss", "deep/c": "fern", "deep/d": "more"}
    assert records == [{"solved": False, "notes": notes}] * 100
    assert checksum(protected_data) == before


@needs("webshop")
def test_processes_share_the_files_of_a_shop_and_leave_them_as_they_are():  # C06
    data = scratch_directory()
    write(data, content([item(number) for number in range(50)]))
    for path in (*data.iterdir(), data):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = checksum(data)
    processes = [start(many_visits, str(data), 50, hash_seed=seed) for seed in (0, 1)]
    first, second = (result(process) for process in processes)
    assert first == second == [first[0]] * 50
    assert checksum(data) == before
    data.chmod(0o755)
    shutil.rmtree(data)


@pytest.mark.parametrize("kind", [InProcessPool, ProcessPool])
def test_the_right_reply_is_always_right_whatever_is_printed(kind, place, capfd):  # C14
    task, records = {"data": None, "name": "b", "steps": 2}, {}
    for factory in (Notes, Chatty):
        with kind(factory) as pool:
            client, records[factory] = Client(pool), []
            for seed in range(5):
                prompt = client.reset(0, seed=seed, **task).turn.prompts[0]
                (word,) = [word for word in WORDS if word in prompt.messages[0]["content"]]
                assert not client.step(0, "list").turn.done
                turn = client.step(0, f"write b {word}").turn
                assert turn.done and turn.rewards == {0: 1.0}
                records[factory].append(turn.record)
    assert records[Notes] == records[Chatty] and all(r["solved"] for r in records[Notes])
    assert "".join(capfd.readouterr()).count("FAILED") == 10
