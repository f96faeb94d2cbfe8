"""The benchmark of a step runs with a tiny model; speed is the machine's and is not tested."""

import json
import subprocess
import sys
from pathlib import Path

import chex
import jax
import numpy as np
import pytest
from script_modules import script_module

from sepo_jax.evaluation.results import load_result
from sepo_jax.policy import ModelConfig, load, save_hf, train_tokenizer

SCRIPT = Path(__file__).parents[2] / "experiments" / "benchmark_step.py"
RESULT = SCRIPT.parent / "results" / "benchmark_step.json"


@pytest.fixture(scope="module")
def sides():
    """The module with the processes."""
    return script_module("step_sides")


@pytest.fixture(scope="module")
def ours():
    """The module of this package's own side."""
    return script_module("step_ours")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A directory with a decoder of one small layer."""
    texts = [f"Player {n} holds the {c} and checks {n}. " for n in range(99) for c in ("jack", "x")]
    config = ModelConfig(
        vocab_size=300, hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1,
        intermediate_size=24,
    )  # fmt: skip
    policy, params = load(config, tokenizer=train_tokenizer(texts, 300), key=jax.random.key(0))
    return save_hf(tmp_path_factory.mktemp("model") / "tiny", policy, params)


def run(*flags):
    command = [sys.executable, str(SCRIPT), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def work_of(model, sides, rank):
    ids = [[5, 6, 7, 8], [9, 10, 11]]
    work = {
        "model": str(model), "prompt_ids": ids, "group": 2, "completion_tokens": 3,
        "precision": "float32", "lora_rank": rank, "seed": 0,
    }  # fmt: skip
    return work | sides.FIXED


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
def test_own_steps_train_what_they_say_and_keep_the_reference(ours, sides, model, rank):
    steps = ours.Steps(work_of(model, sides, rank))
    reference = jax.tree.map(np.array, steps.reference)
    answers = [steps(), steps()]
    assert all(answer["sampled"] == 2 * 2 * 3 for answer in answers)
    assert all(min(answer[phase] for phase in sides.PHASES) > 0 for answer in answers)
    # Embedding; q and o 16 x 16, k and v 16 x 8; gate, up and down 16 x 24; three norms.
    whole = 300 * 16 + 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24 + 3 * 16
    # Rank 2 on q, k, v and o: 2 (in + out) each.
    assert steps.trained == (2 * (32 + 24 + 24 + 32) if rank else whole)
    chex.assert_trees_all_equal(steps.reference, reference)
    leaves = zip(jax.tree.leaves(reference), jax.tree.leaves(steps.params), strict=not rank)
    assert rank or any((old != np.asarray(new)).any() for old, new in leaves)
    assert int(steps.state.step) == 2


@pytest.mark.slow
def test_own_side_alone_prints_every_phase_and_writes_nothing(model):
    before = RESULT.read_bytes() if RESULT.exists() else None
    done = run(
        f"--model={model}", "--steps=1", "--prompt_tokens=12", "--group=2", "--completion_tokens=3"
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    heading, row = done.stdout.strip().splitlines()[-2:]
    for column in ("generate s", "score s", "update s", "tokens/s", "peak GB"):
        assert column in heading
    assert row.startswith("prompts of 1") and "sepo_jax" in row
    assert (RESULT.read_bytes() if RESULT.exists() else None) == before


def test_missing_model_says_how_to_get_one(tmp_path):
    done = run(f"--model={tmp_path}")
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr and "get_smollm2.py" in done.stderr


@pytest.mark.parametrize("python", ["", "/nonexistent/python", sys.executable])
def test_missing_peer_says_how_to_make_one(model, python):
    done = run(f"--model={model}", "--peer=trl", f"--peer_python={python}")
    assert done.returncode == 2
    assert "pip install trl" in done.stderr and "-m venv" in done.stderr
    assert python in done.stderr


def test_prompts_read_back_as_the_same_tokens(sides, model):
    from sepo_jax.policy import load_tokenizer

    tokenizer = load_tokenizer(model)
    texts, ids = sides.make_prompts(tokenizer, 2, 40, 0)
    assert [tokenizer.encode(text) for text in texts] == ids
    assert ids[0] != ids[1] and all(35 <= len(one) <= 40 for one in ids)
    assert sides.make_prompts(tokenizer, 2, 40, 0) == (texts, ids)


def test_a_process_that_ends_shows_what_it_printed(sides, tmp_path):
    script = tmp_path / "broken.py"
    script.write_text("import sys; sys.exit('out of tokens')")
    side = sides.Side("peer", sys.executable, str(script))
    with side, pytest.raises(ConnectionError, match=r"peer ended(.|\n)*out of tokens"):
        side.ask({})


class Scripted:
    """A side whose seconds are given: the first step, then the measured ones."""

    def __init__(self, name, order, generate):
        self.name, self.order, self.generate = name, order, list(generate)

    def ask(self, message):
        if "step" not in message:
            return {"trained": 1, "versions": {}}
        self.order.append(self.name)
        seconds = self.generate.pop(0)
        return {
            "generate": seconds, "score": 1.0, "update": 2.0, "sampled": 12, "entropy": 1.0,
            "peak": 5_000_000_000 if message["step"] == 0 else 4_000_000_000,
        }  # fmt: skip


def test_sides_take_turns_and_medians_leave_out_the_first_step(sides):
    order = []
    own = Scripted("own", order, [99.0, 1.0, 3.0, 2.0])
    peer = Scripted("peer", order, [99.0, 6.0, 6.0, 9.0])
    figures, _ = sides.take_turns([own, peer], {}, 3, iter)
    assert order == ["own", "peer", *("own", "peer"), *("peer", "own"), *("own", "peer")]
    assert figures["own"]["generate"] == 2.0 and figures["own"]["step"] == 5.0
    assert figures["own"]["rate"] == pytest.approx(12 / 5)
    rows = sides.table_rows("work", figures)
    assert rows[0] == ["work", "own", 2.0, 1.0, 2.0, 5.0, 12 / 5, 4.0]
    # 6 / 2, 1, 1, (6 + 1 + 2) / 5 for seconds and for the rate, equal memory.
    assert rows[2][:2] == ["work", "times better"]
    assert rows[2][2:] == pytest.approx([3, 1, 1, 9 / 5, 9 / 5, 1])
    assert all(len(row) == len(sides.COLUMNS) for row in rows)


def test_written_result_is_complete():
    if not RESULT.exists():
        pytest.skip("not measured yet")
    assert json.dumps(load_result(RESULT))
