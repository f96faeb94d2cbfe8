"""The reinforcement-learning stage: episodes of every pool, rewarded by SEPO, as a forest."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import chex
import numpy as np

from ..domains.base import Opponent
from ..domains.tasks import is_task_domain
from ..evaluation import exact_nash_conv
from ..forest import Forest
from ..names import check_option
from ..policy import Policy, Sampling
from ..rollout import build_forest, decision_segments, play
from ..sandbox.environments import domain_environments
from ..sandbox.episodes import EpisodeRequest, EpisodeResult
from ..sandbox.protocol import Pool, TooManyFailures
from ..sepo import (
    CREDITS,
    EpisodeArrays,
    assign_rewards,
    best_response_opponent,
    evaluate,
    from_episodes,
    from_results,
)
from .decisions import (
    OF_DECISIONS,
    OF_ROUNDS,
    check_comparison,
    reward_decisions,
    samples_of_decisions,
    spread_of_groups,
)
from .distributed import rollout_share
from .settings import Settings
from .setup import engine_options
from .stages import StepData
from .step_plan import Seat, StepPlan
from .tasks import BEST_RESPONSE, Task, make_tasks, mean_over_games

_LOG = logging.getLogger(__name__)
_SAMPLES = 4  # episodes of a game that a step writes out


class NoSpreadError(ValueError):
    """All returns that a step compares are equal: there is nothing to learn from."""


class SepoStage:
    """Reinforcement learning on the SEPO reward: play every pool, reward, compare, update.

    With credit "credited" the episodes of every pool train. In the other modes the train episodes
    train alone; auxiliary episodes only measure penalties: for "per_rollout" each train episode has
    its own, `sepo.exploiter_episodes` against each auxiliary opponent.

    A step plays all games of the domain in one rollout and rewards each by its own weights and
    scale. With credit "credited" the rewards of a game are then multiplied by (rounds of all games)
    / (number of games x rounds of this game): the mean reward of a round is the mean over the games
    of their J, and a long game weighs no more than a short one. Figures of each game are logged
    under its name, and "safety" is the mean over them.

    Attributes:
      tasks: the games. plan: which episodes a step plays.
    """

    name = "sepo"

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        domain: Any,
        environments: Pool | None = None,
        progress: bool = False,
    ):
        """A stage; `environments` are the domain's, in this process when None.

        Raises:
          ValueError: a domain of tasks without opponents, options that are not known or do not
            agree.
        """
        if is_task_domain(domain):
            raise ValueError(
                f"sepo.steps={settings.sepo.steps}, but domain {domain.name!r} has tasks with a "
                "reward of their own and no opponents: set sepo.steps=0 and train it with rl.steps"
            )
        self.settings, self.policy = settings, policy
        self.environments = environments or domain_environments(domain)
        self.progress = progress
        check_option("sepo.credit", settings.sepo.credit, CREDITS)
        check_comparison(settings.sepo.group_by, settings.sepo.returns)
        self.tasks = make_tasks(settings, domain)
        self.plan = StepPlan(settings, self.tasks)
        self.sampling = training_sampling(settings)
        self.options = engine_options(settings, self.sampling)
        # Game -> name of an exploiter -> its gap, where that is known exactly.
        self._known_gaps: dict[str, dict[str, float]] = {}

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
        sepo = self.settings.sepo
        plan = self.seats(step, params)
        trains = [sepo.credit == "credited" or seat.pool == "train" for seat in plan]
        seats = [seat for seat, trained in zip(plan, trains, strict=True) if trained]
        count = len(seats)
        seats += [seat for seat, trained in zip(plan, trains, strict=True) if not trained]
        results, waited = self._play([seat.request for seat in seats], params, step)
        made, attempts, resampled = self._reward(seats, results, count), 0, 0
        while attempts < sepo.max_resample and made.flat:
            attempts += 1
            waited += self._play_anew(seats, results, made.flat, attempts, params, step)
            resampled += len(made.flat)
            made = self._reward(seats, results, count)
        if sepo.max_resample:
            self._report_spread(made, step, attempts)
        metrics, samples = self._figures(made), []
        if sepo.max_resample:
            metrics["resampled_rollouts"] = resampled
        for game in made.games:
            shown = [e for e in game.episodes[: game.count] if e.rounds]
            stride = max(len(shown) // _SAMPLES, 1)
            label = game.task.label
            samples += [sample_record(self.name, step + 1, e) | label for e in shown[::stride]]
        return StepData(made.forest, metrics, samples, waited)

    def seats(self, step: int, params: chex.ArrayTree) -> list[Seat]:
        """The episodes of a step; finds the best response to `params` where one is to be played."""
        responders: dict[str, Opponent] = {}
        for task, pools in zip(self.tasks, self.plan.pools, strict=True):
            if BEST_RESPONSE not in pools.get("exploiter", ()):
                continue
            found = exact_nash_conv(
                self.policy, params, task.game, task.domain, temperature=self.sampling.temperature
            )
            responder = best_response_opponent(task.game, found.probabilities)
            responders[task.name] = responder
            # Seats alternate, so the responder's mean advantage is the NashConv, known exactly.
            self._known_gaps[task.name] = {f"exploiter/{responder.name}": float(found)}
        return self.plan.seats(step, responders)

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
            share=rollout_share(),
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

    def _reward(self, seats: Sequence[Seat], results, count: int) -> "_Rewarded":
        """Rewards all episodes; the first `count` of them train."""
        sepo, episodes = self.settings.sepo, from_results(results)
        if not any(episode.rounds for episode in episodes[:count]):
            raise TooManyFailures("no episode that trains was played to its end")
        games = []
        for number, task in enumerate(self.tasks):
            places = [place for place, seat in enumerate(seats) if seat.game == number]
            trained = sum(place < count for place in places)
            games.append(self._reward_game(task, seats, episodes, places, trained))
        rewards = np.zeros((len(seats), max(game.rewards.shape[1] for game in games)))
        rounds = sum(game.arrays.mask.sum() for game in games)
        for game in games:
            own = game.arrays.mask.sum()
            balance = rounds / (len(games) * own) if sepo.credit == "credited" and own else 1.0
            rewards[game.places, : game.rewards.shape[1]] = balance * game.rewards
        # A group of rounds holds whole trees, and a prompt may come up in several rounds.
        forest = build_forest(results[:count], share_prompts=sepo.group_by not in OF_ROUNDS)
        forest = reward_decisions(forest, episodes[:count], rewards)
        played = forest.episode[decision_segments(forest)]
        if sepo.group_by in OF_DECISIONS:
            forest = samples_of_decisions(
                forest, episodes[:count], group_by=sepo.group_by, returns=sepo.returns
            )
        flat_groups, groups, teaches = spread_of_groups(forest)
        flat = sorted(set(played) - set(played[teaches]))
        return _Rewarded(forest, games, flat, flat_groups, groups)

    def _reward_game(self, task: Task, seats, episodes, places: list[int], count: int) -> "_Game":
        """Rewards the episodes of one game at these places; the first `count` of them train."""
        sepo = self.settings.sepo
        played = [episodes[place] for place in places]
        arrays = from_episodes(
            played,
            [seats[place].pool for place in places],
            [seats[place].rollout for place in places],
        )
        credited = sepo.credit == "credited"
        rewards = assign_rewards(
            arrays,
            task.weights,
            task.scale,
            sepo.credit,
            balance=credited,
            known_gaps=self._known_gaps.get(task.name) if credited else None,
            pooled=sepo.pooled_exploiters,
            objective=sepo.objective,
        )
        return _Game(task, places, count, played, arrays, rewards)

    def _figures(self, made: "_Rewarded") -> dict[str, Any]:
        """Metrics of a step: the figures of each game as far as its pools were played, its mean
        reward, and counts over all games."""
        metrics: dict[str, Any] = {}
        for game in made.games:
            task, arrays = game.task, game.arrays
            found = evaluate(arrays, task.judged, task.scale, resamples=0)
            metrics |= task.prefixed({name: figure.value for name, figure in found.items()})
            earned = game.rewards[: game.count][arrays.present[: game.count]]
            if earned.size:
                metrics[f"{task.prefix}reward"] = float(np.nanmean(earned.sum(axis=1)))
        metrics |= mean_over_games(metrics, self.tasks, "safety")
        missing = sum((~game.arrays.present).sum() for game in made.games)
        return metrics | {"failed_rollouts": int(missing)}

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


class _Game(NamedTuple):
    """The episodes of one game in a step, with their rewards.

    Attributes:
      places: of its episodes among all of the step.
      count: how many of them train; those come first.
      episodes, arrays: all of them. rewards: float [episodes, rounds].
    """

    task: Task
    places: list[int]
    count: int
    episodes: list[Any]
    arrays: EpisodeArrays
    rewards: np.ndarray


class _Rewarded(NamedTuple):
    """The episodes of a step with their rewards.

    Attributes:
      forest: of those that train.
      games: all of them by game.
      flat: places of training episodes that teach nothing: all they are compared with earned the
        same. flat_groups, groups: how many groups have no spread, and how many there are.
    """

    forest: Forest
    games: list[_Game]
    flat: list[int]
    flat_groups: int
    groups: int


def training_sampling(settings: Settings) -> Sampling:
    """The sampler of training; ValueError for one whose tokens the update could not score."""
    rollout = settings.rollout
    sampling = Sampling(rollout.temperature, rollout.top_k, rollout.top_p)
    sampling.check_trainable()
    return sampling


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
