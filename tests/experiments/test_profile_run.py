"""experiments/profile_run.py: traces of chosen steps, and of no others."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def profile(config, output, *more):
    command = [
        sys.executable, "experiments/profile_run.py", f"--config=configs/saved.py:{config}",
        f"--output={output}", *more,
    ]  # fmt: skip
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)


@pytest.fixture
def config(tmp_path):
    values = {
        "name": "small",
        "policy": {
            "vocab_size": 300, "hidden_size": 16, "num_layers": 1, "num_heads": 2,
            "num_kv_heads": 1, "intermediate_size": 32,
        },
        "sft": {"steps": 9, "num_decisions": 40, "batch_size": 8},
        "sepo": {"steps": 0},
        "evaluation": {"every": 50, "match_episodes": 2, "untrained": False},
        "parallel": {"kind": "single"},
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    return path


@pytest.mark.slow
def test_the_chosen_steps_are_traced_and_the_run_ends_one_later(config, tmp_path):
    output = tmp_path / "trace"
    done = profile(config, output, "--first=2", "--last=3", "--nopython")
    assert done.returncode == 0, done.stderr
    (trace,) = output.rglob("*.trace.json.gz")
    assert f"trace: {trace}" in done.stdout and "perfetto" in done.stdout
    assert f"report: {output / 'run/report.html'}" in done.stdout
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    steps = {
        int(event["args"]["step_num"]) for event in events if "step_num" in event.get("args", {})
    }
    assert steps == {2, 3}
    lines = (output / "run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--first=3", "--last=2"), "steps of stage sft, 1 to 9, in this order"),
        (("--first=8", "--last=10"), "raise --config.sft.steps"),
        (("--stage=stf",), "Did you mean 'sft'"),
        (("--stage=rl", "--first=1", "--last=1"), "steps of stage rl, 1 to 0"),
    ],
)
def test_steps_that_the_stage_does_not_have_are_refused(config, tmp_path, flags, message):
    done = profile(config, tmp_path / "trace", *flags)
    assert done.returncode == 2 and message in done.stderr
    assert not (tmp_path / "trace").exists()
