"""Small files of the form of WebShop's official ones."""

import json

HUMAN = 40  # instructions of each product that has them


def item(number, **changes):
    return {
        "asin": f"B{number:09d}",
        "name": f"Lamp {number} of Iron",
        "category": "furniture",
        "query": " Floor Lamps ",
        "product_category": "Home › Lighting › Lamps",
        "full_description": "A lamp.",
        "small_description": ["Warm light", "Round foot"],
        "pricing": "$19.99",
        "customization_options": {
            "Color": [{"value": " Black/White ", "image": None}, {"value": "Red"}],
            "Style": None,
        },
        "images": ["x.jpg"],
        "brand": "Acme",
    } | changes


def human(code, number):
    return {
        "asin": code,
        "instruction": f"I want lamp {code} for place {number}.",
        "instruction_attributes": ["warm light"] if number else [],
        "instruction_options": ["black | white"],
        "worker_id": "w",
    }


def content(items):
    codes = [each["asin"] for each in items]
    return {
        "items_shuffle.json": items,
        "items_ins_v2.json": {
            code: {
                "attributes": ["warm light", "iron"],
                "instruction": "Find me lamps",
                "instruction_attributes": ["warm light"],
            }
            for code in codes[:-1]
        },
        "items_human_ins.json": {c: [human(c, n) for n in range(HUMAN + 1)] for c in codes},
    }


def write(path, files):
    for name, value in files.items():
        text = value if isinstance(value, str) else json.dumps(value)
        (path / name).write_text(text, encoding="utf-8")
    return str(path)
