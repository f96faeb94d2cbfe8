"""Whole runs: resume equals no interruption, bad numbers stop a run, own losses train."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import pytest

from sepo_jax.algorithms import ALGORITHMS
from sepo_jax.training import NonFiniteError, train

ROOT = Path(__file__).parents[2]
SAME = ("config.json", "metrics.jsonl", "samples.jsonl", "summary.json", "tables.json")


def start(config: Path, runs: Path, *more: str) -> subprocess.Popen:
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(runs / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return subprocess.Popen(
        [
            sys.executable, "experiments/train.py", f"--config=configs/saved.py:{config}",
            f"--runs={runs}", *more,
        ],
        cwd=ROOT, env=os.environ | cache, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen) -> str:
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return output


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def wait_for_step(path: Path, process: subprocess.Popen, stage: str, step: int) -> None:
    deadline = time.time() + 600
    while time.time() < deadline:
        assert process.poll() is None, process.communicate()[0]
        if path.exists():
            lines = [line for line in path.read_text().splitlines() if line.endswith("}")]
            if any((r := json.loads(x))["stage"] == stage and r["step"] >= step for x in lines):
                return
        time.sleep(0.05)
    raise TimeoutError(f"step {step} of {stage} was never logged")


ADAPTERS = {"lora_rank": 2, "lora_targets": ("q_proj", "v_proj"), "param_dtype": "bfloat16"}


@pytest.mark.slow
@pytest.mark.parametrize("adapters", [False, True], ids=["whole", "adapters"])
def test_killed_and_resumed_equals_straight_bit_for_bit(small_config, tmp_path, adapters):  # E01
    if adapters:
        small_config["policy"] |= ADAPTERS
        small_config["sepo"] |= {"learning_rate": 0.03, "group_by": "opponent"}
        small_config["algorithm"] = {"name": "grpo", "overrides": {"kl_weight": 0.1}}
    config = tmp_path / "config.json"
    config.write_text(json.dumps(small_config))
    output = finish(start(config, tmp_path, "--run=straight"))
    assert json.loads(output[output.index("{") :])["seed"] == 0

    process = start(config, tmp_path, "--run=killed")
    wait_for_step(tmp_path / "killed/metrics.jsonl", process, "sepo", 6)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "killed/report.html").exists()
    # Not even the same command starts over an existing run.
    refused = start(config, tmp_path, "--run=killed")
    assert "--resume" in refused.communicate(timeout=600)[0]
    assert refused.returncode == 2
    finish(start(config, tmp_path, "--run=killed", "--resume"))

    for name in SAME:
        straight, killed = (tmp_path / run / name for run in ("straight", "killed"))
        # The revision of the source may move while the test runs; nothing else may.
        texts = [re.sub(r'"commit": "\w+"', "", path.read_text()) for path in (straight, killed)]
        assert texts[0] == texts[1], name
    for name in ("policy/model.safetensors", "policy/tokenizer.json"):
        assert (tmp_path / "straight" / name).read_bytes() == (
            tmp_path / "killed" / name
        ).read_bytes()
    lines = read_lines(tmp_path / "killed/metrics.jsonl")
    steps = [(r["stage"], r["step"]) for r in lines]
    assert steps == [("sft", s) for s in (1, 2, 3)] + [("sepo", s) for s in range(1, 11)]

    if adapters:
        # The reference is the policy after the warm start, merged from its checkpoint at resume.
        kl = [line["kl_reference"] for line in lines if line["stage"] == "sepo"]
        assert kl[0] == pytest.approx(0, abs=1e-7) and max(kl) > 1e-6
        for stage, step in (("sft", 3), ("sepo", 10)):
            saved = tmp_path / f"killed/checkpoints/{stage}/{step}/structure"
            structure = "".join(file.read_text() for file in saved.rglob("*") if file.is_file())
            assert "lora_a" in structure
            assert "kernel" not in structure and "embedding" not in structure
        return

    # The dumped config of a run is a config (G04), and the same one gives the same run.
    changed = small_config | {"seed": 1}
    config.write_text(json.dumps(changed))
    refused = start(config, tmp_path, "--run=killed", "--resume")
    assert "seed: 0 -> 1" in refused.communicate(timeout=600)[0]  # E08
    assert refused.returncode == 2


@pytest.mark.slow
def test_resume_pads_to_the_shapes_of_the_straight_run(small_config, tmp_path):  # E01
    """Matches of three hands: the number of rows shrinks from one step to another."""
    small_config["sft"]["steps"] = 0
    small_config["domain"]["hands"] = 3
    small_config["rollout"] |= {"row_length": 320, "capacity": 320}
    small_config["sepo"] |= {"steps": 6, "rollouts_per_group": 1, "exploiter_pool": ("AlwaysBet",)}
    small_config["checkpoint"] = {"every": 1, "keep": 30}
    runs = [tmp_path / "straight", tmp_path / "resumed"]
    train(small_config, run_directory=runs[0], progress=False)
    shutil.copytree(*runs)
    for step in (5, 6):
        shutil.rmtree(runs[1] / f"checkpoints/sepo/{step}")
    for name in ("summary.json", "tables.json"):
        (runs[1] / name).unlink()
    train(small_config, run_directory=runs[1], resume=True, progress=False)
    for name in ("metrics.jsonl", "policy/model.safetensors", "tables.json"):
        assert (runs[0] / name).read_bytes() == (runs[1] / name).read_bytes(), name
    # More steps are a change to name, and the figures are then those of the new last step.
    small_config["sepo"]["steps"] = 7
    run = train(
        small_config, run_directory=runs[1], resume=True, allow_change=("sepo.steps",),
        progress=False,
    )  # fmt: skip
    assert run.summary["sepo/step"] == 7
    last = read_lines(runs[1] / "metrics.jsonl")[-1]
    assert run.summary["sepo/nash_conv"] == last["exact/nash_conv"]
    small_config["sepo"]["steps"] = 3
    with pytest.raises(ValueError, match="trained for 7 steps"):
        train(
            small_config, run_directory=runs[1], resume=True, allow_change=("sepo.steps",),
            progress=False,
        )  # fmt: skip


@pytest.mark.slow
def test_a_run_leaves_every_file_and_four_timings(small_config, tmp_path):  # H04
    small_config["sepo"]["steps"] = 2
    run = train(small_config, run_directory=tmp_path / "run", progress=False)
    for name in (*SAME, "timings.jsonl", "report.html", "policy/config.json", "checkpoints"):
        assert (run.directory / name).exists(), name
    timings = read_lines(run.directory / "timings.jsonl")
    phases = {"generate", "environment", "score", "update", "peak_host_bytes"}
    assert all(phases <= line.keys() for line in timings)
    assert all(line["environment"] > 0 for line in timings if line["stage"] == "sepo")
    assert all(line["generate"] > 0 for line in timings)
    assert all(2**20 < line["peak_host_bytes"] < 2**40 for line in timings)
    assert any("evaluate" in line for line in timings)
    summary = run.summary
    assert summary["uniform/nash_conv"] == pytest.approx(11 / 12, abs=1e-6)  # F22
    assert summary["best_known/nash_conv"] == pytest.approx(0, abs=1e-6)
    for stage in ("untrained", "sft", "sepo"):
        assert 0 <= summary[f"{stage}/nash_conv"] <= 4
        assert 0 <= summary[f"{stage}/illegal_mass"] <= 1
    # The held-out loss of a nearly untrained policy is near that of uniform tokens, log 300 = 5.7.
    evaluated = read_lines(run.directory / "metrics.jsonl")[2]
    assert evaluated["stage"] == "sft" and 5.0 < evaluated["validation_loss"] < 6.5
    # Replies are sampled token ids under the log-probabilities that the trainer finds again.
    last = read_lines(run.directory / "metrics.jsonl")[-1]
    assert last["ratio"] == pytest.approx(1.0, abs=1e-4)
    assert last["failed_rollouts"] == summary["sepo/failed_rollouts"] == 0


def without_warm_start(config):
    config["sft"]["steps"] = 0
    config["sepo"]["steps"] = 1
    return config


def test_a_nan_stops_the_run_with_step_and_metric_named(small_config, tmp_path):
    def broken(params, batch):
        return jnp.sum(params["norm"]["scale"]) * jnp.nan, {}

    with pytest.raises(NonFiniteError, match="loss is nan at step 1 of stage sepo"):
        train(
            without_warm_start(small_config), broken, run_directory=tmp_path / "run", progress=False
        )
    assert not (tmp_path / "run/report.html").exists()
    assert not (tmp_path / "run/metrics.jsonl").exists()


@pytest.mark.slow
def test_the_own_losses_of_the_readme_train(small_config, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text[text.index("## An own loss") : text.index("## An own game")]
    blocks = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert len(blocks) == 3
    exec(blocks[0], {})
    used = []
    # An untrained policy's replies are all unparsable: only other deals make rewards differ.
    small_config["sepo"] |= {"group_by": "opponent", "groups_per_opponent": 6}

    def recorded(config, objective, run_directory):
        used.append(objective)
        run = train(config, objective, run_directory=tmp_path / f"run{len(used)}", progress=False)
        return read_lines(run.directory / "metrics.jsonl")[-1]

    for block in blocks[1:]:
        code = block.replace("from sepo_jax.training import train\n", "")
        names = {"train": recorded, "config": without_warm_start(small_config)}
        exec(code, names)
        assert names["run"]["gradient_norm"] > 0
    assert used[0].surrogate is not ALGORITHMS["grpo"].surrogate
    assert "my_loss" in names["run"]
    recorded_as = [
        json.loads((tmp_path / f"run{n}/config.json").read_text())["objective"] for n in (1, 2)
    ]
    assert recorded_as[0] == "Algorithm grpo surrogate=unclipped"
    assert recorded_as[1].endswith(":my_loss")


def test_an_objective_that_does_not_exist_is_named(small_config, tmp_path):
    small_config["objective"] = "no_such_module:loss"
    with pytest.raises(ValueError, match=r"no_such_module:loss.*my_module:my_function"):
        train(small_config, run_directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("section", "field", "value", "message"),
    [
        ("algorithm", "name", "grop", "Did you mean 'grpo'"),
        ("algorithm", "overrides", {"clip_hihg": 0.3}, "Did you mean 'clip_high'"),
        ("domain", "name", "kuhm", "Did you mean 'kuhn'"),
        ("domain", "on_invalid", "forfiet", "Did you mean 'forfeit'"),
        ("sepo", "credit", "per_rolout", "Did you mean 'per_rollout'"),
        ("sepo", "exploiter_pool", ("best_respons",), "Did you mean 'best_response'"),
        ("sepo", "group_by", "promt", "Did you mean 'prompt'"),
        ("rollout", "top_p", 0.9, "top_p=0.9"),
        ("parallel", "kind", "pmpa", "Did you mean 'pmap'"),
        ("optimizer", "on_nonfinite", "skipp", "Did you mean 'skip'"),
        ("policy", "source", "/absent", "no directory|describe a fresh policy"),
        ("parallel", "fsdp", 2, "axes of a mesh"),
        ("sepo", "groups_per_opponent", 3, "must be even"),
        ("policy", "num_kv_heads", 3, "not a multiple of num_kv_heads"),
        ("algorithm", "name", "ppo", "algorithm 'ppo' has baseline='critic'.*value_head=True"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(
    small_config, tmp_path, section, field, value, message
):  # G02, A10
    small_config[section][field] = value
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        train(small_config, run_directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()
