"""Environments by what their snapshots keep: a directory, or what was done; and the domains.

`Workspace` keeps files beside Python values, `Replayed` wraps an environment that cannot be copied
and keeps task, seed and actions, `DomainEnvironment` plays the episodes of a domain and keeps them
by value, `TaskEnvironment` asks one question and judges the reply, `TaskEpisodeEnvironment` plays
tasks of several turns. Teams are played by `teams.TeamEnvironment`.
"""

import base64
import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sepo_jax.domains.base import Domain
from sepo_jax.domains.joint import games_of
from sepo_jax.domains.tasks import SingleTurnRules, TaskDomain, is_task_domain
from sepo_jax.domains.teams import is_team
from sepo_jax.names import check_option
from sepo_jax.sandbox.archive import (
    Entry,
    archive_content,
    clear_directory,
    copy_directory,
    pack_directory,
    read_archive,
    unpack_directory,
)
from sepo_jax.sandbox.base import BaseEnvironment, ask, finish
from sepo_jax.sandbox.protocol import (
    Environment,
    EnvironmentFactory,
    Prompt,
    SnapshotRefused,
    Turn,
)
from sepo_jax.sandbox.snapshots import content_hash, dump, load, qualified_name
from sepo_jax.sandbox.teams import team_environments


class Workspace(BaseEnvironment):
    """An environment of files: a directory of its own beside `state`, both in its snapshots.

    `start` finds the directory empty. A restore makes it hold exactly what it held at the
    snapshot. Programs should not be running in it at either time, and nothing in it should name
    it by an absolute path: a snapshot is restored in other places.

    Attributes:
      directory: the files of the episode.
      max_bytes: largest archive of them that a snapshot takes.
    """

    kind = "directory"
    max_bytes = 64 * 2**20

    def __init__(self, scratch: Path):
        super().__init__(scratch)
        self.directory = self.scratch / "workspace"
        self.directory.mkdir()

    def fill(self, source: Path) -> None:
        """Copies the files of a directory, which may be write-protected, into the workspace."""
        copy_directory(source, self.directory)

    def described(self, entries: list[Entry]) -> list[Entry]:
        """Those of its files that the content hash of a snapshot covers; by default all."""
        return entries

    def _clear_scratch(self) -> None:
        clear_directory(self.directory)

    def _snapshot_save(self, turn: Turn) -> tuple[str, bytes]:
        archive = pack_directory(self.directory, self.max_bytes)
        value = dump((turn, self.state), self.shared())
        content = self._files_content(turn, self.state, read_archive(archive))
        return content, len(value).to_bytes(8, "big") + value + archive

    def _snapshot_load(self, body: bytes) -> tuple[str, Callable[[], Turn]]:
        end = 8 + int.from_bytes(body[:8], "big")
        turn, state = load(body[8:end], self.shared())
        entries = read_archive(body[end:])

        def install() -> Turn:
            unpack_directory(entries, self.directory, self.scratch / "unpacking")
            self.state = state
            return turn

        return self._files_content(turn, state, entries), install

    def _files_content(self, turn: Turn, state: Any, entries: list[Entry]) -> str:
        return self._snapshot_content(turn, state, archive_content(self.described(entries)))


