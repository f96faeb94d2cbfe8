"""Several processes: they find each other in time, agree, and train as one process does."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from sepo_jax.training import distributed, train
from sepo_jax.training.roll_call import refuse_loopback, roll_call

ROOT = Path(__file__).parents[2]
# Two devices a process, four in all.
ENVIRONMENT = os.environ | {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # compiling is most of the time here
}


def free_coordinator() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def start(command, cache: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, *map(str, command)], cwd=ROOT, text=True,
        env=ENVIRONMENT | {"JAX_COMPILATION_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def start_train(config: Path, runs: Path, process: int, coordinator: str, *more):
    command = [
        "experiments/train.py", f"--config=configs/saved.py:{config}", f"--runs={runs}",
        "--run=run", f"--coordinator={coordinator}", "--num_processes=2",
        f"--process_id={process}", *more,
    ]  # fmt: skip
    return start(command, config.parent / "cache")


def finish(processes, code: int = 0) -> list[tuple[str, str]]:
    outputs = [process.communicate(timeout=300) for process in processes]
    for process, (out, err) in zip(processes, outputs, strict=True):
        assert process.returncode == code, out + err
    return outputs


def roll_call_of(numbers, limit=5.0, sizes=None):
    """What each process's roll call raised, or None; threads stand for processes."""
    coordinator, raised = free_coordinator(), [None] * len(numbers)

    def call(index):
        try:
            size = sizes[index] if sizes else 3
            roll_call(coordinator, size, numbers[index], limit)
        except Exception as error:
            raised[index] = error

    threads = [threading.Thread(target=call, args=(index,)) for index in range(len(numbers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()
    return raised


def test_a_complete_roll_call_returns_everywhere():
    assert roll_call_of([0, 2, 1]) == [None, None, None]


def test_whoever_came_learns_who_did_not():  # D01
    begin = time.monotonic()
    raised = roll_call_of([0, 1], limit=1.0)
    assert time.monotonic() - begin < 5
    for error in raised:
        assert isinstance(error, TimeoutError)
        assert "process 2 of 3 missing" in str(error) and "within 1 s" in str(error)
    (error,) = roll_call_of([0], limit=0.2)
    assert "processes 1, 2 of 3 missing" in str(error)
    (error,) = roll_call_of([1], limit=0.2)
    assert "process 0 of 3 missing" in str(error) and "this machine only" in str(error)


def test_two_of_one_number_and_another_size_are_refused():
    raised = roll_call_of([0, 1, 1])
    assert isinstance(raised[0], ValueError) and "two processes have" in str(raised[0])
    assert all(isinstance(error, ValueError) for error in raised[1:])
    raised = roll_call_of([0, 1], sizes=[3, 2])
    assert all("--num_processes=2, process 0 3" in str(error) for error in raised)


def test_strangers_do_not_disturb_and_a_taken_port_is_named():
    coordinator = free_coordinator()
    raised = []

    def listen():
        try:
            roll_call(coordinator, 2, 0, 10.0)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=listen)
    thread.start()
    host, port = coordinator.split(":")
    for words in (b"GET / HTTP/1.1\r\n\r\n", b'{"process": [1], "of": 2}\n', b"3\n"):
        for _ in range(100):
            try:
                with socket.create_connection((host, int(port))) as connection:
                    connection.sendall(words)
                    assert connection.recv(10) == b""
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
    roll_call(coordinator, 2, 1, 10.0)
    thread.join(timeout=30)
    assert raised == [] and not thread.is_alive()

    with socket.create_server(("", int(port))), pytest.raises(ConnectionError, match="cannot lis"):
        roll_call(coordinator, 2, 0, 1.0)


@pytest.mark.parametrize(
    "environment",
    [
        {"SLURM_STEP_NUM_NODES": "2"},
        {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
        {"TPU_WORKER_HOSTNAMES": "host-0,host-1"},
        {"TPU_PROCESS_ADDRESSES": "10.0.0.1:8476,10.0.0.2:8476"},
    ],
)
def test_loopback_is_refused_where_several_machines_are_known(environment):  # D03
    for coordinator in ("localhost:1", "127.0.1.1:1", "[::1]:1"):
        with pytest.raises(ValueError, match="is this machine for every machine"):
            refuse_loopback(coordinator, environment)
    refuse_loopback("10.0.0.1:1", environment)
    one = {
        "SLURM_STEP_NUM_NODES": "1", "OMPI_COMM_WORLD_SIZE": "4", "TPU_WORKER_HOSTNAMES": "host-0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
        "TPU_PROCESS_ADDRESSES": "127.0.0.1:8476,127.0.0.1:8477",
    }  # fmt: skip
    refuse_loopback("localhost:1", one)


def test_one_process_touches_no_network(monkeypatch):  # D01
    def refuse(*arguments, **options):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(jax.distributed, "initialize", refuse)
    distributed.connect()
    distributed.connect("127.0.0.1:1", 1, 0)
    distributed.connect(num_processes=1, from_environment=True)
    assert distributed.gather_texts("x") == ["x"]
    assert distributed.gather_objects({1: None}) == [{1: None}]
    assert distributed.from_first({"a": 1}) == {"a": 1}
    assert distributed.together(lambda: 3) == 3
    distributed.check_same_config({"seed": 1})
    distributed.check_same_data(np.ones(3), "batch")
    distributed.barrier("here")
    # The test can fail: two processes do ask for the network.
    with pytest.raises(AssertionError, match="network"):
        distributed.connect("127.0.0.1:1", 2, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, 2, 0), "need --coordinator too"),
        (("10.0.0.1:1",), "need --num_processes, --process_id too"),
        (("10.0.0.1:1", 2, 2), "must be 0 to 1 for --num_processes=2, got 2"),
        (("10.0.0.1:1", 2, -1), "got -1"),
        (("10.0.0.1", 2, 1), 'must be "host:port"'),
        (("10.0.0.1:port", 2, 1), 'must be "host:port"'),
    ],
)
def test_what_is_missing_or_impossible_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        distributed.connect(*arguments)


