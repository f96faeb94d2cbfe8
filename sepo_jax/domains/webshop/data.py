"""The official data files of WebShop (github.com/princeton-nlp/WebShop, `setup.sh`), read.

A directory holds `items_shuffle.json` (a list of products), `items_ins_v2.json` (their attributes
and synthetic instructions, by product) and `items_human_ins.json` (instructions that people
wrote, by product), or of the first two the small variants whose names end in `_1000`. Reviews are
not read.

Goals are in the order of the public code: made product by product, shuffled with seed 233, the
first 500 are the test split, the next 1,000 eval, the rest train. Two numbers are drawn there
without a seed and here with one: the price of a product that names a range, and the price that a
goal bounds it by.
"""

import itertools
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sepo_jax.domains.base import stream
from sepo_jax.domains.webshop.products import Goal, Product, Shop
from sepo_jax.domains.webshop.reward import title_nouns
from sepo_jax.names import check_option

GOALS = ("human", "synthetic")
SHUFFLE_SEED = 233
TEST, EVAL = 500, 1500  # the splits end there
_SMALL = 1000  # products in the small variants of the files
_PRICE_STEPS = [10.0 * step for step in range(1, 100)]
_NO_BOUND = 1_000_000.0
_NO_PRICE = 100.0
_FIELDS = ("asin", "name", "category", "query", "product_category", "full_description")
_FIELDS_TOO = ("small_description", "pricing", "customization_options")
_SOURCE = "the setup.sh of github.com/princeton-nlp/WebShop fetches it"


def official_shop(directory: str, products: int = 0, goals: str = "human") -> Shop:
    """The shop of a directory of data files.

    Args:
      directory: with the files of the module's docstring.
      products: how many of them, from the first; 0 for all. All 1.18 million take many GB of memory
        and minutes to read.
      goals: one of `GOALS`, what people wrote or a template fills.

    Raises:
      FileNotFoundError: a directory or file that is not there.
      ValueError: an unknown kind of goals, or a file of another form; the message names the file,
        the product and the field.
    """
    check_option("goals", goals, GOALS)
    path = Path(directory)
    if not path.is_dir():
        raise FileNotFoundError(f"data={directory!r} is no directory; {_SOURCE}")
    small = 0 < products <= _SMALL
    items_file, items = _read(path, "items_shuffle", small, list)
    facts_file, facts = _read(path, "items_ins_v2", small, dict)
    entries: dict[str, tuple[Mapping[str, Any], Product]] = {}
    for number, item in enumerate(items[: products or None]):
        where = f"{items_file}, product {number}"
        _check_fields(where, item)
        code = item["asin"]
        if code != "nan" and len(code) <= 10 and code not in entries:
            of_item = _mapping(f"{facts_file}, {code!r}", facts.get(code, {}))
            entries[code] = of_item, _product(where, item, of_item)
    if not entries:
        raise ValueError(f"{items_file} holds no product")
    found = list(_human(path, entries) if goals == "human" else _synthetic(facts_file, entries))
    random.Random(SHUFFLE_SEED).shuffle(found)
    splits = {"test": found[:TEST], "eval": found[TEST:EVAL], "train": found[EVAL:]}
    return Shop([product for _, product in entries.values()], splits)


def _read(path: Path, name: str, small: bool, kind: type) -> tuple[Path, Any]:
    """A file and its content; of both variants the small one only where it is enough."""
    names = [f"{name}_{_SMALL}.json", f"{name}.json"]
    names = names if small else names[::-1]
    there = [path / each for each in names if (path / each).is_file()]
    if not there:
        raise FileNotFoundError(f"{path} holds neither {names[0]} nor {names[1]}; {_SOURCE}")
    return there[0], _load(there[0], kind)


def _load(file: Path, kind: type) -> Any:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is no JSON ({error}); fetch it again: {_SOURCE}") from error
    if not isinstance(content, kind):
        form = "a list of products" if kind is list else "an object by product"
        raise ValueError(f"{file} must hold {form}, not a {type(content).__name__}")
    return content


