"""The loader of WebShop's official files, on small files of that form."""

import random

import pytest
from domains.webshop_files import HUMAN, content, item, write

from sepo_jax.domains.webshop.data import official_shop
from sepo_jax.domains.webshop.domain import WebShop


@pytest.fixture
def data(tmp_path):
    return write(tmp_path, content([item(number) for number in range(50)]))


def test_products_are_read(tmp_path):
    items = [
        item(0),
        item(0, name="a second one of that code"),
        item(1, asin="nan"),
        item(2, asin="B0000000002X"),  # eleven characters
        item(3, pricing="$1,299.00", small_description="One text", customization_options=None),
        item(4, pricing=None),
        item(5, pricing="$10.00 to $20.50"),
    ]
    shop = official_shop(write(tmp_path, content(items)))
    assert list(shop.products) == [f"b00000000{n}" for n in (0, 3, 4, 5)]
    lamp, dear, free, ranged = shop.products.values()
    assert lamp.id == "B000000000" and lamp.query == "floor lamps"
    assert (lamp.title, lamp.nouns) == ("Lamp 0 of Iron", ("lamp", "iron"))
    assert lamp.options == {"color": ("black | white", "red")}
    assert lamp.attributes == ("warm light", "iron") and lamp.features[1] == "Round foot"
    assert (lamp.price, lamp.price_text) == (19.99, "$19.99")
    assert (dear.price, dear.features, dear.options) == (1299.0, ("One text",), {})
    assert (free.price, free.price_text) == (100.0, "$100.0")
    assert 10 <= ranged.price <= 20.5 and ranged.price_text == "$10.0 to $20.5"
    assert ranged.attributes == ()  # the last has no entry among the attributes
    assert shop.products == official_shop(str(tmp_path)).products


def test_goals_are_shuffled_and_split_as_in_the_public_code(data):
    shop = official_shop(data)
    order = [(p, n) for p in range(50) for n in range(1, HUMAN + 1)]  # none without attributes
    random.Random(233).shuffle(order)
    goals = [*shop.goals["test"], *shop.goals["eval"], *shop.goals["train"]]
    assert [len(shop.goals[split]) for split in ("test", "eval", "train")] == [500, 1000, 500]
    for (product, number), goal in zip(order, goals, strict=True):
        assert goal.product == f"b{product:09d}"
        wish, _, price = goal.instruction.partition(", and price lower than ")
        assert wish == f"I want lamp B{product:09d} for place {number}"
        assert price == f"{goal.price_upper:.2f} dollars"
        # The larger of two of 20, 30, 40, 50, the steps above 19.99.
        assert goal.price_upper in (30.0, 40.0, 50.0)
        assert goal.attributes == ("warm light",) and goal.options == ("black | white",)
    assert len({goal.price_upper for goal in goals}) == 3


def test_prices_beyond_the_steps_are_not_bounded(tmp_path):
    files = content([item(0, pricing="$985.00"), item(1, pricing="$975.00")])
    shop = official_shop(write(tmp_path, files))
    bounds = {goal.product[-1]: goal for goal in shop.goals["test"]}
    assert bounds["0"].price_upper == 1e6 and "price" not in bounds["0"].instruction
    assert bounds["1"].price_upper == 990.0


def test_synthetic_goals_are_of_all_options(tmp_path):
    options = {"Size": [{"value": "S"}, {"value": "L"}], "Color": [{"value": "Red"}]}
    items = [item(0, customization_options=options), item(1)]
    goals = official_shop(write(tmp_path, content(items)), goals="synthetic").goals["test"]
    assert {goal.options for goal in goals} == {("red", "s"), ("red", "l")}
    assert len({goal.price_upper for goal in goals}) == 1  # one bound for a product
    wish = f", and price lower than {goals[0].price_upper:.2f} dollars"
    assert {goal.instruction for goal in goals} == {
        f"Find me lamps with color: red, and size: {size}{wish}" for size in "sl"
    }


def test_the_small_files_serve_a_thousand_products(tmp_path):
    files = content([item(number) for number in range(4)])
    small = {"items_shuffle_1000.json": files["items_shuffle.json"][:3]}
    write(tmp_path, files | small | {"items_ins_v2_1000.json": files["items_ins_v2.json"]})
    counts = [len(official_shop(str(tmp_path), n).products) for n in (2, 1000, 1001, 0)]
    assert counts == [2, 3, 4, 4]


