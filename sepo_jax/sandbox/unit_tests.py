"""Runs unit tests in a process that then ends, and reports each one's outcome on a descriptor.

The outcome is a line of JSON that bears a token, so nothing that is printed can be taken for one.
"""

import json
import os
import sys
import traceback
import unittest
from collections.abc import Iterable, Sequence
from typing import NoReturn

_LIBRARY = os.path.dirname(os.__file__)
_PACKAGES = ("site-packages", "dist-packages")
_WORDS = 200  # characters kept of why a test failed


def run(tests: Sequence[str], directory: str, report: int, token: str) -> NoReturn:
    """Runs tests, each by itself, and ends the process.

    Compiled code that lies in the directory is not looked at: it need not be of these sources.

    Args:
      tests: names as `unittest` takes them, "module.Class.test".
      directory: where the modules are; the standard library comes first all the same.
      report: descriptor for lines {"token", "test", "outcome", "why"}; the outcome is "passed",
        "failed" or "skipped".
      token: see above.
    """
    places = [path for path in sys.path if path]
    own = [path for path in places if path.startswith(_LIBRARY)]
    packages = [path for path in places if path.endswith(_PACKAGES)]
    sys.path[:] = [*(path for path in own if path not in packages), directory, *packages]
    sys.dont_write_bytecode, sys.pycache_prefix = True, os.path.join(os.devnull, "none")
    sys.argv = ["unittest"]
    for name in tests:
        outcome, why = _outcome(name)
        line = {"token": token, "test": name, "outcome": outcome, "why": why[:_WORDS]}
        os.write(report, json.dumps(line).encode() + b"\n")
    os._exit(0)


def _outcome(name: str) -> tuple[str, str]:
    result = unittest.TestResult()
    try:
        unittest.defaultTestLoader.loadTestsFromName(name).run(result)
    except BaseException as error:
        return "failed", _last_line(traceback.format_exception_only(error))
    wrong = [*result.errors, *result.failures]
    if wrong:
        return "failed", _last_line(wrong[0][1].splitlines())
    if result.unexpectedSuccesses:
        return "failed", "unexpected success"
    if result.skipped:
        return "skipped", result.skipped[0][1]
    return ("passed", "") if result.testsRun else ("failed", "no such test")


def _last_line(lines: Iterable[str]) -> str:
    said = [line.strip() for line in lines if line.strip()]
    return said[-1] if said else ""


def read_report(text: str, token: str) -> dict[str, tuple[str, str]]:
    """Test -> (outcome, why) of the lines that bear the token; all others are passed over."""
    found = {}
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            if entry["token"] == token:
                found.setdefault(str(entry["test"]), (str(entry["outcome"]), str(entry["why"])))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return found
