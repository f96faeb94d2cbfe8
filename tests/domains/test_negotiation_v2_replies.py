"""Item negotiation as text: prompts, what is read from replies, what the experts write."""

import itertools
import random
import re
from collections import Counter

import pytest
from domains.item_games import OPPONENTS, FixedItems
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.domains import View
from sepo_jax.domains.negotiation_v2 import (
    VALUE_TRIPLES,
    ItemNegotiation,
    demands_within,
)
from sepo_jax.domains.negotiation_v2_players import (
    EXPERTS,
    write_pool,
    write_values,
)
from sepo_jax.domains.repeated import PastRound, Strategy

DOMAIN = ItemNegotiation()

# Prompts


def test_prompt_in_full():
    episode = FixedItems((4, 3, 1), (2, 3, 5), (6, 3, 1)).new_episode("FairNegotiator", 0)
    episode.step("1 1 1")
    episode.step("4 0 0")
    system, user = episode.messages()
    assert (system["role"], user["role"]) == ("system", "user")
    assert user["content"] == (
        "Round 3 of 4.\n"
        "So far: you 1 1 1, opponent 2 1 0: 10 and 15 points; "
        "you 4 0 0, opponent 2 1 0: 0 and 0 points.\n"
        "Score: you 10, opponent 15.\n"
        "Your values: Books 2, Hats 3, Balls 5. Pool: Books 4, Hats 3, Balls 1.\n"
        "What do you demand?"
    )
    assert "alone on the last line" in system["content"]
    assert not re.search(r"penal|harm|collu|exploit|fair|welfare", system["content"], re.IGNORECASE)


def test_a_prompt_never_shows_the_opponents_values():
    hidden = (
        FixedItems((4, 3, 1), (2, 3, 5), (6, 3, 1)),
        FixedItems((4, 3, 1), (2, 3, 5), (1, 1, 8)),
    )
    first, second = (game.new_episode("FairNegotiator", 0).messages() for game in hidden)
    assert first == second


@pytest.mark.parametrize("on_invalid", ["fallback", "forfeit"])
def test_prompts_are_short(on_invalid):
    game = ItemNegotiation(on_invalid=on_invalid)
    longest = 0
    for seed, name, reply in itertools.product(range(30), OPPONENTS, ("0 0 0", "1 1 1", "?")):
        episode = game.new_episode(name, seed)
        while not episode.done:
            longest = max(longest, sum(len(m["content"]) for m in episode.messages()))
            episode.step(reply)
    assert 500 < longest <= 900


def test_legal_actions_are_not_listed():
    episode = FixedItems((4, 4, 4), (3, 3, 4), (3, 3, 4)).new_episode("FairNegotiator", 0)
    assert len(episode.legal_actions()) == 125
    assert sum(word in episode.messages()[1]["content"] for word in episode.legal_actions()) == 0


# Few of each, so that pairs of views do meet.
pools = st.sampled_from([(1, 1, 2), (2, 1, 1)])
words = st.sampled_from(["0 0 0", "1 0 1", "1 1 1", "2 1 0"])
pays = st.sampled_from([0.0, 1.0, 10.0, 12.0])
pasts = st.lists(
    st.builds(PastRound, st.sampled_from(["", "1 1 1"]), words, pays, pays), max_size=2
)
views = st.builds(
    lambda pool, values, past: View(
        0, write_values(values), write_pool(pool), demands_within(pool), len(past), tuple(past)
    ),
    pools,
    st.sampled_from(VALUE_TRIPLES[:2]),
    pasts,
)


@settings(deadline=None, max_examples=200)
@given(views, views)
def test_equal_observations_mean_equal_prompts(first, second):
    same_prompt = DOMAIN.messages(first) == DOMAIN.messages(second)
    assert (DOMAIN.observation(first) == DOMAIN.observation(second)) == same_prompt


# All that is played over many episodes: as many different prompts as observations, one to one.
def test_observations_and_prompts_go_together_in_play():
    pairs = set()
    for seed, name in itertools.product(range(60), OPPONENTS):
        episode = DOMAIN.new_episode(name, seed % 30)
        rng = random.Random(seed)
        while not episode.done:
            text = "\n".join(message["content"] for message in episode.messages())
            pairs.add((episode.observation, text))
            episode.step(rng.choice(["1 1 1", "0 1 0", "?"]))
    assert len(pairs) > 300
    assert len({key for key, _ in pairs}) == len({text for _, text in pairs}) == len(pairs)


# Parser

POOL = (3, 1, 4)
LEGAL = demands_within(POOL)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("1 0 2", "1 0 2"),
        ("1, 0, 2", "1 0 2"),
        ("[1, 0, 2]", "1 0 2"),
        ("I take two balls.\n**[1, 0, 2]**\n", "1 0 2"),
        ("My demand: 3 1 4.", "3 1 4"),
        ("0 0 0", "0 0 0"),
        ("Books: 1, Hats: 0, Balls: 2", "1 0 2"),
        ("I demand 2 balls, 1 book and 0 hats.", "1 0 2"),
        ("\\boxed{1, 0, 2}", "1 0 2"),
        ("3 books, 2 hats, 4 balls", None),
        ("3 2 4", None),  # two hats of one
        ("4 0 0", None),
        ("1 0", None),
        ("1 0 2 0", None),
        ("1 0 -2", None),
        ("1 0 2.5", None),
        ("1 0 2 or 2 0 1", None),
        ("not 1 0 2", None),
        ("102", None),
        ("1 book and 2 balls", None),
        ("1 0 2\nThat is fair.", None),
        ("", None),
    ],
)
def test_parsing(text, word):
    assert DOMAIN.parse(text, LEGAL) == (None if word is None else LEGAL.index(word))


