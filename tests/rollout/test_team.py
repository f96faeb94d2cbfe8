"""Teams played by a policy: events of the forest, what is audited, and what is trained on."""

import dataclasses

import numpy as np
import pytest
from team_workflows import Fixed, Routed

from sepo_jax.credit import assign_credit
from sepo_jax.domains.teams import seats
from sepo_jax.forest import NO_EVENT, check_events_whole, pack
from sepo_jax.rollout import (
    EngineOptions,
    build_forest,
    decision_segments,
    event_audit,
    play,
    team_metrics,
)
from sepo_jax.rollout.forests import name_id
from sepo_jax.sandbox.environments import domain_environments
from sepo_jax.sandbox.episodes import Action, EpisodeRequest, EpisodeResult
from sepo_jax.sandbox.protocol import Failure

pytestmark = pytest.mark.usefixtures("compile_fast")
OPTIONS = EngineOptions(slots=10, capacity=256, max_action_tokens=4, prefill_widths=(64,))


@pytest.fixture(scope="module")
def rollout(agent):
    """Two tasks, each played twice by a team of five seats."""
    policy, params = agent
    asked = [
        EpisodeRequest(task, 0, group=group, member=member)
        for group, task in enumerate((3, 5))
        for member in range(2)
    ]
    team = domain_environments(Fixed())
    return play(policy, params, asked, team, OPTIONS, seed=0, step=7, seats=(0,) * 5)


def test_every_turn_is_an_event_of_its_members(rollout):
    forest = rollout.forest()
    actions = decision_segments(forest)
    assert list(forest.event_size[actions]) == [3, 3, 3, 1, 1, 1] * 4
    assert len(set(forest.event[actions].tolist())) == 16
    kinds = [name_id(kind) for kind in ("solve", "solve", "solve", "verify", "select", "revise")]
    assert list(forest.event_type[actions]) == kinds * 4
    roles = ["solver"] * 3 + ["verifier", "selector", "solver"]
    assert list(forest.agent[actions]) == [name_id(role) for role in roles] * 4
    assert set(forest.policy_version[actions]) == {7}
    assert set(forest.metadata["roles"]) == {"solver", "verifier", "selector"}
    assert forest.metadata["event_types"]["solve"] == kinds[0]
    # Half a point is paid at the verifier's event, and each reward stands in the forest once.
    assert list(forest.reward[actions][3::6]) == [0.5] * 4
    assert forest.reward.sum() == sum(
        sum(paid.values()) for result in rollout.results for paid in result.rewards
    )
    # The solvers of a task share a root; the first one goes on in its own context.
    roots = np.flatnonzero(forest.parent == -1)
    assert sum(forest.agent[roots] == name_id("solver")) == 2
    first, last = actions[0], actions[5]
    assert first in forest.path(last) and len(forest.path(last)) == 4
    check_events_whole(forest, pack(forest, row_length=256, parts=2))


def test_the_audit_finds_three_one_one_one(rollout):
    records = event_audit(rollout.results)
    assert [len(record.members) for record in records] == [3, 1, 1, 1] * 4
    assert all(record.complete for record in records)
    assert records[0].members == tuple(seats(Fixed())[:3])
    # Episodes of one task and seed begin in one state, and part when their replies differ.
    assert records[0].state == records[4].state != records[8].state
    assert records[1].state != records[5].state
    figures = team_metrics(rollout.results)
    assert figures["team/events"] == 4 and figures["team/active_set"] == 1.5
    assert figures["team/active_set_solve"] == 3 and figures["team/active_set_revise"] == 1
    by_role = [figures[f"team/tokens_{role}"] for role in ("solver", "verifier", "selector")]
    assert figures["team/tokens"] == pytest.approx(sum(by_role))
    assert team_metrics([]) == {}


def test_an_event_that_lost_a_member_is_dropped_whole_and_counted(rollout):
    results = list(rollout.results)
    results[1] = dataclasses.replace(results[1], actions=results[1].actions[1:])
    forest = build_forest(results)
    assert sorted(forest.event_size[forest.event == 4]) == [3, 3]
    credit = assign_credit("srpo", forest)
    assert credit.metrics["incomplete_events"].value == 1
    assert not credit.segment_weight[forest.event == 4].any()
    assert not event_audit(results)[4].complete


def scripted(domain, replies, group=0):
    """An episode whose members say what they are told, one token each, without a policy."""
    environment = domain_environments(domain)("unused")
    turn, actions, paid = environment.reset(3, 0), [], []
    contexts = {}
    for number, said in enumerate(replies):
        paid.append(turn.rewards)
        for seat, prompt in sorted(turn.prompts.items()):
            if not prompt.continues:
                contexts[seat] = len(contexts) + 10 * number
            zeros = np.zeros(1, np.float32)
            actions.append(Action(
                seat, number, contexts[seat], np.array([1, seat], np.int32),
                np.array([7], np.int32), zeros, zeros, said, prompt, False,
            ))  # fmt: skip
        turn = environment.step(dict.fromkeys(turn.prompts, said))
    assert turn.done
    request = EpisodeRequest(3, 0, group=group)
    rewards = (*paid, turn.rewards)
    return EpisodeResult(request, "finished", tuple(actions), rewards, turn.record)


def test_drafts_are_of_no_event_and_routed_sets_are_of_the_size_chosen():
    made = [scripted(Routed(), [route, "query", "draft", "edit"]) for route in ("0 1 2", "1")]
    forest = build_forest(made)
    actions = decision_segments(forest)
    assert list(forest.event_size[actions]) == [1, 3, 3, 3, 0, 0, 1, 1, 1, 0, 0, 1]
    assert (forest.event[actions] == NO_EVENT).tolist() == [
        size == 0 for size in forest.event_size[actions]
    ]
    sizes = [(each.kind, len(each.members)) for each in event_audit(made) if each.expected]
    assert all(each.complete for each in event_audit(made))
    assert sizes == [
        ("route", 1), ("query", 3), ("edit", 1), ("route", 1), ("query", 1), ("edit", 1)
    ]  # fmt: skip
    assert team_metrics(made)["team/active_set_query"] == 2
    # A failed episode leaves nothing.
    lost = dataclasses.replace(made[0], status="failed", failure=Failure("raised", "x"))
    assert len(event_audit([lost, made[1]])) == 4
    assert team_metrics([lost, made[1]])["team/active_set_query"] == 1


def test_members_of_several_events_in_a_turn_are_found_out():
    made = scripted(Routed(), ["0 1", "query", "draft", "edit"])
    wrong = [dataclasses.replace(each, turn=min(each.turn, 2)) for each in made.actions]
    with pytest.raises(ValueError, match="turn 2 of episode 0 mixes members of several events"):
        event_audit([dataclasses.replace(made, actions=tuple(wrong))])
