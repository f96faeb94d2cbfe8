"""Checkpoints and logits of transformers, kept as files: the same logits without torch.

`make_goldens.py` writes them and says what they hold; `parity_cases.py` says what each is about.
"""

from pathlib import Path

import pytest
from policy.agreement import CHUNKS, assert_close, decode_gaps, row_gaps
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
