"""Sandboxes of a run: every backend gives the same run, and none of them outlives it."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax.numpy as jnp
import pytest
from sandbox.pools import Client, time_limit

from sepo_jax.domains import Kuhn
from sepo_jax.policy import render
from sepo_jax.training import NonFiniteError, read_settings, train
from sepo_jax.training.sepo_stage import training_sampling
from sepo_jax.training.setup import engine_options, make_policy, make_pool

ROOT = Path(__file__).parents[2]


def descendants(pid):
    """All processes that stem from `pid`, zombies left out."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state != "Z":
                parents[int(entry.name)] = int(parent)
    found, fresh = set(), {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh}
        found |= fresh
    return found


def without_warm_start(config, **sandbox):
    config["sft"]["steps"] = 0
    config["sepo"]["steps"] = 1
    config["sandbox"] |= sandbox
    return config


@pytest.mark.slow
def test_every_backend_gives_the_same_run(small_config, tmp_path):
    runs = {}
    for backend in ("in_process", "processes"):
        config = without_warm_start(small_config, backend=backend)
        with time_limit(900):
            train(config, run_directory=tmp_path / backend, progress=False)
        runs[backend] = [
            re.sub(r'"commit": "\w+"', "", (tmp_path / backend / name).read_text())
            for name in ("metrics.jsonl", "samples.jsonl", "summary.json", "tables.json")
        ]
    assert runs["in_process"] == runs["processes"]
    assert json.loads(runs["processes"][0])["failed_rollouts"] == 0
    timings = json.loads((tmp_path / "processes/timings.jsonl").read_text())
    assert timings["environment"] > 0


def test_a_run_that_fails_leaves_no_sandbox(small_config, tmp_path, monkeypatch):  # C04
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    before, during = descendants(os.getpid()), []

    def broken(params, batch):
        during.append(descendants(os.getpid()) - before)
        return jnp.sum(params["norm"]["scale"]) * jnp.nan, {}

    config = without_warm_start(small_config, backend="processes", workers=3)
    with time_limit(900), pytest.raises(NonFiniteError):
        train(config, broken, run_directory=tmp_path / "run", progress=False)
    assert len(during[0]) >= 3
    assert not descendants(os.getpid()) & during[0]
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.slow
def test_sigterm_ends_a_run_and_its_sandboxes(small_config, tmp_path):  # C04
    config = tmp_path / "config.json"
    small_config["sepo"]["steps"] = 10_000
    small_config["sandbox"] |= {"backend": "processes"}
    config.write_text(json.dumps(small_config))
    (tmp_path / "scratch").mkdir()
    run = subprocess.Popen(
        [
            sys.executable, "experiments/train.py", f"--config=configs/saved.py:{config}",
            f"--runs={tmp_path}", "--run=run",
        ],
        cwd=ROOT, env=os.environ | {"TMPDIR": str(tmp_path / "scratch")},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    metrics, deadline, sandboxes = tmp_path / "run/metrics.jsonl", time.monotonic() + 900, set()
    try:
        while not metrics.is_file() or '"sepo"' not in metrics.read_text():
            if run.poll() is not None or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        else:
            sandboxes = descendants(run.pid)
            assert list((tmp_path / "scratch").iterdir())
        run.send_signal(signal.SIGTERM)
        output, _ = run.communicate(timeout=300)
    finally:
        run.kill()
    assert len(sandboxes) >= 2, output
    assert run.returncode == 143, output
    assert "terminated; a training run goes on with --resume" in output
    assert "Traceback" not in output
    assert not any(Path(f"/proc/{pid}").exists() for pid in sandboxes)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_options_of_a_config_reach_the_engine_and_the_pool(small_config):
    small_config["rollout"] |= {
        "slots": 3, "capacity": 99, "max_action_tokens": 5, "exchange_interval": 2,
        "prefill_widths": (8, 24), "prefill_rows": 2, "driver": "in_jit", "devices": 2,
        "temperature": 0.5,
    }  # fmt: skip
    small_config["sandbox"]["max_failed_fraction"] = 0.25
    settings = read_settings(small_config)
    options = engine_options(settings, training_sampling(settings))
    shape = options.exchange_shape()
    assert (shape.slots, shape.interval, shape.widths, shape.rows) == (3, 2, (8, 24), 2)
    assert (options.capacity, options.max_action_tokens, options.driver) == (99, 5, "in_jit")
    assert (options.devices, options.max_failed_fraction) == (2, 0.25)
    assert options.sampling.temperature == 0.5
    with make_pool(settings.sandbox, Kuhn()) as pool:
        assert pool.counters["constructed"] == 0


@pytest.mark.parametrize(
    ("section", "field", "value", "message"),
    [
        ("sandbox", "backend", "proceses", "Did you mean 'processes'"),
        ("sandbox", "workers", 0, "sandbox.workers must be at least 1"),
        ("sandbox", "seconds", 0.0, "sandbox.seconds must be at least"),
        ("sandbox", "max_failed_fraction", 1.5, r"max_failed_fraction must be in \[0, 1\]"),
        ("rollout", "driver", "in_jid", "Did you mean 'in_jit'"),
        ("rollout", "prefill_widths", (8, 4), "prefill widths must be ascending"),
        ("rollout", "capacity", 20, "first prompt .* has .* raise the capacity"),
    ],
)
def test_bad_options_are_refused(small_config, tmp_path, section, field, value, message):
    small_config[section][field] = value
    with pytest.raises(ValueError, match=message):
        train(without_warm_start(small_config), run_directory=tmp_path / "run", progress=False)
    # A prompt's length shows only when it is asked; all else is seen before anything is written.
    assert field == "capacity" or not (tmp_path / "run").exists()


def test_a_prompt_that_outgrows_its_context_is_an_error(small_config, tmp_path):
    """The prompt of the second hand tells of the first."""
    config = without_warm_start(small_config)
    config["domain"]["hands"] = 2
    policy, _ = make_policy(read_settings(config), Kuhn(hands=2))
    episode = Kuhn(hands=2).new_episode("AlwaysBet", seed=0)
    first = len(render(policy.tokenizer, episode.messages()))
    config["rollout"]["capacity"] = first + 4
    with pytest.raises(ValueError, match=r"leaves no room for a reply: raise .*rollout\.capacity"):
        train(config, run_directory=tmp_path / "run", progress=False)


@pytest.mark.slow
def test_settings_name_the_actors_of_ray(small_config):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    sandbox = {"backend": "ray", "actors": 1, "workers": 2}
    settings = read_settings(without_warm_start(small_config, **sandbox))
    turns = []
    for where in (settings.sandbox, dataclasses.replace(settings.sandbox, backend="in_process")):
        with time_limit(150), make_pool(where, Kuhn()) as pool:
            client = Client(pool)
            for episode in range(4):
                task = {"opponent": "AlwaysBet", "seat": episode % 2}
                turns.append(client.ask(episode, "reset", (task, episode)).turn)
    assert turns[:4] == turns[4:]
    assert None not in turns


def test_a_domain_that_does_not_pickle_stays_in_this_process(small_config):
    class Local(Kuhn):
        pass

    settings = read_settings(without_warm_start(small_config, backend="processes"))
    with pytest.raises(ValueError, match="must pickle"):
        make_pool(settings.sandbox, Local())
