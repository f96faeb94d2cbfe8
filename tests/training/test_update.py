"""The update: parts, devices and kinds of parallelism change nothing; bad steps change nothing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sepo_jax.algorithms import get_algorithm
from sepo_jax.credit import assign_credit
from sepo_jax.forest import ForestBuilder, fill, pack
from sepo_jax.losses import Mean, token_mean
from sepo_jax.objective import make_objective
from sepo_jax.policy import ModelConfig, Policy
from sepo_jax.policy.sharding import SHARDING_RULES, shardings
from sepo_jax.training.parallel import Parallel
from sepo_jax.training.settings import OptimizerSettings, ParallelSettings
from sepo_jax.training.update import as_objective, init_state, make_optimizer, make_update

VOCABULARY = 24
POLICY = Policy(
    ModelConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_layers=2, num_heads=4, num_kv_heads=2,
        intermediate_size=32,
    )
)  # fmt: skip
PARAMS = POLICY.init(jax.random.key(0))
ALGORITHM = get_algorithm("grpo", entropy_weight=0.01)
# A gradient seen as it is: the update of plain descent with rate 1.
DESCENT = optax.sgd(1.0)


def make_forest(groups=16):
    rng = np.random.default_rng(0)
    builder = ForestBuilder()
    for group in range(groups):
        prompt = builder.add(rng.integers(0, VOCABULARY, 3), group=group)
        for _ in range(2):
            tokens = rng.integers(0, VOCABULARY, int(rng.integers(1, 6)))
            builder.add(
                tokens, prompt, is_action=True, reward=float(rng.random()),
                behavior_logp=np.full(len(tokens), -3.0),
            )  # fmt: skip
    return builder.build()


FOREST = make_forest()


def make_batch(devices, parts, rows_in_all=16):
    share = rows_in_all // (devices * parts)
    batch = pack(FOREST, row_length=16, parts=devices * parts, at_least={"B": share})
    credit = assign_credit(ALGORITHM, FOREST)
    batch = fill(batch, **credit.arrays())
    return jax.tree.map(lambda leaf: leaf.reshape(devices, parts, *leaf.shape[1:]), batch)


@functools.cache
def step(kind, devices, parts, fsdp=1, tensor=1):
    settings = ParallelSettings(kind, devices, fsdp, tensor)
    parallel = Parallel(settings)
    make = functools.partial(make_update, optimizer=DESCENT)
    objective = make_objective(ALGORITHM, POLICY)
    update = parallel.compile_update(make, objective)
    state = parallel.place(init_state(PARAMS, DESCENT))
    state, metrics = update(state, {}, make_batch(devices, parts))
    return parallel.fetch(state), {name: float(m.value) for name, m in metrics.items()}


@pytest.mark.parametrize(
    "how",
    [
        ("single", 1, 2),
        ("single", 1, 4),
        ("pmap", 2, 1),
        ("pmap", 8, 1),
        ("pmap", 2, 4),
        ("mesh", 8, 1),
        ("mesh", 8, 1, 2, 2),
        ("mesh", 4, 2, 4, 1),
    ],
)
def test_parts_and_devices_change_neither_gradient_nor_metrics(how):  # A14
    whole, whole_metrics = step("single", 1, 1)
    state, metrics = step(*how)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), state.params, whole.params
    )
    assert metrics.keys() == whole_metrics.keys()
    for name, value in whole_metrics.items():
        np.testing.assert_allclose(metrics[name], value, atol=1e-5, err_msg=name)


def test_the_gradient_is_not_zero():
    whole, metrics = step("single", 1, 1)
    assert metrics["gradient_norm"] > 1e-3
    assert whole.step == 1 and whole.skipped == 0


def test_a_nonfinite_gradient_leaves_the_state_bit_for_bit():  # A23
    optimizer = make_optimizer(OptimizerSettings(weight_decay=0.1), 1e-2, 0, 10, 0.0)
    update = jax.jit(make_update(make_objective(ALGORITHM, POLICY), optimizer))
    batch = jax.tree.map(lambda leaf: leaf[0], make_batch(1, 4))
    state, _ = update(init_state(PARAMS, optimizer), {}, batch)
    # NaN in one part of four: the whole update is dropped.
    poisoned = batch.replace(advantage=np.where(
        (np.arange(4) == 1)[:, None, None] & batch.action_mask, np.nan, batch.advantage
    ).astype(np.float32))  # fmt: skip
    after, metrics = update(state, {}, poisoned)
    assert not np.isfinite(metrics["loss"].value)
    assert after.skipped == state.skipped + 1 and after.step == state.step
    for left, right in zip(
        jax.tree.leaves((after.params, after.optimizer_state)),
        jax.tree.leaves((state.params, state.optimizer_state)),
        strict=True,
    ):
        np.testing.assert_array_equal(left, right)


def test_a_step_without_signal_moves_nothing():  # A01
    flat = FOREST.replace(reward=np.full_like(FOREST.reward, 0.35))
    credit = assign_credit(get_algorithm("grpo"), flat)
    batch = fill(pack(flat, row_length=16, parts=1), **credit.arrays())
    optimizer = make_optimizer(OptimizerSettings(), 1e-2, 0, 10, 0.0)
    update = jax.jit(make_update(make_objective("grpo", POLICY), optimizer))
    after, metrics = update(init_state(PARAMS, optimizer), {}, batch)
    assert metrics["gradient_norm"].value == 0.0
    jax.tree.map(np.testing.assert_array_equal, after.params, PARAMS)
    assert float(credit.metrics["no_spread_fraction"].value) == 1.0


def test_an_own_loss_is_additive_over_parts():
    def own(params, batch, policy):
        scores = policy.log_probs(
            params, batch.tokens, batch.positions, batch.segment, batch.ancestors,
            batch.source, batch.target,
        )  # fmt: skip
        mean = token_mean(-scores.logp, batch.primary)
        return mean.value, {"own": mean, "plain": mean.value}

    update = jax.jit(make_update(as_objective(own, POLICY), DESCENT))
    results = []
    for parts in (1, 4):
        batch = jax.tree.map(lambda leaf: leaf[0], make_batch(1, parts))
        state, metrics = update(init_state(PARAMS, DESCENT), {}, batch)
        results.append((state.params, {k: float(m.value) for k, m in metrics.items()}))
    (left, first), (right, second) = results
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), left, right)
    assert first == pytest.approx(second, abs=1e-5)
    assert first["own"] == pytest.approx(first["loss"])


def plain_mean(params, batch):
    """A mean over action tokens that is 0 / 0 where there is none."""
    scores = POLICY.log_probs(
        params, batch.tokens, batch.positions, batch.segment, batch.ancestors,
        batch.source, batch.target,
    )  # fmt: skip
    count = batch.primary.sum()
    summed = (-scores.logp * batch.primary).sum()
    return summed / count, {"plain": summed / count, "parts": Mean(summed, count)}


@pytest.mark.parametrize("kind", ["single", "pmap", "mesh"])
def test_an_empty_part_adds_nothing_to_an_own_loss(kind):
    # 2 trees, a row each, over 4 parts or devices: two are left without a row.
    forest, results = make_forest(groups=2), []
    for shares in (1, 4):
        batch = pack(forest, row_length=16, parts=shares)
        batch = fill(batch, **assign_credit(ALGORITHM, forest).arrays())
        empty = ~batch.primary.any(axis=(1, 2))
        assert empty.any() == (shares == 4)
        parallel = Parallel(ParallelSettings(kind, shares if kind != "single" else 1))
        axis = 0 if kind == "single" else 1
        batch = jax.tree.map(lambda leaf, axis=axis: np.expand_dims(leaf, axis), batch)
        make = functools.partial(make_update, optimizer=DESCENT)
        update = parallel.compile_update(make, as_objective(plain_mean, POLICY))
        state, metrics = update(parallel.place(init_state(PARAMS, DESCENT)), {}, batch)
        results.append((parallel.fetch(state), {k: float(m.value) for k, m in metrics.items()}))
    (whole, first), (state, second) = results
    assert state.step == 1 and state.skipped == 0
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), whole.params, state.params
    )
    assert first == pytest.approx(second, abs=1e-5)
    assert first["plain"] == pytest.approx(first["loss"])


def test_the_share_of_an_empty_part_is_exactly_zero():
    batch = jax.tree.map(lambda leaf: leaf[0, 0], make_batch(1, 4))
    none = np.zeros_like(batch.primary)
    batch = batch.replace(primary=none, action_mask=none)
    objective = as_objective(plain_mean, POLICY)
    counts = {"tokens": jnp.float32(7.0)}
    (loss, metrics), gradient = jax.value_and_grad(objective.loss_given_counts, has_aux=True)(
        PARAMS, batch, counts
    )
    for leaf in jax.tree.leaves((loss, metrics, gradient)):
        np.testing.assert_array_equal(leaf, 0.0)


LOSS = jnp.float32(1.0)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            LOSS,
            r"returns \(loss, metrics\), a scalar and a dict; it returned an array of shape \(\)",
        ),
        ((LOSS, None), r"its metrics are None; return \{\} where there are none"),
        ((LOSS, {}, {}), "it returned a tuple of 3"),
        ((Mean(LOSS, LOSS), {}), r"its loss is a Mean of an array .* return its \.value"),
        (Mean(LOSS, LOSS), "it returned a Mean of"),
        ((jnp.ones(3), {}), r"its loss is an array of shape \(3,\)"),
        ((LOSS, {"note": "good"}), "metric 'note' is 'good'; a metric is a scalar"),
        ((LOSS, {"each": jnp.ones(3)}), r"metric 'each' is an array of shape \(3,\)"),
        ((LOSS, {"each": Mean(jnp.ones(3), 3)}), r"metric 'each' is a Mean of an array .*\(3,\)"),
        ((LOSS, {"turn": 1j * LOSS}), "metric 'turn' is an array of shape .* type complex64"),
        ((LOSS, {3: LOSS}), "metrics are named by strings, got the name 3"),
        *[
            ((LOSS, {name: LOSS}), f"metric '{name}': the training loop writes .* another name")
            for name in ("step", "stage", "loss", "gradient_norm", "skipped_updates")
        ],
    ],
)
def test_own_losses_of_another_form_are_refused(result, message):
    update = jax.jit(make_update(as_objective(lambda params, batch: result, POLICY), DESCENT))
    batch = jax.tree.map(lambda leaf: leaf[0], make_batch(1, 1))
    with pytest.raises(ValueError, match=message):
        update(init_state(PARAMS, DESCENT), {}, batch)


def test_metrics_may_be_numbers_of_any_kind():
    kinds = {"int": 2, "float": 0.5, "flag": jnp.bool_(True), "mean": Mean(6, jnp.int32(2))}
    objective = as_objective(lambda params, batch: (LOSS, kinds), POLICY)
    update = jax.jit(make_update(objective, DESCENT))
    batch = jax.tree.map(lambda leaf: leaf[0], make_batch(1, 4))
    _, metrics = update(init_state(PARAMS, DESCENT), {}, batch)
    values = {name: float(metrics[name].value) for name in kinds}
    assert values == pytest.approx({"int": 2, "float": 0.5, "flag": 1, "mean": 3})


def test_an_own_loss_gets_the_policy_and_the_temperature_it_names():
    batch = jax.tree.map(lambda leaf: leaf[0, 0], make_batch(1, 1))

    def hot(params, batch, temperature):
        return jnp.float32(temperature), {}

    def both(params, batch, policy, temperature=5.0):
        return jnp.float32(temperature * (policy is POLICY)), {}

    for function in (hot, both):
        assert as_objective(function, POLICY, temperature=0.7)(PARAMS, batch)[0] == np.float32(0.7)
        assert as_objective(function, POLICY)(PARAMS, batch)[0] == 1.0


def test_an_objective_must_be_callable():
    with pytest.raises(ValueError, match="an objective is a function"):
        as_objective("grpo", POLICY)


def test_clipping_is_of_the_gradient_before_adam():
    optimizer = make_optimizer(OptimizerSettings(max_gradient_norm=1e-12), 1e-2, 0, 10, 0.0)
    gradient = {"w": jnp.array([3.0, 4.0])}
    state = optimizer.init(gradient)
    changes, _ = optimizer.update(gradient, state, gradient)
    # Adam divides by the clipped norm's own size: tiny gradients below its epsilon move less.
    assert float(jnp.abs(changes["w"]).max()) < 1e-2


def test_learning_rate_warms_up_then_decays():
    settings = OptimizerSettings(max_gradient_norm=1e9, epsilon=1e-30)
    optimizer = make_optimizer(settings, 1.0, 2, 4, 0.0)
    params = {"w": jnp.array([1.0])}
    state, sizes = optimizer.init(params), []
    for _ in range(5):
        changes, state = optimizer.update({"w": jnp.array([1.0])}, state, params)
        sizes.append(-float(changes["w"][0]))
    np.testing.assert_allclose(sizes, [0.0, 0.5, 1.0, 0.5, 0.0], atol=1e-5)


def one_change(name, params, seed=0):
    """What the first step with rate 1 adds to the parameters, for a random gradient."""
    settings = OptimizerSettings(name=name, max_gradient_norm=1e9)
    optimizer = make_optimizer(settings, 1.0, 0, 4, 1.0)
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    draws = [jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
    gradient = jax.tree.unflatten(structure, draws)
    return jax.jit(optimizer.update)(gradient, optimizer.init(params), params)[0]


def test_muon_moves_projections_by_orthogonal_matrices_and_the_rest_as_adam():
    config = ModelConfig(
        vocab_size=24, hidden_size=16, num_layers=2, num_heads=4, num_kv_heads=2,
        intermediate_size=32, layer_types=("linear", "full"), linear_key_heads=2,
        linear_value_heads=2, linear_key_head_dim=4, linear_value_head_dim=4, linear_conv_width=3,
    )  # fmt: skip
    params = Policy(config).init(jax.random.key(0))
    muon, adam = one_change("muon", params), one_change("adamw", params)
    moved, kept = 0, 0
    for (path, change), usual in zip(
        jax.tree_util.tree_leaves_with_path(muon), jax.tree.leaves(adam), strict=True
    ):
        name = jax.tree_util.keystr(path)
        if "proj" not in name:
            np.testing.assert_array_equal(change, usual, err_msg=name)
            kept += 1
            continue
        for matrix in change:
            # Five iterations bring singular values into [0.68, 1.14], but for the smallest.
            sizes = np.linalg.svd(matrix, compute_uv=False) / (0.2 * max(matrix.shape) ** 0.5)
            assert np.quantile(sizes, 0.2) > 0.6 and sizes.max() < 1.25, name
        moved += 1
    assert moved >= 10 and kept >= 5


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(ValueError, match=r"optimizer\.name 'adam'.*adamw"):
        make_optimizer(OptimizerSettings(name="adam"), 1e-2, 0, 10, 0.0)


@pytest.mark.parametrize("how", [("pmap", 2), ("mesh", 8, 2, 2)])
def test_muon_on_several_devices_is_muon_on_one(how):
    results = []
    for layout in (("single", 1), how):
        optimizer = make_optimizer(OptimizerSettings(name="muon"), 1e-2, 0, 10, 0.0)
        parallel = Parallel(ParallelSettings(*layout))
        make = functools.partial(make_update, optimizer=optimizer)
        update = parallel.compile_update(make, make_objective(ALGORITHM, POLICY))
        state = parallel.place(init_state(PARAMS, optimizer))
        for _ in range(2):
            state, _ = update(state, {}, make_batch(layout[1], 1))
        results.append(parallel.fetch(state).params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), *results)


def test_every_parameter_has_a_sharding_and_the_big_ones_are_split():
    parallel = Parallel(ParallelSettings("mesh", 8, 2, 2))
    specs = {
        jax.tree_util.keystr(path): sharding.spec
        for path, sharding in jax.tree_util.tree_leaves_with_path(shardings(PARAMS, parallel.mesh))
    }
    assert len(specs) == len(jax.tree.leaves(PARAMS))
    for path, leaf in jax.tree_util.tree_leaves_with_path(PARAMS):
        name = jax.tree_util.keystr(path)
        if "kernel" in name or "embedding" in name:
            assert any(specs[name]), f"{name} {leaf.shape} is replicated"
    assert SHARDING_RULES[-1][0] == ".*"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (ParallelSettings("pmpa"), "Did you mean 'pmap'"),
        (ParallelSettings("pmap", 99), "only 8 are there"),
        (ParallelSettings("single", 2), "takes one device"),
        (ParallelSettings("mesh", 8, 3), "do not divide"),
    ],
)
def test_impossible_layouts_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Parallel(settings)


def test_mean_adds_before_it_divides():
    assert (Mean(10.0, 4.0) + Mean(2.0, 1.0)).value == pytest.approx(2.4)
