"""A web shop that comes with the package: up to 1,000 products and goals, made by a fixed rule.

Products come in families of four: one kind of thing with the same three attributes, in different
colours, sizes and at different prices. A goal names the kind, two of the attributes, a colour, a
size and a price that one product alone has all of, so most searches find several that fit partly.
Titles show two of the attributes; the third stands under the features.
"""

import itertools
import random
import string
from collections.abc import Iterator, Sequence

from sepo_jax.domains.base import stream
from sepo_jax.domains.webshop.products import Goal, Product, Shop

LEAST, MOST = 32, 1000  # products
GOALS_OF_A_PRODUCT = 2  # at most
_FAMILY = 4
_SEED = 0
_SHARES = (("test", 0.28), ("eval", 0.12))  # of the products that goals are of; train has the rest
_COLOURS = ("red", "blue", "green", "black", "white", "pink", "gray", "brown")
_SIZES = ("small", "medium", "large")
_BRANDS = ("nova", "arlo", "kiko", "luma", "otto", "vera", "zeno", "brio")
_KINDS = {
    "home › kitchen": ("mug", "bowl", "pan", "kettle"),
    "home › bedroom": ("bed", "lamp", "rug", "clock"),
    "home › office": ("desk", "chair", "shelf", "fan"),
    "clothing › wear": ("hat", "coat", "sock", "belt"),
}
_ATTRIBUTES = (
    *("light", "soft", "warm", "strong", "slim", "wide", "round", "flat"),
    *("modern", "classic", "folding", "quiet", "thick", "smooth", "plain", "sturdy"),
)
_ATTRIBUTES_OF_A_KIND = 8
_PRICES = range(11, 90)
_Wish = tuple[tuple[str, str], str, str]  # two attributes, a colour, a size


def synthetic_shop(products: int = MOST) -> Shop:
    """The shop; the same for the same number of products.

    Products that goals of one split are of have no goals in another.

    Raises:
      ValueError: a number of products outside `LEAST` to `MOST`.
    """
    if not LEAST <= products <= MOST:
        raise ValueError(f"products={products}: the bundled shop has {LEAST} to {MOST} products")
    rng = stream(_SEED, "web shop", products)
    goods = _products(products, rng)
    of_kind: dict[str, list[Product]] = {}
    for product in goods:
        of_kind.setdefault(product.query, []).append(product)
    rng.shuffle(goods)
    goals: dict[str, list[Goal]] = {}
    begin = 0
    for split, share in (*_SHARES, ("train", 1.0)):
        end = begin + round(share * products) if share < 1 else products
        found = [g for p in goods[begin:end] for g in _goals(p, of_kind[p.query], rng)]
        rng.shuffle(found)
        goals[split], begin = found, end
    return Shop(sorted(goods, key=lambda product: product.id), goals)


def _products(count: int, rng: random.Random) -> list[Product]:
    """So many products of all kinds in turn, in families."""
    kinds = [(noun, path) for path, nouns in _KINDS.items() for noun in nouns]
    # Those on a page of results mostly begin with different letters, which a small policy can tell
    # apart and complete.
    codes = rng.sample([f"{a}{n:02d}" for a in string.ascii_lowercase for n in range(100)], count)
    goods: list[Product] = []
    for place, (noun, path) in enumerate(kinds):
        own = rng.sample(_ATTRIBUTES, _ATTRIBUTES_OF_A_KIND)
        families = list(itertools.combinations(own, 3))
        rng.shuffle(families)
        for number in range(len(range(place, count, len(kinds)))):
            attributes = rng.sample(families[number // _FAMILY], 3)
            goods.append(_product(codes[len(goods)], noun, path, attributes, rng))
    return goods


def _product(
    code: str, noun: str, path: str, attributes: Sequence[str], rng: random.Random
) -> Product:
    first, second, third = attributes
    brand, price = rng.choice(_BRANDS), rng.choice(_PRICES)
    colours, sizes = rng.sample(_COLOURS, 3), rng.sample(_SIZES, 2)
    return Product(
        id=code,
        title=f"{brand} {first} {second} {noun}",
        query=noun,
        category=f"{path} › {noun}",
        nouns=(noun,),
        attributes=tuple(attributes),
        features=(f"{third} {noun}",),
        description=f"{first}, {second} and {third}",
        options={
            "color": tuple(sorted(colours, key=_COLOURS.index)),
            "size": tuple(sorted(sizes, key=_SIZES.index)),
        },
        price=float(price),
        price_text=f"${price}",
    )


def _goals(product: Product, kind: Sequence[Product], rng: random.Random) -> list[Goal]:
    """Goals that this product alone of its kind fulfils; those come first that most others would
    fulfil, were they not too dear."""
    upper = (int(product.price) // 10 + 1) * 10
    prices: dict[_Wish, list[float]] = {wish: [] for wish in _wishes(product, product)}
    for rival in kind:
        if rival is not product:
            for wish in _wishes(product, rival):
                prices[wish].append(rival.price)
    unique = [
        (len(dear), wish) for wish, dear in prices.items() if all(price > upper for price in dear)
    ]
    rng.shuffle(unique)
    unique.sort(key=lambda found: -found[0])
    goals = []
    for _, (pair, colour, size) in unique[:GOALS_OF_A_PRODUCT]:
        pair = rng.sample(pair, 2)
        text = (
            f"i need a {' '.join(pair)} {product.query}, color {colour}, size {size}, "
            f"price below ${upper}"
        )
        goals.append(Goal(product.id, text, tuple(pair), (colour, size), float(upper)))
    return goals


def _wishes(first: Product, second: Product) -> Iterator[_Wish]:
    """Two attributes, a colour and a size that both products have, in the order of the first."""
    attributes = [each for each in first.attributes if each in second.attributes]
    colours, sizes = (
        [value for value in first.options[name] if value in second.options[name]]
        for name in ("color", "size")
    )
    return itertools.product(itertools.combinations(attributes, 2), colours, sizes)
