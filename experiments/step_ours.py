"""One GRPO step of this package, as a process that `benchmark_step.py` drives.

Generation is the rollout engine, which computes each prompt once for its group; scores and update
take the packed forest, in which a prompt stands once above its completions.
"""

import dataclasses
import os
from importlib.metadata import version
from typing import Any

import jax
from step_protocol import Channel, Stopwatch, peak_bytes, reset_peak, reward

from sepo_jax.forest import Forest, ForestBuilder
from sepo_jax.objective import make_objective
from sepo_jax.policy import Policy, load
from sepo_jax.policy.config import LoraConfig
from sepo_jax.rollout import EngineOptions, complete
from sepo_jax.training.batches import BatchMaker
from sepo_jax.training.parallel import Parallel
from sepo_jax.training.settings import Settings, read_settings
from sepo_jax.training.trainable import begin_stage, join, split
from sepo_jax.training.update import init_state, make_optimizer, make_update

MANY_STEPS = 10_000  # of a constant learning rate


def settings_of(work: dict) -> Settings:
    """The run's settings: AdamW as the peer has it, rows that one group fills."""
    longest = max(map(len, work["prompt_ids"])) + work["group"] * work["completion_tokens"]
    return read_settings(
        {
            "optimizer": {"beta2": 0.999},
            "rollout": {
                "slots": len(work["prompt_ids"]) * work["group"],
                "max_action_tokens": work["completion_tokens"],
                "exchange_interval": 8,
                "row_length": -(-longest // 16) * 16,
            },
            "parallel": {"kind": "single"},
        }
    )


def policy_of(work: dict) -> tuple[Policy, dict]:
    """The policy and its parameters, without end token: completions have all their tokens."""
    policy, params = load(work["model"], tokenizer=False, compute_dtype=work["precision"])
    lora = None
    if work["lora_rank"]:
        lora = LoraConfig(work["lora_rank"], work["lora_alpha"], tuple(work["lora_targets"]))
    return Policy(dataclasses.replace(policy.config, lora=lora)), params


class Steps:
    """GRPO steps of one policy on the same prompts: call it for the next one."""

    def __init__(self, work: dict):
        self.work, self.settings, self.step = work, settings_of(work), 0
        self.policy, params = policy_of(work)
        objective = make_objective("grpo", self.policy, kl_weight=work["beta"])
        rate = work["learning_rate"]
        optimizer = make_optimizer(self.settings.optimizer, rate, 0, MANY_STEPS, rate)
        parallel = Parallel(self.settings.parallel)
        # The policy before training: without adapter, or a copy of all parameters.
        self.reference = params
        params = begin_stage(self.policy.config, params, jax.random.key(work["seed"]))
        frozen, trained = split(self.policy.config, params)
        self.trained = sum(leaf.size for leaf in jax.tree.leaves(trained))
        self.frozen = parallel.hold(frozen)
        self.state = parallel.place(init_state(trained, optimizer))
        self.maker = BatchMaker(self.settings, self.policy, objective.algorithm, 1)
        self.update = parallel.compile_update(lambda goal: make_update(goal, optimizer), objective)

    @property
    def params(self) -> dict:
        """Parameters of the policy as the last update left them."""
        return join(self.frozen, self.state.params)

    def __call__(self) -> dict[str, Any]:
        """Seconds of each phase of the next step, and figures that say it did its work."""
        clock = Stopwatch()
        completions = clock.timed("generate", self.generate)()
        batch = clock.timed("score", self.score)(completions)
        metrics = clock.timed("update", self.train)(batch)
        self.step += 1
        return {
            **clock.seconds,
            "sampled": sum(len(each.tokens) for samples in completions for each in samples),
            "entropy": float(metrics["entropy"].value),
            "peak": peak_bytes(),
        }

    def generate(self) -> list:
        """Completions of every prompt, `group` each."""
        rollout, prompts = self.settings.rollout, self.work["prompt_ids"]
        options = EngineOptions(
            slots=rollout.slots,
            capacity=max(map(len, prompts)) + rollout.max_action_tokens,
            max_action_tokens=rollout.max_action_tokens,
            exchange_interval=rollout.exchange_interval,
        )
        return complete(
            self.policy,
            self.params,
            prompts,
            options,
            samples=self.work["group"],
            seed=self.work["seed"],
            step=self.step,
        )

    def score(self, completions: list):
        """Rewards, rows, log-probabilities of the reference policy, advantages."""
        batch, _ = self.maker.make(self.forest(completions), self.params, self.reference)
        return batch

    def forest(self, completions: list) -> Forest:
        """A tree for every prompt, its completions below it."""
        builder = ForestBuilder()
        for group, (ids, samples) in enumerate(
            zip(self.work["prompt_ids"], completions, strict=True)
        ):
            root = builder.add(ids, group=group)
            for completion in samples:
                builder.add(
                    completion.tokens,
                    root,
                    is_action=True,
                    behavior_logp=completion.logp,
                    entropy=completion.entropy,
                    reward=reward(completion.tokens.tolist()),
                )
        return builder.build()

    def train(self, batch):
        """One update; its metrics."""
        self.state, metrics = self.update(self.state, self.frozen, batch)
        return jax.block_until_ready((self.state, metrics))[1]


def main() -> None:
    """Builds what the first message asks for; then a step for each further message."""
    channel = Channel()
    steps = Steps(channel.receive())
    versions = {name: version(name) for name in ("jax", "jaxlib", "flax", "optax")}
    channel.send({"trained": steps.trained, "versions": versions})
    while (message := channel.receive()) is not None:
        if message.get("reset_peak"):
            reset_peak()
        channel.send(steps())


if __name__ == "__main__":
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    main()
