"""Without textworld and alfworld the core imports, and the domain says what to install."""

import subprocess
import sys

import pytest

from sepo_jax.domains.alfworld import packages
from sepo_jax.training.settings import DomainSettings
from sepo_jax.training.setup import make_domain

WITHOUT = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "textworld" else found(name, *rest)
for name in ("textworld", "fast_downward", "alfworld"):
    sys.modules[name] = None
from sepo_jax.domains.alfworld.domain import AlfWorld
try:
    AlfWorld()
except ImportError as error:
    print(error)
"""


def test_the_modules_import_without_the_packages_and_the_domain_gives_one_line():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout == (
        "ALFWorld needs textworld and alfworld: pip install sepo_jax[alfworld]\n"
    )


def test_a_config_that_names_the_domain_gets_the_same_line(monkeypatch):
    monkeypatch.setattr(packages, "_PACKAGES", ("no_such_package",))
    with pytest.raises(ImportError, match=r"pip install sepo_jax\[alfworld\]"):
        make_domain(DomainSettings(name="alfworld"))