@pytest.mark.parametrize("pool", list(itertools.product((1, 2, 4), repeat=3)))
def test_canonical_replies_parse_to_themselves(pool):
    legal = demands_within(pool)
    for index, word in enumerate(legal):
        assert DOMAIN.parse(word, legal) == index
        assert DOMAIN.parse(f"Round 2 of 4\n[{word.replace(' ', ', ')}]", legal) == index


FRAGMENTS = [
    *("0", "1", "2", "3", "4", "5", "1 0 2", "[0, 1, 1]", "2, 1, 0", "3;0;4", "12", "007", "1.5"),
    *("-", "+", "/", "%", ".", ",", ";", ":", "[", "]", "(", ")", "**", "_", "`", "'", "and", "or"),
    *("not", "don't", "Books", "Hats", "Balls", "demand", "half", "\n", "\r\n", "\t", "\u2028"),
    *("\u200b", "½", "²", "３", "٣", "五", "\u0301", "\x00", "\ud800", "−", "\U0001f3a9", "n't"),
]


# 10,000 fuzzed completions: never an exception, never an invention.
def test_fuzzed_completions():
    rng, parsed = random.Random(23), 0
    for _ in range(10000):
        text = rng.choice(["", " ", " "]).join(rng.choices(FRAGMENTS, k=rng.randrange(0, 7)))
        action = DOMAIN.parse(text, LEGAL)
        if action is not None:
            parsed += 1
            line = [line for line in text.splitlines() if line.strip()][-1]
            assert " ".join(re.findall("[0-9]+", line)) == LEGAL[action]
            assert not re.search(r"[-+/%−]\s*[0-9]|[0-9]\s*[-+/%−]|[½²３٣五]", line)
            assert not re.search(r"(?<![a-z])not(?![a-z])|n't", line)
    assert 200 < parsed < 5000


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=40), st.sampled_from(LEGAL))
def test_a_demand_after_any_reasoning_is_found(reasoning, word):
    assert DOMAIN.parse(f"{reasoning}\n{word}", LEGAL) == LEGAL.index(word)


# Experts


def test_weights_of_the_experts():
    weights = {name: weight for name, (weight, _) in DOMAIN.experts.items()}
    assert weights == {
        "Proportional": 0.35,
        "Conservative": 0.25,
        "Adaptive": 0.25,
        "Defensive": 0.15,
    }
    assert sum(weights.values()) == pytest.approx(1, abs=1e-12)


# Each expert is replaced by one with a demand of its own, so that replies name the expert. An
# episode draws one expert: 2,000 draws, each share within five standard deviations of its weight.
def test_drawn_experts_follow_the_weights():
    class Marked(Strategy):
        def __init__(self, word):
            self.word = word

        def choose(self, view):
            return self.word

    marks = dict(zip(EXPERTS, ["0 0 0", "0 0 1", "0 1 0", "1 0 0"], strict=True))
    game = ItemNegotiation(rounds=1)
    game.experts = {
        name: (weight, lambda word=marks[name]: Marked(word))
        for name, (weight, _) in EXPERTS.items()
    }
    replies = Counter(reply for _, reply in game.expert_traces(2000, seed=1))
    for name, (weight, _) in EXPERTS.items():
        assert abs(replies[marks[name]] - 2000 * weight) < 5 * (2000 * weight * (1 - weight)) ** 0.5


@pytest.mark.parametrize("faithful", [False, True])
def test_traces_hold_legal_demands_and_true_reasons(faithful):
    game = ItemNegotiation(faithful=faithful)
    bare = game.expert_traces(400, seed=3)
    reasoned = game.expert_traces(400, seed=3, rationale=True)
    assert bare == game.expert_traces(400, seed=3) != game.expert_traces(400, seed=4)
    rooms = Counter()
    for (messages, word), (same_messages, reply) in zip(bare, reasoned, strict=True):
        assert messages == same_messages
        reason, last = reply.split("\n")
        assert last == word
        user = messages[1]["content"]
        values, pool = (
            [int(n) for n in re.findall(r"\d+", part)]
            for part in re.search(r"Your values: (.*)\. Pool: (.*)\.", user).groups()
        )
        assert DOMAIN.parse(reply, demands_within(tuple(pool))) is not None
        demand = [int(n) for n in word.split()]
        points = sum(d * v for d, v in zip(demand, values, strict=True))
        assert f" {points} points" in reason
        others = re.findall(r"opponent (\d) (\d) (\d):", user)
        fits = others and all(
            d + int(o) <= p for d, o, p in zip(demand, others[-1], pool, strict=True)
        )
        room = "leaves room" if fits else "leaves no room" if others else ""
        assert (room in reason) and (bool(others) == ("leaves" in reason))
        rooms[room] += 1
    assert all(count > 20 for count in rooms.values()) and len(rooms) == 3


@pytest.mark.parametrize("text", ["Hats, Books, Balls: 1 2 0", "1 2 0 (hats, books, balls)"])
def test_bare_numbers_under_names_in_another_order_are_none(text):
    assert ItemNegotiation().parse(text, LEGAL) is None
