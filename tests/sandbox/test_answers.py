"""Comparing answers with the library, in real processes: known answers, hostile ones, and what is
left of them."""

import contextlib
import logging
import os
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction

import pytest
from sandbox.pools import Client, is_running, processes_of_workers, wait_for

from sepo_jax.domains.math.answers import plain_equal
from sepo_jax.domains.math.domain import CheckFailed, MathTeam
from sepo_jax.sandbox import answer_process, answers
from sepo_jax.sandbox.answers import ANSWER_LIMITS, LOST, TIME, AnswerChecker, check_answer
from sepo_jax.sandbox.environments import domain_environments
from sepo_jax.sandbox.isolation import Limits
from sepo_jax.sandbox.process_pool import ProcessPool
from sepo_jax.sandbox.protocol import SandboxError

pytest.importorskip("math_verify", reason="the extra `math` is not installed")
pytestmark = [
    pytest.mark.usefixtures("watchdog"),
    pytest.mark.parametrize("watchdog", [900], indirect=True),
]
SHORT = replace(ANSWER_LIMITS, cpu_seconds=0.5, seconds=600.0)
LONG = replace(ANSWER_LIMITS, cpu_seconds=600.0, seconds=600.0)
ENDLESS = "2^{9^{9^{9}}}"


@pytest.fixture(scope="module")
def checker():
    """A checker with a short limit of processor time."""
    found = AnswerChecker(SHORT)
    yield found
    found.close()


# (reference, answer, equal), by hand.
KNOWN = [
    ("1/2", "0.5", True),
    ("\\frac{1}{2}", "\\dfrac{2}{4}", True),
    ("204", "x = 204", True),
    ("1234", "1,234", True),
    ("1/3", "0.333333", True),  # to six places
    ("1/3", "0.33333", False),
    ("3", "3.", True),  # a full stop
    ("x^2 + 2x + 1", "(x+1)^2", True),
    ("x^2 + 2x + 1", "(x+2)^2", False),
    ("2\\sqrt{2}", "\\sqrt{8}", True),
    ("\\{1, 2\\}", "2, 1", True),
    ("204", "203, 204", False),  # naming several is no answer
    ("204", "203 \\text{ or } 204", False),
    ("\\frac{\\pi}{4}", "\\pi/4", True),
    ("10,\\!080", "10080", True),
    ("10,\\!080", "10, 80", False),
    ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}", True),
    ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix} 2 \\\\ 1 \\end{pmatrix}", False),
    ("7", "7^\\circ", True),
    ("7", "seven", False),
    ("7", "", False),
]


@pytest.mark.parametrize(("reference", "answer", "equal"), KNOWN)
def test_known_answers(checker, reference, answer, equal):
    assert checker.check(reference, answer) == ("equal" if equal else "different")


def test_a_reference_that_is_no_mathematics_is_named(checker):
    assert checker.check("", "x+1") == "unreadable"


