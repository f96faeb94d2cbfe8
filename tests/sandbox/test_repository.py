"""Repositories to be repaired: what repairs them, what does not, and what a snapshot keeps."""

import os
import pickle
import signal
import threading
import time
from pathlib import Path

import pytest
from sandbox.elsewhere import result, start
from sandbox.pools import (
    Client,
    is_running,
    processes_named,
    processes_of_workers,
    wait_for,
)
from sandbox.repositories import OWN, RULES, environments, oracle, play

from sepo_jax.domains.repository.actions import EditRefused
from sepo_jax.domains.repository.bundle import NAMES, PLACE, variants
from sepo_jax.domains.repository.tasks import RepairRules, edit_reply, oracle_conversation
from sepo_jax.sandbox.archive import Entry, pack_directory, read_archive
from sepo_jax.sandbox.isolation import Limits
from sepo_jax.sandbox.process_pool import ProcessPool
from sepo_jax.sandbox.protocol import SnapshotRefused
from sepo_jax.sandbox.repository import RepositoryEnvironment, task_of
from sepo_jax.sandbox.repository_scoring import judged_entries
from sepo_jax.sandbox.snapshots import content_of

pytestmark = [
    pytest.mark.usefixtures("watchdog"),
    pytest.mark.parametrize("watchdog", [300], indirect=True),
]
CART = {"repository": "cart", "variant": 1}
REPAIR = edit_reply("helper.py", "VALUE = 1", "VALUE = 2")


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An environment for all tests of this module, each of which resets it."""
    found = environments(tmp_path_factory.mktemp("repository"))
    yield found
    found.close()


def said(turn):
    """What the agent is told."""
    (prompt,) = turn.prompts.values()
    return prompt.messages[-1]["content"]


# The bundled repositories


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_oracle_repairs_every_repository_every_time_and_nothing_else_does(
    name, environment
):  # C14
    for run, variant in enumerate((0, *variants(name, evaluation=False)[:4])):
        task = {"repository": name, "variant": variant}
        last = play(environment, task, oracle(task), seed=run)
        assert last.done and last.rewards == {0: 1.0}
        assert last.record["success"] and not any(last.record["failed"].values())
        assert last.record["turns"] == len(oracle(task)) and last.record["submitted"]
        last = play(environment, task, ["submit"], seed=run)
        assert last.rewards == {0: 0.0} and not last.record["success"]
        assert (last.record["fail_to_pass"], last.record["pass_to_pass"]) == (0.0, 1.0)


def test_one_task_is_repaired_in_five_runs_of_five(environment):
    for run in range(5):
        assert play(environment, CART, oracle(CART), seed=run).rewards == {0: 1.0}


@pytest.mark.parametrize("name", ["cart", "roman", "tally"])
def test_the_sandbox_says_what_the_oracles_conversation_holds(name, environment):
    task = {"repository": name, "variant": 3}
    expected = oracle_conversation(task_of(task), RULES)
    turn = environment.reset(task, 0)
    found = list(turn.prompts[0].messages)
    for reply in oracle(task):
        turn = environment.step({0: reply})
        found.append({"role": "assistant", "content": reply})
        if not turn.done:
            assert turn.prompts[0].continues
            found += turn.prompts[0].messages
    assert found == expected


def test_a_variant_is_drawn_by_the_seed_where_none_is_named(environment):
    texts = {said(environment.reset({"repository": "cart"}, seed)) for seed in range(12)}
    assert len(texts) > 3
    again = [said(environment.reset({"repository": "cart"}, 5)) for _ in range(2)]
    assert again[0] == again[1]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"repository": "carts"}, "Did you mean 'cart'"),
        ({"repository": "cart", "variant": 99}, "there is no variant 99"),
        ({"repository": "cart", "varaint": 1}, "Did you mean 'variant'"),
        ({"name": "x"}, "needs the field 'issue'"),
        ("cart", "is an object with"),
    ],
)
def test_what_is_no_task_is_named(environment, task, message):
    with pytest.raises(ValueError, match=message):
        environment.reset(task, 0)


# Moves


def test_the_agent_finds_a_git_repository_and_no_hidden_test(environment):
    environment.reset(OWN, 0)
    files = said(environment.step({0: "run: git ls-files; git status --porcelain"}))
    assert files.split() == sorted({**OWN["files"], **OWN["tests"]})
    environment.step({0: REPAIR})
    turn = environment.step({0: "run: git diff | tail -2; pwd; cd tests; pwd"})
    assert said(turn) == "-VALUE = 1\n+VALUE = 2\n.\ntests"


def test_replies_without_an_action_are_counted_and_turns_run_out(environment):
    environment.reset(OWN, 0)
    assert said(environment.step({0: "Well."})).startswith("No action. The last line must be")
    environment.step({0: REPAIR})
    turn = environment.step({0: "run: true"})
    for _ in range(2):
        turn = environment.step({0: "run: exit 4"})
    assert said(turn) == "(exit 4)\n(1 action left)"
    turn = environment.step({0: "hm"})
    assert turn.done and turn.rewards == {0: 1.0}  # what stands then counts
    assert turn.record == {
        "success": True, "submitted": False, "turns": 6, "invalid": 2, "commands": 3,
        "fail_to_pass": 1.0, "pass_to_pass": 1.0,
        "failed": {"fail_to_pass": {}, "pass_to_pass": {}},
    }  # fmt: skip


def test_long_output_is_cut_to_the_limit(tmp_path):
    environment = RepositoryEnvironment(tmp_path, RepairRules(output_limit=100))
    environment.reset(OWN, 0)
    text = said(environment.step({0: "run: seq 1 1000"}))
    assert text.startswith("1\n2\n") and text.endswith("999\n1000") and len(text) < 130
    environment.close()


@pytest.mark.parametrize(
    ("prepare", "path", "message"),
    [
        ("true", "absent.py", "there is no file absent.py"),
        ("true", "tests", "tests is a directory"),
        ("true", "../workspace/helper.py", "is no path in the repository"),
        ("true", "/etc/hostname", "is no path in the repository"),
        ("ln -s /etc/hostname link", "link", "link is a link or no file"),
        ("ln -s / root", "root/etc/hostname", "is a link or no file"),
        ("ln -s helper.py link", "link", "link is a link or no file"),
        ("mkfifo pipe", "pipe", "pipe is a link or no file"),
        ("printf '\\377' > bytes", "bytes", "bytes is no UTF-8 text"),
        ("head -c 1100000 /dev/zero > big", "big", "big is larger than"),
    ],
)
def test_an_edit_that_cannot_be_made_is_refused(environment, prepare, path, message):
    environment.reset(OWN, 0)
    environment.step({0: f"run: {prepare}"})
    turn = environment.step({0: f"edit {path}: VALUE = 1 -> VALUE = 2"})
    assert said(turn).startswith("not edited: ") and message in said(turn)


def test_a_file_that_cannot_be_read_is_not_edited(environment, monkeypatch):
    environment.reset(OWN, 0)
    real = os.open

    def refuse(path, flags, *more, **named):
        if Path(os.fsdecode(path)).name == "helper.py":
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refuse)  # root may read whatever the mode
    with pytest.raises(EditRefused, match=r"helper\.py is read-protected"):
        environment.read_file("helper.py")


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("edit \ud800.py: x -> y", "not edited: there is no file ?.py"),
        ("edit a\0.py: x -> y", "is no path in the repository"),
        ("edit helper.py: VALUE = 1 -> VALUE = '\ud800'", "edited helper.py, line 1"),
        ("run: echo \ud800", "?"),
        ("run: echo \0", "cannot hold the character NUL"),
        (f"run: echo {'x' * 200_000}", "Argument list too long"),
        (f"edit {'d/' * 5000}a.py: x -> y", "not edited: there is no file d/"),
        ("run: cat /etc/shadow; echo $(id) > /tmp/../outside; touch ../outside", "denied"),
    ],
    ids=[
        *("half a pair", "NUL", "half a pair in a text", "half a pair in a command"),
        *("NUL in a command", "a long command", "a long path", "out of the repository"),
    ],
)
def test_hostile_replies_cost_a_turn(environment, reply, answer):
    environment.reset(OWN, 0)
    turn = environment.step({0: reply})
    assert answer in said(turn) and not turn.done
    assert environment.restore(environment.snapshot()).prompts == turn.prompts


def test_rewards_may_be_partial(tmp_path):
    task = OWN | {"fail_to_pass": [*OWN["fail_to_pass"], "tests.test_flip.Tests.test_absent"]}
    for reward, paid in (("partial", 0.5), ("binary", 0.0)):
        (tmp_path / reward).mkdir()
        environment = RepositoryEnvironment(tmp_path / reward, RepairRules(reward=reward))
        assert play(environment, task, [REPAIR, "submit"]).rewards == {0: paid}
        broken = "run: echo 'def f(: pass' > tests/../helper.py"
        assert play(environment, task, [broken, "submit"]).rewards == {0: 0.0}
        environment.close()


# What does not count


FORGERIES = {
    "edited test": "echo pass > tests/test_flip.py",
    "edited old test": "sed -i s/VALUE,/1,/ tests/test_hold.py",
    "conftest": "echo 'collect_ignore = [\"tests\"]' > conftest.py; cp conftest.py tests/",
    "link in place of the tests": "rm -r tests; ln -s /tmp tests",
    "file in place of the tests": "rm -r tests; touch tests",
    "module in place of the tests": "rm -r tests; echo 'x = 1' > tests.py",
    "package in place of a test": "mkdir tests/test_flip; touch tests/test_flip/__init__.py",
    "code beside a test": "echo > tests/test_flip.cpython-311-x86_64-linux-gnu.so",
    "package code of the tests": "echo 'import unittest; unittest.TestCase.assertEqual = print'"
    " > tests/__init__.py",
    "link to a test": "mkdir x; ln tests/test_hold.py x/a; echo 'VALUE = 1' > tests/test_flip.py",
    "stdlib module": "echo 'class TestCase: pass' > unittest.py",
    "site module": "echo 'import os; os._exit(0)' > sitecustomize.py; cp sitecustomize.py tests/",
    "exit": "echo 'import os; os._exit(0)' >> helper.py",
    "verdicts": "echo 'print(\"OK\")\nimport sys; sys.exit(0)' >> helper.py",
    "no permissions": "chmod 000 tests",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_who_edits_tests_in_place_of_code_is_not_paid(environment, name):
    last = play(environment, OWN, [f"run: {FORGERIES[name]}", "submit"])
    assert last.rewards == {0: 0.0} and last.record["fail_to_pass"] == 0.0


@pytest.mark.parametrize("name", [name for name in FORGERIES if name not in ("exit", "verdicts")])
def test_a_repair_counts_whatever_became_of_the_tests(environment, name):
    last = play(environment, OWN, [f"run: {FORGERIES[name]}", REPAIR, "submit"])
    assert last.rewards == {0: 1.0}, last.record


def test_what_judges_is_the_tasks_and_all_else_the_agents(tmp_path):
    environment = RepositoryEnvironment(tmp_path)
    environment.reset(OWN, 0)
    environment.step({0: "run: mkdir -p tests/more other/tests; touch tests/more/x other/tests/y"})
    environment.step({0: "run: ln tests/test_hold.py a; ln -s helper.py b; touch tests.txt"})
    packed = read_archive(pack_directory(environment.directory, 2**24))
    found = {entry.name: entry for entry in judged_entries(packed, task_of(OWN))}
    assert set(found) == {
        ".", "a", "b", "helper.py", "other", "other/__init__.py", "other/tests", "other/tests/y",
        "tests", "tests/__init__.py", "tests/test_hold.py", "tests/test_flip.py",
    }  # fmt: skip
    assert all(isinstance(entry, Entry) for entry in found.values())
    assert found["b"].kind == "link" and found["a"].kind in ("file", "hard link")
    environment.close()


def test_files_that_cannot_be_packed_are_not_judged(environment):
    last = play(environment, OWN, [REPAIR, "run: mkfifo pipe", "submit"])
    assert last.rewards == {0: 0.0}
    assert "pipe" in last.record["failed"]["fail_to_pass"][OWN["fail_to_pass"][0]]


def watch(token, seen, over):
    """Collects the processes that have a text among their arguments until it is over."""
    while not over.wait(0.02):
        seen |= processes_named(token)


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import subprocess, sys\nwhile True:\n    try:\n        subprocess.Popen([sys.executable, "
        "'-c', 'while True: pass', TOKEN], start_new_session=True)\n    except OSError: pass",
    ],
)
def test_scored_code_that_never_ends_is_killed_with_its_children(code, tmp_path):
    token = f"sepo-scored-{os.getpid()}-{len(code)}"
    limits = Limits(seconds=4.0, cpu_seconds=1.0, processes=24, memory_bytes=2**29)
    environment = RepositoryEnvironment(tmp_path, RULES, limits)
    environment.reset(OWN, 0)
    (environment.directory / "helper.py").write_text(code.replace("TOKEN", repr(token)))
    began, before = time.monotonic(), processes_of_workers(os.getpid())
    seen, over = set(), threading.Event()
    watching = threading.Thread(target=watch, args=(token, seen, over))
    watching.start()
    last = environment.step({0: "submit"})
    over.set()
    watching.join()
    # Children with sessions of their own did run, if the code starts any; none is left.
    assert bool(seen) == ("TOKEN" in code) and not processes_named(token)
    assert last.done and last.rewards == {0: 0.0} and time.monotonic() - began < 30
    assert sorted(path.name for path in tmp_path.iterdir()) == ["temporary", "workspace"]
    left = processes_of_workers(os.getpid()) - before
    environment.close()
    assert len(left) <= 3 and not any(map(is_running, left))  # those of the runner itself


def test_the_bundled_data_stay_as_they_are(environment):  # C06
    before = {path.name: path.read_bytes() for path in PLACE.iterdir()}
    turn = play(environment, CART, [f"run: echo x >> {PLACE}/cart.txt; rm {PLACE}/roman.txt"])
    assert "cart.txt" in said(turn)
    assert {path.name: path.read_bytes() for path in PLACE.iterdir()} == before


# Snapshots


def test_a_snapshot_brings_back_files_turns_and_git(environment, tmp_path):
    environment.reset(OWN, 0)
    environment.step({0: REPAIR})
    environment.step({0: "run: git commit -qam half; mkdir empty; chmod 400 helper.py"})
    kept = environment.snapshot()
    environment.step({0: "run: rm -r .git helper.py tests empty"})
    assert environment.step({0: "submit"}).rewards == {0: 0.0}
    other = environments(tmp_path)
    for each in (environment, other):
        each.restore(kept)
        assert content_of(each.snapshot()) == content_of(kept)
        told = said(each.step({0: "run: git log --format=%s; git status -s; ls -d empty; cat h*"}))
        assert told == "half\nInitial commit\nempty\nVALUE = 2"
        last = each.step({0: "submit"})
        assert last.rewards == {0: 1.0} and last.record["turns"] == 4
    other.close()


def resolved_elsewhere(snapshot: bytes, replies: list[str]) -> list:
    """What another process finds when it goes on from a snapshot."""
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        environment = environments(Path(scratch))
        environment.restore(snapshot)
        turns = [environment.step({0: reply}).to_json() for reply in replies]
        environment.close()
    return turns


def test_another_process_scores_a_snapshot_alike(environment):
    environment.reset(OWN, 0)
    environment.step({0: "run: echo x > new; git add new"})
    kept = environment.snapshot()
    replies = ["run: git diff HEAD; git stash -q; ls", REPAIR, "submit"]
    here = [environment.step({0: reply}).to_json() for reply in replies]
    assert result(start(resolved_elsewhere, kept, replies, hash_seed=5)) == here
    assert '"success": true' in here[-1]


def test_other_rules_refuse_a_snapshot(environment, tmp_path):
    environment.reset(OWN, 0)
    other = RepositoryEnvironment(tmp_path, RepairRules(turns=7))
    with pytest.raises(SnapshotRefused, match="version"):
        other.restore(environment.snapshot())


def test_equal_situations_have_equal_keys(environment):
    def key(*replies):
        turn = play(environment, OWN, replies)
        return turn.prompts[0].observation

    first = key("run: true", REPAIR)
    assert first == key("run: true", "run: true", REPAIR)
    assert len({first, key(REPAIR, "run: true"), key("run: true"), key("run: touch x")}) == 4


# Pools


def test_environments_of_workers_are_confined_twice_and_end_with_them(place):
    limits = Limits(seconds=60.0, processes=64)
    factory = pickle.loads(pickle.dumps(environments))
    token = f"sepo-worker-{os.getpid()}"
    before = processes_of_workers(os.getpid())
    with ProcessPool(factory, workers=1, limits=limits) as pool:
        client = Client(pool)
        for episode in (0, 1):
            client.ask(episode, "reset", (CART, 0))
        sleeper = f"python -c 'import time; time.sleep(300)' {token}"
        told = client.step(0, f"run: (setsid {sleeper} &) ; sleep 0.3; echo done").turn
        assert said(told) == "done"
        bomb = "run: f() { f | f & }; f; sleep 0.5"
        assert not client.step(0, bomb).turn.done
        outside = "run: echo x > ../../x; echo on"
        assert said(client.step(1, outside).turn).endswith("on")
        for reply in oracle(CART):
            turns = [client.step(episode, reply).turn for episode in (0, 1)]
        assert [turn.rewards for turn in turns] == [{0: 1.0}] * 2
        running = processes_of_workers(os.getpid()) - before
        assert pool.counters["deaths"] == 0 and len(running) < 12
    assert not any(map(is_running, running))
    assert list(place.iterdir()) == []


def test_a_worker_without_processes_says_what_it_needs(place):
    with ProcessPool(environments, workers=1, limits=Limits(seconds=60.0)) as pool:
        client = Client(pool)
        client.ask(0, "reset", (CART, 0))
        failure = client.step(0, "run: ls").failure
        assert failure.kind == "raised" and "sandbox.processes in a config" in failure.message


def test_a_worker_that_is_killed_leaves_nothing_behind(place):
    before = processes_of_workers(os.getpid())
    limits = Limits(seconds=60.0, processes=64)
    with ProcessPool(environments, workers=1, limits=limits, max_restarts=1) as pool:
        client = Client(pool)
        client.ask(0, "reset", (CART, 0))
        client.step(0, "run: true")
        running = processes_of_workers(os.getpid()) - before
        number = client.send(0, "step", {0: "run: sleep 100"})
        time.sleep(0.5)
        started = processes_of_workers(os.getpid()) - before
        for pid in running:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
        assert client.receive(number).failure is not None
        assert wait_for(lambda: not any(map(is_running, running | started)), 10)
