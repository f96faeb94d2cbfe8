"""The processes that `benchmark_step.py` compares: starting them, taking turns, figures of each."""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sepo_jax.evaluation.results import source_commit, write_result

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "benchmark_step.json"
PHASES = ("generate", "score", "update")
COLUMNS = ["work", "side", *(f"{phase} s" for phase in PHASES), "step s", "tokens/s", "peak GB"]

# Settings that all workloads share.
FIXED = {
    "learning_rate": 1e-6,
    "beta": 0.04,
    "lora_alpha": 32.0,
    "lora_targets": ["q_proj", "k_proj", "v_proj", "o_proj"],
}

PEER_HINT = """--peer=trl runs TRL with a Python of its own, since it brings other versions of \
what this package uses. {problem} Make one and name it:
  python -m venv trl_environment
  trl_environment/bin/pip install torch --index-url https://download.pytorch.org/whl/cpu
  trl_environment/bin/pip install trl peft
  python experiments/benchmark_step.py --peer=trl --peer_python=trl_environment/bin/python"""


def check_peer(python: str) -> str:
    """The peer's Python, which must import trl and peft.

    Raises:
      FileNotFoundError: there is none, or it lacks them; says how to make one.
    """
    if not python:
        raise FileNotFoundError(PEER_HINT.format(problem="--peer_python names none."))
    try:
        command = [python, "-c", "import trl, peft, torch"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        problem = f"{python!r} cannot be run ({error.strerror})."
        raise FileNotFoundError(PEER_HINT.format(problem=problem)) from error
    if found.returncode:
        last = found.stderr.strip().splitlines()[-1:] or ["no message"]
        problem = f"{python!r} does not import trl, peft and torch ({last[0]})."
        raise FileNotFoundError(PEER_HINT.format(problem=problem))
    return python


def make_prompts(tokenizer: Any, count: int, length: int, seed: int) -> tuple[list, list]:
    """Texts of about `length` tokens and their ids; other text for every prompt."""
    texts, all_ids = [], []
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        text, ids = "", []
        while len(ids) < length + 8:
            hand, act = draw.choice(("jack", "queen", "king")), draw.choice(("bets", "checks"))
            text += f"Player {draw.randrange(9)} holds the {hand} and {act} {draw.randrange(99)}. "
            ids = tokenizer.encode(text, add_special_tokens=False)
        # A text cut between two tokens may read as others: both sides must read these.
        for cut in range(length, 0, -1):
            text = tokenizer.decode(ids[:cut])
            if tokenizer.encode(text) == ids[:cut]:
                break
        texts.append(text)
        all_ids.append(ids[:cut])
    return texts, all_ids


class Side:
    """One process that takes steps when told to; use as a context."""

    def __init__(self, name: str, python: str, script: str):
        self.name, self._command = name, [python, str(HERE / script)]

    def __enter__(self) -> "Side":
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=HERE.parent,
        )
        return self

    def __exit__(self, *_) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def ask(self, message: Mapping) -> dict[str, Any]:
        """Sends a message and waits for its answer.

        Raises:
          ConnectionError: the process ended; shows what it printed last.
        """
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the reason is in what it printed
        answer = self._process.stdout.readline()
        if answer:
            return json.loads(answer)
        self._errors.seek(0)
        last = "".join(self._errors.readlines()[-15:])
        raise ConnectionError(f"the process of {self.name} ended; it printed last:\n{last}")


def take_turns(sides: Sequence[Side], work: Mapping, steps: int, progress) -> tuple[dict, dict]:
    """Steps of every side in turn, one at work at a time.

    Returns:
      medians by side: seconds of each phase and of the step, tokens a second, peaks in bytes; and
      what each side said of itself when it was ready.
    """
    taken: dict[str, list[dict]] = {side.name: [] for side in sides}
    ready = {}
    for side in sides:
        ready[side.name] = side.ask(work)
        side.ask({"step": 0})  # compiles and fills caches
    for step in progress(range(1, steps + 1)):
        for side in sides if step % 2 else sides[::-1]:
            taken[side.name].append(side.ask({"step": step, "reset_peak": step == 1}))
    figures = {}
    for name, answers in taken.items():
        figures[name] = {
            phase: statistics.median(answer[phase] for answer in answers) for phase in PHASES
        }
        wholes = [sum(answer[phase] for phase in PHASES) for answer in answers]
        figures[name]["step"] = statistics.median(wholes)
        figures[name]["rate"] = answers[0]["sampled"] / figures[name]["step"]
        figures[name]["entropy"] = statistics.mean(answer["entropy"] for answer in answers)
        figures[name]["peak"] = answers[-1]["peak"]
    return figures, ready


def table_rows(title: str, figures: Mapping[str, Mapping[str, float]]) -> list[list]:
    """A row a side, and the ratios of the second to the first where there are two."""
    names = (*PHASES, "step", "rate", "peak")
    rows = [
        [title, side, *(found[name] / (1e9 if name == "peak" else 1) for name in names)]
        for side, found in figures.items()
    ]
    if len(figures) == 2:
        own, peer = figures.values()
        times = [own[n] / peer[n] if n == "rate" else peer[n] / own[n] for n in names]
        rows.append([title, "times better", *times])
    return rows


def chosen_sides(peer_python: str) -> list[Side]:
    """This package, and TRL where its Python is given."""
    sides = [Side("sepo_jax", sys.executable, "step_ours.py")]
    return sides + ([Side("TRL", peer_python, "step_trl.py")] if peer_python else [])


NOTES = (
    "A step samples 16 completions of 32 tokens for two prompts, scores them under the reference "
    "policy and takes one AdamW step on the GRPO loss with a KL term of weight 0.04. Temperature "
    "1, whole softmax, no end token, one update a batch; no activations are recomputed. bfloat16 "
    "is that of the products, over float32 parameters. Medians of {steps} steps, sides in turn on "
    "the same cores; the first step of each is left out."
)


def write_table(rows: list, versions: dict, peer: str, seed: int, steps: int) -> Path:
    """Writes the table where README's renderer looks for it."""
    options = "" if peer == "none" else f"--peer={peer} --peer_python=... "
    result = {
        "title": "One GRPO step of SmolLM2-135M",
        "command": f"python experiments/benchmark_step.py {options}--seed={seed} --write",
        "seeds": [seed],
        "commit": source_commit(),
        "versions": versions | {"hardware": f"{os.cpu_count()} CPU cores"},
        "columns": COLUMNS,
        "rows": rows,
        "notes": NOTES.format(steps=steps),
    }
    return write_result(RESULT, result)