HOSTILE = {
    "a tower of powers": ENDLESS,
    "another": "9^9^9^9",
    "factorials": "(((9!)!)!)!",
    "a large power of a sum": "(x+1)^{100000}",
    "a sum without end": "\\sum_{n=1}^{10^{12}} n^{n}",
    "brackets": "(" * 400 + "1" + ")" * 400,
    "braces": "{" * 490 + "1" + "}" * 490,
    "an open brace": "}" * 400,
    "digits": "1" * 1000,
    "too long": "1+" * 600 + "1",
    "zero and a half character": "1\x00\ud800",
    "a float beyond all": "1e999999999",
    "code": '__import__("os").system("true")',
    "nothing": "{}",
    "backslashes": "\\" * 500,
    "nested fractions": "\\frac{1}{" * 100 + "1" + "}" * 100,
    "nested roots": "\\sqrt{" * 150 + "2" + "}" * 150,
    "a huge list": "\\{" + ",".join(map(str, range(240))) + "\\}",
    "a huge interval": "[-10^{10^{10}}, 10^{10^{10}}]",
    "a matrix of many": "\\begin{pmatrix}" + "1&" * 150 + "1\\end{pmatrix}",
    "letters of all scripts": "".join(map(chr, range(0x300, 0x300 + 900))),
    "signs that turn the line": "\u202e\u200f" * 200 + "204",
    "full width": "\uff12\uff10\uff14" * 100,
    "an integral": "\\int_0^{\\infty} x^{x^{x}} dx",
    "a limit": "\\lim_{x \\to \\infty} (1+1/x)^{x^{x}}",
    "a signal": "__import__('os').kill(__import__('os').getpid(), 9)",
    "memory": "\\prod_{n=1}^{10^{9}} (x+n)",
    "an environment": "\\input{/etc/passwd}",
    "nan": "\\frac{0}{0}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_cost_their_own_sample_alone(checker, name):
    assert checker.check("204", HOSTILE[name]) in ("different", "time", "lost")
    assert checker.check("1/2", "0.5") == "equal"
    # The process and its child, one that waits outside of their pid namespace, one that collects.
    assert len(processes_of_workers(os.getpid())) <= 4


def test_an_endless_comparison_is_out_of_time(checker):
    assert checker.check("204", ENDLESS) == TIME


def compare_meanwhile(checker, results):
    thread = threading.Thread(target=lambda: results.append(checker.check("204", ENDLESS)))
    thread.start()
    return thread


def busy_child(before):
    """The process that compares, once it does."""
    found = []

    def ready():
        found[:] = sorted(processes_of_workers(os.getpid()) - before)
        return len(found) >= 2 and all(map(is_running, found)) and spends(found[-1])

    assert wait_for(ready, 600)
    return found[-1]  # it was forked last


def spends(pid):
    """Whether a process has used processor time; it stands behind the name in parentheses."""
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[11]) > 5  # hundredths of a second


@pytest.mark.parametrize("victim", ["child", "process"])
def test_a_crash_costs_its_own_sample_alone(victim):
    before = processes_of_workers(os.getpid())
    checker, results = AnswerChecker(LONG), []
    assert checker.check("1/2", "0.5") == "equal"
    thread = compare_meanwhile(checker, results)
    child = busy_child(before)
    os.kill(child if victim == "child" else checker._peer._process.pid, signal.SIGKILL)
    thread.join()
    assert results == [LOST]
    assert checker.check("1/2", "0.5") == "equal"
    checker.close()
    assert wait_for(lambda: not processes_of_workers(os.getpid()) - before, 60)


@pytest.mark.parametrize("victim", ["child", "process"])
def test_what_is_lost_while_it_waits_costs_no_sample(victim):
    before = processes_of_workers(os.getpid())
    with contextlib.closing(AnswerChecker(LONG)) as checker:
        assert checker.check("1/2", "0.5") == "equal"
        pid = checker._peer._process.pid
        if victim == "child":  # it was forked last
            pid = max(processes_of_workers(os.getpid()) - before)
        os.kill(pid, signal.SIGKILL)
        assert wait_for(lambda: not is_running(pid), 60)
        for reference, answer, equal in (("1/2", "0.5", True), ("1/2", "0.6", False)):
            assert checker.check(reference, answer) == ("equal" if equal else "different")


def test_an_interrupted_comparison_leaves_its_answer_to_nobody(monkeypatch):
    def interrupted(self, seconds):
        raise KeyboardInterrupt

    with contextlib.closing(AnswerChecker(LONG)) as checker:
        assert checker.check("1/2", "0.5") == "equal"
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(answers.Peer, "receive", interrupted)
            checker.check("(x+1)^{200}", "(x+1)^{201}")
        assert checker.check("1/2", "0.5") == "equal"


def test_threads_share_a_checker(checker):
    pairs = [(f"{n}/2", f"{n / 2}", "equal") for n in range(20)]
    pairs += [(f"{n}/2", f"{n / 2 + 1}", "different") for n in range(20)]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda pair: checker.check(*pair[:2]), pairs)
        assert list(found) == [outcome for *_, outcome in pairs]


def test_no_process_is_left_when_the_parent_is_killed():
    code = (
        "from sepo_jax.sandbox.answers import *\n"
        "import dataclasses\n"
        "limits = dataclasses.replace(ANSWER_LIMITS, cpu_seconds=600.0, seconds=600.0)\n"
        "checker = AnswerChecker(limits)\n"
        "print(checker.check('1/2', '0.5'), flush=True)\n"
        f"checker.check('204', {ENDLESS!r})\n"
    )
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=variables)
    try:
        assert parent.stdout.readline() == b"equal\n"
        assert wait_for(lambda: any(map(spends, processes_of_workers(parent.pid))), 600)
        family = processes_of_workers(parent.pid)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    assert len(family) >= 2
    assert wait_for(lambda: not any(map(is_running, family)), 120)


