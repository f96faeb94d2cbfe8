"""What every domain keeps to, whatever its rules."""

import copy
import itertools
import json
import pickle
import re

import pytest
from domains.every_domain import (
    CLASSES,
    DOMAINS,
    REPEATED,
    UNPARSABLE,
    all_of,
    digest,
    episodes,
    play_on,
    prefix,
    snapshots,
    turns,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from sandbox.elsewhere import result, start

from sepo_jax import domains
from sepo_jax.domains import EpisodeFinished, Played, RepeatedGame
from sepo_jax.domains.traces import opponent_names
from sepo_jax.sandbox.environments import DomainEnvironment
from sepo_jax.sandbox.protocol import SnapshotRefused
from sepo_jax.sandbox.snapshots import content_hash

every_domain = pytest.mark.parametrize("name", list(DOMAINS))


def test_every_domain_that_is_exported_is_tested_here():
    exported = {getattr(domains, name) for name in domains.__all__}
    assert exported >= set(CLASSES.values())
    games = {
        thing
        for thing in exported
        if isinstance(thing, type) and issubclass(thing, RepeatedGame) and thing is not RepeatedGame
    }
    assert games == set(REPEATED)


@every_domain
def test_a_domain_says_what_the_protocol_asks(name):
    domain = DOMAINS[name]
    assert set(domain.pools) == {"train", "exploiter", "collusive"}
    assert all(domain.pools.values())
    assert domain.max_payoff > 0 and name.startswith(domain.name)
    assert sum(weight for weight, _ in domain.experts.values()) == pytest.approx(1)
    assert all(weight > 0 for weight, _ in domain.experts.values())


# Prompts


def decision_pairs(name, plays):
    """(observation, prompt) of every decision of episodes (opponent, seed, actions)."""
    domain = DOMAINS[name]
    opponents = opponent_names(domain)
    for opponent, seed, choices in plays:
        episode = domain.new_episode(opponents[opponent % len(opponents)], seed)
        for choice in itertools.cycle(choices):
            if episode.done:
                break
            legal = episode.legal_actions()
            episode.step(UNPARSABLE if choice is None else legal[choice % len(legal)])
        yield from ((d.observation, str(d.messages)) for d in episode.decisions)


def matching(pairs) -> tuple[int, int]:
    """Checks that equal observations go with equal prompts and the reverse; pairs, and kinds."""
    prompts, observations, total = {}, {}, 0
    for observation, prompt in pairs:
        assert prompts.setdefault(observation, prompt) == prompt
        assert observations.setdefault(prompt, observation) == observation
        total += 1
    return total, len(prompts)


# Few seeds and few actions, so that episodes do meet in one observation.
plays = st.tuples(
    st.integers(0, 9), st.integers(0, 2), st.lists(st.none() | st.integers(0, 4), min_size=1)
)


@every_domain
@settings(deadline=None, max_examples=40)
@given(st.lists(plays, min_size=2, max_size=5))
def test_observations_are_equal_exactly_where_prompts_are(name, plays):
    matching(decision_pairs(name, plays))


@every_domain
def test_different_episodes_do_meet_in_one_observation(name):
    plays = itertools.product(range(9), range(3), [[0], [1], [0, 1], [None, 1]])
    total, kinds = matching(decision_pairs(name, plays))
    assert 1 < kinds < total


@every_domain
def test_prompts_are_short_and_say_only_what_pays(name):
    limit = 900 if name.startswith("negotiation_v2") else 650
    for episode in episodes(name, range(12)):
        for decision in episode.decisions:
            assert [message["role"] for message in decision.messages] == ["system", "user"]
            text = " ".join(message["content"] for message in decision.messages)
            assert len(text) <= limit
            assert text.isascii() and "alone on the last line" in text
            # Penalties are never put into words, and neither is whom one plays against.
            assert not re.search("safe|exploit|collu|harm|welfare|penal", text.lower())
            assert episode.opponent_name not in text


@every_domain
def test_the_round_stands_in_the_prompt_of_a_game_of_rounds(name):
    domain = DOMAINS[name]
    if not isinstance(domain, RepeatedGame):
        return
    for decision in episodes(name, range(1))[0].decisions:
        expected = f"Round {decision.turn + 1} of {domain.rounds}"
        assert expected in decision.messages[1]["content"]


# Replies


@every_domain
def test_every_legal_word_is_read_as_itself_and_nothing_else_is_valid(name):
    domain, seen = DOMAINS[name], set()
    for opponent, seed in itertools.product(opponent_names(domain), range(4)):
        episode = domain.new_episode(opponent, seed)
        while not episode.done:
            legal = episode.legal_actions()
            assert len(set(legal)) == len(legal) > 1
            seen.add(legal)
            episode.step(UNPARSABLE)
        for decision in episode.decisions:
            assert not decision.valid
            assert (decision.action is None) == (domain.on_invalid == "forfeit")
    for legal in seen:
        assert [domain.parse(word, legal) for word in legal] == list(range(len(legal)))
        assert [domain.parse(f"Hm.\n{word}\n", legal) for word in legal] == list(range(len(legal)))
        assert domain.parse("", legal) is None


@every_domain
def test_expert_replies_are_one_reason_and_a_legal_word(name):
    domain = DOMAINS[name]
    traces = domain.expert_traces(300, 2, rationale=True)
    assert len(traces) == 300
    for messages, text in traces:
        reason, word = text.split("\n")
        assert reason.strip() == reason != "" and word.strip() == word != ""
        assert [message["role"] for message in messages] == ["system", "user"]
    plain = domain.expert_traces(300, 2)
    assert [text.split("\n")[1] for _, text in traces] == [text for _, text in plain]


# Episodes


@every_domain
def test_a_record_comes_back_from_json_as_the_episode(name):
    for episode in episodes(name, range(2)):
        record = episode.record()
        played = Played.from_record(json.loads(json.dumps(record)))
        assert (played.seed, played.opponent_name) == (episode.seed, episode.opponent_name)
        assert played.decisions == tuple(episode.decisions)
        assert played.rounds == tuple(episode.rounds) != ()
        with pytest.raises(EpisodeFinished):
            episode.step(UNPARSABLE)


@every_domain
def test_copies_go_on_alike_and_apart_from_every_decision(name):
    domain = DOMAINS[name]
    for opponent in opponent_names(domain):
        episode = domain.new_episode(opponent, 3)
        while not episode.done:
            before = episode.observation
            copies = [copy.deepcopy(episode), pickle.loads(pickle.dumps(episode))]
            ends = [play_on(fork, "fork").record() for fork in copies]
            assert ends[0] == ends[1]
            assert episode.observation == before
            again = play_on(copy.deepcopy(episode), "fork").record()
            assert again == ends[0]
            episode.step(episode.legal_actions()[0])


@every_domain
def test_reset_repeats_a_seed_and_moves_on_without_one(name):
    domain = DOMAINS[name]
    for opponent in opponent_names(domain):
        episode = domain.new_episode(opponent, 6)
        first = play_on(episode, 0).record()
        assert play_on(episode.reset(6), 0).record() == first
        following = play_on(episode.reset(), 0).record()
        assert following["seed"] != 6
        fresh = domain.new_episode(opponent, following["seed"])
        assert play_on(fresh, 0).record() == following


@every_domain
def test_a_domain_survives_pickling(name):
    domain = DOMAINS[name]
    again = pickle.loads(pickle.dumps(domain))
    assert content_hash(again) == content_hash(domain)
    assert opponent_names(again) == opponent_names(domain)
    for opponent in opponent_names(domain):
        records = [play_on(each.new_episode(opponent, 1), 2).record() for each in (domain, again)]
        assert records[0] == records[1]


# Other processes

SEEDS, CONTINUATIONS = range(3), range(50)


@pytest.fixture(scope="module")
def elsewhere():
    """Snapshots of every domain, and what a process of another hash seed makes of them."""
    taken = {name: snapshots(name) for name in DOMAINS}
    process = start(all_of, {"seeds": SEEDS, "continuations": CONTINUATIONS}, taken, hash_seed=7)
    return taken, result(process, seconds=600)


@every_domain
def test_another_process_plays_the_same_episodes_and_needs_no_jax(name, elsewhere):
    _, found = elsewhere
    assert found[name]["digest"] == digest(name, SEEDS)
    assert not found["jax"]


@every_domain
def test_another_process_goes_on_from_a_snapshot_as_this_one_would(name, elsewhere):
    taken, found = elsewhere
    environment = DomainEnvironment(DOMAINS[name])
    assert len(taken[name]) == len(opponent_names(DOMAINS[name]))
    for number, continued in enumerate(found[name]["continuations"]):
        # The same continuations here, each after a reset and the moves of its prefix: no snapshot.
        expected = [turns(environment, prefix(environment, number), seed) for seed in CONTINUATIONS]
        assert continued == expected
        assert len(set(map(str, expected))) > 1  # the continuations do differ


@every_domain
def test_other_settings_refuse_a_snapshot(name):
    environment = DomainEnvironment(DOMAINS[name])
    environment.reset({"opponent": opponent_names(DOMAINS[name])[0]}, 0)
    snapshot = environment.snapshot()
    for other, domain in DOMAINS.items():
        if other != name and domain.name == DOMAINS[name].name:
            with pytest.raises(SnapshotRefused, match=r"is of version .*, and this is version"):
                DomainEnvironment(domain).restore(snapshot)
