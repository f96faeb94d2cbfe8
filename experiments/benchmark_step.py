"""Seconds and memory of one GRPO step of SmolLM2-135M, beside TRL on the same machine.

    python experiments/get_smollm2.py               # once: fetches the weights
    python experiments/benchmark_step.py            # this package alone
    python experiments/benchmark_step.py --peer=trl --peer_python=trl_environment/bin/python --write

A step samples a group of completions for each prompt, scores them under a reference policy and
takes one AdamW step on the GRPO loss with a KL term. Every side is a process of its own; they take
turns on the same cores. Medians of all steps but the first. --write feeds README's table.
"""

import contextlib
from functools import partial
from pathlib import Path

from absl import flags
from step_sides import (
    COLUMNS,
    FIXED,
    check_peer,
    chosen_sides,
    make_prompts,
    table_rows,
    take_turns,
    write_table,
)
from tqdm import tqdm

from sepo_jax.evaluation.results import format_cell
from sepo_jax.policy import load_tokenizer
from sepo_jax.training.command_line import run_main

ROOT = Path(__file__).resolve().parents[1]
MODEL = flags.DEFINE_string("model", str(ROOT / "models" / "smollm2-135m"), "HF directory")
PEER = flags.DEFINE_enum("peer", "none", ["none", "trl"], "whom to compare with")
PEER_PYTHON = flags.DEFINE_string("peer_python", "", "Python of an environment that holds trl")
STEPS = flags.DEFINE_integer("steps", 3, "measured steps of each side", lower_bound=1)
LENGTHS = flags.DEFINE_multi_integer("prompt_tokens", [60, 250], "tokens of a prompt; repeatable")
PRECISIONS = flags.DEFINE_multi_enum(
    "precision", ["float32"], ["float32", "bfloat16"], "of products; repeatable"
)
LORA = flags.DEFINE_multi_integer("lora_rank", [0], "0 trains all parameters; repeatable")
PROMPTS = flags.DEFINE_integer("prompts", 2, "prompts of a step", lower_bound=1)
GROUP = flags.DEFINE_integer("group", 8, "completions of a prompt", lower_bound=2)
TOKENS = flags.DEFINE_integer("completion_tokens", 32, "tokens of a completion", lower_bound=1)
SEED = flags.DEFINE_integer("seed", 0, "seed of prompts and sampling")
WRITE = flags.DEFINE_bool("write", False, "write experiments/results/benchmark_step.json")
DEBUG = flags.DEFINE_bool("debug", False, "show the traceback of a user error")


def measure(prompts: tuple, precision: str, rank: int, peer_python: str) -> tuple[list, dict]:
    """Rows of one workload, and the versions of all that ran."""
    texts, ids = prompts
    trained = f"adapters of rank {rank}" if rank else "all parameters"
    title = f"prompts of {max(map(len, ids))}, {trained}, {precision}"
    work = {
        "model": MODEL.value,
        "prompts": texts,
        "prompt_ids": ids,
        "group": GROUP.value,
        "completion_tokens": TOKENS.value,
        "precision": precision,
        "lora_rank": rank,
        "seed": SEED.value,
    }
    progress = partial(tqdm, desc=title)
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(side) for side in chosen_sides(peer_python)]
        figures, ready = take_turns(sides, work | FIXED, STEPS.value, progress)
    for name, found in figures.items():
        print(f"{name}: {ready[name]['trained']:,} trained; {found['entropy']:.3f} nats a token")
    versions = {k: v for side in ready.values() for k, v in side["versions"].items()}
    return table_rows(title, figures), versions


def main() -> None:
    """Measures, prints the table, and writes it when asked to."""
    if not (Path(MODEL.value) / "config.json").is_file():
        raise FileNotFoundError(
            f"--model={MODEL.value} holds no model: run python experiments/get_smollm2.py, or name "
            "a Hugging Face directory"
        )
    peer_python = check_peer(PEER_PYTHON.value) if PEER.value == "trl" else ""
    tokenizer = load_tokenizer(MODEL.value)
    rows, versions = [], {}
    for precision in PRECISIONS.value:
        for rank in LORA.value:
            for length in LENGTHS.value:
                prompts = make_prompts(tokenizer, PROMPTS.value, length, SEED.value)
                found, seen = measure(prompts, precision, rank, peer_python)
                rows, versions = rows + found, versions | seen
    for row in [COLUMNS, *rows]:
        print("  ".join(map(format_cell, row)))
    if WRITE.value:
        print(f"wrote {write_table(rows, versions, PEER.value, SEED.value, STEPS.value)}")


if __name__ == "__main__":
    run_main(main)
