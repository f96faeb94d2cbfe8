"""Command lines: typos are refused with the nearest name, before anything runs."""

import subprocess
import sys
from pathlib import Path

import pytest

from sepo_jax.training.command_line import (
    check_overrides,
    load_config,
    load_sweep,
    parse_argument,
)

ROOT = Path(__file__).parents[2]
KUHN = str(ROOT / "configs/sepo/kuhn.py")


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--config.sed=1", "Did you mean 'seed'"),
        ("--config.sft.lerning_rate=1", "Did you mean 'learning_rate'"),
        ("--config.seed.more=1", "is a value, not a section"),
    ],
)
def test_an_unknown_override_is_refused(flag, message):  # G02
    with pytest.raises(ValueError, match=message):
        check_overrides(["train.py", f"--config={KUHN}", flag])


def test_known_overrides_pass():
    check_overrides(["train.py", f"--config={KUHN}", "--config.sft.learning_rate=0.1"])
    check_overrides(["train.py", "--config", f"{KUHN}:runlocal", "--config.seed=1"])


def test_overrides_in_a_flag_file_are_checked(tmp_path):  # G04
    file = tmp_path / "flags"
    file.write_text("--config.sed=7\n")
    with pytest.raises(ValueError, match="Did you mean 'seed'"):
        check_overrides(["train.py", f"--config={KUHN}", f"--flagfile={file}"])


def test_a_missing_config_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no config file"):
        load_config(str(tmp_path / "absent.py"))


def test_runs_of_a_sweep(tmp_path):
    assert load_sweep(f"{KUHN}:runlocal") == [{"seed": seed} for seed in range(3)]
    path = tmp_path / "mine.py"
    for text in ("", "def sweep(add):\n    pass\n"):
        path.write_text(f"def get_config():\n    pass\n{text}")
        with pytest.raises(ValueError, match=r"defines no sweep\(add\) that adds a run"):
            load_sweep(str(path))


def test_config_arguments():
    read = parse_argument("a=3,b,c=x", a=1, b=False, c="")
    assert read == {"a": 3, "b": True, "c": "x"}
    assert parse_argument(None, a=1) == {"a": 1}
    with pytest.raises(ValueError, match="Did you mean 'runlocal'"):
        parse_argument("runlokal", runlocal=False)
    with pytest.raises(ValueError, match="must be a int, got 'x'"):
        parse_argument("a=x", a=1)
    for argument in ("a", "a=", "b,a= "):
        with pytest.raises(ValueError, match="a needs a value: a="):
            parse_argument(argument, a="", b=False)
    with pytest.raises(ValueError, match="a is given twice"):
        parse_argument("a=x,b,a=x", a="", b=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config=configs/sepo/kuhn.py", "--config.sft.lerning_rate=1"], "learning_rate"),
        (["--config=configs/sepo/kuhn.py:polcy=x"], "Did you mean 'policy'"),
        (["--config=configs/sepo/kuhn.py:policy=/absent"], "no directory"),
        (["--config=configs/sepo/none.py"], "no config file"),
        ([], "give a config file"),
    ],
)
def test_the_main_ends_with_one_line(arguments, message, tmp_path):
    done = subprocess.run(
        [sys.executable, "experiments/train.py", f"--runs={tmp_path}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_sigterm_ends_a_run_whose_environment_plays_in_this_process(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal\n"
        "from sepo_jax.sandbox import Call, InProcessPool\n"
        "from sepo_jax.training.command_line import run_main\n"
        "class Environment:\n"
        "    def __init__(self, scratch): print(scratch.parent, flush=True)\n"
        "    def reset(self, task, seed): os.kill(os.getpid(), signal.SIGTERM)\n"
        "    def close(self): print('closed')\n"
        "def main():\n"
        "    with InProcessPool(Environment) as pool:\n"
        "        pool.submit(Call(1, 1, 'reset', (None, 0)))\n"
        "    print('went on')\n"
        "run_main(main)\n"
    )
    command = [sys.executable, str(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 143, done.stderr
    scratch, closed = done.stdout.splitlines()
    assert closed == "closed" and not Path(scratch).exists()
    assert done.stderr == "terminated; a training run goes on with --resume\n"
