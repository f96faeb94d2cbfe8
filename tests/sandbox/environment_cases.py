"""Every environment there is, as its snapshots are tested: a new one joins `CASES`."""

import random
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extras import installed
from sandbox import repositories
from sandbox.elsewhere import become_nobody, scratch_directory
from sandbox.toys_files import WORDS, Notes
from team_workflows import Fixed, Routed

from sepo_jax.domains import (
    ItemNegotiation,
    IteratedPrisonersDilemma,
    Kuhn,
    RepeatedAuction,
    SplitBargaining,
    TablePolicy,
)
from sepo_jax.domains.alfworld import AlfWorld
from sepo_jax.domains.alfworld.games import TASK_TYPES
from sepo_jax.domains.corridor import Corridor
from sepo_jax.domains.joint import JointDomain
from sepo_jax.domains.kuhn_players import opponent_tables
from sepo_jax.domains.matrix_game import anonymous, reply
from sepo_jax.domains.matrix_rules import MatrixRules
from sepo_jax.domains.search import SearchTeam
from sepo_jax.domains.webshop import WebShop
from sepo_jax.sandbox.base import BaseEnvironment
from sepo_jax.sandbox.environments import domain_environments, replayed, task_environments
from sepo_jax.sandbox.protocol import Prompt, SnapshotRefused, Turn


class Pennies(BaseEnvironment):
    """Matching pennies of two seats at once, for chips the state draws; rounds end it or a miss."""

    def start(self, task, seed):
        stream = random.Random(seed)
        self.state = {"left": task, "stream": stream, "seen": set(), "stake": stream.random()}
        return self._asked({})

    def play(self, actions):
        state = self.state
        sign = 1.0 if actions[0] == actions[1] else -1.0
        rewards = {0: sign * state["stake"], 1: -sign * state["stake"]}
        state["seen"].add(f"{actions[0]} {actions[1]}")
        state["left"] -= 1
        state["stake"] = state["stream"].random()
        if state["left"] == 0:
            return Turn(rewards=rewards, done=True, record=sorted(state["seen"]))
        return self._asked(rewards)

    def _asked(self, rewards):
        words = ("heads", "tails")
        text = f"For {self.state['stake']:.6f}, after {sorted(self.state['seen'])}: {words}?"
        messages = ({"role": "user", "content": text},)
        return Turn({s: Prompt(messages, legal_actions=words) for s in (0, 1)}, rewards)


class Countdown:
    """A game that is a running generator, which nothing can copy."""

    def reset(self, task, seed):
        self.game = self._rules(task, random.Random(seed))
        return next(self.game)

    def step(self, actions):
        return self.game.send(actions[0])

    def snapshot(self):
        raise SnapshotRefused("a generator cannot be copied")

    def restore(self, state):
        raise SnapshotRefused("a generator cannot be copied")

    def close(self):
        self.game = None

    def _rules(self, start, stream):
        total, most = start, 0
        while total > 0:
            most = max(most, stream.randrange(1, 4))
            reply = yield Turn({0: Prompt(({"role": "user", "content": f"{total}, {most}"},))})
            total -= min(int(reply), most) if reply.isdecimal() else 0
        yield Turn(rewards={0: float(most)}, done=True, record={"most": most})


def countdown(scratch):
    return Countdown()


def legal_or_not(stream: random.Random, prompt: Prompt) -> str:
    return stream.choice([*prompt.legal_actions, *prompt.legal_actions, "I cannot say."])


def number(stream: random.Random, prompt: Prompt) -> str:
    return stream.choice(["1", "2", "3", "none"])


def sum_or_route(stream: random.Random, prompt: Prompt) -> str:
    return stream.choice(["4", "0 1", "2", "none", f"I say {stream.randrange(1000)}."])


def search_or_answer(stream: random.Random, prompt: Prompt) -> str:
    words = prompt.messages[-1]["content"].split()
    said = f"{prompt.membership.kind}: {' '.join(stream.choices(words, k=3))}"
    return stream.choice([*(prompt.legal_actions or [said] * 3), "I cannot say."])


