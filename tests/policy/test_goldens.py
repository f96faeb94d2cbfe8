"""Checkpoints and logits of transformers, kept as files: the same logits without torch.

`make_goldens.py` writes them and says what they hold; `parity_cases.py` says what each is about.
"""

from pathlib import Path

import numpy as np
import pytest
from policy.agreement import CHUNKS, assert_close, decode_gaps, log_probs, row_gaps
from policy.parity_cases import CASES
from safetensors.numpy import load_file

from sepo_jax.policy import load

GOLDEN = Path(__file__).with_name("golden")
SHARED_PREFIX = 24
TOLERANCE = 1e-4
PREFILLED = (
    "llama-tied",
    "qwen2-sliding",
    "qwen3-tied",
    "qwen3_5-grouped",
    "gemma3-tied",
    "gemma4-e4b",
)


@pytest.fixture(scope="module", params=[name for name, case in CASES.items() if case.kept])
def golden(request, compile_fast):
    """(policy, parameters, tokens [2, 64], logits [2, 64, V]) of a case."""
    directory = GOLDEN / request.param
    policy, params = load(directory, tokenizer=False)
    kept = load_file(directory / "logits.safetensors")
    return policy, params, kept["tokens"], kept["logits"]


def test_whole_rows(golden):
    """64 tokens with padding before and after, and two continuations of one prefix in a row."""
    policy, params, tokens, logits = golden
    prefix = 0 if policy.is_recurrent else SHARED_PREFIX
    assert_close(row_gaps(policy, params, tokens, logits, prefix), TOLERANCE)


def test_prefill_and_steps(golden, request):
    """Single steps to the end with slots that pause; a family's fullest case after a prefill."""
    name = request.node.callspec.params["golden"]
    assert_close(decode_gaps(*golden, chunks=CHUNKS if name in PREFILLED else ()), TOLERANCE)


@pytest.mark.parametrize("name", ["llama-tied", "qwen3_5-rotary", "gemma3-softcap", "gemma4-e4b"])
def test_log_probs(name):
    """log p = logit - log sum exp(logits) of the kept logits; few columns of logits at a time."""
    policy, params = load(GOLDEN / name, tokenizer=False, logits_budget=41 * 2 * 10)
    kept = load_file(GOLDEN / name / "logits.safetensors")
    tokens, logits = kept["tokens"], kept["logits"].astype(np.float64)
    positions = np.tile(np.arange(64, dtype=np.int32), (2, 1))
    row = (tokens, positions, np.zeros_like(positions), None, positions[:, :-1], tokens[:, 1:])
    scores = log_probs(policy, params, *row)
    wanted = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(wanted[:, :-1], tokens[:, 1:, None].astype(int), -1)[..., 0]
    entropy = -(np.exp(wanted) * wanted).sum(-1)[:, :-1]
    gaps = {"log-probability": np.abs(scores.logp - chosen).max()}
    gaps["entropy"] = np.abs(scores.entropy - entropy).max()
    assert_close(gaps, TOLERANCE)
