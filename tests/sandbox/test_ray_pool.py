"""What Ray adds to pools: machines and actors that are lost, and a cluster to join or start."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from sandbox import pools, toys
from sandbox.pools import Client, played_directly

from sepo_jax.sandbox import ray_pool
from sepo_jax.sandbox.isolation import Limits
from sepo_jax.sandbox.protocol import TooManyFailures
from sepo_jax.sandbox.ray_pool import RayPool
from sepo_jax.sandbox.scratch import Scratch

pytestmark = [
    pytest.mark.usefixtures("watchdog"),
    pytest.mark.parametrize("watchdog", [180], indirect=True),
]
HERE = Path(__file__).parent
EPISODES = 8


@pytest.fixture
def short_place():
    """A directory with a path short enough for Ray's sockets, and its end with all in it."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    yield place
    for pid in processes_of(place):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(place, ignore_errors=True)


def processes_of(place):
    """Ids of the processes that have a directory in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and bytes(place) in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def name_of(pid):
    """How a process calls itself; empty when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode()
    return ""


def drive(place, script, *arguments):
    """Starts a driver whose files are all in a directory."""
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith("RAY_")
    } | {"TMPDIR": str(place), "HOME": str(place)}
    return subprocess.Popen(
        [sys.executable, str(HERE / script), json.dumps(sys.path), *arguments],
        env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def outcome(process):
    """What a driver says last."""
    out, errors = process.communicate()
    assert process.returncode == 0, errors[-3000:]
    return json.loads(out.splitlines()[-1])


def actors():
    """Process ids of actors of this cluster."""
    below = pools.processes_of_workers(os.getpid())
    return [pid for pid in below if name_of(pid).startswith("ray::WorkerHost")]


def open_episodes(pool):
    client = Client(pool)
    for episode in range(EPISODES):
        client.reset(episode, seed=episode)
    return client


def play_on(client, seconds=60.0):
    """Each episode goes on to its end as if nothing had happened."""
    texts = ("a", "b", "c")
    for index, text in enumerate(texts):
        numbers = [client.send(e, "step", {index % 2: text}) for e in range(EPISODES)]
        for episode, number in enumerate(numbers):
            turn = client.receive(number, seconds).turn
            assert turn == played_directly(texts[: index + 1], seed=episode)[-1]


@pytest.mark.slow
def test_episodes_of_a_lost_actor_are_rebuilt(ray_place):
    with RayPool(toys.Toy, actors=2, workers_per_actor=1, limits=pools.PATIENT) as pool:
        client = open_episodes(pool)
        assert len(actors()) == 2
        os.kill(actors()[0], signal.SIGKILL)
        play_on(client)
        counters = pool.counters
        assert (counters["deaths"], counters["restarts"]) == (1, 1)
        assert counters["replayed"] == EPISODES // 2
    assert pools.wait_for(lambda: actors() == [], 10)
    assert list(ray_place.iterdir()) == []


@pytest.mark.slow
def test_a_fault_of_a_worker_costs_its_own_episode_alone(ray_place):
    faults = {"exit 9": "worker_died", "hang": "timeout", "send kind": "bad_answer"}
    faults |= {"raise it": "raised", "turn none": "bad_answer", "interrupt": "worker_died"}
    limits = Limits(seconds=2.0)
    with RayPool(toys.Commanded, actors=1, limits=limits) as pool:
        client = open_episodes(pool)
        numbers = {text: client.send(e, "step", {0: text}) for e, text in enumerate(faults)}
        innocents = range(len(faults), EPISODES)
        steps = [client.send(episode, "step", {0: "a"}) for episode in innocents]
        failures = {text: client.receive(number).failure for text, number in numbers.items()}
        assert {text: failure.kind for text, failure in failures.items()} == faults
        assert "killed by SIGINT" in failures["interrupt"].message
        for episode, number in zip(innocents, steps, strict=True):
            assert client.receive(number).turn == played_directly("a", seed=episode)[-1]
        counters = {name: count for name, count in pool.counters.items() if count}
        replayed = counters.pop("replayed")
        assert counters == {
            "calls": 2 * EPISODES, "constructed": counters["constructed"], "deaths": 2,
            "timeouts": 1, "raised": 1, "bad_answers": 2, "restarts": 4,
        }  # fmt: skip
        assert replayed > 0


@pytest.mark.slow
def test_a_silent_actor_is_given_up(ray_place, monkeypatch):
    monkeypatch.setattr(ray_pool, "LISTENING_SECONDS", 0.5)
    with RayPool(toys.Toy, actors=2, workers_per_actor=1, limits=pools.PATIENT) as pool:
        client = open_episodes(pool)
        silent = actors()[0]
        os.kill(silent, signal.SIGSTOP)
        try:
            monkeypatch.setattr(ray_pool, "SILENT_SECONDS", 3.0)
            time.sleep(0.6)  # longer than what it was last asked to wait
            play_on(client)
            monkeypatch.setattr(ray_pool, "SILENT_SECONDS", 60.0)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(silent, signal.SIGKILL)
        assert pool.counters["deaths"] >= 1


@pytest.mark.slow
def test_the_last_actor_ends_the_pool(ray_place):
    limits = pools.PATIENT
    with RayPool(toys.Commanded, actors=1, limits=limits, max_restarts=0) as pool:
        client = open_episodes(pool)
        numbers = [client.send(episode, "step", {0: "hang"}) for episode in range(3)]
        os.kill(actors()[0], signal.SIGKILL)
        for number in numbers:
            failure = client.receive(number).failure
            assert failure.kind == "worker_died"
            assert "no worker is left" in failure.message
            assert "the Ray actor of a worker ended" in failure.message
        with pytest.raises(TooManyFailures, match="no worker is left"):
            client.step(5, "a")


def test_a_connected_process_joins_no_other_cluster(ray_place):
    with pytest.raises(ValueError, match=r"can have no other at 127.0.0.1:1: leave the address"):
        RayPool(toys.Toy, address="127.0.0.1:1")


def test_resources_are_those_of_a_running_cluster(ray_place):
    with pytest.raises(ValueError, match=r"none was named: \{'TPU': 4\}; give its address"):
        RayPool(toys.Toy, resources={"TPU": 4})


@pytest.mark.parametrize(
    "options",
    [{"actors": 0}, {"workers_per_actor": 0}, {"max_restarts": -1}, {"cpus_per_worker": -0.5}],
)
def test_numbers_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be at least"):
        RayPool(toys.Toy, **options)


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"^RayPool needs Ray.*pip install 'sepo_jax\[ray\]'$"):
        RayPool(toys.Toy)