def command(stream: random.Random, prompt: Prompt) -> str:
    verb = stream.choice(["write", "append", "delete", "read", "list", "burn"])
    return f"{verb} {stream.choice(['a', 'b', 'deep/c', '../d'])} {stream.choice(WORDS)}"


def strategies(stream: random.Random, prompt: Prompt) -> str:
    """Mixed strategies of a game of two rows and two columns, or words."""
    first = [stream.randrange(11) / 10 for _ in range(2)]
    answer = reply(*([share, 1 - share] for share in first))
    return stream.choice([answer, answer, "I cannot say."])


@dataclass(frozen=True)
class Case:
    """An environment, tasks for it, how a random player answers, whether it is slow, and whether
    its tasks leave something to the seed."""

    factory: Callable[[Any], Any]
    tasks: tuple[Any, ...]
    choose: Callable[[random.Random, Prompt], str]
    slow: bool = False
    seeded: bool = True

    def answer(self, stream: random.Random, turn: Turn) -> Mapping[int, str]:
        """A reply of every seat that the turn asks."""
        return {seat: self.choose(stream, prompt) for seat, prompt in turn.prompts.items()}


LOOSE = TablePolicy(opponent_tables()["LooseAggressive"], "mine")
KUHN_TASKS = ({"opponent": "NashApprox"}, {"opponent": LOOSE, "seat": 1, "deal": "KJ"})
NOTES_TASKS = ({"data": None, "name": "b", "steps": 12},)
SEARCH = SearchTeam(people=30, results=2)
MATCH = domain_environments(Kuhn(hands=6))
# All games of SEPO; each alone is tested with `domains.every_domain`.
GAMES = (
    Kuhn(hands=6),
    IteratedPrisonersDilemma(),
    RepeatedAuction(),
    SplitBargaining(),
    ItemNegotiation(),
)
GAME_TASKS = tuple(
    {"game": game.name, "opponent": next(iter(game.pools["train"]))} for game in GAMES[:3]
)
CORRIDOR = Corridor(early=2, keys=3, prefix_share=0.5, luck_share=0.3)
MATRIX_TASKS = ({"arm": "dense/2", "game": anonymous([[0.3, -0.9], [-0.2, 0.8]]).record()},)

CASES = {
    "kuhn match": Case(MATCH, KUHN_TASKS, legal_or_not),
    "kuhn forfeits": Case(
        domain_environments(Kuhn(hands=6, on_invalid="forfeit")), KUHN_TASKS, legal_or_not
    ),
    "kuhn match replayed": Case(replayed(MATCH), KUHN_TASKS, legal_or_not),
    "pennies": Case(Pennies, (8,), legal_or_not),
    "team": Case(domain_environments(Fixed()), (3, 5), sum_or_route),
    "routed team": Case(domain_environments(Routed()), (3, 5), sum_or_route),
    "countdown": Case(replayed(countdown), (12, 17), number),
    "notes": Case(Notes, NOTES_TASKS, command),
    "search team": Case(
        domain_environments(SEARCH), tuple(SEARCH.training_tasks(5, 0)), search_or_answer
    ),
    "webshop": Case(
        domain_environments(WebShop(products=100)), ({"split": "train"},), legal_or_not
    ),
    "joint games": Case(domain_environments(JointDomain(GAMES)), GAME_TASKS, legal_or_not),
    "corridor": Case(
        domain_environments(CORRIDOR), tuple(CORRIDOR.training_tasks(20, 0)), legal_or_not
    ),
    "matrix game": Case(task_environments(MatrixRules()), MATRIX_TASKS, strategies, seeded=False),
    "repository": Case(
        repositories.environments, ({"repository": "cart"},), repositories.random_reply, slow=True
    ),
}
if installed("alfworld"):
    ROOMS = tuple({"split": "train", "task_type": each} for each in TASK_TYPES[2:])
    HOUSE = domain_environments(AlfWorld(max_turns=14))
    CASES["alfworld"] = Case(HOUSE, ROOMS, legal_or_not)


