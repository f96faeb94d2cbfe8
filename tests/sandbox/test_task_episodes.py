"""Tasks of several turns: the environment pays and shows what the domain's episode does."""

import pickle
from pathlib import Path

import pytest

from sepo_jax.domains.tasks import missing_parts
from sepo_jax.sandbox.environments import TaskEpisodeEnvironment, domain_environments
from sepo_jax.sandbox.protocol import SnapshotRefused


class Sum:
    """An episode: three numbers to be added up, each reply pays its distance from the sum."""

    def __init__(self, task, seed):
        self.numbers, self.seed, self.replies = task["numbers"], seed, []

    @property
    def done(self):
        return len(self.replies) == len(self.numbers)

    @property
    def observation(self):
        return f"{self.numbers} {len(self.replies)}"

    def messages(self):
        user = {"role": "user", "content": f"Add {self.numbers[len(self.replies)]}."}
        return [user] if self.replies else [{"role": "system", "content": "Add up."}, user]

    def legal_actions(self):
        return ("0", "1")

    def step(self, reply):
        self.replies.append(int(reply))
        return -abs(self.replies[-1] - sum(self.numbers[: len(self.replies)]))

    def record(self):
        return {"replies": self.replies, "seed": self.seed}


class Sums:
    """A domain of such episodes."""

    name = "sums"

    def __init__(self, limit=3):
        self.limit = limit

    def new_episode(self, task, seed):
        if len(task["numbers"]) > self.limit:
            raise ValueError(f"at most {self.limit} numbers")
        return Sum(task, seed)

    def training_tasks(self, count, seed):
        return [{"numbers": [1, 2, 3]}] * count


def test_the_environment_shows_and_pays_what_the_episode_does():
    factory = pickle.loads(pickle.dumps(domain_environments(Sums())))
    environment = factory(Path())
    turn = environment.reset({"numbers": [1, 2]}, 7)
    (prompt,) = turn.prompts.values()
    assert [m["role"] for m in prompt.messages] == ["system", "user"] and not prompt.continues
    assert prompt.legal_actions == ("0", "1") and prompt.observation == "[1, 2] 0"
    turn = environment.step({0: "5"})
    assert turn.rewards == {0: -4.0} and turn.prompts[0].continues
    assert [m["content"] for m in turn.prompts[0].messages] == ["Add 2."]
    state = environment.snapshot()
    ends = [environment.step({0: "3"}), factory(Path()).restore(state)]
    assert ends[0].done and ends[0].record == {"replies": [5, 3], "seed": 7}
    assert ends[0].rewards == {0: 0.0} and ends[1].prompts == turn.prompts


def test_a_domain_with_other_settings_refuses_the_snapshot():
    environment = TaskEpisodeEnvironment(Sums())
    environment.reset({"numbers": [1, 2]}, 7)
    with pytest.raises(SnapshotRefused, match="version"):
        TaskEpisodeEnvironment(Sums(limit=2)).restore(environment.snapshot())
    with pytest.raises(ValueError, match="at most 2"):
        TaskEpisodeEnvironment(Sums(limit=2)).reset({"numbers": [1, 2, 3]}, 7)


def test_what_a_domain_of_tasks_lacks_is_named():
    lacking = missing_parts(Sums())
    assert lacking == ["evaluation_tasks", "figures", "baselines", "expert_traces"]
    assert missing_parts(object())[-1] == "environments or new_episode or workflow"