def test_it_is_played_like_the_bundled_shop(data):
    domain = WebShop(data=data)
    assert domain.results_per_page == 10
    (task,) = domain.training_tasks(1, seed=0)
    episode = domain.new_episode(task, 0)
    code = episode.goal.product
    assert code[1:] in episode.messages()[1]["content"]
    assert episode.step(f"search[lamp {int(code[1:])}]") == 0.0
    assert len([name for name in episode.legal_actions() if name.startswith("click[b0")]) == 10
    for reply in ("Next", "next >", "next >", "next >"):
        episode.step(f"click[{reply}]")
    assert episode.page.number == 5 and len(episode.page.results) == 50
    figures = domain.baselines(domain.evaluation_tasks(30, seed=0))
    assert figures["oracle"]["success"] == 1.0 > figures["random"]["score"]


def broken(name, value):
    def change(files):
        files[name] = value

    return change


def of_item(**changes):
    def change(files):
        files["items_shuffle.json"][1] |= changes

    return change


def of_human(**changes):
    def change(files):
        files["items_human_ins.json"]["B000000001"][2] |= changes

    return change


def without(field):
    def change(files):
        del files["items_shuffle.json"][1][field]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (broken("items_shuffle.json", "[{"), r"items_shuffle.json is no JSON .*fetch it again"),
        (broken("items_shuffle.json", {}), "items_shuffle.json must hold a list of products"),
        (broken("items_shuffle.json", []), "items_shuffle.json holds no product"),
        (broken("items_shuffle.json", [3]), "items_shuffle.json, product 0 must be an object"),
        (broken("items_ins_v2.json", []), "items_ins_v2.json must hold an object by product"),
        (broken("items_ins_v2.json", {"B000000001": 3}), "items_ins_v2.json, 'B000000001' must be"),
        (
            broken("items_ins_v2.json", {"B000000001": {"attributes": "warm"}}),
            "product 1: 'attributes' must be a list of texts",
        ),
        (broken("items_human_ins.json", {"B000000001": 3}), "'B000000001' must be a list"),
        (without("name"), "product 1 lacks the field 'name'"),
        (without("pricing"), "product 1 lacks the field 'pricing'"),
        (of_item(query=None), "product 1: 'query' must be a text, not None"),
        (of_item(pricing=12), "product 1: 'pricing' must be a text, not 12"),
        (of_item(pricing="on request"), "must hold prices such as .*'on request'"),
        (of_item(pricing="$1.2.3"), r"must hold prices such as .*'\$1.2.3'"),
        (of_item(customization_options=["red"]), "'customization_options' must be an object"),
        (of_item(customization_options={"Color": ["red"]}), "option 'Color' must be a list of obj"),
        (of_human(instruction=None), "'B000000001', instruction 2 lacks the text 'instruction'"),
        (of_human(instruction_attributes="warm"), "instruction 2: attributes must be a list"),
        (of_human(instruction_options=[3]), "instruction 2: options must be a list of texts"),
    ],
)
def test_files_of_another_form_are_named(tmp_path, change, message):
    files = content([item(0), item(1), item(2)])
    change(files)
    with pytest.raises(ValueError, match=message):
        official_shop(write(tmp_path, files))


def test_synthetic_instructions_of_another_form_are_named(tmp_path):
    files = content([item(0), item(1)])
    files["items_ins_v2.json"]["B000000000"]["instruction_attributes"] = []
    with pytest.raises(ValueError, match="'B000000000': 'instruction_attributes' must name"):
        official_shop(write(tmp_path, files), goals="synthetic")


def test_what_is_absent_is_named(tmp_path):
    domain = WebShop(data=str(tmp_path / "nowhere"))  # the data are read on first use
    with pytest.raises(FileNotFoundError, match=r"nowhere' is no directory; the setup\.sh of"):
        domain.training_tasks(1, 0)
    files = content([item(0), item(1)])
    for name in files:
        place = tmp_path / name.replace(".", "_")
        place.mkdir()
        there = {other: value for other, value in files.items() if other != name}
        with pytest.raises(FileNotFoundError, match=name):
            official_shop(write(place, there))
    few = WebShop(data=write(tmp_path, files))
    with pytest.raises(ValueError, match=r"no goals in split 'train' \(train 0, eval 0, test 80\)"):
        few.training_tasks(1, 0)
    with pytest.raises(ValueError, match="Did you mean 'human'"):
        official_shop(str(tmp_path), goals="humans")
