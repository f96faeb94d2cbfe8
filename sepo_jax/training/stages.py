"""The two stages of a run: each turns a step number and the parameters into a batch to train on."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import numpy as np

from ..credit import assign_credit
from ..evaluation import exact_nash_conv
from ..forest import Batch, Forest, ForestBuilder, fill
from ..names import check_option, unknown
from ..objective import Objective, make_objective
from ..policy import Policy, Sampling, render
from ..rollout import decision_segments, play
from ..sepo import (
    CREDITS,
    SepoWeights,
    assign_rewards,
    best_response_opponent,
    evaluate,
    from_episodes,
    payoff_scale,
)
from .batches import packing_of
from .settings import Settings

BEST_RESPONSE = "best_response"


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
    the data position is a function of the step alone. One decision in five is held out. Decisions
    repeat in a small game: there the held-out loss measures the fit, not generalisation.
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
        self._batch = None
        self._objective = make_objective("sft", policy, temperature=settings.rollout.temperature)
        if not self.training:
            raise ValueError(
                f"sft.num_decisions={settings.sft.num_decisions} leaves no training data; "
                "give at least 2"
            )

    def evaluate(self, params: chex.ArrayTree) -> dict[str, float]:
        """Loss of the held-out decisions: mean negative log-likelihood of a token, in nats."""
        if self._batch is None:
            forest = supervised_forest(self.validation)
            credit = assign_credit(self._objective.algorithm, forest)
            rows = packing_of(self._objective.policy)(
                forest, row_length=self.settings.rollout.row_length
            )
            self._batch = fill(rows, **credit.arrays())
        loss, _ = _evaluate(self._objective, params, self._batch)
        return {"validation_loss": float(loss)}

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


@partial(jax.jit, static_argnums=0)
def _evaluate(objective: Objective, params: chex.ArrayTree, batch: Batch):
    return objective(params, batch)


def encode_example(policy: Policy, messages, reply: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Token ids of a prompt and of its reply with the end token."""
    prompt = tuple(render(policy.tokenizer, messages))
    answer = policy.tokenizer.encode(reply, add_special_tokens=False)
    return prompt, (*answer, policy.end_ids[0])


