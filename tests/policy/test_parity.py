"""The same logits as the reference implementation of transformers (needs the `parity` extra).

The cases are those of the golden files, drawn afresh, one layer deeper and over longer rows.
"""

import numpy as np
import pytest
from policy.agreement import assert_close, decode_gaps, row_gaps
from policy.parity_cases import CASES
from safetensors.numpy import load_file

from sepo_jax.policy import load, save_hf

pytest.importorskip("torch")
from policy import make_goldens, parity_models

pytestmark = pytest.mark.slow
SEED = 11
LENGTH, ROW_LENGTH = 64, 130  # the longer rows pass two chunks of the delta rule
# Rows 0 to 3 of four slots, 64 tokens in all: whole chunks, uneven ones and rests.
CHUNKS = (
    (20, 7, 20, 1),
    (20, 20, 0, 2),
    (20, 13, 20, 20),
    (4, 20, 20, 20),
    (0, 4, 4, 20),
    (0, 0, 0, 1),
)


@pytest.fixture(scope="module", params=list(CASES))
def reference(request, compile_fast, tmp_path_factory):
    """(model of transformers, its directory, tokens [2, ROW_LENGTH], logits of them)."""
    torch = parity_models.torch
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # such products are too small to share
    case = CASES[request.param]
    model = parity_models.build_model(case, SEED, more_layers=1)
    directory = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(directory / "theirs")
    tokens = parity_models.draw_tokens(case, SEED, ROW_LENGTH)
    yield model, directory, tokens, parity_models.reference_logits(model, tokens)
    torch.set_num_threads(threads)


def test_logits(reference):
    """Whole rows with padding and a shared prefix, and 64 tokens in uneven chunks of a prefill."""
    _, directory, tokens, logits = reference
    policy, params = load(directory / "theirs", tokenizer=False)
    prefix = 0 if policy.is_recurrent else parity_models.SHARED_PREFIX
    gaps = row_gaps(policy, params, tokens, logits, prefix)
    gaps |= decode_gaps(policy, params, tokens[:, :LENGTH], logits[:, :LENGTH], CHUNKS)
    assert_close(gaps, 1e-4)


def test_transformers_loads_what_is_saved(reference):
    """Our directory gives the reference's own logits back, with no tensor too many or too few."""
    from transformers import AutoModelForCausalLM

    model, directory, tokens, _ = reference
    save_hf(directory / "ours", *load(directory / "theirs", tokenizer=False))
    ours, info = AutoModelForCausalLM.from_pretrained(
        directory / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    found = parity_models.compute_logits(ours.eval(), tokens)
    wanted = parity_models.compute_logits(model, tokens)
    assert_close({"export": np.abs(found - wanted).max()}, 1e-5)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.kept])
def test_golden_files_are_those_of_the_cases(name):
    """The tables, the maker and the kept files belong together."""
    case, directory = CASES[name], make_goldens.GOLDEN / name
    model = parity_models.build_model(case, make_goldens.SEED, rounded=True)
    stored = type(model).from_pretrained(directory, attn_implementation="eager").state_dict()
    for tensor_name, tensor in parity_models.named_tensors(model).items():
        assert parity_models.torch.equal(stored[tensor_name], tensor), tensor_name
    kept = load_file(directory / "logits.safetensors")
    np.testing.assert_array_equal(
        kept["tokens"], parity_models.draw_tokens(case, make_goldens.SEED)
    )
    logits = parity_models.reference_logits(model, kept["tokens"])
    assert_close({"logits": np.abs(logits - kept["logits"]).max()}, 2e-5)
