"""The decoder against a plain NumPy transcription, its rotary angles, masks and identities."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.policy import ModelConfig, Policy, RopeScaling
from sepo_jax.policy.decoder import forest_mask
from sepo_jax.policy.rotary import rotary_tables, rotate

SCALING = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)


def reference_logits(config, params, tokens):
    """One row [T] through the equations of the model, float64, a loop over layers and heads."""
    params = jax.tree.map(lambda array: np.asarray(array, np.float64), params)
    half, length = config.head_dim // 2, len(tokens)
    frequency = config.rope_theta ** (-np.arange(half) / half)
    angle = np.arange(length)[:, None] * frequency

    def norm(x, scale):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.rms_norm_epsilon) * scale

    def turn(x):
        a, b = x[:, :half], x[:, half:]
        cos, sin = np.cos(angle), np.sin(angle)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], 1)

    x = params["embed"]["embedding"][tokens]
    for index in range(config.num_layers):
        layer = jax.tree.map(lambda array, index=index: array[index], params["layers"]["full"])

        def linear(name, y, layer=layer):
            return y @ layer[name]["kernel"] + layer[name].get("bias", 0.0)

        y = norm(x, layer["attention_norm"]["scale"])
        q, k, v = (linear(f"{name}_proj", y) for name in "qkv")
        mixed = []
        for head in range(config.num_heads):
            shared = head // (config.num_heads // config.num_kv_heads)
            own = slice(head * config.head_dim, (head + 1) * config.head_dim)
            other = slice(shared * config.head_dim, (shared + 1) * config.head_dim)
            scores = turn(q[:, own]) @ turn(k[:, other]).T / np.sqrt(config.head_dim)
            scores[np.triu_indices(length, 1)] = -np.inf
            weights = np.exp(scores - scores.max(1, keepdims=True))
            mixed.append(weights / weights.sum(1, keepdims=True) @ v[:, other])
        x = x + linear("o_proj", np.concatenate(mixed, 1))
        y = norm(x, layer["feed_forward_norm"]["scale"])
        gate = linear("gate_proj", y)
        x = x + linear("down_proj", gate / (1 + np.exp(-gate)) * linear("up_proj", y))
    x = norm(x, params["norm"]["scale"])
    tied = config.tie_embeddings
    return x @ (params["embed"]["embedding"].T if tied else params["lm_head"]["kernel"])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_embeddings": False, "attention_bias": True, "num_kv_heads": 4},
        {"num_kv_heads": 1, "head_dim": 10, "num_layers": 3, "rope_theta": 500.0},
    ],
    ids=["tied", "untied-bias-all-heads", "one-shared-head"],
)
def test_matches_plain_transcription(changes, make_params, draw_tokens, plain_row, score):
    config = ModelConfig(
        **{
            "vocab_size": 40,
            "hidden_size": 24,
            "num_layers": 2,
            "num_heads": 4,
            "num_kv_heads": 2,
            "intermediate_size": 36,
            **changes,
        }
    )
    policy = Policy(config)
    params = make_params(config, seed=1)
    tokens = draw_tokens((2, 12)) % 40
    scores = score(policy, params, *plain_row(tokens))
    for row in range(2):
        logits = reference_logits(config, params, np.asarray(tokens[row]))
        logp = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        expected = logp[np.arange(11), tokens[row, 1:]]
        np.testing.assert_allclose(scores.logp[row], expected, atol=2e-4, rtol=1e-5)
        entropy = -(np.exp(logp) * logp).sum(1)[:-1]
        np.testing.assert_allclose(scores.entropy[row], entropy, atol=2e-4, rtol=1e-4)


def test_llama3_scaling_known_answers():
    """Wavelengths above 8192 / 1 are stretched 8 times, those below 8192 / 4 kept, others blended.

    Position 1, so an angle is a frequency. theta = 500000, 64 pairs: wavelength of pair i is
    2 pi 500000^(i/64). i=0: 6.3, kept. i=63: 2.56e6, stretched. i=30: 2 pi 500000^(30/64) = 2951,
    turns = 8192 / 2951 = 2.776, blend s = (2.776 - 1) / (4 - 1) = 0.592.
    """
    config = ModelConfig(vocab_size=8, head_dim=128, rope_theta=500_000.0, rope_scaling=SCALING)
    cos, sin = rotary_tables(config, jnp.ones((1, 1), jnp.int32))
    angle = np.arctan2(sin, cos)[0, 0]
    plain = 500_000.0 ** (-np.arange(64) / 64)
    np.testing.assert_allclose(angle[0], plain[0], rtol=1e-5)
    np.testing.assert_allclose(angle[63], plain[63] / 8, rtol=1e-4)
    blend = (8192 * plain[30] / (2 * np.pi) - 1) / 3
    assert blend == pytest.approx(0.592, abs=1e-3)
    np.testing.assert_allclose(
        angle[30], blend * plain[30] + (1 - blend) * plain[30] / 8, rtol=1e-4
    )


def test_rotation_depends_on_distance_only():
    """<R_a q, R_b k> = <R_(a+c) q, R_(b+c) k>, and rotation keeps lengths."""
    config = ModelConfig(vocab_size=8, hidden_size=16, num_heads=1, num_kv_heads=1)
    vectors = jax.random.normal(jax.random.key(0), (1, 2, 1, 16))

    def product(first, second):
        turned = rotate(vectors, *rotary_tables(config, jnp.array([[first, second]])))
        np.testing.assert_allclose(
            jnp.linalg.norm(turned, axis=-1), jnp.linalg.norm(vectors, axis=-1), rtol=1e-5
        )
        return jnp.sum(turned[0, 0] * turned[0, 1])

    np.testing.assert_allclose(product(3, 7), product(103, 107), rtol=1e-4)
    assert abs(product(3, 7) - product(3, 8)) > 1e-3


def test_forest_mask_by_hand():
    """Root 0 with children 1 and 2, then padding: columns 0 0 1 2 2 -."""
    segment = jnp.array([[0, 0, 1, 2, 2, -1]])
    ancestors = jnp.array([[[1, 0, 0], [1, 1, 0], [1, 0, 1]]], bool)
    expected = [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 1, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 1],
    ]
    np.testing.assert_array_equal(forest_mask(segment, ancestors)[0], np.array(expected, bool))
    alone = np.array(expected, bool)
    alone[2:5, :2] = False
    np.testing.assert_array_equal(forest_mask(segment, None)[0], alone)


SEGMENTS, WIDTH, PATH = 5, 20, 16


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_packed_forest_equals_separate_paths(policy, params, score, data):
    """Every token of a random forest has the log-probability it has on its own path alone."""
    parents = [-1] + [data.draw(st.integers(-1, i - 1)) for i in range(1, SEGMENTS)]
    lengths = [data.draw(st.integers(1, 3)) for _ in range(SEGMENTS)]
    tokens = [data.draw(st.integers(0, 200)) for _ in range(sum(lengths))]
    above, depth, begin, path = {}, {}, {}, {}
    row = {name: np.zeros((1, WIDTH), np.int32) for name in ("tokens", "positions", "source")}
    segment = np.full((1, WIDTH), -1, np.int32)
    ancestors = np.zeros((1, SEGMENTS, SEGMENTS), bool)
    cursor, scored = 0, []
    for index, (parent, length) in enumerate(zip(parents, lengths, strict=True)):
        above[index] = [*above.get(parent, []), index]
        begin[index], depth[index] = cursor, depth.get(parent, 0) + length
        own = tokens[cursor : cursor + length]
        path[index] = [*path.get(parent, []), *own]
        columns = np.arange(cursor, cursor + length)
        row["tokens"][0, columns] = own
        row["positions"][0, columns] = depth[index] - length + np.arange(length)
        segment[0, columns] = index
        ancestors[0, index, above[index]] = True
        last = begin[parent] + lengths[parent] - 1 if parent >= 0 else None
        row["source"][0, columns] = [last or 0, *columns[:-1]]
        has_source = [place > 0 or last is not None for place in range(length)]
        scored += [(index, place, columns[place]) for place in range(length) if has_source[place]]
        cursor += length
    target = jnp.array(row["tokens"])
    packed = score(
        policy, params, row["tokens"], row["positions"], segment, ancestors, row["source"], target
    ).logp[0]
    alone = np.zeros((SEGMENTS, PATH), np.int32)
    for index, ids in path.items():
        alone[index, : len(ids)] = ids
    positions = np.tile(np.arange(PATH, dtype=np.int32), (SEGMENTS, 1))
    before = np.maximum(positions - 1, 0)
    single = score(
        policy, params, alone, positions, np.zeros_like(alone), None, before, jnp.array(alone)
    ).logp
    for index, place, column in scored:
        at = depth[index] - lengths[index] + place
        np.testing.assert_allclose(packed[column], single[index, at], atol=1e-5)


def test_padding_changes_nothing(policy, params, draw_tokens, plain_row, score):
    """Columns and rows of rubbish at segment -1, and spare targets, leave the scores alone."""
    tokens = draw_tokens((2, 9), seed=3)
    short = score(policy, params, *plain_row(tokens))
    longer = np.array(draw_tokens((3, 16), seed=4))
    segment, positions = np.full((3, 16), -1), np.full((3, 16), 5)
    source, target = np.zeros((3, 12), np.int32), np.zeros((3, 12), np.int32)
    longer[:2, :9], segment[:2, :9], positions[:2, :9] = tokens, 0, np.arange(9)
    source[:2, :8], target[:2, :8] = np.arange(8), tokens[:, 1:]
    scores = score(policy, params, longer, positions, segment, None, source, target)
    np.testing.assert_allclose(scores.logp[:2, :8], short.logp, atol=1e-5)
    np.testing.assert_allclose(scores.entropy[:2, :8], short.entropy, atol=1e-5)
    assert np.isfinite(scores.logp).all() and np.isfinite(scores.entropy).all()


def test_half_precision_stays_near(policy, params, draw_tokens, plain_row, score):
    """bfloat16 parameters and arithmetic: float32 scores, near the float32 ones and not equal."""
    row = plain_row(draw_tokens((2, 9), seed=5))
    half = dataclasses.replace(policy.config, compute_dtype="bfloat16", param_dtype="bfloat16")
    half = dataclasses.replace(policy, config=half)
    weights = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    scores = score(half, weights, *row)
    assert scores.logp.dtype == scores.entropy.dtype == jnp.float32
    gap = np.abs(scores.logp - score(policy, params, *row).logp)
    assert 0 < gap.max() < 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 3, "num_kv_heads": 2}, "num_kv_heads=2"),
        ({"head_dim": 5}, "head_dim=5 is odd"),
        ({"num_layers": 0}, "num_layers"),
        ({"compute_dtype": "float16"}, "Did you mean 'bfloat16'|Did you mean 'float32'"),
        ({"family": "lama"}, "Did you mean 'llama'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor"),
    ],
)
def test_refuses_bad_configs(changes, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**{"vocab_size": 8, **changes})


def test_policy_is_a_static_argument(policy, tokenizer):
    """Equal configs are one compiled program; the tokenizer takes no part."""
    other = Policy(dataclasses.replace(policy.config), None, policy.end_ids)
    assert other == policy and hash(other) == hash(policy)
    traces = []
    count = jax.jit(lambda policy, x: traces.append(policy) or x, static_argnums=0)
    count(policy, 1.0), count(other, 1.0)
    assert len(traces) == 1
    with pytest.raises(ValueError, match="vocab_size=100"):
        Policy(ModelConfig(vocab_size=100), tokenizer)
