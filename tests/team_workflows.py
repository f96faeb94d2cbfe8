"""Small teams for tests: fixed, routed, with private drafts, and with contexts that go on."""

import os
import random
import signal
from collections.abc import Mapping
from functools import partial

from sepo_jax.domains.seeds import stream
from sepo_jax.domains.teams import ask, event, play_workflow, private, system, team_figures, user


class Tasks:
    """What a domain of tasks has beside its workflow; tasks are numbers."""

    def training_tasks(self, count, seed):
        return [stream(seed, self.name).randrange(9) for _ in range(count)]

    def evaluation_tasks(self, count, seed):
        return list(range(count))

    def figures(self, tasks, records):
        right = sum(bool(record and record["right"]) for record in records)
        return {"success": right / max(len(records), 1), **team_figures(records)}

    def baselines(self, tasks):
        return {}

    def expert_traces(self, num_decisions, seed, *, rationale=False):
        traces = []
        for index, task in enumerate(self.training_tasks(num_decisions, seed)):
            if len(traces) < num_decisions:
                traces += play_workflow(self, task, index, partial(self.right, task)).decisions()
        return traces[:num_decisions]

    def right(self, task, kind, member, said):
        return str(task + 1)


class Fixed(Tasks):
    """Three solvers at once, a verifier, a selector, and the first solver again."""

    name = "fixed"
    roles: Mapping[str, int] = {"solver": 3, "verifier": 1, "selector": 1}

    def workflow(self, task, seed):
        asked = [system("You add."), user(f"{task} + 1")]
        drafts = yield event("solve", {("solver", index): asked for index in range(3)})
        listed = ", ".join(drafts["solver", index] for index in range(3))
        verdict = yield event("verify", {("verifier", 0): [user(f"Are {listed} right?")]})
        chosen = yield event("select", {("selector", 0): [user(f"Which of {listed}?")]}, reward=0.5)
        told = [user(f"{verdict['verifier', 0]}. {chosen['selector', 0]} was chosen. Go on.")]
        last = yield event("revise", {("solver", 0): ask(told, continues=True)})
        right = last["solver", 0] == str(task + 1)
        return float(right), {"right": right, "said": last["solver", 0]}


class Routed(Tasks):
    """A router names workers, whose set is an event; drafts of two writers are private."""

    name = "routed"
    roles: Mapping[str, int] = {"router": 1, "worker": 3, "writer": 2, "editor": 1}

    def workflow(self, task, seed):
        number = stream(seed, "document").randrange(100)
        names = yield event("route", {("router", 0): [user(f"Task {task}: which of 0, 1, 2?")]})
        chosen = sorted({int(word) for word in names["router", 0].split() if word in "012"})
        found = {}
        if chosen:
            asks = {("worker", index): [user(f"Worker {index}: query?")] for index in chosen}
            found = yield event("query", asks)
        documents = "; ".join(f"{query} -> document {number}" for query in found.values())
        drafts = yield private(
            "draft", {("writer", index): [user(f"{documents}. Draft?")] for index in range(2)}
        )
        shown = " | ".join(drafts.values())
        answer = yield event("edit", {("editor", 0): [user(f"{shown}. Answer?")]})
        record = {"right": False, "number": number, "said": answer["editor", 0]}
        return float(answer["editor", 0] == str(number)), record


class Wordy(Tasks):
    """Two solvers and a verifier, paid by the letters of their replies."""

    name = "wordy"
    roles: Mapping[str, int] = {"solver": 2, "verifier": 1}

    def workflow(self, task, seed):
        drafts = yield event("solve", {("solver", i): [user(f"{task} + {i}")] for i in range(2)})
        said = yield event("verify", {("verifier", 0): [user(f"{task}: right?")]})
        letters = "".join([*drafts.values(), *said.values()])
        return float(sum(map(ord, letters)) % 13), {"right": False}


class Mixed(Tasks):
    """Two roles decide at once."""

    name = "mixed"
    roles: Mapping[str, int] = {"left": 1, "right": 1}

    def workflow(self, task, seed):
        said = yield event("meet", {("left", 0): [user("Left?")], ("right", 0): [user("Right?")]})
        same = said["left", 0] == said["right", 0]
        return float(same), {"right": same}


def compared_walks(domain, *walks):
    """A task of a search team's world: a comparison with walks by these relations."""
    kind = f"compare_{len(walks)}"
    for seed in range(10_000):
        question = domain.world.comparison(random.Random(seed), len(walks))
        if question and tuple(chain[1:] for chain in question.chains) == walks:
            assert question.kind == kind
            return domain.world.task(question)
    raise AssertionError(f"no {kind} by {walks}")


def _endless():
    while True:
        yield event("more", {("verifier", 0): [user("More?")]})


def _hang():
    while True:
        pass


# What a faulty workflow does after its first event, by the name that its task gives.
FAULTS = {
    "empty": lambda: event("none", {}),
    "beyond": lambda: event("beyond", {("solver", 2): [user("?")]}),
    "stranger": lambda: event("stranger", {("critic", 0): [user("?")]}),
    "unhashed": lambda: event("unhashed", [("solver", 0), ("solver", 0)]),
    "no_event": lambda: "verify",
    "raises": lambda: 1 / 0,
    "memory": lambda: bytearray(1 << 60),
    "exit": lambda: os._exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hang": _hang,
}
ENDS = {
    "nothing": None,
    "no_number": (None, {}),
    "not_a_number": (float("nan"), {}),
    "no_json": (1.0, {"right": {1, 2}}),
}


class Faulty(Tasks):
    """Two solvers, then what the task says; one that says "sound" has a verifier and ends."""

    name = "faulty"
    roles: Mapping[str, int] = {"solver": 2, "verifier": 1}
    most_outputs = 12

    def workflow(self, task, seed):
        said = yield event("solve", {("solver", i): [user(f"{task}?")] for i in range(2)})
        if task == "endless":
            yield from _endless()
        if task in FAULTS:
            yield FAULTS[task]()
        if task in ENDS:
            return ENDS[task]
        verdict = yield event("verify", {("verifier", 0): [user(" ".join(said.values()))]})
        return float(len(verdict["verifier", 0])), {"right": True, "said": verdict["verifier", 0]}
