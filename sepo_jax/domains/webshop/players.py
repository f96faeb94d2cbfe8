"""Players of the web shop: random clicks, a rule that reads, and one that knows the product."""

import random
from typing import Any

from sepo_jax.domains.webshop.pages import (
    BACK,
    BUY,
    NEXT,
    PREVIOUS,
    PRODUCT,
    RESULTS,
    START,
    keywords,
)
from sepo_jax.domains.webshop.products import Shop
from sepo_jax.domains.webshop.reward import same_option


def random_clicks(episode: Any, rng: random.Random) -> str:
    """Any canonical reply, all alike likely."""
    return rng.choice(episode.legal_actions())


def rule(episode: Any, rng: random.Random) -> str:
    """Searches the instruction's words, opens the first result, chooses the options whose values
    the instruction names, and buys: the rule-based shopper of the paper, which chooses none."""
    page = episode.page
    if page.kind == START:
        return f"search[{keywords(episode.goal.instruction)}]"
    if page.kind == RESULTS:
        found = episode.layout.on_page(page)
        return f"click[{_code(episode, found[0])}]" if found else f"click[{BACK}]"
    if page.kind != PRODUCT:
        return f"click[{PREVIOUS}]"
    chosen = dict(page.chosen)
    for option, values in episode.shop.products[page.product].options.items():
        named = [value for value in values if f" {value}," in f" {episode.goal.instruction},"]
        if named and option not in chosen:
            return f"click[{named[0]}]"
    return f"click[{BUY}]"


def oracle(episode: Any, rng: random.Random | None = None) -> str:
    """Goes to the product of the goal by the shortest way that search offers, wherever it stands,
    chooses the wanted options and buys."""
    page, target = episode.page, episode.goal.product
    if page.kind == START:
        return f"search[{_query(episode.shop, episode.goal.instruction, target)}]"
    if page.kind == RESULTS:
        name = _towards(page.results, page.number, target, episode.layout.results)
        return f"click[{_code(episode, target) if name == target else name}]"
    if page.product != target or page.kind != PRODUCT:
        return f"click[{PREVIOUS}]"
    chosen = dict(page.chosen)
    for option, values in episode.shop.products[target].options.items():
        wanted = [v for v in values if any(same_option(v, wish) for wish in episode.goal.options)]
        # A value that is named as it stands is taken before one that is merely like it.
        wanted.sort(key=lambda value: value not in episode.goal.options)
        if wanted and chosen.get(option) not in wanted:
            return f"click[{wanted[0]}]"
    return f"click[{BUY}]"


def _code(episode: Any, name: str) -> str:
    """What a product is called on the pages of an episode."""
    return episode.shop.shifted(name, episode.layout.shift)


def _query(shop: Shop, instruction: str, target: str) -> str:
    """The instruction's words where they find the target, else its title."""
    words = keywords(instruction)
    return words if target in shop.search(words) else shop.products[target].title.lower()


def _towards(results: tuple[str, ...], number: int, target: str, per_page: int) -> str:
    """What to click on a page of results."""
    if target not in results:
        return BACK
    page = results.index(target) // per_page + 1
    if page == number:
        return target
    return NEXT if page > number else PREVIOUS
