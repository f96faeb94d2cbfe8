"""Split bargaining as text: what is read from replies, and what the experts write."""

import math
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sepo_jax.domains.base import View
from sepo_jax.domains.negotiation_v1 import DEMANDS, SplitBargaining
from sepo_jax.domains.repeated import PastRound

DOMAIN = SplitBargaining()


@pytest.mark.parametrize(
    ("text", "demand"),
    [
        *((word, word) for word in DEMANDS),
        ("They asked for 8.\n\n**2**\n", "2"),
        ("I demand 5.", "5"),
        ("Demand: 7", "7"),
        ("", None),
        ("five", None),
        ("0", None),
        ("10", None),
        ("-5", None),
        ("5.5", None),
        ("1/2", None),
        ("5 of 10", None),
        ("5 or 6", None),
        ("not 5", None),
        ("5\nor so", None),
        ("5th", None),
        ("٥", None),  # a digit, but not an ASCII one
        ("5\u200b", None),
    ],
)
def test_examples_of_replies(text, demand):
    assert DOMAIN.parse(text, DEMANDS) == (None if demand is None else DEMANDS.index(demand))


def check(text: str) -> int | None:
    """What the parser reads; a demand must stand alone on the last line, the one number there."""
    action = DOMAIN.parse(text, DEMANDS)
    if action is not None:
        line = [line for line in text.splitlines() if line.strip()][-1]
        assert re.findall(r"[0-9]+", line) == [DEMANDS[action]]
        assert re.search(rf"(?<![^\W_]){DEMANDS[action]}(?![^\W_])", line)
    return action


FRAGMENTS = [
    *DEMANDS,
    *("0", "10", "12", "05", "5.5", "1/2", "-3", "+4", "5th", "3e1", "1,000", "1."),
    *("half", "five", "not", "don't", "minus", "demand:", "I", "**"),
    *("%", "$", ".", ",", "!", "(", ")", "_", "`", " ", "  ", "\n", "\r\n", "\t", "\x0b", "\x85"),
    *("\u2028", "\u200b", "٥", "５", "²", "½", "Ⅴ", "\u0301", "−", "\x00", "\ufeff", "\ud800"),
]


def test_fuzzed_replies():
    rng = random.Random(30)
    parsed = 0
    for _ in range(10000):
        text = rng.choice(["", "", " "]).join(rng.choices(FRAGMENTS, k=rng.randrange(0, 8)))
        parsed += check(text) is not None
    # Both outcomes happen, so that the check above means something.
    assert 300 < parsed < 9000


@settings(deadline=None, max_examples=100)
@given(st.lists(st.text(max_size=30) | st.sampled_from(FRAGMENTS), max_size=6))
def test_any_text(parts):
    check(" ".join(parts))


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=30), st.sampled_from(DEMANDS))
def test_a_demand_alone_on_the_last_line_is_always_found(reasoning, word):
    assert check(f"{reasoning}\n{word}") == DEMANDS.index(word)


def test_expert_mixture_is_the_papers():
    weights = {name: weight for name, (weight, _) in DOMAIN.experts.items()}
    assert weights == {
        "Fair": 0.32,
        "Balanced": 0.27,
        "Concede": 0.18,
        "TitForTat": 0.15,
        "Random": 0.08,
    }
    assert math.fsum(weights.values()) == pytest.approx(1)


# What an expert demands of each opponent, in the order in which traces meet them.
EXPERTS = {
    "Fair": ["5555"] * 5,
    "Balanced": ["6666"] * 5,
    "Concede": ["6555", "6555", "6555", "6555", "6555"],
    "TitForTat": ["5555", "5444", "5455", "5222", "5333"],
}


def test_expert_traces_follow_the_mixture():
    episodes = 2500
    traces = DOMAIN.expert_traces(4 * episodes, seed=1)
    replied = [reply for _, reply in traces]
    assert set(replied) == set(DEMANDS[1:7])  # TitForTat answers 8 with 2
    counts = dict.fromkeys([*EXPERTS, "Random"], 0)
    for index in range(episodes):
        # FairSplit, met first of five, cannot tell Fair from TitForTat.
        if index % 5:
            line = "".join(replied[4 * index : 4 * index + 4])
            names = [name for name, lines in EXPERTS.items() if lines[index % 5] == line]
            counts[names[0] if names else "Random"] += 1
    # A random player plays each line of 3 to 7 once in 5^4 episodes, and so passes for another;
    # the line with 2s, one of TitForTat's four, is beyond it.
    chance = 0.08 / 5**4
    shares = {
        "Fair": 0.32 + chance,
        "Balanced": 0.27 + chance,
        "Concede": 0.18 + chance,
        "TitForTat": 0.15 + 0.75 * chance,
        "Random": 0.08 - 3.75 * chance,
    }
    total = sum(counts.values())
    assert total == 2000 and sum(shares.values()) == pytest.approx(1)
    statistic = sum((counts[n] - total * p) ** 2 / (total * p) for n, p in shares.items())
    # Chi-square of 4 degrees of freedom exceeds 33.4 once in a million.
    assert statistic < 33.4
    assert DOMAIN.expert_traces(50, 1) == traces[:50]
    assert DOMAIN.expert_traces(50, 2) != traces[:50]


def test_rationales_are_one_line_and_lead_to_the_same_demand():
    lines = set()
    bare = DOMAIN.expert_traces(600, 4)
    for (messages, reply), plain in zip(
        DOMAIN.expert_traces(600, 4, rationale=True), bare, strict=True
    ):
        reason, word = reply.split("\n")
        assert (messages, word) == plain
        assert DOMAIN.parse(reply, DEMANDS) == DEMANDS.index(word)
        lines.add(reason)
    assert len(lines) > 8


@pytest.mark.parametrize(
    ("past", "word", "expected"),
    [
        ([], "5", "Half each is a split that we can both accept."),
        ([], "3", "I ask for less than half to get a deal."),
        ([], "6", "I ask for more than half and see what my opponent does."),
        ([8], "2", "My opponent asked for 8, which leaves 2; I take that."),
        ([6], "3", "My opponent asked for 6, which leaves 4; I ask for less to be sure of a deal."),
        ([8], "5", "My opponent asked for 8, which leaves 2; I hold out for more."),
    ],
)
def test_rationales_fit_the_demand(past, word, expected):
    rounds = tuple(PastRound("1", str(other), 1, other) for other in past)
    view = View(0, "", "", DEMANDS, round=len(past), past=rounds)
    assert DOMAIN.reason(view, word) == expected
