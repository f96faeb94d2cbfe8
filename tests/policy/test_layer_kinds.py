"""Decoders of several layer kinds: where layers lie, how they are scanned, what they see."""

import dataclasses
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.policy import ModelConfig, Policy
from sepo_jax.policy.decoder import hidden_states, schedule
from sepo_jax.policy.formats.weights import parameter_shapes
from sepo_jax.policy.rotary import frequencies

SIZES = {
    "vocab_size": 300,
    "hidden_size": 16,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 8,
    "intermediate_size": 20,
    "sliding_window": 4,
}


def config_of(types, shared=0, **changes):
    return ModelConfig(
        **{
            **SIZES,
            "num_layers": len(types),
            "layer_types": types,
            "num_kv_shared_layers": shared,
            **changes,
        }
    )


@settings(deadline=None, max_examples=50)
@given(types=st.lists(st.sampled_from(["full", "sliding"]), min_size=1, max_size=20))
def test_schedule_unrolls_to_the_layers(types):
    """Patterns times repeats are the kinds in order; every layer has one place of its own."""
    config = config_of(tuple(types))
    unrolled = [kind for pattern, repeats in schedule(config) for kind in pattern * repeats]
    assert tuple(unrolled) == config.layer_kinds
    places = [config.place(layer) for layer in range(len(types))]
    assert len(set(places)) == len(types)
    assert Counter(kind for kind, _ in places) == config.kind_counts


@pytest.mark.parametrize(
    ("types", "shared", "expected"),
    [
        (("full",) * 5, 0, [(("full",), 5)]),
        # Gemma 3 of 34 layers: five patterns of six, then four sliding layers.
        (
            (("sliding",) * 5 + ("full",)) * 5 + ("sliding",) * 4,
            0,
            [(("sliding",) * 5 + ("full",), 5), (("sliding",), 4)],
        ),
        # Gemma 4 E4B: 24 layers with keys of their own, 18 that share them.
        (
            (("sliding",) * 5 + ("full",)) * 7,
            18,
            [
                (("sliding",) * 5 + ("full",), 4),
                (("sliding_shared",) * 5 + ("full_shared",), 3),
            ],
        ),
        (("sliding", "full"), 0, [(("sliding", "full"), 1)]),
    ],
)
def test_known_schedules(types, shared, expected):
    assert list(schedule(config_of(types, shared))) == expected


def test_shared_layers_read_the_last_own_layer_of_their_type():
    config = config_of(("sliding", "full", "sliding", "full", "sliding", "full"), shared=2)
    assert [config.kv_source(layer) for layer in range(6)] == [0, 1, 2, 3, 2, 3]
    assert [config.cache_row(layer) for layer in range(6)] == [0, 1, 2, 3, 2, 3]
    shapes = parameter_shapes(config)["layers"]
    assert "k_proj" in shapes["full"] and "k_proj" not in shapes["full_shared"]


def test_a_layer_of_each_run_takes_part(make_params):
    """Changing any row of any stack changes the output: no layer is skipped or read twice."""
    config = config_of(("sliding", "sliding", "full", "sliding", "sliding", "full", "sliding"), 2)
    params = make_params(config)
    tokens = jnp.arange(6)[None] + 20
    positions = jnp.arange(6)[None]
    run = jax.jit(
        lambda params: hidden_states(
            config, params, tokens, positions, jnp.zeros_like(tokens), None
        )
    )
    base = run(params)
    for kind, count in config.kind_counts.items():
        for row in range(count):
            kernel = params["layers"][kind]["up_proj"]["kernel"]
            changed = jax.tree.map(lambda leaf: leaf, params)
            changed["layers"][kind]["up_proj"]["kernel"] = kernel.at[row].multiply(1.5)
            assert np.abs(run(changed) - base).max() > 1e-4, (kind, row)


def test_a_window_as_long_as_the_row_is_full_attention(make_params, draw_tokens, plain_row, score):
    row = plain_row(draw_tokens((2, 9)))
    full = config_of(("full",) * 2)
    params = make_params(full)
    wide = config_of(("sliding",) * 2, sliding_window=9)
    moved = {**params, "layers": {"sliding": params["layers"]["full"]}}
    expected = score(Policy(full), params, *row).logp
    np.testing.assert_allclose(score(Policy(wide), moved, *row).logp, expected, atol=1e-6)
    narrow = dataclasses.replace(wide, sliding_window=8)
    gap = np.abs(score(Policy(narrow), moved, *row).logp - expected)
    # The last scored column, position 7, sees positions 0 to 7: all that a window of 8 holds.
    assert gap.max() < 1e-6
    narrow = dataclasses.replace(wide, sliding_window=7)
    gap = np.abs(score(Policy(narrow), moved, *row).logp - expected)
    assert gap[:, :7].max() < 1e-6 < gap[:, 7].min()


def test_a_window_counts_along_the_path(make_params, draw_tokens, score):
    """Two continuations of a prefix in one row see the same window as each does alone."""
    config = config_of(("sliding", "full", "sliding"))
    policy, params = Policy(config), make_params(config)
    tokens = np.asarray(draw_tokens((1, 11)))
    positions = np.array([[0, 1, 2, 3, 4, 5, 6, 7, 5, 6, 7]])
    segment = np.array([[0] * 5 + [1] * 3 + [2] * 3])
    ancestors = np.array([[[1, 0, 0], [1, 1, 0], [1, 0, 1]]], bool)
    source = np.array([[5, 6, 8, 9]])
    target = tokens[:, [6, 7, 9, 10]]
    packed = score(policy, params, tokens, positions, segment, ancestors, source, target).logp
    plain = np.arange(8)[None]
    for columns, picked in (([*range(8)], [0, 1]), ([*range(5), 8, 9, 10], [2, 3])):
        path = tokens[:, columns]
        alone = score(
            policy,
            params,
            path,
            plain,
            np.zeros_like(plain),
            None,
            np.array([[5, 6]]),
            path[:, [6, 7]],
        ).logp
        np.testing.assert_allclose(packed[:, picked], alone, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ("full",)}, "layer_types names 1 layers, num_layers=2"),
        ({"layer_types": ("full", "ful")}, "Did you mean 'full'"),
        ({"sliding_window": None}, "sliding layers need sliding_window >= 1"),
        ({"num_kv_shared_layers": 2}, "without keys and values to share"),
        ({"layer_types": ("linear", "full")}, "linear layers need linear_key_heads >= 1"),
        ({"layer_types": ("linear", "linear")}, "at least one attention layer"),
        ({"remat": "all"}, "unknown remat"),
        ({"activation": "relu"}, "unknown activation"),
        ({"final_softcap": 0.0}, "final_softcap must be positive"),
        ({"rotary_fraction": 0.0}, "rotary_fraction=0.0"),
        ({"per_layer_embedding_size": 4}, "per_layer_vocab_size >= 1"),
    ],
)
def test_contradictions_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        config_of(("sliding", "full"), **changes)


def test_an_odd_number_of_turned_entries():
    """A quarter of 12 is 3: pairs 0 and 1 turn by 1 and theta^(-2/3), as transformers counts."""
    config = ModelConfig(vocab_size=8, head_dim=12, rotary_fraction=0.25, rope_theta=1000.0)
    np.testing.assert_allclose(frequencies(config, "full"), [1.0, 0.01], rtol=1e-6)
