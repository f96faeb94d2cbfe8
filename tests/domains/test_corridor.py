"""The corridor: what is shown and paid, shares of variance, and the same rules as a table."""

import itertools
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from sepo_jax.domains.base import EpisodeFinished
from sepo_jax.domains.corridor import KEYS, WAYS, Corridor
from sepo_jax.domains.decision_process import OVER, exact
from sepo_jax.domains.tasks import missing_parts
from sepo_jax.sandbox.environments import domain_environments

TASK = {"doors": ["BLUE"], "signs": ["LEFT", "RIGHT", "RIGHT"]}


def play(episode, replies):
    """Return of an episode that gets these replies."""
    return sum(episode.step(reply) for reply in replies)


def flips(corridor, task):
    """A seed of each side of the coin: heads, tails."""
    best = [*task["doors"], *task["signs"]]
    earned = {seed: play(corridor.new_episode(task, seed), best) for seed in range(20)}
    return max(earned, key=earned.get), min(earned, key=earned.get)


def test_what_is_shown_and_what_is_paid():
    corridor = Corridor(length=4, prefix_share=0.5)
    # Variances of door and one fork are both 1/4: the prize weighs sqrt(0.5 * 4), each of three
    # coins sqrt(0.5 * 4 / 3); together they are 1.
    prize, coin = np.sqrt(2), np.sqrt(2 / 3)
    best = prize + 3 * coin
    np.testing.assert_allclose(corridor.weights, [prize / best, coin / best, 0])
    episode = corridor.new_episode(TASK, 0)
    system, user = episode.messages()
    assert system["role"] == "system" and "one word" in system["content"]
    assert user["content"] == "Door 1 of 1: BLUE. Keys: RED, BLUE."
    assert episode.legal_actions() == ("RED", "BLUE")
    assert episode.step("It is the blue one.\nBlue.") == 0.0
    assert episode.messages() == [{"role": "user", "content": "The key fits. Fork 1 of 3: LEFT."}]
    assert episode.legal_actions() == ("LEFT", "RIGHT")
    assert episode.step("LEFT") == 0.0
    assert episode.messages()[0]["content"] == "You find a coin. Fork 2 of 3: RIGHT."
    assert episode.step("LEFT") == 0.0
    assert episode.messages()[0]["content"] == "You find nothing. Fork 3 of 3: RIGHT."
    assert episode.step("RIGHT") == pytest.approx((prize + 2 * coin) / best)
    assert episode.done and episode.legal_actions() == ()
    record = json.loads(json.dumps(episode.record()))
    assert record == {
        "opened": True, "coins": 2, "turns": 4, "valid": 4,
        "return": pytest.approx((prize + 2 * coin) / best),
    }  # fmt: skip


def test_a_reply_that_cannot_be_read_is_wrong_and_counted():
    corridor = Corridor(length=4)
    episode = corridor.new_episode(TASK, 0)
    episode.step("LEFT")  # no key
    assert episode.messages()[0]["content"].startswith("Name one of RED, BLUE next time.")
    episode.step("left or right")
    episode.step("RIGHT")
    episode.step("")
    record = episode.record()
    assert (record["opened"], record["coins"], record["valid"]) == (False, 1, 1)
    assert record["return"] == pytest.approx(corridor.weights.coin)


def test_every_door_must_open():
    corridor = Corridor(length=3, early=2, prefix_share=1.0)
    task = {"doors": ["RED", "BLUE"], "signs": ["LEFT"]}
    for keys in itertools.product(corridor.keys, repeat=2):
        expected = float(keys == ("RED", "BLUE"))
        assert play(corridor.new_episode(task, 0), [*keys, "RIGHT"]) == expected


@pytest.mark.parametrize("length", [2, 5, 12])
@pytest.mark.parametrize(("early", "keys"), [(1, 2), (1, 4), (2, 3)])
@pytest.mark.parametrize(("prefix", "luck"), [(0.8, 0.0), (0.3, 0.2), (1.0, 0.0), (0.0, 1.0)])
def test_the_doors_explain_the_share_that_was_asked_for(length, early, keys, prefix, luck):
    corridor = Corridor(length + early - 1, early, keys, prefix, luck)
    (task,) = corridor.training_tasks(1, 0)
    process = corridor.process(task)
    found = exact(process, process.uniform_policy())
    # Luck is part of the state from the beginning, so every prefix explains it.
    np.testing.assert_allclose(found.explained[0], luck, atol=1e-12)
    np.testing.assert_allclose(found.explained[early], prefix + luck, atol=1e-12)
    # Each fork explains the same share of what is left.
    forks = corridor.length - early
    late = prefix + luck + (1 - prefix - luck) * np.arange(forks + 1) / forks
    np.testing.assert_allclose(found.explained[early:], late, atol=1e-12)
    weights = corridor.weights
    assert weights.prize + weights.coin * forks + weights.luck == pytest.approx(1)
    assert found.value == pytest.approx(corridor.baselines([task])["uniform"]["return"])


