"""The two stages of a run: each turns a step number and the parameters into a batch to train on."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import chex
import numpy as np

from ..evaluation import policy_table
from ..forest import Forest, ForestBuilder
from ..names import unknown
from ..policy import Policy, Sampling, render
from ..rollout import decision_segments, play
from ..sepo import (
    SepoWeights,
    assign_rewards,
    best_response_opponents,
    from_episodes,
    payoff_scale,
    summarize,
)
from .settings import Settings


class StepData(NamedTuple):
    """What a stage hands to the loop.

    Attributes:
      forest: the segments of this step, with their rewards.
      metrics: averages of this step's data.
      samples: a few records for `samples.jsonl`.
    """

    forest: Forest
    metrics: dict[str, Any]
    samples: list[dict]


class SftStage:
    """Supervised fine-tuning on expert traces: negative log-likelihood of the replies.

    The order of the data is a permutation for each pass, derived from the seed and the pass, so
    the data position is a function of the step alone. One decision in five is held out.
    """

    name = "sft"

    def __init__(self, settings: Settings, policy: Policy, domain: Any):
        self.settings = settings
        traces = domain.expert_traces(settings.sft.num_decisions, settings.sft.data_seed)
        examples = [encode_example(policy, messages, reply) for messages, reply in traces]
        held_out = max(len(examples) // 5, 1)
        order = np.random.default_rng(settings.sft.data_seed).permutation(len(examples))
        self.validation = [examples[index] for index in order[:held_out]]
        self.training = [examples[index] for index in order[held_out:]]
        if not self.training:
            raise ValueError(
                f"sft.num_decisions={settings.sft.num_decisions} leaves no training data; "
                "give at least 2"
            )

    def data(self, step: int, params: chex.ArrayTree) -> StepData:
        """The decisions of one step."""
        size = self.settings.sft.batch_size
        chosen = []
        for position in range(step * size, (step + 1) * size):
            epoch, index = divmod(position, len(self.training))
            if not chosen or index == 0:
                order = np.random.default_rng([self.settings.seed, epoch]).permutation(
                    len(self.training)
                )
            chosen.append(self.training[order[index]])
        return StepData(supervised_forest(chosen), {}, [])


def encode_example(policy: Policy, messages, reply: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Token ids of a prompt and of its reply with the end token."""
    prompt = tuple(render(policy.tokenizer, messages))
    answer = policy.tokenizer.encode(reply, add_special_tokens=False)
    return prompt, (*answer, policy.end_ids[0])


