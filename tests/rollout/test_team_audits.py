"""Events of scripted episodes of the bundled teams, audited as those of a rollout: how many members
each has, and what is never one of them."""

import functools

import numpy as np
import pytest
from team_workflows import compared_walks

from sepo_jax.domains.math import MathTeam
from sepo_jax.domains.math.experts import Experts
from sepo_jax.domains.search import SearchTeam
from sepo_jax.domains.teams import seats
from sepo_jax.forest import NO_EVENT, check_events_whole, pack, pack_sharing_prefixes
from sepo_jax.rollout import build_forest, decision_segments, event_audit, team_metrics
from sepo_jax.rollout.forests import name_id
from sepo_jax.sandbox.environments import domain_environments
from sepo_jax.sandbox.episodes import Action, EpisodeRequest, EpisodeResult


def encoded(messages):
    text = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def decoded(forest, segment):
    return bytes(forest.segment_tokens(segment).astype(np.uint8)).decode()


def sampled(domain, task, answer, group=0, member=0):
    """An episode in the domain's own environment, whose members say what a script tells them; a
    token is a byte of text."""
    environment, names = domain_environments(domain)("unused"), seats(domain)
    turn, actions, paid = environment.reset(task, member), [], []
    while not turn.done:
        paid.append(turn.rewards)
        replies = {}
        for seat, prompt in sorted(turn.prompts.items()):
            assert not prompt.continues
            said = answer(prompt.membership.kind, names[seat], list(prompt.messages))
            tokens = np.frombuffer(said.encode(), np.uint8).astype(np.int32)
            zeros = np.zeros(len(tokens), np.float32)
            actions.append(Action(
                seat, len(paid) - 1, len(actions), encoded(prompt.messages), tokens, zeros, zeros,
                said, prompt, False,
            ))  # fmt: skip
            replies[seat] = said
        turn = environment.step(replies)
    request = EpisodeRequest(task, member, group=group, member=member)
    rewards = (*paid, turn.rewards)
    return EpisodeResult(request, "finished", tuple(actions), rewards, turn.record)


def sizes(results):
    records = event_audit(results)
    assert all(record.complete for record in records)
    return [len(record.members) for record in records]


def check_forest(results):
    """What is packed of episodes is what was audited, in parts of devices and micro-batches too."""
    forest = build_forest(results, policy_version=3)
    actions, records = decision_segments(forest), event_audit(results)
    assert len(actions) == sum(len(record.members) for record in records)
    of_event = np.split(actions, np.cumsum([len(record.members) for record in records])[:-1])
    assert len({int(forest.event[each[0]]) for each in of_event}) == len(records)
    for record, members in zip(records, of_event, strict=True):
        assert len(set(forest.event[members].tolist())) == 1
        assert set(forest.event_size[members]) == {record.expected}
        assert set(forest.event_type[members]) == {name_id(record.kind)}
        assert forest.agent[members].tolist() == [name_id(role) for role, _ in record.members]
        assert forest.lengths()[members].tolist() == list(record.tokens)
    assert set(forest.policy_version[actions]) == {3}
    given = ~forest.is_action
    assert (forest.event[given] == NO_EVENT).all() and not forest.event_size[given].any()
    longest = max(sum(forest.lengths()[forest.path(leaf)]) for leaf in forest.leaves())
    for layout in (pack, functools.partial(pack, one_path_per_row=True), pack_sharing_prefixes):
        check_events_whole(forest, layout(forest, row_length=int(longest), parts=8))
    return forest


def test_a_math_episode_has_events_of_three_one_one_one():
    domain = MathTeam()
    (task,) = domain.training_tasks(1, 0)
    results = [sampled(domain, task, Experts(task, member, 3), member=member) for member in (0, 1)]
    assert sizes(results) == [3, 1, 1, 1] * 2
    records = event_audit(results)
    assert [record.kind for record in records[:4]] == ["solve", "verify", "select", "revise"]
    assert records[0].members == (("solver", 0), ("solver", 1), ("solver", 2))
    figures = team_metrics(results)
    assert (figures["team/active_set"], figures["team/active_set_solve"]) == (1.5, 3.0)
    forest = check_forest(results)
    # A reward stands once in an episode, at the event that ends it.
    assert forest.reward[decision_segments(forest)].tolist() == [0, 0, 0, 0, 0, 1.0] * 2


DIRECT, BY_AUTHOR, BY_FOUNDER = ("born",), ("author", "born"), ("founder", "born")


@pytest.mark.parametrize(
    ("walks", "searches"),
    [((BY_AUTHOR, DIRECT), [2, 1]), ((DIRECT, BY_AUTHOR, BY_FOUNDER), [3, 2])],
)
def test_search_episodes_have_sets_of_the_workers_that_were_routed(walks, searches):
    domain = SearchTeam()
    task = compared_walks(domain, *walks)
    results = [sampled(domain, task, domain.expert(task), member=member) for member in (0, 1)]
    first, second = searches
    assert sizes(results) == [1, first, 1, 1, second, 1, 1] * 2
    records = event_audit(results[:1])
    assert [len(record.members) for record in records if record.kind == "search"] == searches
    assert all(role == "worker" for role, _ in records[1].members + records[4].members)
    forest = check_forest(results)
    # Documents are what later prompts show: no output holds one, and no sampled token is one.
    found = [document for document in domain.corpus.documents
             if document.id in results[0].record["found"]]  # fmt: skip
    assert len(found) == sum(searches)
    for document in found:
        showing = [s for s in range(forest.num_segments) if document.shown() in decoded(forest, s)]
        assert showing and not forest.is_action[showing].any()


def test_a_set_that_no_router_chose_is_no_event():
    domain = SearchTeam()
    (task,) = domain.training_tasks(1, 0)
    result = sampled(domain, task, lambda kind, *_: "workers: none" if kind == "route" else "x")
    assert sizes([result]) == [1, 1]
    assert "team/active_set_search" not in team_metrics([result])
