"""Compilations are few, counted, and kept for the next run."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache
from training.sized_tasks import GrowingTasks

from sepo_jax.rollout.engine import reaches
from sepo_jax.training import batches, train
from sepo_jax.training.clock import Clock
from sepo_jax.training.compilation_cache import default_directory, use_compilation_cache
from sepo_jax.training.compilations import Compilations

ROOT = Path(__file__).parents[2]
SETTINGS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture
def cache_settings(monkeypatch):
    """Restores what `use_compilation_cache` changes."""
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_each_shape_of_a_function_counts_once_and_what_it_calls_does_not():
    inner = jax.jit(lambda x: x + 1)

    @jax.jit
    def counted_function(x):
        return inner(x) * 2

    arrays = [jnp.ones(3), jnp.ones(3), jnp.ones(4)]
    with Compilations() as compilations:
        for array in arrays:
            counted_function(array)
        assert compilations.take() == {"compiled/counted_function": 2}
        assert compilations.take() == {}
        spent = compilations.seconds()
        assert spent > 0
        counted_function(arrays[0])
        assert compilations.seconds() == spent
    counted_function(jnp.ones(5))
    assert compilations.take() == {} and compilations.seconds() == spent


def test_what_the_cache_holds_is_loaded(tmp_path, cache_settings):
    assert use_compilation_cache(str(tmp_path / "new" / "cache"))

    def double_of_all(x):
        return x * 2

    array = jnp.ones(3)
    with Compilations() as compilations:
        for kind in ("compiled", "loaded"):
            jax.jit(double_of_all)(array)
            assert compilations.take() == {f"{kind}/double_of_all": 1}
            jax.clear_caches()


def test_a_directory_that_cannot_be_used_is_a_warning(tmp_path, cache_settings, caplog):
    file = tmp_path / "file"
    file.write_text("in the way")
    assert not use_compilation_cache(str(file / "cache"))
    assert "cache cannot be used" in caplog.text and str(file) in caplog.text
    assert jax.config.jax_compilation_cache_dir is None
    assert jax.jit(lambda x: x * 3)(2) == 6


def test_the_default_is_the_users_and_the_variable_of_jax_counts(
    tmp_path, cache_settings, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "sepo_jax" / "compilations"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "jax"))
    assert use_compilation_cache()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "jax")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    assert use_compilation_cache()
    assert jax.config.jax_compilation_cache_dir == str(default_directory())
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    assert not use_compilation_cache()
    assert jax.config.jax_compilation_cache_dir is None


def test_compiling_and_waiting_are_no_part_of_the_phase_they_are_in():
    times, compiling = iter([0.0, 10.0, 14.0, 15.0]), iter([1.0, 3.0, 3.0, 3.5])
    clock = Clock(lambda: next(compiling), lambda: next(times))
    clock.lap("generate", {"environment": 1.5})
    clock.lap("update")
    clock.lap("generate")
    assert clock.laps == {"compile": 2.5, "environment": 1.5, "generate": 7.0, "update": 4.0}


def lines_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "timings.jsonl").read_text().splitlines()]


def counts_of(lines: list[dict], kind: str | tuple[str, ...]) -> Counter:
    """Programs of one kind or several by function over lines of `timings.jsonl`."""
    counts = Counter()
    for line in lines:
        counts.update({k.partition("/")[2]: n for k, n in line.items() if k.startswith(kind)})
    return counts


@pytest.mark.slow
@pytest.mark.usefixtures("compile_fast")
def test_a_run_compiles_once_for_each_bucket(small_config, tmp_path, monkeypatch):
    """Fifty steps, with prompts of 1 to 50 words."""
    small_config["sft"]["steps"], small_config["sepo"]["steps"] = 0, 0
    small_config["rl"] = {"steps": 50, "tasks_per_step": 2, "rollouts_per_task": 4}
    small_config["rollout"] |= {
        "slots": 8, "row_length": 128, "capacity": 128, "prefill_widths": (16, 64)
    }  # fmt: skip
    small_config["evaluation"] |= {"every": 50, "tasks": 2, "untrained": False}
    shapes, make = [], batches.BatchMaker.make

    def recorded(maker, *arguments):
        made = make(maker, *arguments)
        shapes.append(tuple(maker.sizes.tolist()))
        return made

    monkeypatch.setattr(batches.BatchMaker, "make", recorded)
    jax.clear_caches()
    train(small_config, domain=GrowingTasks(), run_directory=tmp_path / "run", progress=False)
    lines = lines_of(tmp_path / "run")
    both = ("compiled/", "loaded/")  # one that is compiled twice may come from a cache
    compiled = counts_of(lines, both)
    assert len(shapes) == 50 and 1 < len(set(shapes)) <= 12
    assert compiled["update"] == len(set(shapes))
    # Evaluation may sample in another way; prompts are cut into chunks of two widths.
    assert 1 <= compiled["decode"] <= 2 * len(reaches(128))
    assert 1 < compiled["prefill"] <= 2 * len(reaches(128))
    # Where shapes do not come from a ladder, each of the fifty lengths compiles.
    assert max(compiled.values()) <= 16
    later = counts_of(lines[25:], both)
    assert later["update"] <= 4 and sum(later.values()) <= 16


@pytest.mark.slow
def test_a_second_run_compiles_nothing_and_a_broken_cache_is_a_warning(small_config, tmp_path):
    """Three processes with one cache, damaged before the last."""
    # A step each: a later one may be larger than the first and compile again.
    small_config["sft"]["steps"], small_config["sepo"]["steps"] = 1, 1
    config, cache = tmp_path / "config.json", tmp_path / "cache"
    config.write_text(json.dumps(small_config))

    def run(name: str) -> str:
        command = [
            sys.executable, "experiments/train.py", f"--config=configs/saved.py:{config}",
            f"--runs={tmp_path}", f"--run={name}", f"--compilation_cache={cache}",
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "compilation cache" not in run("first")
    kept = sorted(cache.iterdir())
    assert counts_of(lines_of(tmp_path / "first"), "compiled/")["update"] == 2
    assert "compilation cache" not in run("second")
    # Everything that is compiled is written there, before the first step and after the last too.
    assert sorted(cache.iterdir()) == kept
    lines = lines_of(tmp_path / "second")
    assert not counts_of(lines, "compiled/")
    assert counts_of(lines, "loaded/")["update"] == 2
    updates = [file for file in kept if file.name.startswith("jit_update")]
    assert len(updates) == 2
    updates[0].write_bytes(updates[0].read_bytes()[:100])
    updates[1].write_bytes(b"no program")
    warned = run("third")
    assert len(re.findall("Error reading persistent compilation cache entry", warned)) >= 1
    lines = lines_of(tmp_path / "third")
    assert counts_of(lines, "compiled/") == {"update": 2}
    for name in ("metrics.jsonl", "policy/model.safetensors"):
        texts = {(tmp_path / each / name).read_bytes() for each in ("first", "second", "third")}
        assert len(texts) == 1, name
