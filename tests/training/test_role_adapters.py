"""Teams whose roles have adapters of their own: played, trained, kept and written."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from team_workflows import Tasks, Wordy

from sepo_jax.algorithms import get_algorithm
from sepo_jax.domains import Kuhn
from sepo_jax.forest import ForestBuilder, pack
from sepo_jax.objective import make_objective
from sepo_jax.policy import Policy, attach, detach, load, load_peft, save_hf
from sepo_jax.policy.lora import apart
from sepo_jax.rollout.forests import name_id
from sepo_jax.training import read_settings, to_dict, train
from sepo_jax.training.batches import BatchMaker, packing_of
from sepo_jax.training.reward_stage import RewardStage
from sepo_jax.training.setup import make_policy, model_config, role_policy, seated
from sepo_jax.training.trainable import begin_stage
from sepo_jax.training.written_policy import write_policy

CONFIG = {
    "policy": {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1,
               "intermediate_size": 32, "lora_rank": 2, "lora_targets": ("q_proj", "down_proj"),
               "adapters": "per_role"},
    "domain": {"name": "team_workflows:Wordy"},
    "sft": {"steps": 1, "num_decisions": 12, "batch_size": 4, "learning_rate": 0.03},
    "sepo": {"steps": 0},
    "rl": {"steps": 2, "tasks_per_step": 2, "rollouts_per_task": 3, "learning_rate": 0.03},
    "algorithm": {"name": "srpo"},
    "rollout": {"slots": 6, "capacity": 128, "row_length": 128, "max_action_tokens": 4,
                "prefill_widths": (64,)},
    "evaluation": {"tasks": 1, "task_samples": 1, "untrained": False},
    "checkpoint": {"every": 1, "keep": 9},
    "parallel": {"kind": "single"},
}  # fmt: skip


def moved(params, scale=0.3):
    """Parameters whose adapters change the function, each in a way of its own."""

    def move(path, leaf):
        if path[-1].key != "lora_b":
            return leaf
        draws = np.random.default_rng(len(path[-2].key)).normal(0, scale, leaf.shape)
        return jnp.asarray(draws.astype(np.float32))

    return jax.tree_util.tree_map_with_path(move, params)


@pytest.fixture(scope="module")
def team():
    """Settings, the policy with adapters of its roles, and parameters in which these differ."""
    settings = read_settings(CONFIG)
    shared, params = make_policy(settings, Wordy())
    policy = role_policy(settings, shared, Wordy())
    return settings, policy, moved(begin_stage(policy.config, params, jax.random.key(1)))


def logp(policy, params, ids=(5, 6, 7, 8)):
    row = jnp.asarray([ids], jnp.int32)
    columns = jnp.arange(len(ids))[None]
    segment = jnp.zeros_like(row)
    return policy.log_probs(params, row, columns, segment, None, columns[:, :-1], row[:, 1:]).logp


def test_every_role_is_played_by_its_adapter(team):
    _, policy, params = team
    assert policy.config.lora.agents == (name_id("solver"), name_id("verifier"))
    who = seated(policy, params, Wordy())
    assert who["seats"] == (0, 0, 1) and len(who["policy"]) == len(who["params"]) == 2
    assert packing_of(policy) is pack
    shared = seated(who["policy"][0], who["params"][0], Wordy())
    assert shared == {"policy": who["policy"][0], "params": who["params"][0], "seats": (0,) * 3}


@pytest.mark.slow
def test_sampler_and_trainer_agree(team):
    settings, policy, params = team
    stage = RewardStage(settings, policy, Wordy())
    forest = stage.data(0, params).forest
    assert set(forest.agent.tolist()) == set(policy.config.lora.agents)
    batch, _ = BatchMaker(settings, policy, get_algorithm("srpo"), 1).make(forest, params)
    batch = jax.tree.map(lambda leaf: leaf[0, 0], batch)
    metrics = {}
    for name, agents in (("own", policy.config.lora.agents), ("other", (0, 1))):
        lora = dataclasses.replace(policy.config.lora, agents=agents)
        changed = dataclasses.replace(policy, config=dataclasses.replace(policy.config, lora=lora))
        metrics[name] = jax.jit(make_objective("srpo", changed))(params, batch)[1]
    assert metrics["own"]["kl_behavior"].value < 1e-7
    assert metrics["own"]["log_ratio_abs"].value < 1e-4
    assert metrics["other"]["kl_behavior"].value > 1e-3, "without adapters it is another policy"
    # The gradient of a team reaches the adapter of either role.
    frozen, adapter = detach(params)
    loss = lambda own: make_objective("srpo", policy)(attach(frozen, own), batch)[0]  # noqa: E731
    for part in apart(policy.config, jax.jit(jax.grad(loss))(adapter))[1]:
        assert min(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(part)) > 0


@pytest.mark.slow
def test_a_run_trains_keeps_and_writes_the_adapters_of_its_roles(tmp_path):
    settings = read_settings(CONFIG)
    base, below = make_policy(settings, Wordy())
    save_hf(tmp_path / "base", base, below)
    config = to_dict(settings)
    config["policy"] = {
        "source": str(tmp_path / "base"), "lora_rank": 2, "lora_targets": ("q_proj", "down_proj"),
        "adapters": "per_role",
    }  # fmt: skip
    runs = [tmp_path / "straight", tmp_path / "resumed"]
    run = train(config, run_directory=runs[0], progress=False)
    one, parts = apart(run.policy.config, run.params)
    ups = [np.asarray(part["layers"]["full"]["q_proj"]["lora_b"]) for part in parts]
    assert all(np.abs(up).max() > 1e-4 for up in ups) and np.abs(ups[0] - ups[1]).max() > 1e-4
    # Resumed from the first step it is the same run.
    shutil.copytree(*runs)
    shutil.rmtree(runs[1] / "checkpoints/rl/2")
    (runs[1] / "summary.json").unlink()
    again = train(config, run_directory=runs[1], resume=True, progress=False)
    jax.tree.map(np.testing.assert_array_equal, again.params, run.params)
    assert (runs[0] / "metrics.jsonl").read_bytes() == (runs[1] / "metrics.jsonl").read_bytes()
    # What was written is what was trained: adapters of the published model, and what they share.
    alone = dataclasses.replace(run.policy, config=one)
    for role, part in zip(Wordy.roles, parts, strict=True):
        lora, adapter = load_peft(runs[0] / "adapter" / role, base.config)
        assert lora.rank == 4, "the shared adapter of the first stage and the role's own"
        found = dataclasses.replace(base, config=dataclasses.replace(base.config, lora=lora))
        np.testing.assert_allclose(
            logp(found, attach(below, adapter)), logp(alone, part), atol=1e-4
        )
    plain, written = load(runs[0] / "policy")
    expected = logp(alone, detach(run.params)[0])
    np.testing.assert_allclose(logp(plain, written), expected, atol=1e-5)


def test_adapters_of_a_fresh_policy_are_of_the_directory_beside_them(team, tmp_path):
    settings, policy, params = team
    stages = [(policy.config, detach(params)[1])]
    write_policy(tmp_path, settings, Wordy(), policy, params, stages)
    plain, below = load(tmp_path / "policy")
    one, parts = apart(policy.config, params)
    for role, part in zip(Wordy.roles, parts, strict=True):
        lora, adapter = load_peft(tmp_path / "adapter" / role, plain.config)
        found = dataclasses.replace(plain, config=dataclasses.replace(plain.config, lora=lora))
        expected = logp(dataclasses.replace(policy, config=one), part)
        np.testing.assert_allclose(logp(found, attach(below, adapter)), expected, atol=1e-4)
    assert np.abs(logp(plain, below) - expected).max() > 1e-3


# Bad input


class Roleless(Tasks):
    name = "roleless"


@pytest.mark.parametrize(
    ("section", "change", "domain", "message"),
    [
        ("policy", {"adapters": "per_rule"}, Wordy(), "per_role"),
        ("policy", {"lora_rank": 0}, Wordy(), r"policy\.lora_rank=0 trains all parameters"),
        ("rl", {"steps": 0}, Wordy(), r"rl\.steps=0, and no other stage trains them"),
        ("optimizer", {"name": "muon"}, Wordy(), r'set optimizer\.name="adamw"'),
        ("policy", {}, Kuhn(), "'kuhn' has no roles"),
        ("policy", {}, Roleless(), "'roleless' has no roles"),
    ],
)
def test_adapters_of_roles_are_refused_where_none_are_trained(section, change, domain, message):
    config = CONFIG | {section: CONFIG.get(section, {}) | change}
    settings = read_settings(config)
    policy = Policy(model_config(settings.policy))
    with pytest.raises(ValueError, match=message):
        role_policy(settings, policy, domain)


def test_an_agent_without_an_adapter_is_named(team):
    settings, policy, params = team
    lora = dataclasses.replace(policy.config.lora, agents=(1, 2))
    other = dataclasses.replace(policy, config=dataclasses.replace(policy.config, lora=lora))
    builder = ForestBuilder()
    builder.add([1], builder.add([2], group=0), is_action=True)
    maker = BatchMaker(settings, other, get_algorithm("grpo"), 1)
    with pytest.raises(ValueError, match=r"agents \[0\], and the policy adapters of \[1, 2\]"):
        maker.make(builder.build(), params)
