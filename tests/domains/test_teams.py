"""Workflows: events as they are asked, replay, and what is refused."""

import pickle
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from team_workflows import Fixed, Mixed, Routed, Tasks

from sepo_jax.domains.base import EpisodeFinished
from sepo_jax.domains.tasks import is_task_domain, missing_parts
from sepo_jax.domains.teams import (
    Event,
    TeamEpisode,
    ask,
    event,
    is_team,
    observation_of,
    play_workflow,
    private,
    seats,
    team_figures,
    user,
)


def adds(kind, member, said):
    return "4" if kind != "verify" else "no"


def test_a_fixed_workflow_asks_three_one_one_one():
    played = play_workflow(Fixed(), 3, 0, adds)
    assert played.record["event_sizes"] == [3, 1, 1, 1]
    assert played.record["event_kinds"] == ["solve", "verify", "select", "revise"]
    # Half a point comes with the third event, the rest at the end.
    assert played.reward == 1.5
    assert played.record["calls"] == 6 and played.record["active_set"] == 1.5
    # The last decision stands behind the whole context of the first solver.
    said, reply = played.decisions()[-1]
    assert [message["role"] for message in said] == ["system", "user", "assistant", "user"]
    assert said[1]["content"] == "3 + 1" and "no. 4 was chosen" in said[3]["content"]
    assert reply == "4"
    assert team_figures([played.record, None]) == {"active_set": 1.5, "events": 4.0, "calls": 6.0}
    assert team_figures([None]) == {}


@pytest.mark.parametrize(
    ("routed", "sizes"), [("0 2", [1, 2, 1]), ("1", [1, 1, 1]), ("0 1 2", [1, 3, 1]), ("", [1, 1])]
)
def test_a_routed_set_is_what_the_router_chose_and_drafts_are_no_members(routed, sizes):
    played = play_workflow(Routed(), 3, 0, lambda kind, *_: routed if kind == "route" else kind)
    assert played.record["event_sizes"] == sizes
    # Drafts are calls of no event; what was retrieved stands in prompts alone.
    assert played.record["calls"] == sum(sizes) + 2
    number = f"document {played.record['number']}"
    conversations = played.conversations()
    assert any(number in said[-1]["content"] for kind, _, said, _ in conversations) == bool(routed)
    assert not any(number in reply for _, _, _, reply in conversations)


def test_members_are_seats_in_the_order_of_roles():
    assert seats(Fixed()) == [
        ("solver", 0), ("solver", 1), ("solver", 2), ("verifier", 0), ("selector", 0)
    ]  # fmt: skip
    assert is_team(Fixed()) and is_task_domain(Fixed()) and not missing_parts(Fixed())


@pytest.mark.parametrize("after", range(4))
def test_a_copy_goes_on_as_the_episode_itself(after):
    replies = [dict.fromkeys(asked, "4") for asked in (
        [("solver", index) for index in range(3)], [("verifier", 0)], [("selector", 0)],
        [("solver", 0)],
    )]  # fmt: skip
    episode = TeamEpisode(Fixed(), 3, 0)
    for each in replies[:after]:
        episode.step(each)
    copy = pickle.loads(pickle.dumps(episode))
    assert (copy.state, copy.pending, copy.paid) == (episode.state, episode.pending, episode.paid)
    for each in replies[after:]:
        assert copy.step(each) == episode.step(each)
        assert (copy.state, copy.pending) == (episode.state, episode.pending)
    assert copy.done and copy.record() == episode.record()
    with pytest.raises(EpisodeFinished):
        copy.step(replies[-1])


def test_states_differ_by_what_was_replied_and_by_nothing_else():
    def state(task, seed, word):
        episode = TeamEpisode(Mixed(), task, seed)
        before = episode.state
        episode.step({("left", 0): word, ("right", 0): "b"})
        return before, episode.state

    assert state(1, 0, "a") == state(1, 0, "a")
    assert len({state(1, 0, "a"), state(2, 0, "a"), state(1, 1, "a"), state(1, 0, "c")}) == 4
    assert state(1, 0, "a")[0] == state(1, 0, "c")[0]


def test_observations_tell_what_a_member_sees():
    fresh, goes_on = ask([user("x")]), ask([user("x")], continues=True)
    assert observation_of(fresh, ("a", 0), "s") == observation_of(fresh, ("a", 1), "t")
    assert observation_of(fresh, ("a", 0), "s") != observation_of(fresh, ("b", 0), "s")
    assert observation_of(goes_on, ("a", 0), "s") != observation_of(goes_on, ("a", 0), "t")
    assert observation_of(ask([user("x")], observation="own"), ("a", 0), "s") == "own"


