"""The processes that `benchmark_step.py` compares: starting them, taking turns, figures of each."""

import contextlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from step_peers import PEERS
from tqdm import tqdm

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


def read_lengths(text: str) -> tuple[int, int]:
    """Tokens of a prompt and of a reply, of a text such as "60+32".

    Raises:
      ValueError: another text.
    """
    found = re.fullmatch(r"([1-9]\d*)\+([1-9]\d*)", text)
    if found is None:
        raise ValueError(
            f"--tokens={text} must be the tokens of a prompt and of a reply, such as 60+32"
        )
    return int(found[1]), int(found[2])


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

    def __init__(
        self, name: str, python: str, script: str, environment: Mapping[str, str] | None = None
    ):
        """A process named `name`, with these variables beside those of this one."""
        self.name, self._command = name, [python, str(HERE / script)]
        self._environment = {**os.environ, **(environment or {})}

    def __enter__(self) -> "Side":
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=HERE.parent,
            env=self._environment,
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
    """A row a side, and how much better the first is than each other one."""
    names = (*PHASES, "step", "rate", "peak")
    rows = [
        [title, side, *(found[name] / (1e9 if name == "peak" else 1) for name in names)]
        for side, found in figures.items()
    ]
    (_, own), *peers = figures.items()
    for side, peer in peers:
        times = [own[n] / peer[n] if n == "rate" else peer[n] / own[n] for n in names]
        rows.append([title, f"times better than {side}", *times])
    return rows


def compare(
    work: Mapping[str, Any], pythons: Mapping[str, str], steps: int
) -> tuple[list[list], dict[str, str]]:
    """Steps of this package, beside each of the peers of which a Python is given.

    Returns:
      Rows of the table, and the versions of all that ran.
    """
    rank, lengths = work["lora_rank"], map(len, work["prompt_ids"])
    title = (
        f"prompts of {max(lengths)}, replies of {work['completion_tokens']}, "
        f"{f'adapters of rank {rank}' if rank else 'all parameters'}, {work['precision']}"
    )
    rows, versions = [], {}
    # A peer at a time: together they want more memory than most machines have.
    for name in pythons or [""]:
        chosen = [Side("sepo_jax", sys.executable, "step_ours.py")]
        if name:
            chosen.append(Side(PEERS[name].title, pythons[name], PEERS[name].script))
        with contextlib.ExitStack() as stack:
            sides = [stack.enter_context(side) for side in chosen]
            figures, ready = take_turns(sides, work, steps, partial(tqdm, desc=title))
        for side, found in figures.items():
            trained, entropy = ready[side]["trained"], found["entropy"]
            print(f"{side}: {trained:,} trained; {entropy:.3f} nats a token")
            versions |= ready[side]["versions"]
        rows += table_rows(title, figures)
    return rows, versions


NOTES = (
    "A step samples {group} replies to each of {prompts} prompts, scores them under the reference "
    "policy and takes one AdamW step on the GRPO loss with a KL term of weight 0.04. Temperature "
    "1, whole softmax, no end token, one update a batch; no activations are recomputed. bfloat16 "
    "is that of the products, over float32 parameters. Medians of {steps} steps, a peer and this "
    "package in turn on the same cores, one peer after another; the first step of each is left out."
)


def write_table(rows: list, versions: dict, peers: Sequence[str], seed: int, **sizes: int) -> Path:
    """Writes the table where README's renderer looks for it; sizes are those of `NOTES`."""
    options = "".join(f"--peer={name} --peer_python=... " for name in peers)
    result = {
        "title": "One GRPO step of SmolLM2-135M",
        "command": f"python experiments/benchmark_step.py {options}--seed={seed} --write",
        "seeds": [seed],
        "commit": source_commit(),
        "versions": versions | {"hardware": f"{os.cpu_count()} CPU cores"},
        "columns": COLUMNS,
        "rows": rows,
        "notes": NOTES.format(**sizes),
    }
    return write_result(RESULT, result)
