"""The table of algorithms: what it says, how it is varied, what it refuses."""

import dataclasses

import pytest

from sepo_jax.algorithms import ALGORITHMS, OPTIONS, Algorithm, get_algorithm
from sepo_jax.losses import cispo_surrogate, on_policy_surrogate

# Comparison, baseline, scale, ratio, clip, reduction of each published method.
PUBLISHED = {
    "sft": ("none", "none", "none", "none", None, None, "token_mean"),
    "reinforce": ("none", "none", "none", "none", None, None, "token_mean"),
    "ppo": ("none", "critic", "none", "token", 0.2, 0.2, "token_mean"),
    "rloo": ("root", "leave_one_out", "none", "sequence", None, None, "sequence_mean"),
    "grpo": ("root", "mean", "population", "token", 0.2, 0.2, "sequence_mean"),
    "dr_grpo": ("root", "mean", "none", "token", 0.2, 0.2, "constant_length"),
    "dapo": ("root", "mean", "population", "token", 0.2, 0.28, "token_mean"),
    "gspo": ("root", "mean", "population", "sequence", 3e-4, 4e-4, "sequence_mean"),
    "bpo": ("parent", "leave_one_out", "none", "token", 0.2, 0.2, "token_mean"),
    "vineppo": ("parent", "monte_carlo", "none", "token", 0.2, 0.2, "token_mean"),
    "tree_grpo": ("root_then_tree", "mean", "population", "token", 0.2, 0.2, "sequence_mean"),
    "gigpo": ("observation", "mean", "population", "token", 0.2, 0.2, "token_mean"),
    "dr_mas": ("agent", "mean", "population", "token", 0.2, 0.2, "token_mean"),
    "at_grpo": ("turn", "mean", "population", "token", 0.2, 0.2, "token_mean"),
    "srpo": ("event_type", "mean", "population", "event", 0.2, 0.2, "event_mean"),
}


def test_the_table_is_complete():
    assert set(ALGORITHMS) == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_rows(name):
    row = ALGORITHMS[name]
    columns = ("compare", "baseline", "scale", "ratio", "clip_low", "clip_high", "reduce")
    assert tuple(getattr(row, column) for column in columns) == PUBLISHED[name]
    assert row.name == name and row.source
    assert hash(row) == hash(dataclasses.replace(row))  # static argument of jitted functions


def test_every_option_is_documented():
    for field, options in OPTIONS.items():
        for option in options if field != "kl_kind" else ():
            assert f'"{option}"' in Algorithm.__doc__, option


def test_variants():
    row = get_algorithm("grpo", clip_high=0.28, surrogate=cispo_surrogate)
    assert (row.clip_low, row.clip_high, row.surrogate) == (0.2, 0.28, cispo_surrogate)
    assert get_algorithm(row) is not None and get_algorithm(row).clip_high == 0.28
    assert ALGORITHMS["grpo"].clip_high == 0.2


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("grop", {}, "unknown algorithm 'grop'. Did you mean 'grpo'"),
        ("grpo", {"clip_hi": 0.3}, "unknown field of an algorithm 'clip_hi'. Did you mean 'clip_h"),
        ("grpo", {"reduce": "tokenmean"}, "unknown reduce 'tokenmean'. Did you mean 'token_mean'"),
        ("grpo", {"compare": "none"}, "compare='none' does not go with baseline='mean'"),
        ("grpo", {"baseline": "none", "scale": "none"}, "compare='root' does not go with"),
        ("grpo", {"baseline": "leave_one_out"}, "scale='population' belongs to baseline='mean'"),
        ("rloo", {"baseline": "monte_carlo"}, "set compare='parent'"),
        ("grpo", {"ratio": "none"}, "leaves nothing to clip"),
        ("grpo", {"ratio": "none", "clip_low": None, "clip_high": None}, "needs a ratio"),
        ("grpo", {"surrogate": on_policy_surrogate}, "set ratio='none'"),
        ("gspo", {"ratio_scale": "sqrt"}, "a sequence takes 'sum' or 'mean'"),
        ("grpo", {"reduce": "event_mean"}, "set ratio='event'"),
        ("srpo", {"reduce": "sequence_mean"}, "set reduce='event_mean' or 'token_mean'"),
        ("dr_grpo", {"constant_length": None}, "needs constant_length"),
        ("dr_grpo", {"constant_length": 0}, "needs constant_length"),
        ("grpo", {"value_weight": 0.5}, "set baseline='critic'"),
        ("grpo", {"importance_cap": 2.0}, "corrects ratio='none' only"),
        ("grpo", {"returns": "one"}, "set compare='none'"),
        ("vineppo", {"prefix_credit": "lambda"}, "discounts the advantages of siblings"),
        ("gigpo", {"gamma": 1.5}, r"gamma lies in \[0, 1\], got 1.5"),
    ],
)
def test_refusals(name, overrides, message):
    with pytest.raises(ValueError, match=message):
        get_algorithm(name, **overrides)
