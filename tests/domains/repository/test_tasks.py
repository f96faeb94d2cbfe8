"""Repository repair: tasks that read back, the bundled repositories, and what the oracle says."""

import sys
from collections import Counter

import pytest

from sepo_jax.domains.repository.actions import Edit, Run, Submit, apply_edit, parse_action
from sepo_jax.domains.repository.bundle import NAMES, bundled_task, repository, variants
from sepo_jax.domains.repository.tasks import (
    LEFT_OUT,
    NO_ACTION,
    RepairRules,
    edit_reply,
    opening,
    oracle_conversation,
    oracle_replies,
    paid,
    read_task,
    run_observation,
    shorten,
    with_count,
)

OWN = {
    "name": "own",
    "issue": "f(1) is 0.",
    "files": {"src/a.py": "x = 1\n"},
    "tests": {},
    "hidden_tests": {"tests/test_a.py": "import unittest\n"},
    "fail_to_pass": ["tests.test_a.Tests.test_f"],
}
EVERY = [(name, variant) for name in NAMES for variant in range(repository(name).variants)]


def test_twenty_repositories_are_bundled():
    assert len(NAMES) == 20
    assert len(EVERY) >= 300


@pytest.mark.parametrize("name", NAMES)
def test_every_variant_is_a_task_that_the_oracle_repairs_in_a_few_short_turns(name):
    texts = set()
    for variant in range(repository(name).variants):
        task = bundled_task(name, variant)
        assert read_task(task.record()) == task
        assert task.fail_to_pass and task.pass_to_pass and task.gold
        assert not set(task.fail_to_pass) & set(task.pass_to_pass)
        # A module of the library's name would be found in its place.
        stems = {path.removesuffix(".py") for path in task.shown}
        assert not stems & sys.stdlib_module_names
        for path, text in {**task.shown, **task.hidden_tests}.items():
            compile(text, path, "exec")
            assert "$" not in text
        actions = [parse_action(reply) for reply in oracle_replies(task)]
        assert isinstance(actions[0], Run) and isinstance(actions[-1], Submit)
        files = dict(task.files)
        for action in actions:
            if isinstance(action, Edit):
                files[action.path], _ = apply_edit(files[action.path], action)
        assert files != task.files and files.keys() == task.files.keys()
        conversation = oracle_conversation(task, RepairRules())
        assert sum(len(message["content"]) for message in conversation) < 1200
        assert [message["role"] for message in conversation[:3]] == ["system", "user", "assistant"]
        texts.add(str(conversation))
    assert len(texts) == repository(name).variants


@pytest.mark.parametrize("name", NAMES)
def test_variants_to_judge_by_are_not_trained_on_and_share_every_word(name):
    parts = {kind: variants(name, kind) for kind in (True, False)}
    assert sorted([*parts[True], *parts[False]]) == list(range(repository(name).variants))
    assert len(parts[False]) == 3 * len(parts[True])
    words = repository(name).words
    for chosen in parts.values():
        shown = [bundled_task(name, variant) for variant in chosen]
        text = "\n".join(str(task.record()) for task in shown)
        assert all(word in text for options in words.values() for word in options)


@pytest.mark.parametrize(
    ("name", "variant", "message"),
    [
        ("carts", 0, "unknown repository 'carts'. Did you mean 'cart'"),
        ("cart", 16, "16 variants, from 0 on; there is no variant 16"),
        ("cart", -1, "variant must be at least 0"),
        ("cart", "0", "variant must be an integer"),
    ],
)
def test_what_is_not_bundled_is_named(name, variant, message):
    with pytest.raises(ValueError, match=message):
        bundled_task(name, variant)


def test_a_task_of_ones_own_is_read():
    task = read_task(OWN)
    assert task.pass_to_pass == () and task.gold == ()
    assert task.shown == OWN["files"] and task.scored == OWN["hidden_tests"]
    assert read_task(task.record()) == task
    with pytest.raises(ValueError, match="'own' has no gold edits"):
        oracle_replies(task)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tets": {}}, "Did you mean 'tests'"),
        ({"issue": None}, "'issue' of a repository task is a text: not None"),
        ({"issue": " "}, "'issue' of a repository task is a text"),
        ({"files": ["a.py"]}, "'files' of a repository task maps paths to texts"),
        ({"files": {"a.py": 1}}, "'files' of a repository task maps paths to texts"),
        ({"files": {"/a.py": ""}}, "the path '/a.py'; a path goes down"),
        ({"files": {"../a.py": ""}}, r"the path '\.\./a\.py'"),
        ({"files": {"a//b.py": ""}}, "the path 'a//b.py'"),
        ({"tests": {".git/config": ""}}, "and not into .git"),
        ({"hidden_tests": {"": ""}}, "the path ''"),
        ({"fail_to_pass": []}, "no test in fail_to_pass"),
        ({"fail_to_pass": "a.B.c"}, "is a list of names"),
        ({"pass_to_pass": [1]}, "is a list of names"),
        ({"gold": [["a.py", "x"]]}, r"an edit in 'gold' is \[path, old, new\]"),
    ],
)
def test_a_task_that_is_none_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        read_task(OWN | change)


