"""The reward of WebShop (arXiv 2207.01206, and the code that came with it).

    score = f (matched attributes + matched options + price is low enough)
              / (wanted attributes + wanted options + 1)

f is 1 where the product is of the wanted kind: the same query, two categories in common, or more
than 0.2 of the wanted title's nouns; 0.5 where it is not; but 0.1 where it has less than 0.1 of the
nouns, and 0 where it has none. A wanted title without nouns counts as 0.2. Phrases match where
`token_set_ratio` is above 85; an attribute also where a title, a feature or the description
holds it.

Two things are simpler than in the public code, which tags nouns with a language model and maps
colours by a list of its own: see `title_nouns` and `plain_colour`.
"""

import functools
import re
from collections.abc import Iterable
from typing import NamedTuple

from sepo_jax.domains.webshop.products import Goal, Product

_MATCH = 85  # of 100; more than this is a match
_FUNCTION_WORDS = frozenset(
    [
        *("a", "about", "above", "across", "after", "all", "also", "an", "and", "any", "are"),
        *("as", "at", "be", "been", "both", "but", "by", "can", "each", "every", "for", "from"),
        *("get", "has", "have", "how", "if", "in", "into", "is", "it", "its", "more", "most"),
        *("no", "non", "not", "of", "off", "on", "only", "or", "other", "our", "out", "over"),
        *("own", "per", "so", "such", "than", "that", "the", "their", "them", "then", "these"),
        *("this", "those", "to", "too", "under", "up", "use", "very", "via", "was", "we", "were"),
        *("what", "when", "which", "while", "who", "will", "with", "without", "you", "your"),
    ]
)
# Searched for in this order; the first that a text holds is its colour.
_COLOURS = (
    *("almond", "amber", "apricot", "aqua", "azure", "beige", "black", "blue", "bronze", "brown"),
    *("burgundy", "camel", "charcoal", "chocolate", "coffee", "copper", "coral", "cream"),
    *("crimson", "cyan", "emerald", "fuchsia", "gold", "gray", "green", "grey", "indigo", "ivory"),
    *("khaki", "lavender", "lemon", "lilac", "lime", "magenta", "maroon", "mauve", "mint"),
    *("mustard", "navy", "nude", "olive", "orange", "peach", "pink", "plum", "purple", "rainbow"),
    *("red", "rose", "ruby", "rust", "salmon", "sand", "sapphire", "silver", "tan", "taupe"),
    *("teal", "turquoise", "violet", "walnut", "white", "wine", "yellow"),
)


class Score(NamedTuple):
    """What a purchase is worth.

    Attributes:
      total: the score, in [0, 1].
      type_factor: f, one of 0, 0.1, 0.5 and 1.
      attributes, options: how many of the wanted ones matched.
      price: whether it is low enough.
    """

    total: float
    type_factor: float
    attributes: int
    options: int
    price: bool


def purchase_score(bought: Product, chosen: Iterable[str], goal: Goal, wanted: Product) -> Score:
    """Score of a purchase.

    Args:
      bought: the product.
      chosen: values of its options that were chosen.
      goal: what the customer wants.
      wanted: the product of the goal.
    """
    chosen = list(chosen)
    factor = type_factor(bought, wanted)
    attributes = sum(has_attribute(bought, wish) for wish in goal.attributes)
    options = sum(any(same_option(value, wish) for value in chosen) for wish in goal.options)
    price = bought.price <= goal.price_upper
    wishes = len(goal.attributes) + len(goal.options) + 1
    total = factor * ((attributes + options + price) / wishes)
    return Score(total, factor, attributes, options, price)


def type_factor(bought: Product, wanted: Product) -> float:
    """f of the module's formula."""
    shared = title_overlap(bought, wanted)
    if shared == 0:
        return 0.0
    if shared < 0.1:
        return 0.1
    same_kind = bought.query == wanted.query
    common = _categories(bought) & _categories(wanted)
    return 1.0 if same_kind or len(common) >= 2 or shared > 0.2 else 0.5


def title_overlap(bought: Product, wanted: Product) -> float:
    """Number of different nouns that both titles have, over the number of nouns, repeated ones
    included, of the wanted title; 0.2 where that has none."""
    if not wanted.nouns:
        return 0.2
    return len(set(bought.nouns) & set(wanted.nouns)) / len(wanted.nouns)


def title_nouns(title: str) -> tuple[str, ...]:
    """Words of a title that stand for its nouns: all but function words and what begins with a
    digit. Adjectives stay in, which a tagger would leave out."""
    words = re.findall(r"[^\W_]+(?:[.'’][^\W_]+)*", title.lower())
    return tuple(w for w in words if w not in _FUNCTION_WORDS and not w[0].isdigit())


def has_attribute(product: Product, wish: str) -> bool:
    """Whether a wanted attribute is true of a product."""
    if any(token_set_ratio(own, wish) > _MATCH for own in product.attributes):
        return True
    texts = (product.title, " ".join(product.features), product.description)
    return any(wish in text.lower() for text in texts)


def same_option(chosen: str, wish: str) -> bool:
    """Whether a chosen value is the wanted one."""
    return token_set_ratio(plain_colour(chosen), plain_colour(wish)) > _MATCH


def plain_colour(value: str) -> str:
    """The first colour by the alphabet that a value's text holds; the value where it holds none.
    The list of colours is our own."""
    return next((colour for colour in _COLOURS if colour in value), value)


@functools.lru_cache(maxsize=4096)
def token_set_ratio(first: str, second: str) -> int:
    """Likeness of two phrases by their sets of words, from 0 to 100, as thefuzz measures it.

    With the shared words S, and the words A and B that one phrase has alone, each sorted and joined
    by blanks: the largest likeness of two of the texts "S", "S A" and "S B". The likeness of two
    texts is 200 times the length of their longest common subsequence over their total length.
    It is 100 where all words of one are in the other, and 0 where one has none.
    """
    words = [set(re.findall("[a-z0-9]+", text.lower())) for text in (first, second)]
    if not all(words):
        return 0
    shared = " ".join(sorted(words[0] & words[1]))
    own = [" ".join(sorted(words[side] - words[1 - side])) for side in (0, 1)]
    if shared and not all(own):
        return 100
    texts = [f"{shared} {rest}".strip() for rest in own]
    pairs = [texts, *([shared, text] for text in texts if shared)]
    return round(max(_likeness(*pair) for pair in pairs))


def _likeness(first: str, second: str) -> float:
    lengths = [0] * (len(second) + 1)  # of common subsequences with the beginnings of `second`
    for letter in first:
        before = 0
        for place, other in enumerate(second, start=1):
            above = lengths[place]
            lengths[place] = before + 1 if letter == other else max(above, lengths[place - 1])
            before = above
    return 200 * lengths[-1] / (len(first) + len(second))


def _categories(product: Product) -> set[str]:
    return {part.strip() for part in product.category.split("›")}