class Broken(Tasks):
    """A workflow made of whatever it is given."""

    name = "broken"
    roles: Mapping[str, int] = {"solver": 1}

    def __init__(self, *yields):
        self.yields = yields

    def workflow(self, task, seed):
        for each in self.yields:
            yield each() if callable(each) else each
        return 0.0


SOLVE = event("solve", {("solver", 0): [user("?")]})


@pytest.mark.parametrize(
    ("yields", "message"),
    [
        (["solve"], r"yields event\(\.\.\.\), not 'solve'"),
        ([event("solve", {("sovler", 0): [user("?")]})], "Did you mean 'solver'"),
        ([event("solve", {("solver", 1): [user("?")]})], "'solver' has 1 members"),
        ([event("solve", {"solver": [user("?")]})], "a member is"),
        (
            [event("go", {("solver", 0): ask([user("?")], continues=True)})],
            "was asked nothing before",
        ),
    ],
)
def test_what_a_workflow_may_not_ask_is_named(yields, message):
    with pytest.raises(ValueError, match=message):
        TeamEpisode(Broken(*yields), 0, 0)


def test_events_without_members_or_messages_are_refused():
    with pytest.raises(ValueError, match="'solve' asks nobody"):
        event("solve", {})
    with pytest.raises(ValueError, match="give messages"):
        event("solve", {("solver", 0): "text"})


def test_replies_and_results_are_checked():
    episode = TeamEpisode(Broken(SOLVE), 0, 0)
    with pytest.raises(ValueError, match="is not answered"):
        episode.record()
    with pytest.raises(ValueError, match="asks"):
        episode.step({("solver", 1): "x"})
    with pytest.raises(ValueError, match=r"reply is text, and \('solver', 0\) replies None"):
        episode.step({("solver", 0): None})
    with pytest.raises(ValueError, match=r"returns \(reward, record\), not 0.0"):
        episode.step({("solver", 0): "x"})
    with pytest.raises(ValueError, match="JSON"):
        TeamEpisode(Broken(SOLVE), object(), 0)


CALLS = []


def another():
    CALLS.append(1)
    return event("again", {("solver", 0): [user(f"call {len(CALLS)}")]})


def test_a_workflow_that_does_not_repeat_itself_is_found_out():
    episode = TeamEpisode(Broken(SOLVE, another, SOLVE), 0, 0)
    episode.step({("solver", 0): "x"})
    copy = pickle.loads(pickle.dumps(episode))
    episode.step({("solver", 0): "x"})  # itself goes on
    with pytest.raises(ValueError, match="'broken' does not repeat itself"):
        copy.step({("solver", 0): "x"})


class Shorter(Broken):
    """Asks three times when it is first played, then once."""

    began = 0

    def workflow(self, task, seed):
        Shorter.began += 1
        for _ in range(3 if Shorter.began == 1 else 1):
            yield SOLVE
        return 1.0, {}


def test_a_workflow_that_ends_where_it_went_on_before_is_found_out(monkeypatch):
    monkeypatch.setattr(Shorter, "began", 0)
    episode = TeamEpisode(Shorter(), 0, 0)
    episode.step({("solver", 0): "x"})
    copy = pickle.loads(pickle.dumps(episode))
    with pytest.raises(ValueError, match="'broken' does not repeat itself"):
        copy.step({("solver", 0): "x"})