def test_without_a_cluster_or_a_positive_limit():
    with pytest.raises(ValueError, match="limit for starting must be positive"):
        distributed.connect("10.0.0.1:1", 2, 0, limit=0.0)


WORKER = """
import json, shutil, sys
import jax, numpy as np
from sepo_jax.training import distributed
from sepo_jax.training.checkpoints import Checkpoints, newest_on_all
coordinator, process, update_tests, out = sys.argv[1:]
process = int(process)
distributed.connect(coordinator, 2, process, limit=60)
assert (jax.process_count(), len(jax.devices()), len(jax.local_devices())) == (2, 4, 2)

def raised(function):
    try:
        function()
    except ValueError as error:
        return str(error)

texts = {
    "gathered": distributed.gather_texts("\\N{GREEK SMALL LETTER ALPHA}" * process),
    "objects": distributed.gather_objects([process] * (3 * process)),
    "config": raised(lambda: distributed.check_same_config({"seed": process, "name": "x"})),
    "data": raised(lambda: distributed.check_same_data(np.zeros(2 + process), "batch")),
    "same": raised(lambda: distributed.check_same_data(np.zeros(2), "batch")),
    "one": raised(lambda: distributed.together(lambda: [0][process] if process == 0 else int("p"))),
}
special = np.array([-0.0, np.nan, 1e-45], np.float32)
shared = distributed.from_first({"a": special if process == 0 else special * 0, "b": process})
assert shared["a"].tobytes() == special.tobytes() and int(shared["b"]) == 0

# Process 0's directory is not there for process 1, as on machines that share no file system.
saved = Checkpoints(f"{out}/checkpoints") if process == 0 else None
assert newest_on_all(saved, {"w": np.ones(2)})[0] == 0
if process == 0:
    saved.save(3, {"w": special})
    saved.save(5, {"w": special + 1})
    saved.wait()
    shutil.rmtree(f"{out}/checkpoints/5/state")
step, state = newest_on_all(saved, {"w": special * 0})
assert step == 3 and state["w"].tobytes() == special.tobytes()
texts["tree"] = raised(lambda: newest_on_all(saved, {"v": special}))

spec = __import__("importlib.util").util.spec_from_file_location("update_tests", update_tests)
module = __import__("importlib.util").util.module_from_spec(spec)
spec.loader.exec_module(module)
for how in (("pmap", 4, 1), ("mesh", 4, 1, 2, 1)):
    state, metrics = module.step(*how)
    name = f"{out}/{process}_{'_'.join(map(str, how))}"
    np.savez(name + ".npz", *jax.tree.leaves(state.params))
    json.dump(metrics, open(name + ".json", "w"))
texts["single"] = raised(lambda: module.step("single", 1, 1))
json.dump(texts, open(f"{out}/{process}.json", "w"))
"""


