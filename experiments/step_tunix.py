"""One GRPO step of Tunix's GRPOLearner, as a process that `benchmark_step.py` drives.

Runs with the Python of an environment that holds google-tunix. `learner.train()` runs as always;
its data wait for the next message before each step, and its own methods are timed.
"""

import json
import os
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from step_protocol import Channel, Stopwatch, peak_bytes, reset_peak, reward
from tunix.models.llama3 import model as llama
from tunix.models.llama3.params import create_model_from_safe_tensors
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rl_cluster import ClusterConfig, RLCluster, RLTrainingConfig, Role
from tunix.rl.rollout.base_rollout import RolloutConfig

MANY_STEPS = 10_000
NO_TOKEN = -1  # no sampled id: replies have all their tokens


class KnownTexts:
    """A tokenizer of the prompts alone; a reply's text is its ids, of which the reward is made."""

    def __init__(self, texts: Sequence[str], ids: Sequence[Sequence[int]]):
        self._ids = dict(zip(texts, ids, strict=True))

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt."""
        return list(self._ids[str(text)])

    def decode(self, ids: Sequence[int]) -> str:
        """The ids, as text."""
        return " ".join(map(str, ids))

    def bos_id(self) -> None:
        """None is put before a prompt."""

    def eos_id(self) -> int:
        """Ends no reply."""
        return NO_TOKEN

    def pad_id(self) -> int:
        """Stands in no prompt and in no reply."""
        return NO_TOKEN


def rewards(prompts, completions, **_) -> list[float]:
    """Rewards of a batch."""
    return [reward([int(token) for token in text.split()]) for text in completions]


def model_config(directory: Path) -> llama.ModelConfig:
    """Sizes of the model, which must be of the Llama family.

    Raises:
      ValueError: it is of another.
    """
    fields = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    if fields["model_type"] != "llama":
        raise ValueError(f"--peer=tunix takes a model of type llama, not {fields['model_type']!r}")
    heads, width = fields["num_attention_heads"], fields["hidden_size"]
    theta = fields.get("rope_theta") or fields["rope_parameters"]["rope_theta"]
    # Its attention does not hand the config's base on.
    llama.apply_rope = partial(llama.apply_rope, rope_theta=theta)
    return llama.ModelConfig(
        num_layers=fields["num_hidden_layers"],
        vocab_size=fields["vocab_size"],
        embed_dim=width,
        hidden_dim=fields["intermediate_size"],
        num_heads=heads,
        head_dim=fields.get("head_dim") or width // heads,
        num_kv_heads=fields["num_key_value_heads"],
        rope_theta=theta,
        norm_eps=fields["rms_norm_eps"],
        weight_tying=fields["tie_word_embeddings"],
    )


def make_cluster(work: dict) -> RLCluster:
    """Policy, reference and sampler on one device: the fastest settings that do the same work."""
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    directory = Path(work["model"])
    config = model_config(directory)

    def load() -> nnx.Module:
        return create_model_from_safe_tensors(str(directory), config, mesh, dtype="float32")

    longest, prompts = max(map(len, work["prompt_ids"])), len(work["prompt_ids"])
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(work["learning_rate"], b2=0.999, weight_decay=0.0),
    )
    training = RLTrainingConfig(
        actor_optimizer=optimizer,
        eval_every_n_steps=MANY_STEPS,
        max_steps=MANY_STEPS,
        mini_batch_size=prompts,
        train_micro_batch_size=prompts,
    )
    rollout = RolloutConfig(
        max_tokens_to_generate=work["completion_tokens"],
        max_prompt_length=longest,
        kv_cache_size=longest + work["completion_tokens"],
        temperature=1.0,
        top_p=1.0,
        top_k=None,
        eos_tokens=[NO_TOKEN],
        seed=work["seed"],  # an array would be donated to the first step
    )
    return RLCluster(
        actor=load(),
        reference=load(),
        tokenizer=KnownTexts(work["prompts"], work["prompt_ids"]),
        cluster_config=ClusterConfig(
            role_to_mesh=dict.fromkeys((Role.ACTOR, Role.REFERENCE, Role.ROLLOUT), mesh),
            training_config=training,
            rollout_config=rollout,
        ),
    )


class Turns:
    """Holds a learner before each step, and answers after it."""

    def __init__(self, channel: Channel, learner: GRPOLearner, prompts: Sequence[str]):
        """Times the learner's methods from now on."""
        self.channel, self.learner, self.clock = channel, learner, Stopwatch()
        self._prompts, self._example = np.array(prompts), None
        cluster = learner.rl_cluster
        cluster.generate = self.clock.timed("generate", cluster.generate)
        self._score = self.clock.timed("generate and score", self._keep(learner))
        learner._generate_and_compute_advantage = self._score
        self._update = self.clock.timed("update", self._wait(cluster.update_actor))
        cluster.update_actor = self._answer

    def batches(self) -> Iterator[dict]:
        """The prompts, once for each message that asks for a step."""
        while (message := self.channel.receive()) is not None:
            if message.get("reset_peak"):
                reset_peak()
            self.clock.seconds.clear()
            yield {"prompts": self._prompts}
        os._exit(0)  # nothing to save

    def _keep(self, learner: GRPOLearner):
        compute = learner._generate_and_compute_advantage

        def kept(*arguments, **keywords):
            self._example = jax.block_until_ready(compute(*arguments, **keywords))
            return self._example

        return kept

    def _wait(self, update):
        def waited(*arguments, **keywords) -> None:
            update(*arguments, **keywords)
            jax.block_until_ready(nnx.state(self.learner.rl_cluster.actor_trainer.model))

        return waited

    def _answer(self, *arguments, **keywords) -> None:
        self._update(*arguments, **keywords)
        seconds, example = self.clock.seconds, self._example
        self.channel.send(
            {
                "generate": seconds["generate"],
                "score": seconds["generate and score"] - seconds["generate"],
                "update": seconds["update"],
                "sampled": int(example.completion_mask.sum()),
                # An estimate from what was sampled; the policy hardly leaves its reference.
                "entropy": -float(example.ref_per_token_logps.mean()),
                "peak": peak_bytes(),
            }
        )


def main() -> None:
    """Builds what the first message asks for, and trains turn by turn."""
    channel = Channel()
    work = channel.receive()
    cluster = make_cluster(work)
    algorithm = GRPOConfig(num_generations=work["group"], num_iterations=1, beta=work["beta"])
    learner = GRPOLearner(cluster, algorithm, rewards)
    turns = Turns(channel, learner, work["prompts"])
    params = jax.tree.leaves(nnx.state(cluster.actor_trainer.model, nnx.Param))
    versions = {f"tunix's {name}": version(name) for name in ("jax", "flax")}
    versions = {"google-tunix": version("google-tunix"), **versions}
    channel.send({"trained": sum(leaf.size for leaf in params), "versions": versions})
    learner.train(turns.batches())


if __name__ == "__main__":
    main()