def test_the_team_of_the_readme_is_played(capsys):
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    section = text[text.index("## Teams") : text.index("## An own loss")]
    (block,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    exec(block, {})
    assert capsys.readouterr().out == "1.0 [3, 1]\n"
    assert "# 1.0 [3, 1]" in block


ASKED = {("solver", 0): [user("?")]}


@pytest.mark.parametrize(
    ("kind", "asks", "reward", "message"),
    [
        (5, ASKED, 0.0, "the kind of an event is a short name, not 5"),
        ("", ASKED, 0.0, "the kind of an event is a short name, not ''"),
        ("go", [("solver", 0)], 0.0, r"asks \{\(role, index\): messages\}, not \["),
        ("go", {("solver", 0): None}, 0.0, "with None; give messages"),
        ("go", {("solver", 0): user("?")}, 0.0, "give messages, such as"),
        ("go", {("solver", 0): [{"role": "user"}]}, 0.0, "give messages, such as"),
        ("go", {("solver", 0): [{"role": "user", "content": 3}]}, 0.0, "give messages, such as"),
        ("go", {("solver", 0): ask([])}, 0.0, "give messages, such as"),
        ("go", ASKED, float("inf"), "event 'go' pays inf, and a reward is a finite number"),
        ("go", ASKED, "much", "event 'go' pays 'much'"),
        ("go", ASKED, 10**400, "is a finite number"),
    ],
)
@pytest.mark.parametrize("make", [event, private, Event])
def test_what_is_no_event_is_named(make, kind, asks, reward, message):
    with pytest.raises(ValueError, match=message):
        make(kind, asks, reward=reward)


def test_one_member_is_asked_once_however_it_is_named():
    # Keys of a mapping: two of one member are one, and a number that only equals an index is none.
    assert len(event("go", ASKED | {("solver", 0): [user("again")]}).asks) == 1
    for index in (0.0, False, "0", None):
        with pytest.raises(ValueError, match=r"a member is \(role, index\), not \('solver'"):
            TeamEpisode(Broken(event("go", {("solver", index): [user("?")]})), 0, 0)


def ends(value):
    class Ends(Broken):
        def workflow(self, task, seed):
            yield SOLVE
            return value

    return Ends()


@pytest.mark.parametrize("value", [None, 1.0, [1.0, {}], (1.0,), (None, {}), (float("nan"), {})])
def test_what_is_no_outcome_is_named(value):
    with pytest.raises(ValueError, match=r"returns \(reward, record\)|a reward is a finite number"):
        play_workflow(ends(value), 0, 0, adds)


@pytest.mark.parametrize("record", [{("solver", 0): "4"}, {"rate": float("nan")}, {"said": {1}}])
def test_a_record_that_is_no_json_value_is_named(record):
    with pytest.raises(ValueError, match="record of a workflow is a JSON value"):
        play_workflow(ends((1.0, record)), 0, 0, adds)


@pytest.mark.parametrize("given", [None, (1.0, {}), [SOLVE]])
def test_a_workflow_that_yields_nothing_is_no_workflow(given):
    domain = Broken()
    domain.workflow = lambda task, seed: given
    with pytest.raises(ValueError, match=r"is a function that yields event\(\.\.\.\)"):
        TeamEpisode(domain, 0, 0)


class Rewriting(Tasks):
    """Writes on its replies and on the messages that it asked with."""

    name = "rewriting"
    roles: Mapping[str, int] = {"solver": 2}

    def workflow(self, task, seed):
        shown = [user("Begin.")]
        drafts = yield event("draft", {("solver", index): shown for index in range(2)})
        shown[0]["content"] += drafts.pop(("solver", 0))
        final = yield event("final", {("solver", 0): shown})
        return float(len(final)), {}


def test_what_a_workflow_writes_on_is_its_own():
    episode = TeamEpisode(Rewriting(), 0, 0)
    first = episode.pending
    episode.step({("solver", 0): " Go on.", ("solver", 1): "?"})
    assert first.asks["solver", 0].messages == (user("Begin."),)
    assert episode.pending.asks["solver", 0].messages == (user("Begin. Go on."),)
    copy = pickle.loads(pickle.dumps(episode))
    for each in (episode, copy):
        each.step({("solver", 0): "end"})
        assert each.paid == 1.0 and each.record()["calls"] == 3


@pytest.mark.parametrize(
    "roles",
    [
        *(None, {}, ["solver"], {"solver": 0}, {"solver": "3"}, {"solver": 10**9}),
        *({"": 1}, {"a/b": 1}, {"../solver": 1}, {5: 1}, {"solver": 6000, "verifier": 6000}),
    ],
)
def test_roles_that_are_none_are_named(roles):
    domain = Broken(SOLVE)
    domain.roles = roles
    with pytest.raises(ValueError, match="role"):
        seats(domain)


@pytest.mark.parametrize("most", [None, 7])
def test_a_workflow_without_end_is_ended(most):
    class Endless(Broken):
        roles: Mapping[str, int] = {"solver": 2}

        def workflow(self, task, seed):
            while True:
                yield event("solve", {("solver", index): [user("?")] for index in range(2)})

    domain = Endless()
    if most:
        domain.most_outputs = most
    calls = []
    with pytest.raises(ValueError, match=f"more than {most or 10_000} outputs in an episode"):
        play_workflow(domain, 0, 0, lambda *said: calls.append(said) or "x")
    assert len(calls) == (most or 10_000) // 2 * 2
