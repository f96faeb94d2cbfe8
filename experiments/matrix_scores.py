"""Scores a checkpoint or an endpoint on the matrix benchmark, for evaluate.py.

python experiments/evaluate.py --benchmark=matrix --policy=models/smollm2-135m --greedy
python experiments/evaluate.py --benchmark=matrix --run=runs/<name> --arms=dense/2,dense/3
python experiments/evaluate.py --endpoint=http://localhost:8000/v1 --model=<name> --count=50

--policy takes a Hugging Face directory, a .gguf file, a named model or a hub id; --run the policy
of a finished run. An endpoint is any that speaks OpenAI's chat completions; its key, where it wants
one, is read from the environment variable OPENAI_API_KEY. A table is printed, and everything with
all replies goes to one JSON file.
"""

import json
from pathlib import Path

from absl import flags

from sepo_jax.evaluation.endpoint import Endpoint
from sepo_jax.evaluation.files import replace_text
from sepo_jax.evaluation.matrix_report import (
    endpoint_replies,
    judge_replies,
    policy_replies,
    render_table,
)
from sepo_jax.evaluation.matrix_tasks import ARMS, benchmark_tasks
from sepo_jax.evaluation.results import source_commit
from sepo_jax.policy import Sampling, load

ENDPOINT = flags.DEFINE_string("endpoint", "", "base URL, scored on the matrix benchmark")
MODEL = flags.DEFINE_string("model", "", "name of the endpoint's model")
WANTED = flags.DEFINE_list("arms", list(ARMS), "arms of the matrix benchmark")
COUNT = flags.DEFINE_integer("count", 100, "matrix games an arm", lower_bound=1)
GREEDY = flags.DEFINE_bool("greedy", False, "matrix games: the most probable tokens")
MAX_TOKENS = flags.DEFINE_integer("max_tokens", 256, "of a reply to a matrix game", lower_bound=1)
OUT = flags.DEFINE_string("out", "", "JSON file of matrix scores; a run's own by default")
CONCURRENCY = flags.DEFINE_integer("concurrency", 8, "requests to an endpoint at once", 1)
TIMEOUT = flags.DEFINE_float("timeout", 120.0, "seconds for one try of a request")
RETRIES = flags.DEFINE_integer("retries", 4, "further tries of a request", lower_bound=0)
FILE = "matrix_scores.json"
GREEDILY = Sampling(greedy=True)


def score_model(source: Path | None, run: str, seed: int, temperature: float) -> None:
    """Scores, prints the table and writes the file.

    Args:
      source: of a policy, see `policy.load`; None for the endpoint of the flags.
      run: the run whose policy it is, "" for none.
      seed: of games and samples.
      temperature: of sampling, unless --greedy.

    Raises:
      ValueError: both or neither of a policy and an endpoint.
      FileNotFoundError: no directory to write into.
    """
    if (source is None) != bool(ENDPOINT.value):
        raise ValueError(
            "--benchmark=matrix scores one of --policy=<checkpoint>, --run=runs/<name> and "
            "--endpoint=<URL>"
        )
    out = Path(OUT.value or Path(run) / FILE)
    if not out.parent.is_dir():
        raise FileNotFoundError(f"no directory {out.parent} to write {out.name} into; make it")
    temperature = 0.0 if GREEDY.value else temperature
    if source is None:
        endpoint = chosen_endpoint(temperature)
        arms = benchmark_tasks(COUNT.value, seed=seed, arms=WANTED.value)
        replies = endpoint_replies(endpoint, arms, progress=True)
    else:
        sampling = Sampling(temperature=temperature) if temperature else GREEDILY
        arms = benchmark_tasks(COUNT.value, seed=seed, arms=WANTED.value)
        policy, params = load(source)
        replies = policy_replies(
            policy,
            params,
            arms,
            sampling=sampling,
            max_tokens=MAX_TOKENS.value,
            seed=seed,
            progress=True,
        )
    record = {
        "benchmark": "matrix",
        "model": f"{MODEL.value} at {ENDPOINT.value}" if source is None else str(source),
        "temperature": temperature,
        "max_tokens": MAX_TOKENS.value,
        "seed": seed,
        "commit": source_commit(),
        **judge_replies(arms, replies, seed=seed),
    }
    print(render_table(record))
    replace_text(out, json.dumps(record, indent=1, allow_nan=False) + "\n")
    print(f"written: {out}")


def chosen_endpoint(temperature: float) -> Endpoint:
    """The endpoint of the flags; ValueError for what it cannot be."""
    return Endpoint(
        ENDPOINT.value,
        MODEL.value,
        temperature=temperature,
        max_tokens=MAX_TOKENS.value,
        concurrency=CONCURRENCY.value,
        timeout=TIMEOUT.value,
        retries=RETRIES.value,
    )
