"""Modules and mains of experiments/, for the tests of what they do."""

import importlib
import json
import subprocess
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


def reproduce(*arguments):
    """experiments/reproduce.py as a process of its own."""
    command = [sys.executable, str(EXPERIMENTS / "reproduce.py"), *arguments]
    root = EXPERIMENTS.parent
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600)


def rows_of(output):
    """The JSON objects that were printed one after another."""
    decoder, rows, place = json.JSONDecoder(), [], output.find("{")
    while place >= 0:
        row, end = decoder.raw_decode(output, place)
        rows.append(row)
        place = output.find("{", end)
    return rows
