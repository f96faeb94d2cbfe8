"""Runs a config and writes a trace of the chosen steps, of host and device, with Python's calls.

    python experiments/profile_run.py --config=configs/sepo/kuhn.py:runlocal --first=3 --last=4 \\
        --output=traces/kuhn

The run lies in `<output>/run`; it ends one step after the last that is traced, and its report says
how long each phase took. Traced steps take longer. (A module `profile` here would hide the standard
library's from every program of this directory.)
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import jax
from absl import flags
from ml_collections import config_flags

from sepo_jax.names import check_option
from sepo_jax.training import read_settings, train
from sepo_jax.training.command_line import run_main
from sepo_jax.training.stage_runner import STAGES

CONFIG = config_flags.DEFINE_config_file("config", lock_config=True)
FIRST = flags.DEFINE_integer("first", 3, "first step of the stage that is traced, from 1")
LAST = flags.DEFINE_integer("last", 5, "last step that is traced")
STAGE = flags.DEFINE_string("stage", "", "sft, sepo or rl; default: the last that the config has")
OUTPUT = flags.DEFINE_string("output", "", "directory of the run and of the trace, a new one")
PYTHON = flags.DEFINE_bool("python", True, "record Python's calls, which slows the steps")
DEBUG = flags.DEFINE_bool("debug", False, "show the traceback of a user error")


class Tracer:
    """`train(around_step=)`: traces the steps first to last of a stage into a directory."""

    def __init__(self, stage: str, first: int, last: int, output: Path, python: bool):
        self.stage, self.first, self.last, self.output = stage, first, last, output
        self.options = jax.profiler.ProfileOptions()
        self.options.python_tracer_level = int(python)

    @contextlib.contextmanager
    def __call__(self, stage: str, step: int) -> Iterator[None]:
        """The context of a step."""
        if stage != self.stage or not self.first <= step <= self.last:
            yield
            return
        if step == self.first:
            jax.profiler.start_trace(self.output, profiler_options=self.options)
        ended = False
        try:
            with jax.profiler.StepTraceAnnotation(stage, step_num=step):
                yield
            ended = step == self.last
        except BaseException:
            ended = True
            raise
        finally:
            if ended:
                jax.profiler.stop_trace()


def chosen_stage(settings, name: str, first: int, last: int) -> str:
    """The stage that is traced; ValueError where it does not have these steps."""
    steps = {stage: getattr(settings, stage).steps for stage in STAGES}
    stage = name or max((s for s in STAGES if steps[s]), key=STAGES.index, default="rl")
    check_option("--stage", stage, STAGES)
    if not 1 <= first <= last <= steps[stage]:
        raise ValueError(
            f"--first={first} and --last={last} must be steps of stage {stage}, 1 to "
            f"{steps[stage]}, in this order; choose others, or raise --config.{stage}.steps"
        )
    return stage


def main() -> None:
    """Runs, traces, and says where the trace is."""
    if CONFIG.value is None or not OUTPUT.value:
        raise ValueError("give a config file and a directory: --config=... --output=traces/kuhn")
    config, output = CONFIG.value, Path(OUTPUT.value)
    stage = chosen_stage(read_settings(config), STAGE.value, FIRST.value, LAST.value)
    config[stage].steps = min(config[stage].steps, LAST.value + 1)
    tracer = Tracer(stage, FIRST.value, LAST.value, output, PYTHON.value)
    run = train(config, run_directory=output / "run", around_step=tracer)
    for path in sorted(output.rglob("*.trace.json.gz")):
        print(f"trace: {path}: open it in https://ui.perfetto.dev or chrome://tracing")
    print(f"or, after pip install xprof: xprof --logdir={output}")
    print(f"report: {run.directory / 'report.html'}: seconds by phase under Time")


if __name__ == "__main__":
    run_main(main)
