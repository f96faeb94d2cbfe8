"""Which optional extras are installed."""

import importlib.util

import pytest

PACKAGES = {"alfworld": ("textworld", "alfworld"), "webshop": ("bm25s",)}


def installed(extra: str) -> bool:
    """Whether the packages of an extra, or of a domain that needs one, are there."""
    return all(importlib.util.find_spec(name) for name in PACKAGES.get(extra, ()))


def needs(extra: str) -> pytest.MarkDecorator:
    """Skips a test where an extra is not installed."""
    return pytest.mark.skipif(not installed(extra), reason=f"the extra `{extra}` is not installed")
