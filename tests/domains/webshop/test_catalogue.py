"""The bundled shop: one product alone fulfils a goal; splits have no product in common."""

import itertools
import random

import pytest

from sepo_jax.domains.webshop.catalogue import synthetic_shop
from sepo_jax.domains.webshop.reward import purchase_score, type_factor

SPLITS = ("train", "eval", "test")


@pytest.fixture(scope="module")
def shop():
    return synthetic_shop()


def test_a_thousand_products_of_sixteen_kinds(shop):
    products = list(shop.products.values())
    assert len(products) == 1000 == len({product.id for product in products})
    kinds = {product.query for product in products}
    assert len(kinds) == 16 and len({product.category for product in products}) == 16
    for product in products:
        assert len(set(product.attributes)) == 3 and product.nouns == (product.query,)
        assert [len(values) for values in product.options.values()] == [3, 2]
        assert 11 <= product.price < 90 and product.price_text == f"${product.price:.0f}"
    # Four products share kind and attributes, the last family of a kind may be smaller.
    families = {}
    for product in products:
        key = (product.query, frozenset(product.attributes))
        families[key] = families.get(key, 0) + 1
    assert sum(size == 4 for size in families.values()) >= 240 and max(families.values()) == 4


def test_splits_have_no_product_in_common(shop):
    assert [len(shop.goals[split]) for split in SPLITS] == [1108, 217, 505]
    sold = {split: {goal.product for goal in shop.goals[split]} for split in SPLITS}
    for first, second in itertools.combinations(SPLITS, 2):
        assert not sold[first] & sold[second]
    texts = [goal.instruction for split in SPLITS for goal in shop.goals[split]]
    assert len(set(texts)) == len(texts)


def best_score(product, goal, wanted):
    """What the best choice of options earns."""
    choices = itertools.product(*product.options.values())
    return max(purchase_score(product, choice, goal, wanted).total for choice in choices)


def test_one_product_alone_fulfils_a_goal_and_others_in_part(shop):
    stream = random.Random(0)
    goals = [goal for split in SPLITS for goal in stream.sample(shop.goals[split], 20)]
    for goal in goals:
        wanted = shop.products[goal.product]
        kind = {key: p for key, p in shop.products.items() if p.query == wanted.query}
        others = [product for key, product in shop.products.items() if key not in kind]
        assert {type_factor(product, wanted) for product in others} == {0.0}
        scores = {key: best_score(product, goal, wanted) for key, product in kind.items()}
        assert [key for key, score in scores.items() if score == 1.0] == [goal.product]
        assert sum(score >= 0.6 for score in scores.values()) > 5


def test_the_instruction_says_what_the_goal_asks(shop):
    for goal in shop.goals["test"]:
        wanted = shop.products[goal.product]
        first, second = goal.attributes
        colour, size = goal.options
        assert goal.instruction == (
            f"i need a {first} {second} {wanted.query}, color {colour}, size {size}, "
            f"price below ${goal.price_upper:.0f}"
        )
        assert wanted.price < goal.price_upper <= wanted.price + 10


def test_most_goals_have_rivals_that_are_only_too_dear(shop):
    """So the price must be read: a rival would fulfil the goal at any price."""
    rivalled, goals = 0, shop.goals["test"][:100]
    for goal in goals:
        rich = type(goal)(goal.product, "", goal.attributes, goal.options, 1e6)
        wanted = shop.products[goal.product]
        rivals = [p for p in shop.products.values() if p.query == wanted.query and p is not wanted]
        rivalled += any(best_score(rival, rich, wanted) == 1.0 for rival in rivals)
    assert rivalled > 0.5 * len(goals)


def test_the_shop_is_the_same_every_time(shop):
    again = synthetic_shop()
    assert again.products == shop.products and again.goals == shop.goals
    small = synthetic_shop(40)
    assert len(small.products) == 40 and all(small.goals[split] for split in SPLITS)


@pytest.mark.parametrize("products", [0, 31, 1001])
def test_numbers_of_products_that_are_not_made(products):
    with pytest.raises(ValueError, match=f"products={products}: .* 32 to 1000"):
        synthetic_shop(products)