def supervised_forest(examples: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Forest:
    """A forest of (prompt, reply) pairs, rewards 1; pairs with the same prompt share its root."""
    builder = ForestBuilder()
    roots: dict[tuple, int] = {}
    for prompt, reply in examples:
        if prompt not in roots:
            roots[prompt] = builder.add(prompt, group=len(roots))
        builder.add(reply, parent=roots[prompt], is_action=True, reward=1.0)
    return builder.build()


class SepoStage:
    """Reinforcement learning on the SEPO reward: play every pool, reward, compare, update.

    With credit "credited" the episodes of every pool train. In the other modes the train episodes
    train alone; auxiliary episodes only measure penalties: for "per_rollout" each train episode has
    its own, one against each auxiliary opponent.
    """

    name = "sepo"

    def __init__(self, settings: Settings, policy: Policy, domain: Any, game: Any):
        self.settings, self.policy, self.domain, self.game = settings, policy, domain, game
        sepo = settings.sepo
        check_option("sepo.credit", sepo.credit, CREDITS)
        check_option("sepo.group_by", sepo.group_by, ("prompt", "deal", "opponent"))
        if sepo.groups_per_opponent < 2 or sepo.groups_per_opponent % 2:
            raise ValueError(
                f"sepo.groups_per_opponent={sepo.groups_per_opponent} must be even: seats "
                "alternate from one initial state to the next, and both must weigh the same"
            )
        self.weights = SepoWeights(
            sepo.exploitability_weight,
            sepo.collusion_weight,
            sepo.externality_weight,
            settings.domain.invalid_penalty,
        )
        self.scale = payoff_scale(domain.max_payoff)
        self.sampling = training_sampling(settings)
        self._known_gaps: dict[str, float] | None = None
        self.pools = {"train": self._names("train", sepo.train_pool)}
        if sepo.exploitability_weight:
            self.pools["exploiter"] = self._names("exploiter", sepo.exploiter_pool)
        if sepo.collusion_weight:
            self.pools["collusive"] = self._names("collusive", sepo.collusive_pool)

    def _names(self, pool: str, chosen: tuple) -> tuple:
        known = tuple(self.domain.pools[pool])
        special = (BEST_RESPONSE,) if pool == "exploiter" and self.game is not None else ()
        for name in chosen:
            if name not in known + special:
                raise unknown(f"opponent of the {pool} pool", name, known + special)
        return tuple(chosen) or known

    def evaluate(self, params: chex.ArrayTree) -> dict[str, float]:
        """Nothing beside what the judge measures."""
        return {}

    def data(self, step: int, params: chex.ArrayTree) -> StepData:
        """Plays the episodes of one step and rewards their decisions."""
        plan = self._plan(step, params)
        credited = self.settings.sepo.credit == "credited"
        training = [seat for seat in plan if credited or seat.pool == "train"]
        measuring = [seat for seat in plan if not (credited or seat.pool == "train")]
        forest = self._play(training, params, step)
        if measuring:
            self._play(measuring, params, step)
        seats = training + measuring
        episodes = [seat.episode for seat in seats]
        arrays = from_episodes(
            episodes, [seat.pool for seat in seats], [seat.rollout for seat in seats]
        )
        rewards = assign_rewards(
            arrays,
            self.weights,
            self.scale,
            self.settings.sepo.credit,
            balance=credited,
            known_gaps=self._known_gaps if credited else None,
        )
        forest = reward_decisions(forest, episodes[: len(training)], rewards)
        if self.settings.sepo.group_by == "prompt":
            forest = samples_of_prompts(forest)
        figures = evaluate(arrays, self.weights, self.scale, resamples=0)
        metrics = {name: figure.value for name, figure in figures.items()}
        metrics["reward"] = float(np.nanmean(rewards[: len(training)].sum(axis=1)))
        stride = max(len(training) // 4, 1)
        samples = [sample_record(self.name, step + 1, seat.episode) for seat in training[::stride]]
        return StepData(forest, metrics, samples)

    def _play(self, seats: list["Seat"], params: chex.ArrayTree, step: int) -> Forest:
        rollout = self.settings.rollout
        return play(
            self.policy,
            params,
            [seat.episode for seat in seats],
            sampling=self.sampling,
            seed=self.settings.seed,
            step=step,
            slots=rollout.slots,
            max_action_tokens=rollout.max_action_tokens,
            exchange_interval=rollout.exchange_interval,
            groups=[seat.group for seat in seats],
        )

    def _plan(self, step: int, params: chex.ArrayTree) -> list["Seat"]:
        """The episodes of a step: all pools, `groups_per_opponent` initial states an opponent,
        `rollouts_per_group` episodes from each, seats alternating."""
        sepo = self.settings.sepo
        responder = None
        if BEST_RESPONSE in self.pools.get("exploiter", ()):
            found = exact_nash_conv(
                self.policy,
                params,
                self.game,
                self.domain,
                temperature=self.sampling.temperature,
            )
            responder = best_response_opponent(self.game, found.probabilities)
            # Seats alternate, so the responder's mean advantage is the NashConv, known exactly.
            self._known_gaps = {f"exploiter/{responder.name}": float(found)}
        train = len(self.pools["train"]) * sepo.groups_per_opponent * sepo.rollouts_per_group
        seats: list[Seat] = []
        number = 0
        for pool, names in self.pools.items():
            for name in names:
                opponent = responder if name == BEST_RESPONSE else name
                count = sepo.groups_per_opponent * sepo.rollouts_per_group
                if sepo.credit == "per_rollout" and pool != "train":
                    count = train
                for index in range(count):
                    deal = index // sepo.rollouts_per_group
                    group = number * train + deal if sepo.group_by == "deal" else number
                    seed = episode_seed(self.settings.seed, step, number, deal)
                    episode = self.domain.new_episode(opponent, seed=seed, seat=deal % 2)
                    rollout = len(seats) if pool == "train" else index % train
                    seats.append(Seat(episode, pool, group, rollout))
                number += 1
        return seats


class Seat(NamedTuple):
    """One episode of a step.

    Attributes:
      episode: the episode, started.
      pool: "train", "exploiter" or "collusive".
      group: episodes of one group are compared.
      rollout: the train episode it belongs to.
    """

    episode: Any
    pool: str
    group: int
    rollout: int


def episode_seed(seed: int, step: int, opponent: int, deal: int) -> int:
    """Seed of an episode's chance moves, shared by the episodes of one initial state."""
    state = np.random.SeedSequence([seed, step, opponent, deal]).generate_state(1)
    return int(state[0])


def training_sampling(settings: Settings) -> Sampling:
    """The sampler of training; ValueError for one whose tokens the update could not score."""
    rollout = settings.rollout
    sampling = Sampling(rollout.temperature, rollout.top_k, rollout.top_p)
    sampling.check_trainable()
    return sampling


def reward_decisions(forest: Forest, episodes: Sequence[Any], rewards: np.ndarray) -> Forest:
    """Writes the rewards of rounds into the forest, each on the last decision of its round.

    Args:
      forest: of `rollout.play`.
      episodes: the played episodes.
      rewards: float [at least episodes, rounds].
    """
    decisions = [(e, d) for e, episode in enumerate(episodes) for d in episode.decisions]
    reward = forest.reward.copy()
    last = {(e, d.round): i for i, (e, d) in enumerate(decisions)}
    for i, (segment, (e, d)) in enumerate(zip(decision_segments(forest), decisions, strict=True)):
        reward[segment] = rewards[e, d.round] if last[e, d.round] == i else 0.0
    return forest.replace(reward=reward)


def samples_of_prompts(forest: Forest) -> Forest:
    """Makes every decision a trajectory of its own: a sample of its prompt, compared with the other
    samples of that prompt in the same group, its reward the rewards of its episode from it on.

    The baseline may then depend on all the agent saw, and nothing earned before counts.

    Args:
      forest: of `rollout.play`, with rewards; decisions of an episode in order.
    """
    actions = decision_segments(forest)
    reward, episode = forest.reward.copy(), forest.episode.copy()
    for here, after in zip(actions[-2::-1], actions[:0:-1], strict=True):
        if forest.episode[here] == forest.episode[after]:
            reward[here] += reward[after]
    episode[actions] = np.arange(len(actions))
    return forest.replace(reward=reward, episode=episode, group=forest.tree())


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