@pytest.mark.parametrize("luck", [0.0, 0.25])
def test_the_table_earns_what_the_episodes_do(luck):
    corridor = Corridor(length=4, early=2, keys=3, prefix_share=0.5, luck_share=luck)
    task = {"doors": ["GREEN", "RED"], "signs": ["RIGHT", "LEFT"]}
    process = corridor.process(task)
    seeds = flips(corridor, task) if luck else (0,)
    starts = np.flatnonzero(process.start).tolist()
    assert len(starts) == len(seeds)
    played = set()
    for seed, words in itertools.product(
        seeds, itertools.product(corridor.keys, corridor.keys, WAYS, WAYS)
    ):
        episode = corridor.new_episode(task, seed)
        states = starts
        for word in words:
            (seen,) = {int(process.observation[state]) for state in states}
            assert process.names[seen] == episode.observation
            legal = episode.legal_actions()
            assert process.legal[seen].sum() == len(legal)
            states = [int(process.successor[s, legal.index(word), 0]) for s in states]
            paid = episode.step(word)
        assert all(process.observation[state] == OVER for state in states)
        assert paid in process.reward[states]
        played.add((seed, words, paid))
    # All of them, and heads pay more than tails whatever is done.
    assert len(played) == len(seeds) * 36
    if luck:
        by_words = {}
        for seed, words, paid in played:
            by_words.setdefault(words, {})[seed] = paid
        for paid in by_words.values():
            assert paid[seeds[0]] - paid[seeds[1]] == pytest.approx(corridor.weights.luck)


def test_luck_is_the_seed_s_and_goes_on_from_a_snapshot():
    corridor = Corridor(length=4, luck_share=0.2)
    best = ["BLUE", "LEFT", "RIGHT", "RIGHT"]
    heads, tails = flips(corridor, TASK)
    luck = play(corridor.new_episode(TASK, heads), best) - play(
        corridor.new_episode(TASK, tails), best
    )
    assert luck == pytest.approx(corridor.weights.luck) and luck > 0
    earned = {play(corridor.new_episode(TASK, seed), best) for seed in range(200)}
    assert len(earned) == 2
    environment = domain_environments(corridor)(Path())
    for seed in (heads, tails):
        environment.reset(TASK, seed)
        turn = environment.step({0: "RED"})
        assert turn.prompts[0].continues and turn.prompts[0].legal_actions == WAYS
        state = environment.snapshot()
        expected = play(corridor.new_episode(TASK, seed), ["RED", *best[1:]])
        for _ in range(2):
            environment.restore(state)
            rewards = [environment.step({0: word}).rewards[0] for word in best[1:]]
            assert sum(rewards) == expected


def test_a_copy_goes_on_as_the_original_does():
    rng = np.random.default_rng(0)
    corridor = Corridor(length=6, early=2, luck_share=0.1)
    (task,) = corridor.training_tasks(1, 3)
    for seed in range(10):
        episode = corridor.new_episode(task, seed)
        for _ in range(rng.integers(6)):
            episode.step(str(rng.choice(episode.legal_actions())))
        copy = pickle.loads(pickle.dumps(episode))
        while not episode.done:
            assert copy.messages() == episode.messages()
            assert copy.observation == episode.observation
            word = str(rng.choice(episode.legal_actions()))
            assert copy.step(word) == episode.step(word)
        assert copy.done and copy.record() == episode.record()


def test_tasks_to_train_on_and_to_be_judged_by_are_apart():
    for corridor in (Corridor(), Corridor(length=2), Corridor(length=5, early=3, keys=6)):
        training, judged = corridor.training_tasks(300, 1), corridor.evaluation_tasks(300, 1)
        sets = [{json.dumps(task) for task in tasks} for tasks in (training, judged)]
        assert sets[0] and sets[1] and not sets[0] & sets[1]
        assert corridor.training_tasks(300, 1) == training != corridor.training_tasks(300, 2)
        for task in judged:
            assert not corridor.new_episode(json.loads(json.dumps(task)), 0).done
    # All of a short corridor's are there: 2 doors and 2 signs, of which one is judged.
    short = Corridor(length=2)
    kinds = {json.dumps(task) for task in short.training_tasks(200, 0)}
    assert len(kinds) == 3
    assert short.evaluation_tasks(1, 0) == [{"doors": ["BLUE"], "signs": ["RIGHT"]}]
    assert short.training_tasks(0, 0) == []


