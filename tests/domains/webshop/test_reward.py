"""WebShop's reward: worked examples, each part by itself, and likeness of phrases."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sepo_jax.domains.webshop.products import Goal, Product
from sepo_jax.domains.webshop.reward import (
    Score,
    has_attribute,
    plain_colour,
    purchase_score,
    same_option,
    title_nouns,
    title_overlap,
    token_set_ratio,
    type_factor,
)

SHIRT = Product(
    id="a1",
    title="Acme Cotton Shirt",
    query="men's shirts",
    category="Clothing › Men › Shirts",
    nouns=("acme", "cotton", "shirt"),
    attributes=("machine wash", "long sleeve"),
    features=("Button closure", "made for tall people"),
    description="Our lightest one.",
    options={"color": ("navy blue", "red"), "size": ("small", "x-large")},
    price=25.0,
    price_text="$25.0",
)
GOAL = Goal("a1", "", ("machine wash", "button closure"), ("navy blue", "small"), 30.0)


def other(**changes):
    return dataclasses.replace(SHIRT, **changes)


@pytest.mark.parametrize(
    ("bought", "chosen", "expected"),
    [
        # (2 attributes + 2 options + price) / (2 + 2 + 1)
        (SHIRT, ("navy blue", "small"), Score(1.0, 1.0, 2, 2, True)),
        (SHIRT, ("red", "small"), Score(0.8, 1.0, 2, 1, True)),
        (SHIRT, (), Score(0.6, 1.0, 2, 0, True)),
        (other(price=30.0), ("navy blue", "small"), Score(1.0, 1.0, 2, 2, True)),
        (other(price=30.01), ("navy blue", "small"), Score(0.8, 1.0, 2, 2, False)),
        (other(attributes=(), features=()), ("navy blue", "small"), Score(0.6, 1.0, 0, 2, True)),
        # Another kind of thing: the whole sum times f.
        (other(query="hats", category="x", nouns=("hat",)), ("red",), Score(0.0, 0.0, 2, 0, True)),
    ],
)
def test_known_purchases(bought, chosen, expected):
    assert purchase_score(bought, chosen, GOAL, SHIRT) == pytest.approx(expected)


NOUNS = tuple(f"n{i}" for i in range(20))  # one shared is 0.05, two are 0.1, four are 0.2
APART = {"query": "hats", "category": "x"}


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({"nouns": NOUNS[:1]}, 0.1),  # below 0.1, whatever else is alike
        ({"nouns": ("hat",)}, 0.0),
        ({"nouns": NOUNS[:2]}, 1.0),  # same query
        ({"nouns": NOUNS[:4], **APART}, 0.5),  # 0.2 is not above 0.2
        ({"nouns": NOUNS[:5], **APART}, 1.0),
        ({"nouns": NOUNS[:2], **APART, "category": "Men › Hats › Clothing"}, 1.0),
        ({"nouns": NOUNS[:2], **APART, "category": "Clothing › Hats › Clothing"}, 0.5),
    ],
)
def test_the_factor_of_the_type(changes, factor):
    assert type_factor(other(**changes), other(nouns=NOUNS)) == factor


def test_a_title_without_nouns_overlaps_by_a_fifth():
    wanted = other(nouns=())
    assert title_overlap(SHIRT, wanted) == 0.2
    assert type_factor(other(**APART), wanted) == 0.5
    # Repeated nouns count in the wanted title: 2 of 4.
    assert title_overlap(SHIRT, other(nouns=("shirt", "shirt", "acme", "hat"))) == 0.5


@pytest.mark.parametrize(
    ("wanted", "bought", "published"),
    [  # overlaps that the public tests expect of a tagger; ours has no tagger
        (
            "adidas Unisex-Adult D.o.n. Issue 2 Basketball Shoe",
            "adidas Unisex-Adult D.o.n. Issue 2 Indoor Court Shoe",
            0.85,
        ),
        (
            "Saireed UL Listed 2 Prong Power Cord for JBL Bar 3.1 Bar 2.1 Channel 4K Ultra HD "
            "Soundbar Home Theater System Subwoofer",
            "BRST AC Power Cord Outlet Socket Cable Plug Lead for Panasonic SC-HT830V DVD/VCR "
            "Combo Home Theater System",
            0.31,
        ),
        (
            "Rusticware 921ORB Kitchen and Bath Cabinet Knob",
            "Minkissy 2pcs Stainless Steel Eyebrow Tweezers Blackhead Acne Remover Portable "
            "Makeup Tweezers (Silver)",
            0.0,
        ),
    ],
)
def test_overlaps_of_titles_are_near_those_of_the_public_code(wanted, bought, published):
    products = [other(nouns=title_nouns(title)) for title in (bought, wanted)]
    assert title_overlap(*products) == pytest.approx(published, abs=0.05)


def test_attributes_are_found_by_likeness_or_in_the_texts():
    assert has_attribute(SHIRT, "wash machine")
    assert has_attribute(SHIRT, "sleeve long")
    assert has_attribute(SHIRT, "cotton")  # title
    assert has_attribute(SHIRT, "for tall")  # features
    assert has_attribute(SHIRT, "lightest")  # description
    assert not has_attribute(SHIRT, "slim fit")


def test_options_match_by_likeness_after_their_colour():
    assert same_option("dark navy blue", "blue") and not same_option("red", "blue")
    assert same_option("12 pack", "pack of 12")
    assert same_option("x-large", "large") and not same_option("small", "large")
    assert plain_colour("light navy blue") == "blue" and plain_colour("one size") == "one size"


@pytest.mark.parametrize(
    ("first", "second", "ratio"),
    [
        ("essential oils", "essential oils", 100),
        ("Essential-Oils", "oils essential", 100),  # case, order and signs do not count
        ("wash", "machine wash", 100),  # all words of one are in the other
        # "essential oil" and "essential oils" share 13 of 13 + 14 letters: 2600 / 27
        ("essential oil", "essential oils", 96),
        ("ab", "cd", 0),
        # the texts "a b" and "a c" share "a " of 3 + 3, "a" with "a b" 1 of 1 + 3: 400 / 6
        ("a b", "a c", 67),
        ("", "wash", 0),
        ("?!", "wash", 0),
    ],
)
def test_likeness_of_phrases(first, second, ratio):
    assert token_set_ratio(first, second) == ratio == token_set_ratio(second, first)


@given(st.text(max_size=20), st.text(max_size=20))
def test_likeness_is_symmetric_and_within_bounds(first, second):
    assert 0 <= token_set_ratio(first, second) == token_set_ratio(second, first) <= 100
