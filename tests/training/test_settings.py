"""Configs: what is unknown, mistyped or unread is refused."""

import dataclasses
import re
from pathlib import Path

import pytest

import sepo_jax
from sepo_jax.training.settings import Settings, differences, flatten, read_settings, to_dict


def test_round_trip_through_a_plain_dictionary():
    settings = Settings(seed=3)
    assert read_settings(to_dict(settings)) == settings


def test_lists_of_json_compare_equal_to_tuples():
    import json

    once = to_dict(Settings())
    assert differences(json.loads(json.dumps(once)), once) == {}


def test_differences_name_both_values():
    changed = to_dict(dataclasses.replace(Settings(), seed=5))
    assert differences(to_dict(Settings()), changed) == {"seed": (0, 5)}


def test_unknown_field_offers_the_nearest():  # G02
    with pytest.raises(ValueError, match="learning_rate"):
        read_settings({"sft": {"lerning_rate": 1.0}})


def test_wrong_type_names_both_types():  # G02
    with pytest.raises(ValueError, match=r"config\.sft\.steps must be a int, got 'abc'.*str"):
        read_settings({"sft": {"steps": "abc"}})


@pytest.mark.parametrize("value", [True, 1.5, None, [1]])
def test_an_integer_field_takes_integers_only(value):
    with pytest.raises(ValueError, match=r"config\.seed"):
        read_settings({"seed": value})


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("evaluation", "every", 0),
        ("checkpoint", "keep", 0),
        ("optimizer", "micro_batches", 0),
        ("optimizer", "max_gradient_norm", 0.0),
        ("sft", "steps", -1),
        ("sft", "batch_size", 0),
        ("sft", "learning_rate", float("nan")),
        ("parallel", "devices", -1),
    ],
)
def test_numbers_out_of_range_are_refused(section, field, value):
    with pytest.raises(ValueError, match=rf"config\.{section}\.{field} must be at least"):
        read_settings({section: {field: value}})


@pytest.mark.parametrize("seed", [-1, 3_000_000_000])
def test_seeds_fit_the_sampling_keys(seed):
    with pytest.raises(ValueError, match=r"config\.seed must be"):
        read_settings({"seed": seed})


def all_fields():
    sections = [Settings]
    for field in dataclasses.fields(Settings):
        if dataclasses.is_dataclass(field.default):
            sections.append(type(field.default))
    for section in sections:
        for field in dataclasses.fields(section):
            if not dataclasses.is_dataclass(field.default):
                yield pytest.param(section, field.name, id=f"{section.__name__}.{field.name}")


# Handed to the domain as keywords, by name.
PASSED_ON = {"hands", "faithful", "on_invalid", "collusion"}


@pytest.mark.parametrize(("section", "name"), list(all_fields()))
def test_every_field_is_read_by_some_code(section, name):  # G01
    if name in PASSED_ON:
        import inspect

        assert name in inspect.signature(sepo_jax.domains.Kuhn).parameters
        return
    package = Path(sepo_jax.__file__).parent
    sources = [path for path in package.rglob("*.py") if path.name != "settings.py"]
    readers = [p for p in sources if re.search(rf"\.{name}\b", p.read_text(encoding="utf-8"))]
    assert readers, f"{section.__name__}.{name} is an option that does nothing"


def test_flatten_uses_dotted_keys():
    assert flatten({"a": {"b": [1, 2]}, "c": 3}) == {"a.b": (1, 2), "c": 3}
