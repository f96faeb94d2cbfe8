"""Seconds and memory of one GRPO step of SmolLM2-135M, beside TRL and Tunix on the same machine.

    python experiments/get_smollm2.py               # once: fetches the weights
    python experiments/benchmark_step.py            # this package alone
    python experiments/benchmark_step.py --peer=trl --peer_python=trl_environment/bin/python \\
        --peer=tunix --peer_python=tunix_environment/bin/python --write

A step samples a group of replies to each prompt, scores them under a reference policy and takes one
AdamW step on the GRPO loss with a KL term. Every side is a process of its own; they take turns on
the same cores. Medians of all steps but the first. --write feeds README's table. `--peer=tunix`
without a Python that has it says how to make one.
"""

from itertools import product
from pathlib import Path

from absl import flags
from step_peers import PEERS, check_peers
from step_sides import COLUMNS, FIXED, compare, make_prompts, read_lengths, write_table

from sepo_jax.evaluation.results import format_cell
from sepo_jax.policy import load_tokenizer
from sepo_jax.training.command_line import run_main

ROOT = Path(__file__).resolve().parents[1]
MODEL = flags.DEFINE_string("model", str(ROOT / "models" / "smollm2-135m"), "HF directory")
PEER = flags.DEFINE_multi_enum("peer", [], list(PEERS), "whom to compare with; repeatable")
PEER_PYTHON = flags.DEFINE_multi_string(
    "peer_python", [], "Python of an environment that holds the peer; one for each, in their order"
)
STEPS = flags.DEFINE_integer("steps", 3, "measured steps of each side", lower_bound=1)
TOKENS = flags.DEFINE_multi_string(
    "tokens", ["60+32", "250+32", "60+128"], "tokens of a prompt and of a reply; repeatable"
)
PRECISIONS = flags.DEFINE_multi_enum(
    "precision", ["float32"], ["float32", "bfloat16"], "of products; repeatable"
)
LORA = flags.DEFINE_multi_integer("lora_rank", [0], "0 trains all parameters; repeatable")
PROMPTS = flags.DEFINE_integer("prompts", 2, "prompts of a step", lower_bound=1)
GROUP = flags.DEFINE_integer("group", 8, "replies to a prompt", lower_bound=2)
SEED = flags.DEFINE_integer("seed", 0, "seed of prompts and sampling")
WRITE = flags.DEFINE_bool("write", False, "write experiments/results/benchmark_step.json")
DEBUG = flags.DEFINE_bool("debug", False, "show the traceback of a user error")


def main() -> None:
    """Measures, prints the table, and writes it when asked to."""
    if not (Path(MODEL.value) / "config.json").is_file():
        raise FileNotFoundError(
            f"--model={MODEL.value} holds no model: run python experiments/get_smollm2.py, or name "
            "a Hugging Face directory"
        )
    lengths = [read_lengths(text) for text in TOKENS.value]
    pythons = check_peers(PEER.value, PEER_PYTHON.value, PRECISIONS.value, LORA.value)
    tokenizer = load_tokenizer(MODEL.value)
    rows, versions = [], {}
    for precision, rank, (length, reply) in product(PRECISIONS.value, LORA.value, lengths):
        texts, ids = make_prompts(tokenizer, PROMPTS.value, length, SEED.value)
        work = {
            "model": MODEL.value,
            "prompts": texts,
            "prompt_ids": ids,
            "group": GROUP.value,
            "completion_tokens": reply,
            "precision": precision,
            "lora_rank": rank,
            "seed": SEED.value,
        }
        found, seen = compare(work | FIXED, pythons, STEPS.value)
        rows, versions = rows + found, versions | seen
    for row in [COLUMNS, *rows]:
        print("  ".join(map(format_cell, row)))
    if WRITE.value:
        sizes = {"group": GROUP.value, "prompts": PROMPTS.value, "steps": STEPS.value}
        print(f"wrote {write_table(rows, versions, PEER.value, SEED.value, **sizes)}")


if __name__ == "__main__":
    run_main(main)