class Replayed(BaseEnvironment):
    """An environment whose state cannot be copied: its snapshots say how to get there again.

    A snapshot is JSON: task, seed, actions, and a hash of every turn. A task that is no JSON value
    is kept pickled. A restore resets the environment and plays the actions; it is refused when a
    turn differs, so an environment that does not repeat itself is found out there. It takes as
    long as the episode took. Equal content means the same task, seed and actions.

    Args:
      environment: anything that follows `protocol.Environment`; snapshot and restore are not used.
    """

    kind = "replay"

    def __init__(self, environment: Environment):
        self.environment = environment
        self.name = getattr(environment, "name", qualified_name(type(environment)))
        self.version = getattr(environment, "version", 1)

    def start(self, task: Any, seed: int) -> Turn:
        """Resets the environment."""
        self.state = {"task": task, "seed": seed, "actions": [], "turns": []}
        return self._note(self.environment.reset(task, seed))

    def play(self, actions: Mapping[int, str]) -> Turn:
        """Steps the environment."""
        self.state["actions"].append(actions)
        return self._note(self.environment.step(actions))

    def close(self) -> None:
        """Closes the environment."""
        self.environment.close()

    def _note(self, turn: Turn) -> Turn:
        self.state["turns"].append(content_hash(json.loads(turn.to_json())))
        return turn

    def _snapshot_save(self, turn: Turn) -> tuple[str, bytes]:
        try:
            body = json.dumps(self.state | {"task": _task_to_json(self.state["task"])}).encode()
        except (TypeError, ValueError) as error:
            raise SnapshotRefused(f"the past of {self.name} is no JSON: {error}") from error
        return self._past(self.state), body

    def _snapshot_load(self, body: bytes) -> tuple[str, Callable[[], Turn]]:
        try:
            past = json.loads(body)
            past["task"] = _task_from_json(past["task"])
            actions = [{int(seat): text for seat, text in step.items()} for step in past["actions"]]
            past["actions"] = actions
            content, turns = self._past(past), list(past["turns"])
            if len(turns) != len(actions) + 1:
                raise ValueError(f"{len(turns)} turns of {len(actions)} steps")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SnapshotRefused(f"the snapshot holds no past to replay: {error!r}") from error

        def install() -> Turn:
            turn = self._again(turns, lambda: self.start(past["task"], past["seed"]))
            for step in actions:
                turn = self._again(turns, functools.partial(self.play, step))
            return turn

        return content, install

    @staticmethod
    def _past(state: Mapping[str, Any]) -> str:
        return content_hash((state["task"], state["seed"], state["actions"]))

    def _again(self, turns: Sequence[str], move: Callable[[], Turn]) -> Turn:
        """Makes a move of the past; refuses the snapshot when another turn follows than then."""
        try:
            turn = move()
        except Exception as error:
            raise SnapshotRefused(
                f"{self.name} raised {error!r} while its past was replayed; reset it"
            ) from error
        number = len(self.state["turns"]) - 1
        if self.state["turns"][number] != turns[number]:
            raise SnapshotRefused(
                f"{self.name} does not repeat itself: turn {number} of the replay differs from the "
                "one in the snapshot, so the state there is lost; reset it"
            )
        return turn


def _task_to_json(task: Any) -> dict[str, Any]:
    """The task itself where JSON gives it back as it is, else pickled."""
    with contextlib.suppress(TypeError, ValueError, SnapshotRefused):
        if content_hash(json.loads(json.dumps(task))) == content_hash(task):
            return {"json": task}
    return {"pickle": base64.b64encode(dump(task, {})).decode()}


def _task_from_json(form: Mapping[str, Any]) -> Any:
    return form["json"] if "json" in form else load(base64.b64decode(form["pickle"]), {})


def replayed(factory: EnvironmentFactory) -> EnvironmentFactory:
    """A factory whose environments are those of another, with snapshots by replay."""
    return functools.partial(_replayed, factory)


def _replayed(factory: EnvironmentFactory, scratch: Path) -> Replayed:
    return Replayed(factory(scratch))


class DomainEnvironment(BaseEnvironment):
    """The agent's seat in the episodes of a domain (`domains.base.Domain`).

    A task is {"opponent": a name, an object or a factory}, with further arguments of the domain's
    `new_episode` beside it, such as "seat", or "game" for a domain of several (`domains.joint`).
    Every turn asks seat 0 in a fresh context and pays it its own payoff of the rounds that ended
    since the last one. The record at the end is `Episode.record()`, which `domains.Played` reads.

    Snapshots hold the episode and name the domain: one with other settings refuses them.
    """

    def __init__(self, domain: Domain):
        self.domain = domain
        self.name = f"domain {domain.name}"

    @functools.cached_property
    def version(self) -> str:
        """Hash of the domain's settings."""
        return content_hash(self.domain)

    @functools.cached_property
    def _arguments(self) -> set[str]:
        """What a task may hold."""
        return set(inspect.signature(self.domain.new_episode).parameters) - {"seed"}

    def shared(self) -> Mapping[str, Any]:
        """The domain and, where it is of several games, theirs; none of them ever changes."""
        games = {f"game {name}": game for name, game in games_of(self.domain).items()}
        return {"domain": self.domain, **games} if len(games) > 1 else {"domain": self.domain}

    def start(self, task: Mapping[str, Any], seed: int) -> Turn:
        """Begins an episode; ValueError for what the domain does not take."""
        allowed = self._arguments
        if not isinstance(task, Mapping) or "opponent" not in task:
            raise ValueError(
                f'a task of {self.name} is {{"opponent": ...}} with any of {sorted(allowed)} '
                f"beside it, not {repr(task)[:80]}"
            )
        for key in task:
            check_option(f"field of a task of {self.name}", key, allowed)
        self.state = self.domain.new_episode(seed=seed, **task)
        return self._turn_after(0)

    def play(self, actions: Mapping[int, str]) -> Turn:
        """Plays the agent's reply."""
        rounds = len(self.state.rounds)
        self.state.step(actions[0])
        return self._turn_after(rounds)

    def _turn_after(self, rounds: int) -> Turn:
        """What the episode shows, where so many rounds were paid before."""
        episode = self.state
        rewards = {0: float(sum(result.own for result in episode.rounds[rounds:]))}
        if episode.done:
            return Turn(rewards=rewards, done=True, record=episode.record())
        prompt = Prompt(
            messages=tuple(episode.messages()),
            legal_actions=tuple(episode.legal_actions()),
            observation=episode.observation,
        )
        return Turn({0: prompt}, rewards)


