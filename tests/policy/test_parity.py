"""The same logits as the reference implementation of transformers (needs the `parity` extra)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sepo_jax.policy import load, save_hf
from sepo_jax.policy.decoder import Decoder, forest_mask

torch = pytest.importorskip("torch")

SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LENGTH = 64


@pytest.fixture(
    params=[
        {},
        {"tie_word_embeddings": True, "num_key_value_heads": 1, "head_dim": 10},
        {"attention_bias": True, "rope_scaling": SCALING, "rope_theta": 5000.0},
    ],
    ids=["plain", "tied-one-shared-head", "bias-scaled-rope"],
)
def reference(request, tmp_path):
    """A random Llama of transformers, its directory, tokens and logits [2, LENGTH, V]."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        **{
            "vocab_size": 91,
            "hidden_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "intermediate_size": 70,
            "initializer_range": 0.3,
            "tie_word_embeddings": False,
            **request.param,
        }
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or "bias" in name:
                weight.add_(0.3 * torch.randn_like(weight))
    model.save_pretrained(tmp_path / "torch")
    tokens = np.random.default_rng(0).integers(0, 91, (2, LENGTH))
    with torch.no_grad():
        logits = model(torch.tensor(tokens)).logits.numpy()
    return tmp_path, tokens, logits


def test_logits_of_whole_rows_and_of_decoding(reference):
    """64 tokens: whole rows with left and right padding, and prefill of 20 then single steps."""
    directory, tokens, expected = reference
    policy, params = load(directory / "torch", tokenizer=False)
    decoder, variables = Decoder(policy.config), {"params": params}

    @jax.jit
    def whole(tokens, positions, segment):
        mask = forest_mask(segment, None)
        hidden = decoder.apply(variables, tokens, positions, mask, method="hidden_states")
        normal = decoder.apply(variables, hidden, method="final_norm")
        return decoder.apply(variables, normal, method="logits")

    for left, right in ((0, 0), (5, 0), (0, 5)):
        place = slice(left, left + LENGTH)
        shape = (2, left + LENGTH + right)
        row, positions, segment = np.full(shape, 7), np.zeros(shape, int), np.full(shape, -1)
        row[:, place], positions[:, place], segment[:, place] = tokens, np.arange(LENGTH), 0
        logits = whole(jnp.array(row), jnp.array(positions), jnp.array(segment))[:, place]
        print("gap of whole rows", np.abs(logits - expected).max())
        np.testing.assert_allclose(logits, expected, atol=1e-4)

    step = jax.jit(policy.decode_step)
    cache = policy.init_cache(2, LENGTH)
    cache, logits = jax.jit(policy.prefill)(
        params, cache, jnp.array(tokens[:, :20]), jnp.full(2, 20)
    )
    for column in range(20, LENGTH):
        np.testing.assert_allclose(logits, expected[:, column - 1], atol=1e-4)
        cache, logits = step(params, cache, jnp.array(tokens[:, column]), jnp.ones(2, bool))
    print("gap of the last step", np.abs(logits - expected[:, -1]).max())
    np.testing.assert_allclose(logits, expected[:, -1], atol=1e-4)


def test_transformers_loads_what_is_saved(reference):
    """Our directory gives the reference's own logits back."""
    from transformers import AutoModelForCausalLM

    directory, tokens, expected = reference
    save_hf(directory / "ours", *load(directory / "torch", tokenizer=False))
    model, info = AutoModelForCausalLM.from_pretrained(directory / "ours", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    with torch.no_grad():
        logits = model.eval()(torch.tensor(tokens)).logits.numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-5)