@pytest.mark.parametrize("field", ["name", "issue", "files", "tests", "hidden_tests"])
def test_a_field_that_is_missing_is_named(field):
    with pytest.raises(ValueError, match=f"needs the field '{field}'"):
        read_task({key: value for key, value in OWN.items() if key != field})
    with pytest.raises(ValueError, match="is an object with name"):
        read_task([OWN])


def test_gold_that_does_not_fit_is_named():
    task = read_task(OWN | {"gold": [["src/a.py", "y", "z"]]})
    with pytest.raises(ValueError, match=r"gold edit of task 'own' in src/a\.py: old text is not"):
        oracle_conversation(task, RepairRules())


def test_an_edit_reply_reads_back():
    for pair in (("x", "y"), ("x\n y", "z"), ("  x", "x"), ("a -> b", "c")):
        action = parse_action(edit_reply("a.py", *pair))
        assert action.path == "a.py" and pair in action.readings
        text = f"1\n{pair[0]}\n2\n"
        assert apply_edit(text, action)[0] == text.replace(*pair)


def test_the_oracle_looks_before_it_edits_and_may_say_why():
    task = bundled_task("tally")
    plain = oracle_conversation(task, RepairRules())
    assert [m["content"] for m in plain[2::2]] == oracle_replies(task)
    assert plain[3]["content"] == task.files["tally.py"].strip("\n")
    assert plain[5]["content"] == "edited tally.py, line 5"
    reasoned = oracle_conversation(task, RepairRules(), rationale=True)
    assert [m["content"].splitlines()[-1] for m in reasoned[2::2]] == oracle_replies(task)
    assert [m["content"] for m in reasoned[3::2]] == [m["content"] for m in plain[3::2]]
    last = oracle_conversation(task, RepairRules(turns=4))[-2]
    assert last["content"] == "edited tally.py, line 4\n(1 action left)"


def test_the_prompt_names_actions_turns_issue_and_files():
    system, user = opening("It breaks. ", ["b.py", "a.py"], RepairRules(turns=5))
    assert "run: COMMAND\nedit FILE: OLD -> NEW\nsubmit\n" in system["content"]
    assert system["content"].endswith("You have 5 actions.")
    assert user["content"] == "Issue: It breaks.\nFiles: a.py b.py"
    long, bare = opening("x", [], RepairRules(long_forms=True))
    assert long["content"].endswith(">>>>>>>") and bare["content"] == "Issue: x"
    assert parse_action(NO_ACTION) is None


def test_long_output_keeps_both_ends():
    assert shorten("x" * 100, 100) == "x" * 100
    text = "".join(chr(65 + n % 26) for n in range(101))
    short = shorten(text, 100)
    assert short == f"{text[:50]}\n{LEFT_OUT}\n{text[-50:]}"
    assert Counter(shorten("ab" * 1000, 41))["a"] > 15


@pytest.mark.parametrize(
    ("output", "code", "ending", "said"),
    [
        ("a\nb\n", 0, "ended", "a\nb"),
        ("", 0, "ended", "(no output)"),
        ("oh\n", 2, "ended", "oh\n(exit 2)"),
        ("", -9, "ended", "(exit -9)"),
        ("a", None, "time", "a\n(ended: it took too long)"),
        ("", None, "output", "(ended: it printed too much)"),
        ("", None, "lost", "(ended: it broke off)"),
    ],
)
def test_what_is_said_of_a_command(output, code, ending, said):
    assert run_observation(output, code, ending, 100) == said


def test_one_action_left_is_said():
    assert [with_count("x", left) for left in (2, 1)] == ["x", "x\n(1 action left)"]


def test_rewards():
    binary, partial = RepairRules(), RepairRules(reward="partial")
    assert [paid(binary, *pair) for pair in ((1.0, 1.0), (0.5, 1.0), (1.0, 0.5))] == [1.0, 0.0, 0.0]
    assert [paid(partial, *pair) for pair in ((1.0, 1.0), (0.5, 1.0), (1.0, 0.5))] == [
        1.0,
        0.5,
        0.0,
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"turns": 0}, "turns must be at least 1"),
        ({"output_limit": 3}, "output_limit must be at least 40"),
        ({"reward": "binar"}, "Did you mean 'binary'"),
    ],
)
def test_rules_that_are_none_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        RepairRules(**options)