def _mapping(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be an object, not {repr(value)[:60]}")
    return value


def _texts(where: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError(f"{where} must be a list of texts, not {repr(value)[:60]}")
    return tuple(value)


def _check_fields(where: str, item: Any) -> None:
    for field in (*_FIELDS, *_FIELDS_TOO):
        if field not in _mapping(where, item):
            raise ValueError(f"{where} lacks the field {field!r}")
    for field in _FIELDS:
        if not isinstance(item[field], str):
            raise ValueError(f"{where}: {field!r} must be a text, not {repr(item[field])[:60]}")


def _product(where: str, item: Mapping[str, Any], facts: Mapping[str, Any]) -> Product:
    code, features = item["asin"], item["small_description"]
    prices = _prices(where, item["pricing"])
    price = prices[0] if len(prices) == 1 else stream(SHUFFLE_SEED, "price", code).uniform(*prices)
    return Product(
        id=code,
        title=item["name"],
        query=item["query"].lower().strip(),
        category=item["product_category"],
        nouns=title_nouns(item["name"]),
        attributes=_texts(f"{where}: 'attributes'", facts.get("attributes", [])),
        features=tuple(str(each) for each in features)
        if isinstance(features, list)
        else (str(features or ""),),
        description=item["full_description"],
        options=_options(where, item["customization_options"]),
        price=price,
        price_text=" to ".join(f"${each}" for each in prices),
    )


def _prices(where: str, pricing: Any) -> list[float]:
    """One price, or the two ends of a range, out of texts such as "$1,299.00" and "$10 to $20"."""
    if not pricing:
        return [_NO_PRICE]
    if not isinstance(pricing, str):
        raise ValueError(f"{where}: 'pricing' must be a text, not {repr(pricing)[:60]}")
    try:
        prices = [float(re.sub(r"[^\d.]", "", part)) for part in pricing.split("$")[1:]]
    except ValueError:
        prices = []
    if not prices:
        raise ValueError(f"{where}: 'pricing' must hold prices such as $9.99, not {pricing!r}")
    return prices[:2]


def _options(where: str, options: Any) -> dict[str, tuple[str, ...]]:
    """Option -> values, both lower case, as pages show them."""
    found: dict[str, tuple[str, ...]] = {}
    for name, values in _mapping(f"{where}: 'customization_options'", options or {}).items():
        if values is None:
            continue
        try:
            texts = [each["value"].strip().replace("/", " | ").lower() for each in values]
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"{where}: option {name!r} must be a list of objects with a 'value', "
                f"not {repr(values)[:60]}"
            ) from error
        found[name.lower()] = tuple(" ".join(text.split()) for text in texts)
    return found


def _human(path: Path, entries: Mapping[str, tuple[Mapping[str, Any], Product]]) -> Iterator[Goal]:
    """Goals that people wrote; those without attributes are left out."""
    file = path / "items_human_ins.json"
    if not file.is_file():
        raise FileNotFoundError(f"{path} holds no items_human_ins.json; {_SOURCE}")
    written = _load(file, dict)
    for code, (_, product) in entries.items():
        listed = written.get(code, [])
        if not isinstance(listed, list):
            raise ValueError(f"{file}, {code!r} must be a list, not {repr(listed)[:60]}")
        for number, each in enumerate(listed):
            where = f"{file}, {code!r}, instruction {number}"
            text = _mapping(where, each).get("instruction")
            if not isinstance(text, str):
                raise ValueError(f"{where} lacks the text 'instruction'")
            attributes = _texts(f"{where}: attributes", each.get("instruction_attributes"))
            options = each.get("instruction_options")
            if isinstance(options, Mapping):
                options = list(options.values())
            options = _texts(f"{where}: options", options)
            if attributes:
                yield _goal(product, text.strip("."), attributes, options, number)


def _synthetic(
    file: Path, entries: Mapping[str, tuple[Mapping[str, Any], Product]]
) -> Iterator[Goal]:
    """Goals by a template: one for each combination of a product's options."""
    for code, (facts, product) in entries.items():
        text = facts.get("instruction")
        if text is None:
            continue
        where = f"{file}, {code!r}: 'instruction_attributes'"
        attributes = _texts(where, facts.get("instruction_attributes"))
        if not isinstance(text, str) or not attributes:
            raise ValueError(f"{where} must name an attribute, beside the text 'instruction'")
        upper = _upper_price(product, 0)
        names = sorted(product.options)
        for values in itertools.product(*(product.options[name] for name in names)):
            pairs = ", and ".join(
                f"{name}: {value}" for name, value in zip(names, values, strict=True)
            )
            wish = f"{text} with {pairs}" if pairs else text
            yield _goal(product, wish, attributes, values, 0, upper)


def _goal(
    product: Product,
    text: str,
    attributes: Sequence[str],
    options: Sequence[str],
    number: int,
    upper: float | None = None,
) -> Goal:
    upper = _upper_price(product, number) if upper is None else upper
    bound = f", and price lower than {upper:.2f} dollars" if upper < _NO_BOUND else ""
    return Goal(product.id.lower(), text + bound, tuple(attributes), tuple(options), upper)


def _upper_price(product: Product, number: int) -> float:
    """The larger of two of the next four multiples of ten above the price."""
    steps = [step for step in _PRICE_STEPS if step > product.price][:4]
    if len(steps) < 2:
        return _NO_BOUND
    return max(stream(SHUFFLE_SEED, "upper price", product.id, number).sample(steps, 2))