def test_ray_is_imported_by_a_pool_alone():
    program = (
        "import sys; import sepo_jax.sandbox, sepo_jax.sandbox.ray_pool; "
        "print(sorted({'ray', 'jax', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_lost_machine_costs_no_episode(short_place):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    shared_memory = set(os.listdir("/dev/shm"))
    result = outcome(drive(short_place, "ray_machines.py"))
    played = [
        [turn.to_json() for turn in played_directly(("hang 0.2", "b", "c"), seed=episode)]
        for episode in range(12)
    ]
    assert result["failures"] == []
    assert result["turns"] == played
    assert result["joined"]
    counters = result["counters"]
    assert (counters["restarts"], counters["replayed"], counters["calls"]) == (2, 6, 48)
    assert pools.wait_for(lambda: processes_of(short_place) == [], 10)
    assert set(os.listdir("/dev/shm")) <= shared_memory
    assert [p.name for p in short_place.iterdir() if p.name.startswith("sepo_jax-")] == []


@pytest.mark.slow
def test_an_own_cluster_lasts_as_long_as_its_pools(short_place, monkeypatch):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    result = outcome(drive(short_place, "ray_driver.py", "pools"))
    assert "SandboxError: Ray was shut down while a pool used it" in result.pop("lost")
    assert result == {
        "after_one": [True, True],
        "after_both": [False, False],
        "sigterm": "own",
        "secret": None,
    }
    assert processes_of(short_place) == []
    monkeypatch.setattr(tempfile, "tempdir", str(short_place))
    Scratch().close()  # as the next pool does: an actor that lost its cluster left its directory
    assert list(short_place.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("end", ["SIGKILL", "SIGTERM", "exit"])
def test_nothing_outlives_the_driver(short_place, end):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    driver = drive(short_place, "ray_driver.py", "wait" if end != "exit" else "exit")
    with driver:
        if end == "exit":
            assert driver.communicate()[0].split("\n")[:2] == ["playing", "with Ray"]
            assert list(short_place.iterdir()) == []
        else:
            assert driver.stdout.readline().strip() == "playing"
            driver.send_signal(getattr(signal, end))
    # Ray's own two agents look for the dead for a minute before they end.
    left = lambda: [p for p in processes_of(short_place) if "Agent" not in name_of(p)]  # noqa: E731
    assert pools.wait_for(lambda: left() == [], 20)


@pytest.mark.slow
def test_an_address_where_nothing_runs_is_refused(short_place):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    result = outcome(drive(short_place, "ray_driver.py", "address"))
    assert result["kind"] == "ConnectionError"
    assert "no Ray cluster answers at 127.0.0.1:1" in result["words"]