def forms(rng, value):
    """A fraction as text, in one of several forms."""
    times = rng.randint(1, 3)
    top, bottom = value.numerator * times, value.denominator * times
    shapes = [f"{top}/{bottom}", f"\\frac{{{top}}}{{{bottom}}}"]
    if top < 0:
        shapes.append(f"-\\frac{{{-top}}}{{{bottom}}}")
    if bottom == 1:
        shapes += [str(top), f"{top:+d}", f"00{top}" if top >= 0 else str(top)]
    return rng.choice(shapes)


def test_what_is_seen_at_sight_is_what_the_library_says():
    logging.disable(logging.CRITICAL)
    rng = random.Random(0)
    seen = {True: 0, False: 0}
    try:
        for _ in range(300):
            value = Fraction(rng.randint(-30, 30), rng.choice([1, 1, 2, 3, 7]))
            other = value if rng.random() < 0.5 else value + Fraction(1, rng.choice([1, 9, 10**9]))
            pair = forms(rng, value), forms(rng, other)
            same = plain_equal(*pair)
            assert same is not None
            assert answer_process.compare(*pair) == ("equal" if same else "different"), pair
            seen[same] += 1
        for text in ("0.5", "-12.250", "+3.0"):
            assert plain_equal(text, text) and answer_process.compare(text, text) == "equal"
    finally:
        logging.disable(logging.NOTSET)
    assert min(seen.values()) > 80


def test_plain_answers_need_no_process(monkeypatch):
    monkeypatch.setattr(answers, "Peer", None)
    checker = AnswerChecker()
    assert checker.check("3/4", "$\\dfrac{6}{8}$") == "equal"
    assert checker.check("3/4", "4/3") == "different"
    assert checker.check("3", "") == checker.check("3", "3" * 2000) == "different"


def test_a_missing_library_is_named(monkeypatch):
    paths = [path for path in sys.path if "site-packages" not in path]
    monkeypatch.setattr(sys, "path", paths)
    with pytest.raises(SandboxError, match=r"math-verify is not installed; `pip install"):
        AnswerChecker(SHORT).check("1/2", "0.5")


TASK = {"question": "What is a half?", "answer": "1/2", "kind": "chain", "difficulty": 1}


def team(**options):
    return MathTeam("single", check_seconds=0.5, **options)


def test_a_team_is_paid_by_the_library(tmp_path):
    environment = domain_environments(team())(tmp_path)
    for reply, reward in (("\\boxed{0.5}", 1.0), ("\\boxed{0.6}", 0.0)):
        environment.reset(TASK, 0)
        state = environment.snapshot()
        turn = environment.step({0: reply})
        assert turn.done and turn.rewards.get(0, 0.0) == reward
        environment.restore(state)
        assert environment.step({0: reply}).record == turn.record
    environment.reset(TASK, 0)
    turn = environment.step({0: f"\\boxed{{{ENDLESS}}}"})
    assert turn.done and turn.record["outcome"] == "time" and not turn.rewards.get(0)
    missing = domain_environments(team(on_failure="missing"))(tmp_path)
    missing.reset(TASK, 0)
    with pytest.raises(CheckFailed, match="time"):
        missing.step({0: f"\\boxed{{{ENDLESS}}}"})


@pytest.mark.parametrize(("processes", "played"), [(0, False), (16, True)])
def test_confined_workers_compare_where_they_may_start_processes(processes, played):
    limits = Limits(seconds=600.0, cpu_seconds=600.0, processes=processes)
    with ProcessPool(domain_environments(team()), workers=1, limits=limits) as pool:
        client = Client(pool)
        client.ask(0, "reset", (TASK, 0), seconds=600.0)
        answer = client.step(0, "\\boxed{0.5}", seconds=600.0)
        if played:
            assert answer.turn.record["right"]
        else:
            assert "sandbox.processes" in str(answer.failure)


def test_the_shared_checker_compares():
    assert check_answer("1/2", "0.5", 0.5) == "equal"
