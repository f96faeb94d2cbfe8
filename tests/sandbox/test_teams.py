"""Teams in sandboxes: what turns say of events, who is paid, and what is no joint decision."""

import dataclasses

import pytest
from sandbox.pools import PROCESS_POOLS, Client
from team_workflows import ENDS, FAULTS, Faulty, Fixed, Mixed, Routed

from sepo_jax.domains.tasks import is_task_domain
from sepo_jax.sandbox.environments import domain_environments
from sepo_jax.sandbox.in_process import InProcessPool
from sepo_jax.sandbox.isolation import Limits
from sepo_jax.sandbox.protocol import BadAnswer, Membership, Prompt, SnapshotRefused, Turn


def made(domain, tmp_path):
    return domain_environments(domain)(tmp_path)


def test_turns_are_events_and_rewards_go_to_the_first_of_its_members(tmp_path):
    environment = made(Fixed(), tmp_path)
    turn = environment.reset(3, 0)
    assert turn.rewards == {}
    shared = {(one.membership.kind, one.membership.size) for one in turn.prompts.values()}
    assert shared == {("solve", 3)}
    assert [turn.prompts[seat].membership.member for seat in (0, 1, 2)] == [0, 1, 2]
    assert len({one.membership.state for one in turn.prompts.values()}) == 1
    asked = [sorted(turn.prompts)]
    paid = []
    for _ in range(4):
        assert Turn.from_json(turn.to_json()) == turn
        turn = environment.step(dict.fromkeys(turn.prompts, "4"))
        asked.append(sorted(turn.prompts))
        paid.append(dict(turn.rewards))
    assert asked == [[0, 1, 2], [3], [4], [0], []]
    assert paid == [{}, {3: 0.5}, {}, {0: 1.0}]
    assert turn.done and turn.record["right"] and turn.record["event_sizes"] == [3, 1, 1, 1]


def test_private_outputs_announce_no_event(tmp_path):
    environment = made(Routed(), tmp_path)
    environment.reset(3, 0)
    turn = environment.step({0: "0 2"})
    assert sorted(turn.prompts) == [1, 3]
    assert {one.membership.size for one in turn.prompts.values()} == {2}
    turn = environment.step(dict.fromkeys(turn.prompts, "query"))
    assert {one.membership.size for one in turn.prompts.values()} == {0}


def test_a_snapshot_of_a_team_with_other_settings_is_refused(tmp_path):
    class Other(Fixed):
        name = "other"

    environment, other = made(Fixed(), tmp_path), made(Other(), tmp_path)
    environment.reset(3, 0)
    with pytest.raises(SnapshotRefused):
        other.restore(environment.snapshot())


def test_a_domain_that_names_its_environments_keeps_them(tmp_path):
    class Own(Mixed):
        def environments(self):
            return lambda scratch: "own"

    assert is_task_domain(Own()) and made(Own(), tmp_path) == "own"


ONE = Membership("solve", "solver", 0, 2, "s")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"member": 0}, "a member is asked twice"),
        ({"kind": "other"}, "differ in kind, size or state"),
        ({"state": "t"}, "differ in kind, size or state"),
        ({"size": 3}, "differ in kind, size or state"),
        ({"role": 5}, "holds texts and numbers"),
        ({"member": -1}, "holds texts and numbers"),
    ],
)
def test_what_is_no_joint_decision_is_a_bad_answer(change, message):
    two = dataclasses.replace(ONE, **({"member": 1} | change))
    prompts = [Prompt(tokens=(1,), membership=each) for each in (ONE, two)]
    with pytest.raises(BadAnswer, match=message):
        Turn(dict(enumerate(prompts))).to_json()


def test_decisions_are_asked_whole():
    alone = Prompt(tokens=(1,), membership=ONE)
    with pytest.raises(BadAnswer, match="has 2 members and asks 1; all of them are asked in one"):
        Turn({0: alone}).to_json()
    with pytest.raises(BadAnswer, match="some prompts of a turn belong"):
        Turn({0: alone, 1: Prompt(tokens=(1,))}).to_json()


DEADLY = {"exit": "worker_died", "kill": "worker_died", "hang": "timeout"}
HARMLESS = {
    **dict.fromkeys(FAULTS.keys() - DEADLY, "raised"),
    **dict.fromkeys(ENDS, "raised"),
    "endless": "raised",
    "no_json": "bad_answer",
}
WORDS = {
    "empty": "'none' asks nobody",
    "beyond": "'solver' has 2 members",
    "stranger": "role of event 'stranger' 'critic'. Allowed: solver, verifier",
    "unhashed": "asks {(role, index): messages}, not [",
    "no_event": "yields event(...), not 'verify'",
    "raises": "ZeroDivisionError",
    "memory": "Error",  # of memory, or of a size that no memory has
    "nothing": "returns (reward, record), not None",
    "no_number": "earns None, and a reward is a finite number",
    "not_a_number": "earns nan, and a reward is a finite number",
    "no_json": "must hold JSON values",
    "endless": "asks for more than 12 outputs",
}


def begun(client, episode, task):
    turn = client.ask(episode, "reset", (task, 0)).turn
    assert sorted(turn.prompts) == [0, 1]


def failure_of(client, episode):
    """Answers whatever is asked until the episode fails."""
    seats = (0, 1)
    for _ in range(20):
        answer = client.ask(episode, "step", dict.fromkeys(seats, "4"), seconds=240.0)
        if answer.failure is not None:
            return answer.failure
        assert not answer.turn.done
        seats = tuple(answer.turn.prompts)
    raise AssertionError("it goes on and on")


def ends_well(client, episode):
    turn = client.ask(episode, "step", {0: "4", 1: "5"}, seconds=240.0).turn
    (prompt,) = turn.prompts.values()
    assert prompt.messages[0]["content"] == "4 5" and prompt.membership.size == 1
    turn = client.ask(episode, "step", {2: "yes"}, seconds=240.0).turn
    assert turn.done and turn.rewards == {2: 3.0} and turn.record["event_sizes"] == [2, 1]


def check_faults(client, faults):
    for number, (fault, kind) in enumerate(faults.items()):
        begun(client, number, fault)
        begun(client, 100 + number, "sound")
        failure = failure_of(client, number)
        assert failure.kind == kind, (fault, failure)
        assert WORDS.get(fault, "") in failure.message
        # Who shares the worker goes on from where it was.
        ends_well(client, 100 + number)


def test_what_a_workflow_does_wrong_costs_its_own_episode_alone():
    with InProcessPool(domain_environments(Faulty())) as pool:
        check_faults(Client(pool), HARMLESS)
        assert (pool.counters["raised"], pool.counters["bad_answers"]) == (len(HARMLESS) - 1, 1)


@pytest.mark.usefixtures("watchdog")
@pytest.mark.parametrize("watchdog", [900], indirect=True)
@pytest.mark.parametrize("kind", PROCESS_POOLS)
def test_a_worker_that_is_lost_in_the_midst_costs_its_own_episode_alone(kind):
    limits = Limits(seconds=20.0)
    with PROCESS_POOLS[kind](domain_environments(Faulty()), workers=1, limits=limits) as pool:
        check_faults(Client(pool), DEADLY | {"raises": "raised", "no_json": "bad_answer"})
        assert pool.counters["restarts"] == len(DEADLY)
        assert (pool.counters["deaths"], pool.counters["timeouts"]) == (2, 1)