@pytest.mark.slow
def test_two_processes_agree_and_update_as_one(tmp_path):  # D02, E01 and E03 over processes
    coordinator, tests = free_coordinator(), Path(__file__).with_name("test_update.py")
    (tmp_path / "worker.py").write_text(WORKER)
    command = [tmp_path / "worker.py", coordinator]
    workers = [start([*command, i, tests, tmp_path], tmp_path / "cache") for i in (0, 1)]
    spec = importlib.util.spec_from_file_location("update_tests", tests)
    update_tests = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(update_tests)
    whole, whole_metrics = update_tests.step("single", 1, 1)
    finish(workers)
    for process in (0, 1):
        texts = json.loads((tmp_path / f"{process}.json").read_text())
        assert texts["gathered"] == ["", "α"] and texts["objects"] == [[], [1, 1, 1]]
        assert "process 1 of 2 started with another config" in texts["config"]
        assert "seed: 0 -> 1" in texts["config"] and "name" not in texts["config"]
        assert texts["data"].startswith("process 1 made another batch")
        assert texts["same"] is None
        assert "invalid literal" in texts["one"]
        assert texts["one"].startswith("process 1 stopped") == (process == 0)
        assert "uses the 4 devices of all" in texts["single"]
        assert "holds another state" in texts["tree"] and "['v']: wanted" in texts["tree"]
        for how in ("pmap_4_1", "mesh_4_1_2_1"):
            arrays = np.load(tmp_path / f"{process}_{how}.npz")
            leaves = jax.tree.leaves(whole.params)
            assert len(arrays.files) == len(leaves)
            for name, leaf in zip(arrays.files, leaves, strict=True):
                np.testing.assert_allclose(arrays[name], leaf, atol=1e-5, err_msg=how)
            metrics = json.loads((tmp_path / f"{process}_{how}.json").read_text())
            assert metrics == pytest.approx(whole_metrics, abs=1e-5)
    assert whole_metrics["gradient_norm"] > 1e-3


@pytest.fixture
def config_file(small_config, tmp_path):
    small_config["sft"]["steps"] = 0
    # An untrained policy's replies are all unparsable: only other deals make rewards differ.
    small_config["sepo"] |= {"steps": 2, "group_by": "opponent", "groups_per_opponent": 6}
    small_config["checkpoint"]["every"] = 1
    small_config["parallel"] = {"kind": "pmap", "devices": 4}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(small_config))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("adapters", [False, True], ids=["whole", "adapters"])
def test_a_run_of_two_processes_is_the_run_of_one(config_file, tmp_path, adapters):
    if adapters:
        config = json.loads(config_file.read_text())
        config["policy"] |= {"lora_rank": 2, "lora_targets": ("q_proj", "down_proj")}
        config["parallel"] |= {"kind": "mesh", "fsdp": 2}
        config["algorithm"] = {"name": "grpo", "overrides": {"kl_weight": 0.1}}
        config_file.write_text(json.dumps(config))
    coordinator = free_coordinator()
    processes = [
        start_train(config_file, tmp_path / f"runs{process}", process, coordinator)
        for process in (0, 1)
    ]
    alone = train(
        json.loads(config_file.read_text()), run_directory=tmp_path / "alone", progress=False
    )
    (out, _), (silent, _) = finish(processes)
    run = tmp_path / "runs0/run"
    expected = load_file(alone.directory / "policy/model.safetensors")
    trained = load_file(run / "policy/model.safetensors")
    assert trained.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(trained[name], value, atol=1e-5, err_msg=name)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    assert all(json.loads(line)["gradient_norm"] > 0 for line in lines)
    assert json.loads(out[out.index("{") :])["seed"] == 0 and "{" not in silent
    assert (run / "report.html").exists() and not (tmp_path / "runs1").exists()


@pytest.mark.slow
def test_another_config_or_a_missing_process_stops_with_one_line(config_file, tmp_path):  # D01
    coordinator = free_coordinator()
    processes = [
        start_train(config_file, tmp_path / "runs", process, coordinator, *more)
        for process, more in ((0, ()), (1, ("--config.seed=1",)))
    ]
    for _, error in finish(processes, code=2):
        assert "process 1 of 2 started with another config" in error
        assert "seed: 0 -> 1" in error and "Traceback" not in error
    assert not (tmp_path / "runs").exists()

    begin = time.monotonic()
    alone = start_train(config_file, tmp_path / "runs", 0, free_coordinator(), "--start_limit=5")
    ((_, error),) = finish([alone], code=2)
    assert time.monotonic() - begin < 30  # about 10 with the imports, on an idle machine
    assert "error: process 1 of 2 missing" in error and "within 5 s" in error
    assert "Traceback" not in error and not (tmp_path / "runs").exists()


def test_a_mistyped_limit_is_refused(tmp_path):  # D03
    command = ["experiments/train.py", f"--runs={tmp_path}/runs", "--start_limt=5"]
    ((_, error),) = finish([start(command, tmp_path / "cache")], code=1)
    assert "Unknown command line flag 'start_limt'. Did you mean: start_limit ?" in error
    assert not (tmp_path / "runs").exists()


def test_a_cluster_that_does_not_tell_is_named(tmp_path):
    code = (
        "from sepo_jax.training.distributed import connect\n"
        "try: connect(from_environment=True, limit=5)\n"
        "except ValueError as error: print(error)"
    )
    ((out, _),) = finish([start(["-c", code], tmp_path / "cache")])
    assert "found no cluster in the environment" in out and "--process_id" in out
