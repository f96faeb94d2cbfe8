"""The reinforcement-learning stage: episodes of every pool, rewarded by SEPO, as a forest."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import chex
import numpy as np

from ..evaluation import exact_nash_conv
from ..forest import Forest
from ..names import check_option, unknown
from ..policy import Policy, Sampling
from ..rollout import build_forest, decision_segments, members, play
from ..sandbox.environments import domain_environments
from ..sandbox.episodes import EpisodeRequest, EpisodeResult
from ..sandbox.protocol import Pool, TooManyFailures
from ..sepo import (
    CREDITS,
    EpisodeArrays,
    SepoWeights,
    assign_rewards,
    best_response_opponent,
    evaluate,
    from_episodes,
    from_results,
    payoff_scale,
)
from .settings import Settings
from .setup import engine_options
from .stages import StepData

BEST_RESPONSE = "best_response"
_LOG = logging.getLogger(__name__)


class NoSpreadError(ValueError):
    """All returns that a step compares are equal: there is nothing to learn from."""


class SepoStage:
    """Reinforcement learning on the SEPO reward: play every pool, reward, compare, update.

    With credit "credited" the episodes of every pool train. In the other modes the train episodes
    train alone; auxiliary episodes only measure penalties: for "per_rollout" each train episode has
    its own, one against each auxiliary opponent.
    """

    name = "sepo"

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        domain: Any,
        game: Any,
        environments: Pool | None = None,
        progress: bool = False,
    ):
        """A stage; `environments` are the domain's, in this process when None."""
        self.settings, self.policy, self.domain, self.game = settings, policy, domain, game
        self.environments = environments or domain_environments(domain)
        self.progress = progress
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
        self.options = engine_options(settings, self.sampling)
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
        """Plays the episodes of one step and rewards their decisions.

        Raises:
          NoSpreadError: no group has a spread, after `sepo.max_resample` replays.
          TooManyFailures: more episodes failed than the config allows, or all that train.
          ValueError: a prompt that does not fit `rollout.capacity`.
        """
        plan = self._plan(step, params)
        trains = [self.settings.sepo.credit == "credited" or seat.pool == "train" for seat in plan]
        seats = [seat for seat, trained in zip(plan, trains, strict=True) if trained]
        count = len(seats)
        seats += [seat for seat, trained in zip(plan, trains, strict=True) if not trained]
        results, waited = self._play([seat.request for seat in seats], params, step)
        made, attempts, resampled = self._reward(seats, results, count), 0, 0
        while attempts < self.settings.sepo.max_resample and made.flat:
            attempts += 1
            waited += self._play_anew(seats, results, made.flat, attempts, params, step)
            resampled += len(made.flat)
            made = self._reward(seats, results, count)
        if self.settings.sepo.max_resample:
            self._report_spread(made, step, attempts)
        figures = evaluate(made.arrays, self.weights, self.scale, resamples=0)
        metrics = {name: figure.value for name, figure in figures.items()}
        present = made.arrays.present[:count]
        metrics["reward"] = float(np.nanmean(made.rewards[:count][present].sum(axis=1)))
        metrics["failed_rollouts"] = int((~made.arrays.present).sum())
        if self.settings.sepo.max_resample:
            metrics["resampled_rollouts"] = resampled
        shown = [episode for episode in made.episodes[:count] if episode.rounds]
        stride = max(len(shown) // 4, 1)
        samples = [sample_record(self.name, step + 1, episode) for episode in shown[::stride]]
        return StepData(made.forest, metrics, samples, waited)

    def _play(
        self, requests: Sequence[EpisodeRequest], params: chex.ArrayTree, step: int
    ) -> tuple[list[EpisodeResult], float]:
        """Results, and seconds in which all waited for sandboxes."""
        rollout = play(
            self.policy,
            params,
            requests,
            self.environments,
            self.options,
            seed=self.settings.seed,
            step=step,
            progress=f"step {step + 1}" if self.progress else "",
        )
        lost = [result for result in rollout.results if result.failure is not None]
        if lost:
            _LOG.warning(
                "step %d: %d of %d episodes are missing; the first: %s",
                step + 1, len(lost), len(requests), lost[0].failure.message,
            )  # fmt: skip
        return list(rollout.results), rollout.statistics["blocked_seconds"]

    def _play_anew(self, seats, results, places, attempt: int, params, step: int) -> float:
        """Replaces results by fresh samples of the same episodes; returns the seconds waited."""
        most = 1 + max(seat.request.member for seat in seats)
        asked = [seats[place].request for place in places]
        asked = [dataclasses.replace(r, member=r.member + attempt * most) for r in asked]
        try:
            fresh, waited = self._play(asked, params, step)
        except TooManyFailures as error:
            _LOG.warning("step %d: no replay, %s", step + 1, error)
            return 0.0
        for place, result in zip(places, fresh, strict=True):
            if result.status != "failed":
                results[place] = result
        return waited

    def _reward(self, seats: Sequence["Seat"], results, count: int) -> "_Rewarded":
        """Rewards all episodes; the first `count` of them train."""
        episodes = from_results(results)
        arrays = from_episodes(
            episodes, [seat.pool for seat in seats], [seat.rollout for seat in seats]
        )
        if not arrays.present[:count].any():
            raise TooManyFailures("no episode that trains was played to its end")
        credited = self.settings.sepo.credit == "credited"
        rewards = assign_rewards(
            arrays,
            self.weights,
            self.scale,
            self.settings.sepo.credit,
            balance=credited,
            known_gaps=self._known_gaps if credited else None,
        )
        forest = reward_decisions(build_forest(results[:count]), episodes[:count], rewards)
        played = forest.episode[decision_segments(forest)]
        if self.settings.sepo.group_by == "prompt":
            forest = samples_of_prompts(forest)
        flat_groups, groups, teaches = spread_of_groups(forest)
        flat = sorted(set(played) - set(played[teaches]))
        return _Rewarded(forest, episodes, arrays, rewards, flat, flat_groups, groups)

    def _report_spread(self, made: "_Rewarded", step: int, attempts: int) -> None:
        share = (
            f"{made.flat_groups} of {made.groups} groups have no spread after {attempts} replays"
        )
        if made.flat_groups == made.groups:
            raise NoSpreadError(
                f"step {step + 1} of stage {self.name}: {share}: the rewards of all that is "
                "compared are equal, so there is nothing to learn. The tasks are too easy or too "
                "hard for this policy, or it always answers alike: change the opponents, raise "
                "rollout.temperature or sepo.rollouts_per_group, or let the run go on without "
                "updates by sepo.max_resample=0"
            )
        if attempts:
            _LOG.warning("step %d: %s; training on the others", step + 1, share)

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
                    request = EpisodeRequest(
                        {"opponent": opponent, "seat": deal % 2},
                        seed=episode_seed(self.settings.seed, step, number, deal),
                        group=number * train + deal if sepo.group_by == "deal" else number,
                    )
                    rollout = len(seats) if pool == "train" else index % train
                    seats.append(Seat(request, pool, rollout))
                number += 1
        places = members([seat.request.group for seat in seats])
        return [
            seat._replace(request=dataclasses.replace(seat.request, member=member))
            for seat, member in zip(seats, places, strict=True)
        ]


class Seat(NamedTuple):
    """One episode of a step.

    Attributes:
      request: what to play; episodes of one group are compared.
      pool: "train", "exploiter" or "collusive".
      rollout: the train episode it belongs to.
    """

    request: EpisodeRequest
    pool: str
    rollout: int


class _Rewarded(NamedTuple):
    """The episodes of a step with their rewards.

    Attributes:
      forest: of those that train.
      episodes, arrays: all of them. rewards: float [episodes, rounds].
      flat: places of training episodes that teach nothing: all they are compared with earned the
        same. flat_groups, groups: how many groups have no spread, and how many there are.
    """

    forest: Forest
    episodes: list[Any]
    arrays: EpisodeArrays
    rewards: np.ndarray
    flat: list[int]
    flat_groups: int
    groups: int


def spread_of_groups(forest: Forest) -> tuple[int, int, np.ndarray]:
    """Groups in which all episodes earn the same, all groups, and which decisions are in groups
    where they do not, bool [decisions]. An episode that lacks a reward (NaN) is left out."""
    actions = decision_segments(forest)
    _, first, of_episode = np.unique(
        forest.episode[actions], return_index=True, return_inverse=True
    )
    earned = np.bincount(of_episode, forest.reward[actions]).astype(np.float32)
    _, group = np.unique(forest.group[actions][first], return_inverse=True)
    count = int(group.max(initial=-1)) + 1
    low, high = np.full(count, np.inf, np.float32), np.full(count, -np.inf, np.float32)
    known = ~np.isnan(earned)
    np.minimum.at(low, group[known], earned[known])
    np.maximum.at(high, group[known], earned[known])
    spread = high > low
    return int((~spread).sum()), count, spread[group][of_episode]


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
