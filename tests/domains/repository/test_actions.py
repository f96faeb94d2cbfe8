"""Actions of repository repair: read out of any text, and edits that a file allows."""

import time

import pytest

from sepo_jax.domains.repository.actions import (
    Edit,
    EditRefused,
    Run,
    Submit,
    apply_edit,
    parse_action,
)


def edit(path, old, new):
    return Edit(path, ((old, new),))


BLOCK = "edit a.py\n<<<<<<< old\n  x = 1\n=======\n  x = 2\n  y = 3\n>>>>>>> new"
LINES = Edit("a.py", (("  x = 1", "  x = 2\n  y = 3"),))


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("run: ls -l", Run("ls -l")),
        ("run ls -l", Run("ls -l")),
        ("RUN:  cat a.py | head -3  ", Run("cat a.py | head -3")),
        ("I look first.\n\nrun: cat a.py\n", Run("cat a.py")),
        ("Action: run: ls", Run("ls")),
        ("**Action:** run: ls", Run("ls")),
        ("- run: `ls *.py`", Run("ls *.py")),
        ("1. run: ls", Run("ls")),
        ("> `run: ls`", Run("ls")),
        ("run: echo `date`", Run("echo `date`")),
        ("```\nrun: ls\n```", Run("ls")),
        ("```bash\ncd src\nls\n```", Run("cd src\nls")),
        ("```sh\nrun: ls\n```", Run("ls")),
        ("```bash\nrun: ls\nls\n```", Run("run: ls\nls")),
        ("run:\n```\nls\npwd\n```", Run("ls\npwd")),
        ("```bash\nls", Run("ls")),
        ("run: cat <<E > a\nx\nE", Run("cat <<E > a")),
        ("submit", Submit()),
        ("All is done.\nSubmit.", Submit()),
        ("**submit**", Submit()),
        ("submit()", Submit()),
        ("```\nsubmit\n```", Submit()),
        ("run: ls\nsubmit", Submit()),
        ("submit\nrun: ls", Run("ls")),
        ("edit a.py: x + 1 -> x - 1", edit("a.py", "x + 1", "x - 1")),
        ("edit `src/a.py`: x -> y", edit("src/a.py", "x", "y")),
        ("edit a.py x -> y", edit("a.py", "x", "y")),
        ("Edit: a.py: x -> y", edit("a.py", "x", "y")),
        ("edit a.py: x ->", edit("a.py", "x", "")),
        ("edit a.py: a->b -> c", edit("a.py", "a->b", "c")),
        ("edit a.py: `x` -> `y`", Edit("a.py", (("`x`", "`y`"), ("x", "y")))),
        (
            "edit a.py: def f() -> int: -> def f() -> str:",
            Edit(
                "a.py",
                (
                    ("def f() -> int: -> def f()", "str:"),
                    ("def f() -> int:", "def f() -> str:"),
                    ("def f()", "int: -> def f() -> str:"),
                ),
            ),
        ),
        (BLOCK, LINES),
        (f"So:\n```\n{BLOCK}\n```", LINES),
        (BLOCK.replace("a.py", "`a.py`:"), LINES),
        (BLOCK.replace("edit a.py\n", "edit a.py\n```\n") + "\n```", LINES),
        (BLOCK + "\nsubmit", Submit()),
    ],
)
def test_the_last_action_of_a_reply_counts(reply, action):
    assert parse_action(reply) == action


# No reply may take long, much memory or the whole stack to read.
@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("```a\n" * 5000 + "run: ls", None),
        ("```a\n~~~b\n" * 2500 + "```\nsubmit", Submit()),
        ("edit a.py\n<<<<<<<\n" * 10_000, None),
        (f"{BLOCK}\n" * 200, LINES),
        (f"```python\n~~~\n```text\n{BLOCK}\n```\n~~~\n```", LINES),
    ],
    ids=["blocks", "blocks of two kinds", "open edits", "edits", "a nested edit"],
)
def test_hostile_replies_are_read_like_any_other(reply, action):
    began = time.process_time()
    assert parse_action(reply) == action
    assert time.process_time() - began < 5.0


def test_an_edit_of_many_arrows_has_few_readings():
    action = parse_action("edit a.py: " + "x -> " * 20_000 + "y")
    assert len(action.readings) == 32
    assert action.readings[-1][0] == "x"


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "\n \n",
        "I submit that this is hard.",
        "Let us run: ls",
        "running: ls",
        "edit a.py: nothing",
        "edit a.py: -> y",
        "edit",
        "```python\nx = 1\n```",
        "```bash\n\n```",
        "edit a.py\n<<<<<<<\nx\n=======\ny",
        "\x00\ud800",
    ],
)
def test_a_reply_without_an_action_is_none(reply):
    assert parse_action(reply) is None


TEXT = "def f(a) -> int:\n    return a + 1\n\n\ndef g(a) -> int:\n    return a * 1\n"


@pytest.mark.parametrize(
    ("reply", "line", "old", "new"),
    [
        ("edit m.py: a + 1 -> a - 1", 2, "a + 1", "a - 1"),
        ("edit m.py: f(a) -> int: -> f(a) -> str:", 1, "f(a) -> int:", "f(a) -> str:"),
        ("edit m.py: `a * 1` -> `a * 2`", 6, "a * 1", "a * 2"),
        ("edit m.py: a * 1 ->", 6, "a * 1", ""),
        (
            "edit m.py\n<<<<<<<\n    return a + 1\n\n=======\n    return 1\n>>>>>>>",
            2,
            "    return a + 1\n",
            "    return 1",
        ),
    ],
)
def test_an_edit_replaces_the_reading_that_the_file_has(reply, line, old, new):
    assert apply_edit(TEXT, parse_action(reply)) == (TEXT.replace(old, new), line)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (edit("m.py", "return a", "x"), r"occurs 2 times in m\.py; give more"),
        (edit("m.py", "return b", "x"), r"is not in m\.py; copy it exactly"),
        (edit("m.py", "", "x"), "is not in"),
        (edit("m.py", "a + 1", "a + 1"), "the same"),
    ],
)
def test_an_edit_that_does_not_fit_is_refused(action, message):
    with pytest.raises(EditRefused, match=message):
        apply_edit(TEXT, action)