def supervised_forest(examples: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Forest:
    """A forest of (prompt, reply) pairs with reward 1; pairs with the same prompt share its root."""
    builder = ForestBuilder()
    roots: dict[tuple, int] = {}
    for prompt, reply in examples:
        if prompt not in roots:
            roots[prompt] = builder.add(prompt, group=len(roots))
        builder.add(reply, parent=roots[prompt], is_action=True, reward=1.0)
    return builder.build()


class SepoStage:
    """Reinforcement learning on the SEPO reward: play every pool, reward, compare, update."""

    name = "sepo"

    def __init__(self, settings: Settings, policy: Policy, domain: Any, game: Any):
        self.settings, self.policy, self.domain, self.game = settings, policy, domain, game
        sepo = settings.sepo
        self.weights = SepoWeights(
            sepo.exploitability_weight, sepo.collusion_weight, sepo.externality_weight
        )
        self.sampling = training_sampling(settings)
        self.pools = {
            "train": self._names("train", sepo.train_pool),
            "exploiter": self._names("exploiter", sepo.exploiter_pool),
            "collusive": self._names("collusive", sepo.collusive_pool)
            if sepo.collusion_weight
            else (),
        }

    def _names(self, pool: str, chosen: tuple) -> tuple:
        known = tuple(self.domain.pools[pool])
        special = ("best_response",) if pool == "exploiter" and self.game is not None else ()
        for name in chosen:
            if name not in known + special:
                raise unknown(f"opponent of the {pool} pool", name, known + special)
        return tuple(chosen) or known

    def data(self, step: int, params: chex.ArrayTree) -> StepData:
        """Plays the episodes of one step and rewards their decisions."""
        settings, sepo = self.settings, self.settings.sepo
        episodes, pools, groups = self._episodes(step, params)
        forest = play(
            self.policy,
            params,
            episodes,
            sampling=self.sampling,
            seed=settings.seed,
            step=step,
            slots=settings.rollout.slots,
            max_action_tokens=settings.rollout.max_action_tokens,
            exchange_interval=settings.rollout.exchange_interval,
            groups=groups,
        )
        arrays = from_episodes(episodes, pools, rollouts=self._rollouts(pools))
        scale = payoff_scale(self.domain.max_payoff)
        rewards = assign_rewards(arrays, self.weights, scale, sepo.credit)
        forest = reward_decisions(
            forest, episodes, rewards, settings.domain.invalid_penalty
        )
        metrics = summarize(arrays, episodes, self.weights, scale)
        samples = [sample_record(self.name, step, episode) for episode in episodes[::97][:4]]
        return StepData(forest, metrics, samples)

    def _episodes(self, step: int, params: chex.ArrayTree):
        sepo = self.settings.sepo
        opponents = [(pool, name) for pool, names in self.pools.items() for name in names]
        responders = None
        if "best_response" in self.pools["exploiter"]:
            table = policy_table(self.policy, params, self.game, self.domain)
            responders = best_response_opponents(self.game, table.probabilities)
        episodes, pools, groups = [], [], []
        for number, (pool, name) in enumerate(opponents):
            for deal in range(sepo.groups_per_opponent):
                group = number * sepo.groups_per_opponent + deal
                seed = int(
                    np.random.SeedSequence([self.settings.seed, step, group]).generate_state(1)[0]
                )
                for _ in range(sepo.rollouts_per_group):
                    seat = deal % 2
                    opponent = responders[1 - seat] if name == "best_response" else name
                    episodes.append(self.domain.new_episode(opponent, seed=seed, seat=seat))
                    pools.append(pool)
                    groups.append(group if sepo.group_by == "deal" else number)
        return episodes, pools, groups

    def _rollouts(self, pools: list[str]) -> np.ndarray:
        """Train rollout that each auxiliary episode is charged to, in turn; -1 for train ones."""
        pools = np.asarray(pools)
        train = np.flatnonzero(pools == "train")
        rollouts = np.full(len(pools), -1, np.int64)
        for pool in ("exploiter", "collusive"):
            members = np.flatnonzero(pools == pool)
            rollouts[members] = train[np.arange(len(members)) % max(len(train), 1)]
        return rollouts


def training_sampling(settings: Settings) -> Sampling:
    """The sampler of training; ValueError for one whose tokens the update could not score."""
    rollout = settings.rollout
    sampling = Sampling(rollout.temperature, rollout.top_k, rollout.top_p)
    sampling.check_trainable()
    return sampling


def reward_decisions(
    forest: Forest, episodes: Sequence[Any], rewards: np.ndarray, invalid_penalty: float
) -> Forest:
    """Writes round rewards into the forest: a round's reward on the last decision of the round, and
    `invalid_penalty` subtracted on every decision whose reply named no legal action.

    Args:
      forest: of `rollout.play`.
      episodes: the played episodes.
      rewards: float [episodes, rounds].
      invalid_penalty: in units of the reward.
    """
    decisions = [(e, d) for e, episode in enumerate(episodes) for d in episode.decisions]
    reward = forest.reward.copy()
    last = {(e, d.round): i for i, (e, d) in enumerate(decisions)}
    for i, (segment, (e, d)) in enumerate(zip(decision_segments(forest), decisions, strict=True)):
        round_reward = rewards[e, d.round] if last[e, d.round] == i else 0.0
        reward[segment] = round_reward - (0.0 if d.valid else invalid_penalty)
    return forest.replace(reward=reward)


def sample_record(stage: str, step: int, episode: Any) -> dict:
    """What `samples.jsonl` keeps of an episode."""
    return {
        "stage": stage,
        "step": step,
        "opponent": episode.opponent_name,
        "payoff": sum(result.own for result in episode.rounds),
        "decisions": [
            {
                "observation": decision.observation,
                "prompt": decision.messages[-1]["content"],
                "reply": decision.text,
                "valid": decision.valid,
            }
            for decision in episode.decisions
        ],
    }