def prefix(name: str, environment, seed: int) -> Turn:
    """Plays a random number of moves from a reset, the same ones for a seed; the pending turn.

    A prefix that would end the episode is tried again with other moves.
    """
    case = CASES[name]
    for attempt in range(100):
        stream = random.Random(f"{seed}/{attempt}")
        turn = environment.reset(stream.choice(case.tasks), seed)
        for _ in range(stream.randrange(5)):
            if not turn.done:
                turn = environment.step(case.answer(stream, turn))
        if not turn.done:
            return turn
    raise AssertionError(f"no prefix of {name} leaves an episode running")


def play_on(name: str, environment, turn: Turn, seed: int) -> list[str]:
    """Plays to the end with random moves fixed by the seed; JSON of every turn from `turn` on."""
    stream = random.Random(f"continuation {seed}")
    turns = [turn]
    while not turns[-1].done:
        turns.append(environment.step(CASES[name].answer(stream, turns[-1])))
    return [turn.to_json() for turn in turns]


def continuations(name: str, snapshots: list[bytes], seeds: range) -> list[tuple]:
    """Restores each snapshot again and again in one environment, and plays on by each seed.

    Returns for each snapshot a snapshot taken at once again, and the turns of each continuation.
    """
    with tempfile.TemporaryDirectory() as scratch:
        environment = CASES[name].factory(Path(scratch))
        results = []
        for snapshot in snapshots:
            environment.restore(snapshot)
            again = environment.snapshot()
            turns = [
                play_on(name, environment, environment.restore(snapshot), seed) for seed in seeds
            ]
            results.append((again, turns))
        environment.close()
        return results


def all_episodes(seed: int) -> dict[str, list[list[str]]]:
    """The turns of an episode of every task of every environment, by its name.

    Moves are random and fixed. Each episode is played twice in one object, which must agree.
    """
    episodes = {}
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as scratch:
            environment = case.factory(Path(scratch))
            once, again = (
                [
                    play_on(name, environment, environment.reset(task, seed), 1)
                    for task in case.tasks
                ]
                for _ in range(2)
            )
        assert once == again, name
        episodes[name] = once
    return episodes


def interleaved(name: str, seeds: Sequence[int], scratch: Path) -> dict[int, list[str]]:
    """Plays an episode of each seed in an environment of its own, a move of each at a time.

    Returns by seed the JSON of every turn.
    """
    case, running, turns = CASES[name], {}, {}
    for seed in seeds:
        place = scratch / str(seed)
        place.mkdir()
        environment = case.factory(place)
        first = environment.reset(case.tasks[seed % len(case.tasks)], seed)
        running[seed], turns[seed] = (environment, random.Random(seed)), [first]
    while running:
        for seed, (environment, stream) in list(running.items()):
            last = turns[seed][-1]
            if last.done:
                environment.close()
                del running[seed]
            else:
                turns[seed].append(environment.step(case.answer(stream, last)))
    return {seed: [turn.to_json() for turn in each] for seed, each in turns.items()}


def many_resets(data: str, count: int) -> list[dict]:
    """Records of so many episodes of one task on shared data, played by an ordinary user."""
    become_nobody()
    scratch = scratch_directory()
    environment = Notes(scratch)
    task = {"data": data, "name": "b", "steps": 4}
    records = []
    for _ in range(count):
        prompt = environment.reset(task, 3).prompts[0].messages[0]["content"]
        word = next(word for word in WORDS if word in prompt)
        environment.step({0: "write deep/d more"})
        environment.step({0: "append a more"})
        records.append(environment.step({0: f"write b {word}"}).record)
    shutil.rmtree(scratch)
    return records


def many_visits(data: str, count: int) -> list[str]:
    """JSON of the turns of so many visits to a shop of shared files, by an ordinary user."""
    WebShop(products=100).shop.search("lamp")  # imports what may be closed to others
    become_nobody()
    environment = domain_environments(WebShop(data=data))(Path())
    task = {"split": "train", "goal": 0}
    visits = []
    for _ in range(count):
        turn = environment.reset(task, 3)
        visits.append("".join(play_on("webshop", environment, turn, 1)))
    return visits
