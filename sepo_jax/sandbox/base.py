"""A base for environments: it keeps the rules of a turn, and snapshots by value.

An environment in a dozen lines; the class itself is the factory that a pool asks for:

    class Guess(BaseEnvironment):
        def start(self, task, seed):
            self.state = random.Random(seed).randrange(task["limit"])
            return ask(f"Guess a number below {task['limit']}.")

        def play(self, actions):
            if actions[0] == str(self.state):
                return finish(reward=1.0)
            return ask("Wrong. Guess again.", continues=True)
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sepo_jax.domains.base import EpisodeFailed, EpisodeFinished
from sepo_jax.sandbox.protocol import Message, Prompt, SnapshotRefused, Turn, check_turn
from sepo_jax.sandbox.snapshots import (
    Header,
    check_origin,
    content_hash,
    dump,
    load,
    qualified_name,
    seal,
    unseal,
)


def ask(
    text: str | Sequence[Message],
    *,
    reward: float = 0.0,
    continues: bool = False,
    legal_actions: Sequence[str] = (),
    observation: str = "",
) -> Turn:
    """A turn that asks seat 0; `text` is what the user says, or whole messages (see `Prompt`)."""
    messages = ({"role": "user", "content": text},) if isinstance(text, str) else tuple(text)
    prompt = Prompt(messages, continues, (), tuple(legal_actions), observation)
    return Turn({0: prompt}, {0: float(reward)})


def finish(*, reward: float = 0.0, record: Any = None) -> Turn:
    """The last turn of an episode of one seat."""
    return Turn(rewards={0: float(reward)}, done=True, record=record)


class BaseEnvironment:
    """Keeps the rules of `protocol.Environment`; a subclass writes `start` and `play`.

    Everything an episode depends on lives in `state`, any value that pickles: snapshots hold it by
    value. Randomness too: keep a `random.Random(seed)` there, never the global one.

    An environment that is asked wrongly says so and stays as it is. An error in the midst of a
    move leaves it failed, until it is reset or restored.

    Args:
      scratch: an empty directory of its own.

    Attributes:
      name, version: a snapshot is restored by the same ones only; raise the version when `state`
        or the rules change.
      state: of the running episode.
    """

    kind = "value"
    name = ""
    version: int | str = 1
    state: Any = None
    __turn: Turn | None = None
    __failure: str | None = None

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            cls.name = qualified_name(cls)

    def __init__(self, scratch: Path):
        self.scratch = Path(scratch)

    def start(self, task: Any, seed: int) -> Turn:
        """Begins an episode: sets `state` and returns the first turn."""
        raise NotImplementedError

    def play(self, actions: Mapping[int, str]) -> Turn:
        """Plays a reply of every seat that was asked, changes `state`, returns the next turn."""
        raise NotImplementedError

    def describe(self, state: Any) -> Any:
        """What the content hash of a state covers; leave out caches, name what points back."""
        return state

    def shared(self) -> Mapping[str, Any]:
        """Objects that never change and are the same in every sandbox: snapshots only name them."""
        return {}

    def reset(self, task: Any, seed: int) -> Turn:
        """Starts an episode; what `start` raises passes through."""
        with self.__fails_on_error():
            self._clear_scratch()
            return self.__show(self.start(task, seed))

    def step(self, actions: Mapping[int, str]) -> Turn:
        """Plays a reply of every seat that the last turn asked.

        Raises:
          EpisodeFinished: the episode is over; nothing changes.
          EpisodeFailed: an earlier move ended in an error; nothing changes.
          ValueError: no episode was started, or other seats than the asked ones answer; nothing
            changes.
        """
        asked = list(self.__pending().prompts)
        if not isinstance(actions, Mapping) or set(actions) != set(asked):
            given = list(actions) if isinstance(actions, Mapping) else repr(actions)[:80]
            raise ValueError(f"{self.name} asks seats {asked}, and these answer: {given}")
        if not all(isinstance(text, str) for text in actions.values()):
            raise ValueError(f"{self.name} takes a text for every seat, not {repr(actions)[:80]}")
        with self.__fails_on_error():
            return self.__show(self.play(dict(actions)))

    def snapshot(self) -> bytes:
        """The state of the running episode; SnapshotRefused where there is none to keep."""
        try:
            turn = self.__pending()
        except ValueError as error:
            raise SnapshotRefused(f"nothing to keep: {error}") from error
        content, body = self._snapshot_save(turn)
        return seal(Header(self.kind, self.name, str(self.version), content), body)

    def restore(self, state: bytes) -> Turn:
        """Goes on from a snapshot: returns the turn that was pending there.

        Raises:
          SnapshotRefused: a snapshot that was changed, is of another environment or version, or
            does not give back its state. Nothing changes, unless the message says so.
        """
        header, body = unseal(state)
        check_origin(header, self.kind, self.name, str(self.version))
        content, install = self._snapshot_load(body)
        if content != header.content:
            raise SnapshotRefused(
                f"the state read back for {self.name} is not the one that was kept: what pickling "
                "it leaves out makes a difference, or its classes changed (raise `version` then)"
            )
        with self.__fails_on_error():
            return self.__show(install())

    def close(self) -> None:
        """Gives back what the environment holds; by default nothing."""

    def _clear_scratch(self) -> None:
        """Removes the files of the last episode."""

    def _snapshot_save(self, turn: Turn) -> tuple[str, bytes]:
        """Content hash and body of a snapshot, where this turn is pending."""
        body = dump((turn, self.state), self.shared())
        return self._snapshot_content(turn, self.state), body

    def _snapshot_load(self, body: bytes) -> tuple[str, Callable[[], Turn]]:
        """Content hash of a body, and what puts it into place; changes nothing itself."""
        turn, state = load(body, self.shared())

        def install() -> Turn:
            self.state = state
            return turn

        return self._snapshot_content(turn, state), install

    def _snapshot_content(self, turn: Turn, state: Any, *more: str) -> str:
        # Rewards are of the past: two ways into one state may have paid differently.
        return content_hash((turn.prompts, self.describe(state), *more), self.shared())

    def __show(self, turn: Turn) -> Turn:
        check_turn(turn)
        self.__turn = turn
        return turn

    def __pending(self) -> Turn:
        """The turn that waits for an answer; raises where there is none."""
        if self.__failure is not None:
            raise EpisodeFailed(
                f"the episode of {self.name} failed with {self.__failure}; reset it"
            )
        if self.__turn is None:
            raise ValueError(f"{self.name} plays no episode yet; reset it first")
        if self.__turn.done:
            raise EpisodeFinished(f"the episode of {self.name} is over; reset it")
        return self.__turn

    @contextlib.contextmanager
    def __fails_on_error(self) -> Iterator[None]:
        """The episode is failed when the body raises, and is not when it ends well."""
        try:
            yield
        except BaseException as error:
            self.__failure = repr(error)
            raise
        self.__failure = None
