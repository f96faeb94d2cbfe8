"""Importing this skips the module where the extra `alfworld` is not installed."""

import importlib.util

import pytest

INSTALLED = all(importlib.util.find_spec(name) for name in ("textworld", "alfworld"))
if not INSTALLED:
    pytest.skip("the extra `alfworld` is not installed", allow_module_level=True)
