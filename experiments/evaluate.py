"""Judges a policy: match play against every pool, and where the game is compiled exact NashConv.

python experiments/evaluate.py --run=runs/sepo_kuhn_seed0          # also writes evaluation.json
python experiments/evaluate.py --policy=<Hugging Face directory>   # Kuhn poker, single hands
python experiments/evaluate.py --policy=<directory> --games=ipd,auction

Or a policy or any endpoint on matrix games, with the flags of matrix_scores.py:

python experiments/evaluate.py --benchmark=matrix --policy=<directory>
python experiments/evaluate.py --endpoint=http://localhost:8000/v1 --model=<name>
"""

import dataclasses
from pathlib import Path

import jax
import matrix_scores
from absl import flags

from sepo_jax.evaluation import evaluate_policy, write_report
from sepo_jax.evaluation.complete import render_text
from sepo_jax.policy import Sampling, load
from sepo_jax.training.command_line import run_main
from sepo_jax.training.run_directory import RunDirectory, finished_policy
from sepo_jax.training.settings import DomainSettings, EvaluationSettings, Settings
from sepo_jax.training.setup import engine_options, make_domain, make_pool
from sepo_jax.training.tasks import make_tasks

RUN = flags.DEFINE_string("run", "", "directory of a finished run")
POLICY = flags.DEFINE_string("policy", "", "Hugging Face directory of a policy, instead of a run")
GAMES = flags.DEFINE_list("games", ["kuhn"], "games that a --policy plays; a run has its own")
EPISODES = flags.DEFINE_integer("episodes", 200, "episodes against each opponent", lower_bound=2)
SEED = flags.DEFINE_integer("seed", 0, "seed of deals, opponents and samples", lower_bound=0)
TEMPERATURE = flags.DEFINE_float("temperature", 1.0, "of the sampler and of the exact table")
SLOTS = flags.DEFINE_integer("slots", 64, "contexts decoded at once", lower_bound=1)
WEIGHTS = flags.DEFINE_list("weights", [], "of e, c, x in the safety of a --policy")
BENCHMARK = flags.DEFINE_enum("benchmark", "matches", ["matches", "matrix"], "what to judge by")
DEBUG = flags.DEFINE_bool("debug", False, "show the traceback of a user error")


def find_policy() -> tuple[Path, Settings]:
    """The policy directory and the settings it was trained with (defaults for a bare policy).

    Raises:
      ValueError: neither or both of --run and --policy, or a config that cannot be read.
      FileNotFoundError: the run has no config or no policy yet.
    """
    if bool(RUN.value) == bool(POLICY.value):
        raise ValueError("give either --run=runs/<name> or --policy=<Hugging Face directory>")
    if POLICY.value:
        games = tuple(GAMES.value)
        chosen = {"games": games} if len(games) > 1 else {"name": games[0] if games else ""}
        judged = EvaluationSettings(weights=tuple(map(float, WEIGHTS.value)))
        return Path(POLICY.value), Settings(domain=DomainSettings(**chosen), evaluation=judged)
    return finished_policy(RUN.value)


def main() -> None:
    """Evaluates, prints, and for a run writes evaluation.json and the report again."""
    if BENCHMARK.value == "matrix" or matrix_scores.ENDPOINT.value:
        source = find_policy()[0] if RUN.value or POLICY.value else None
        matrix_scores.score_model(source, RUN.value, SEED.value, TEMPERATURE.value)
        return
    matrix_scores.refuse_unread(matrix_scores.OF_MATRIX, "--benchmark=matrix")
    directory, settings = find_policy()
    policy, params = load(directory)
    domain = make_domain(settings.domain)
    options = engine_options(settings, Sampling(temperature=TEMPERATURE.value))
    options = dataclasses.replace(
        options, slots=SLOTS.value, devices=min(options.devices, jax.local_device_count())
    )
    records = {}
    with make_pool(settings.sandbox, domain) as environments:
        for task in make_tasks(settings, domain):
            records[task.name] = evaluate_policy(
                policy,
                params,
                task.domain,
                task.game,
                episodes=EPISODES.value,
                seed=SEED.value,
                weights=task.judged,
                options=options,
                environments=environments,
                label=task.label,
                progress=True,
            )
            heading = f"{task.name}\n" if task.label else ""
            print(f"{heading}{render_text(records[task.name])}\n")
    record = {"games": records} if len(records) > 1 else records[task.name]
    if RUN.value:
        run = RunDirectory(RUN.value)
        run.write_json("evaluation.json", record)
        print(f"written: {run.path / 'evaluation.json'}, {write_report(run.path)}")


if __name__ == "__main__":
    run_main(main)