def test_the_expert_knows_every_word_and_sees_all_messages():
    corridor = Corridor(length=5, early=2, keys=3)
    traces = corridor.expert_traces(12, 7)
    assert len(traces) == 12 and traces == corridor.expert_traces(12, 7)
    for start in (0, 5):
        messages, _ = traces[start]
        assert [m["role"] for m in messages] == ["system", "user"]
        for turn in range(1, 5):
            before, reply = traces[start + turn - 1]
            messages, _ = traces[start + turn]
            assert messages[: len(before)] == before
            assert messages[len(before)] == {"role": "assistant", "content": reply}
            assert len(messages) == len(before) + 2 and messages[-1]["role"] == "user"
    told = [m["content"] for messages, _ in traces for m in messages]
    assert not any("not fit" in text or "nothing" in text for text in told)
    with_reasons = corridor.expert_traces(12, 7, rationale=True)
    for (_, word), (_, reply) in zip(traces, with_reasons, strict=True):
        assert reply == f"It says {word}.\n{word}"


def test_an_expert_without_skill_draws_its_words():
    for skill, expected in ((0.0, 0.5), (0.6, 0.8)):
        corridor = Corridor(expert_skill=skill)
        right = 0
        for messages, word in corridor.expert_traces(4000, 0):
            told = re.search(r"(?:Door|Fork) . of .: (\w+)\.", messages[-1]["content"])
            right += told[1] == word
        # Of two words one is right by chance: skill + (1 - skill) / 2.
        assert abs(right / 4000 - expected) < 5 * np.sqrt(0.25 / 4000)


def test_figures():
    corridor = Corridor(length=4, prefix_share=0.5)
    good, bad = corridor.new_episode(TASK, 0), corridor.new_episode(TASK, 0)
    play(good, ["BLUE", "LEFT", "RIGHT", "RIGHT"])
    play(bad, ["RED", "LEFT", "none", "none"])
    records = [good.record(), bad.record(), None, None]
    figures = corridor.figures([TASK] * 4, records)
    assert figures == {
        "success": 0.25,
        "return": pytest.approx((1 + corridor.weights.coin) / 4),
        "coins": 4 / 12,
        "turns": 2.0,
        "valid": 6 / 16,
    }
    baselines = corridor.baselines([TASK])
    assert set(baselines) == {"uniform", "oracle"}
    assert baselines["oracle"] == corridor.figures([TASK], records[:1])
    assert set(baselines["uniform"]) == set(figures)
    assert baselines["uniform"]["success"] == 0.5 and baselines["uniform"]["coins"] == 0.5


def test_a_whole_episode_is_short():
    messages, _ = Corridor(length=20, keys=6).expert_traces(20, 0)[-1]
    assert sum(len(message["content"]) for message in messages) < 1500


def test_it_is_a_domain_of_tasks():
    assert missing_parts(Corridor()) == []
    assert set(WAYS).isdisjoint(KEYS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 1}, "length must be at least 2"),
        ({"length": 3, "early": 3}, "length must be at least 4"),
        ({"early": 0}, "early must be at least 1"),
        ({"keys": 1}, "keys must be at least 2"),
        ({"keys": 7}, "there are 6 colours: RED"),
        ({"prefix_share": 1.5}, "prefix_share=1.5 must lie between 0 and 1"),
        ({"prefix_share": float("nan")}, "must lie between 0 and 1"),
        ({"luck_share": -0.1}, "luck_share=-0.1"),
        ({"expert_skill": 2}, "expert_skill=2"),
        ({"prefix_share": 0.8, "luck_share": 0.3}, "add up to more than 1"),
        ({"length": 2000, "early": 1999}, "early=1999 doors of keys=2 are never all opened"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Corridor(**options)


def test_shares_that_add_up_to_1_leave_nothing_to_the_forks():
    # 1 - 0.7 - 0.3 is 6e-17, whose root would be a coin of 2e-9.
    assert Corridor(prefix_share=0.7, luck_share=0.3).weights.coin == 0.0


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("RED", "a task is"),
        ({"doors": ["RED"]}, "a task is"),
        ({"doors": ["GOLD"], "signs": ["LEFT"] * 3}, "doors of this corridor are 1 of RED, BLUE"),
        ({"doors": ["RED"], "signs": ["LEFT"]}, "signs of this corridor are 3 of LEFT, RIGHT"),
    ],
)
def test_tasks_of_other_corridors_are_refused(task, message):
    with pytest.raises(ValueError, match=message):
        Corridor(length=4).new_episode(task, 0)


def test_moves_after_the_end_and_early_records_are_refused():
    episode = Corridor(length=4).new_episode(TASK, 0)
    with pytest.raises(ValueError, match="at turn 0, so it leaves no record"):
        episode.record()
    play(episode, ["RED"] * 4)
    for call in (episode.messages, lambda: episode.step("LEFT")):
        with pytest.raises(EpisodeFinished, match="over after 4 turns"):
            call()
    with pytest.raises(ValueError, match="seed"):
        Corridor(length=4).new_episode(TASK, -1)
