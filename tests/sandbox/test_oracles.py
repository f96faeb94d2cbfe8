"""Right replies win every time in the sandboxes themselves, and every time alike (C14)."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from extras import installed, needs

from sepo_jax.domains.matrix_game import reply
from sepo_jax.domains.matrix_rules import game_of_task
from sepo_jax.domains.repository.bundle import NAMES
from sepo_jax.domains.repository.tasks import oracle_replies
from sepo_jax.domains.tasks import is_task_domain
from sepo_jax.domains.webshop.players import oracle as shopper
from sepo_jax.games.solve import solve_zero_sum
from sepo_jax.sandbox.environments import domain_environments
from sepo_jax.sandbox.repository import task_of
from sepo_jax.training import read_settings
from sepo_jax.training.setup import DOMAINS, make_domain

RUNS = 5


def walker(domain, task) -> Iterator[str]:
    episode = domain.new_episode(task, 0)
    while not episode.done:
        yield episode.right_action()
        episode.step(episode.right_action())


def buyer(domain, task) -> Iterator[str]:
    episode = domain.new_episode(task, 0)
    while not episode.done:
        said = shopper(episode)
        yield said
        episode.step(said)


def housekeeper(domain, task) -> Iterator[str]:
    return (said for _, said in domain.played(domain.new_episode(task, 0), "oracle"))


def solver(domain, task) -> Iterator[str]:
    found = solve_zero_sum(game_of_task(task).payoffs)
    yield reply(found.row, found.col)


def repairer(domain, task) -> list[str]:
    return oracle_replies(task_of(task))


ORACLES: dict[str, Callable[[Any, Any], Any]] = {
    "corridor": walker,
    "webshop": buyer,
    "alfworld": housekeeper,
    "matrix": solver,
    "repository": repairer,
}


def replayed(environment, task, replies: list[str]) -> list[str]:
    """JSON of every turn of an episode of these replies."""
    turns = [environment.reset(task, 0)]
    for said in replies:
        turns.append(environment.step({0: said}))
    record = turns[-1].record
    assert turns[-1].done and record["opened" if "opened" in record else "success"]
    return [turn.to_json() for turn in turns]


def domain_of(name):
    return make_domain(read_settings({"domain": {"name": name}}).domain)


def test_every_domain_of_tasks_for_one_has_an_oracle_here():
    made = {name: domain_of(name) for name in DOMAINS if installed(name)}
    # Teams have tests of their own, such as `domains/test_search_team.py`.
    alone = {n for n, d in made.items() if is_task_domain(d) and not hasattr(d, "workflow")}
    assert alone == {name for name in ORACLES if installed(name)}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=needs(name)) for name in ORACLES if name != "repository"],
)
def test_right_replies_win_five_times_of_five_and_alike(name, tmp_path):
    domain = domain_of(name)
    environment = domain_environments(domain)(tmp_path)
    for task in [*domain.evaluation_tasks(4, 0), *domain.training_tasks(4, 0)]:
        replies = list(ORACLES[name](domain, task))
        runs = [replayed(environment, task, replies) for _ in range(RUNS)]
        assert runs == [runs[0]] * RUNS
    environment.close()


@pytest.mark.slow
@pytest.mark.parametrize("watchdog", [300], indirect=True)
def test_every_bundled_repository_is_repaired_five_times_of_five_and_alike(tmp_path, watchdog):
    domain = domain_of("repository")
    environment = domain_environments(domain)(tmp_path)
    for name in NAMES:
        task = {"repository": name, "variant": 0}
        replies = repairer(domain, task)
        runs = [replayed(environment, task, replies) for _ in range(RUNS)]
        assert runs == [runs[0]] * RUNS, name
    environment.close()
