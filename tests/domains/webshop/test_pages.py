"""Pages of the web shop: what replies are read as, where they lead, what is shown."""

import re

import pytest

from sepo_jax.domains.webshop.pages import (
    PRODUCT,
    RESULTS,
    SEPARATOR,
    Action,
    Layout,
    Page,
    clickables,
    follow,
    keywords,
    page_text,
    parse_action,
)
from sepo_jax.domains.webshop.products import Product, Shop

LAYOUT = Layout(2)


def product(code, title, price=9.0):
    options = {"Color": ("red", "navy | sky"), "frame": ("red", "oak")}
    return Product(
        id=code, title=title, query="lamp", category="x › y", nouns=("lamp",), attributes=("warm",),
        features=("It is warm.", "It is round."), description="", options=options, price=price,
        price_text=f"${price}",
    )  # fmt: skip


SHOP = Shop([product(f"B0{i}", f"Lamp number {i} of iron") for i in range(5)], {})
IDS = ("b00", "b01", "b02", "b03", "b04")


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("search[red lamp]", ("search", "red lamp")),
        ("SEARCH[Red   Lamp]", ("search", "red lamp")),
        ("click[Buy Now]", ("click", "buy now")),
        ("Action: click[b01].", ("click", "b01")),
        ("My next action: `click [b01]`", ("click", "b01")),
        ("**Action:** **search[lamp]**", ("search", "lamp")),
        ("<action>click[< Prev]</action>", ("click", "< prev")),
        ("It is dear.\nsearch[a] would help.\n\nclick[b02]\n```", ("click", "b02")),
        ("click[b01]\nclick[b02]", ("click", "b02")),
        ("click[b01]\nThat is the cheapest.", ("click", "b01")),
        ("> - search[lamp]", ("search", "lamp")),
        ("click[size [eu] 38]", ("click", "size [eu] 38")),
        ("do not click[b01]", None),
        ("click[b01] or click[b02]", None),
        ("click[b01], then search[lamp]", None),
        ("click[b01]\nclick[b02] and click[b03]", None),
        ("click[]", None),
        ("search[  ]", None),
        ("click[b01", None),
        ("buy now", None),
        ("doubleclick[b01]", None),
        ("", None),
    ],
)
def test_replies_are_read_tolerantly_but_never_guessed(reply, action):
    assert parse_action(reply) == (None if action is None else Action(*action))


def test_a_long_line_is_read_in_no_time():
    for filler in (" ", "*", "a ", "click[", "<b>", "]"):
        assert parse_action(filler * 100_000 + "click[b01]x") is None


def leads(page, kind, argument):
    return follow(SHOP, page, Action(kind, argument), LAYOUT)


def test_results_are_leafed_through():
    first = leads(Page(), "search", "lamp")
    assert first == Page("results", "lamp", IDS)
    assert clickables(SHOP, first, LAYOUT) == ["back to search", "next >", "b00", "b01"]
    second = leads(first, "click", "next >")
    last = leads(second, "click", "next")
    assert clickables(SHOP, second, LAYOUT)[1:] == ["< prev", "next >", "b02", "b03"]
    assert clickables(SHOP, last, LAYOUT)[1:] == ["< prev", "b04"]
    assert leads(last, "click", "next >") is None and leads(last, "click", "b00") is None
    assert leads(last, "click", "< prev") == second
    assert leads(last, "click", "back to search") == Page()
    assert leads(last, "search", "iron") == Page("results", "iron", IDS)


def test_a_product_keeps_choices_until_it_is_left():
    page = leads(Page("results", "lamp", IDS, 2), "click", "b02")
    assert page == Page("product", "lamp", IDS, 2, "b02")
    assert clickables(SHOP, page, LAYOUT) == [
        "back to search", "< prev", "red", "navy | sky", "oak", "description", "features", "buy now"
    ]  # fmt: skip
    page = leads(page, "click", "navy | sky")
    page = leads(page, "click", "oak")
    assert page.chosen == (("Color", "navy | sky"), ("frame", "oak"))
    # A value of two options is of the last one; another value replaces the first.
    page = leads(page, "click", "red")
    assert dict(page.chosen) == {"Color": "navy | sky", "frame": "red"}
    below = leads(page, "click", "features")
    assert clickables(SHOP, below, LAYOUT) == ["back to search", "< prev"]
    assert leads(below, "click", "buy now") is None
    assert leads(below, "click", "< prev") == page
    assert leads(page, "click", "< prev") == Page("results", "lamp", IDS, 2)
    assert leads(page, "click", "buy now") is None  # it ends the episode


def test_nothing_can_be_clicked_where_nothing_is_found():
    page = leads(Page(), "search", "sofa")
    assert page.results == () and clickables(SHOP, page, LAYOUT) == ["back to search"]
    assert page_text(SHOP, page, LAYOUT) == "Back to Search [SEP] Page 1 (Total results: 0)"
    assert clickables(SHOP, Page(), LAYOUT) == [] and leads(Page(), "click", "b00") is None


def test_pages_as_text():
    results = Page("results", "lamp", IDS, 2)
    assert page_text(SHOP, results, Layout(2, title_words=3)) == (
        "Back to Search [SEP] < Prev [SEP] Page 2 (Total results: 5) [SEP] Next > [SEP] "
        "B02 [SEP] Lamp number 2 [SEP] $9.0 [SEP] B03 [SEP] Lamp number 3 [SEP] $9.0"
    )
    shown = Page("product", "lamp", IDS, 2, "b02")
    text = (
        "Back to Search [SEP] < Prev [SEP] Color [SEP] red [SEP] navy | sky [SEP] frame [SEP] red "
        "[SEP] oak [SEP] Lamp number 2 of iron [SEP] Price: $9.0 [SEP] Description [SEP] Features "
        "[SEP] Buy Now"
    )
    assert page_text(SHOP, shown, LAYOUT) == text
    chosen = shown._replace(chosen=(("Color", "red"),))
    assert page_text(SHOP, chosen, LAYOUT) == f"{text} [SEP] Selected [SEP] Color: red"
    features = page_text(SHOP, shown._replace(kind="features"), LAYOUT)
    assert features == "Back to Search [SEP] < Prev [SEP] It is warm. [SEP] It is round."
    description = page_text(SHOP, shown._replace(kind="description"), LAYOUT)
    assert description == "Back to Search [SEP] < Prev [SEP] No Description"


@pytest.mark.parametrize(
    ("instruction", "words"),
    [
        ("i need a warm mug, color red, size small, price below $40", "warm mug red small"),
        (
            "I'm looking for a 3-pack of men's socks, and price lower than 20.00 dollars",
            "3-pack men's socks",
        ),
        ("Find me  the one", "find me the one"),
    ],
)
def test_words_that_are_worth_a_search(instruction, words):
    assert keywords(instruction) == words


def test_what_can_be_clicked_may_stand_in_brackets():
    results = Page(RESULTS, "shirt", tuple(SHOP.products), 1)
    layout = Layout(2, brackets=True)
    plain = page_text(SHOP, results, Layout(2))
    text = page_text(SHOP, results, layout)
    names = clickables(SHOP, results, layout)
    assert len(names) >= 4 and re.findall(r"\[([^]]*)\]", text.replace(SEPARATOR, " ")) == [
        field for field in plain.split(SEPARATOR) if field.lower() in names
    ]
    page = Page(PRODUCT, product=names[-1])
    shown = re.findall(r"\[([^]]*)\]", page_text(SHOP, page, layout).replace(SEPARATOR, " "))
    assert {name.lower() for name in shown} == set(clickables(SHOP, page, layout))
