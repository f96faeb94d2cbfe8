"""Scores a checkpoint or an endpoint on the matrix benchmark, for evaluate.py.

python experiments/evaluate.py --benchmark=matrix --policy=models/smollm2-135m --greedy
python experiments/evaluate.py --benchmark=matrix --run=runs/<name> --arms=dense/2,dense/3
python experiments/evaluate.py --endpoint=http://localhost:8000/v1 --model=<name> --count=50

--policy takes a Hugging Face directory, a .gguf file, a named model or a hub id; --run the policy
of a finished run. An endpoint is any that speaks OpenAI's chat completions; its key, where it wants
one, is read from the environment variable OPENAI_API_KEY. A table is printed, and everything with
all replies goes to one JSON file. With --table=<name> the rows also go to the results table
experiments/results/<name>.json, under the name that --label gives the model; rows of other models
in it stay.
"""

import importlib.metadata
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from absl import flags

from sepo_jax.evaluation.endpoint import Endpoint
from sepo_jax.evaluation.files import locked, replace_text
from sepo_jax.evaluation.matrix_report import (
    RESULT_COLUMNS,
    endpoint_replies,
    judge_replies,
    merge_result_rows,
    policy_replies,
    render_table,
    result_rows,
)
from sepo_jax.evaluation.matrix_tasks import ARMS, benchmark_tasks
from sepo_jax.evaluation.results import load_result, rows_of, source_commit, write_result
from sepo_jax.policy import Sampling, load
from sepo_jax.training.judge import PACKAGES

ENDPOINT = flags.DEFINE_string("endpoint", "", "base URL, scored on the matrix benchmark")
MODEL = flags.DEFINE_string("model", "", "name of the endpoint's model")
WANTED = flags.DEFINE_list("arms", list(ARMS), "arms of the matrix benchmark")
COUNT = flags.DEFINE_integer("count", 100, "matrix games an arm", lower_bound=1)
GREEDY = flags.DEFINE_bool("greedy", False, "matrix games: the most probable tokens")
MAX_TOKENS = flags.DEFINE_integer("max_tokens", 256, "of a reply to a matrix game", lower_bound=1)
OUT = flags.DEFINE_string("out", "", "JSON file of matrix scores; a run's own by default")
CONCURRENCY = flags.DEFINE_integer("concurrency", 8, "requests to an endpoint at once", 1)
TIMEOUT = flags.DEFINE_float("timeout", 120.0, "seconds of silence that end a try of a request")
RETRIES = flags.DEFINE_integer("retries", 4, "further tries of a request", lower_bound=0)
TABLE = flags.DEFINE_string("table", "", "results table that the matrix scores go to as well")
LABEL = flags.DEFINE_string("label", "", "what --table calls the model; by default its source")
RESULTS = flags.DEFINE_string(
    "results", str(Path(__file__).resolve().parent / "results"), "directory of results tables"
)
FILE = "matrix_scores.json"
GREEDILY = Sampling(greedy=True)
# Flags that something reads only together with another one, and those of matrix games at all.
OF_ENDPOINTS = ("model", "concurrency", "timeout", "retries")
OF_TABLES = ("label", "results")
OF_MATCHES = ("games", "episodes", "slots", "weights")
OF_MATRIX = (
    *("arms", "count", "greedy", "max_tokens", "out", "table"),
    *OF_ENDPOINTS,
    *OF_TABLES,
)


def refuse_unread(names: Sequence[str], readers: str) -> None:
    """ValueError for a flag of `names` that was given; `readers` says what alone reads it."""
    for name in names:
        if flags.FLAGS[name].present:
            raise ValueError(f"--{name} is read by {readers} alone: leave it out")


def score_model(source: Path | None, run: str, seed: int, temperature: float) -> None:
    """Scores, prints the table and writes the file.

    Args:
      source: of a policy, see `policy.load`; None for the endpoint of the flags.
      run: the run whose policy it is, "" for none.
      seed: of games and samples.
      temperature: of sampling, unless --greedy.

    Raises:
      ValueError: both or neither of a policy and an endpoint, or a flag that nothing would read.
      FileNotFoundError: no directory to write into, or one where the file is to be.
    """
    refuse_unread(OF_MATCHES, "match play")
    if not ENDPOINT.value:
        refuse_unread(OF_ENDPOINTS, "--endpoint")
    if not TABLE.value:
        refuse_unread(OF_TABLES, "--table")
    if GREEDY.value:
        refuse_unread(("temperature",), "sampling, not by --greedy,")
    if (source is None) != bool(ENDPOINT.value):
        raise ValueError(
            "--benchmark=matrix scores one of --policy=<checkpoint>, --run=runs/<name> and "
            "--endpoint=<URL>"
        )
    out = Path(OUT.value or Path(run) / FILE)
    if not out.parent.is_dir():
        raise FileNotFoundError(f"no directory {out.parent} to write {out.name} into; make it")
    if out.is_dir():
        raise FileNotFoundError(f"--out={out} is a directory; name a file, such as {out / FILE}")
    table = Path(RESULTS.value) / f"{TABLE.value}.json" if TABLE.value else None
    if table:
        rows_of(table, RESULT_COLUMNS)  # another table is refused before anything is scored
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
    if table:
        print(f"written: {write_table(table, record)}")


def write_table(path: Path, record: Mapping) -> Path:
    """Puts the rows of a scored model into a results table; ValueError for another table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.parent):
        old = rows_of(path, RESULT_COLUMNS)
        commits = {record["commit"]} | ({load_result(path)["commit"]} if old else set())
        rows = merge_result_rows(old, result_rows(record, LABEL.value or record["model"]))
        return write_result(path, table_of(rows, commits, record))


def table_of(rows: list, commits: set[str], record: Mapping) -> dict:
    """The results table of all models scored so far, the last of them in `record`."""
    # Where files are written changes no figure.
    told = [word for word in sys.argv[1:] if not word.startswith(("--out=", "--results="))]
    return {
        "title": "Matrix games: shares of valid answers and of success, by arm and model.",
        "command": shlex.join(["python", "experiments/evaluate.py", *told]),
        "seeds": [record["seed"]],
        "commit": commits.pop() if len(commits) == 1 else "several",
        "versions": {package: importlib.metadata.version(package) for package in PACKAGES},
        "columns": list(RESULT_COLUMNS),
        "rows": rows,
        "notes": (
            "Success: a valid answer whose two-sided residual is at most a tenth of the payoff "
            "range, with Wilson's 95% interval over the games; the last three columns are the "
            "successes of uniform play, of the best pure profile and of the exact solver on the "
            f"same games. Temperature {record['temperature']:g} (0 is greedy). The command is that "
            "of the last model."
        ),
    }


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
