"""Modules of experiments/, for the tests of what they do."""

import importlib
import sys
from pathlib import Path

EXPERIMENTS = Path(__file__).resolve().parents[1] / "experiments"


def script_module(name):
    """The module of that name in experiments/, where modules import each other by bare name."""
    sys.path.insert(0, str(EXPERIMENTS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXPERIMENTS))