class TaskEnvironment(BaseEnvironment):
    """A task that one reply ends and that is judged by it (`domains.tasks.SingleTurnRules`)."""

    def __init__(self, rules: SingleTurnRules):
        self.rules = rules
        self.name = f"tasks of {rules.name}"

    def shared(self) -> Mapping[str, Any]:
        """The rules, which never change."""
        return {"rules": self.rules}

    def start(self, task: Any, seed: int) -> Turn:
        """Shows the task."""
        self.state = task
        return ask(self.rules.messages(task))

    def play(self, actions: Mapping[int, str]) -> Turn:
        """Judges the reply."""
        reward, record = self.rules.judge(self.state, actions[0])
        return finish(reward=reward, record=record)


class TaskEpisodeEnvironment(BaseEnvironment):
    """Tasks of several turns, played by the episodes of a domain (`domains.tasks.TaskEpisode`).

    Snapshots hold the episode and name the domain: one with other settings refuses them. The domain
    itself never changes and is not in them.
    """

    def __init__(self, domain: TaskDomain):
        self.domain = domain
        self.name = f"tasks of {domain.name}"

    @functools.cached_property
    def version(self) -> str:
        """Hash of the domain's settings."""
        return content_hash(self.domain)

    def shared(self) -> Mapping[str, Any]:
        """The domain, which never changes."""
        return {"domain": self.domain}

    def start(self, task: Any, seed: int) -> Turn:
        """Shows the task; ValueError for what the domain does not take."""
        self.state = self.domain.new_episode(task, seed)
        return self._turn_after(0.0, continues=False)

    def play(self, actions: Mapping[int, str]) -> Turn:
        """Plays the agent's reply."""
        return self._turn_after(self.state.step(actions[0]), continues=True)

    def _turn_after(self, reward: float, continues: bool) -> Turn:
        episode = self.state
        if episode.done:
            return finish(reward=reward, record=episode.record())
        return ask(
            episode.messages(),
            reward=reward,
            continues=continues,
            legal_actions=episode.legal_actions(),
            observation=episode.observation,
        )


def domain_environments(domain: Domain | TaskDomain) -> EnvironmentFactory:
    """A factory of a domain's environments for pools; those of one process share the domain."""
    if not is_task_domain(domain):
        return functools.partial(_domain_environment, domain)
    if hasattr(domain, "environments"):
        return domain.environments()
    if is_team(domain):
        return team_environments(domain)
    return functools.partial(_episode_environment, domain)


def task_environments(rules: SingleTurnRules) -> EnvironmentFactory:
    """A factory of environments of single-turn tasks."""
    return functools.partial(_task_environment, rules)


def _task_environment(rules: SingleTurnRules, scratch: Path) -> TaskEnvironment:
    return TaskEnvironment(rules)


def _domain_environment(domain: Domain, scratch: Path) -> DomainEnvironment:
    return DomainEnvironment(domain)


def _episode_environment(domain: TaskDomain, scratch: Path) -> TaskEpisodeEnvironment:
    return TaskEpisodeEnvironment(domain)
