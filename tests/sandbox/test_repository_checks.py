"""Tasks whose tests do not behave are found and named."""

import re

import pytest
from sandbox.repositories import OWN, TESTS, environments, oracle

from sepo_jax.sandbox.in_process import InProcessPool
from sepo_jax.sandbox.isolation import Limits
from sepo_jax.sandbox.process_pool import ProcessPool
from sepo_jax.sandbox.protocol import SandboxError
from sepo_jax.sandbox.repository_checks import Checked, check_tasks

pytestmark = [
    pytest.mark.usefixtures("watchdog"),
    pytest.mark.parametrize("watchdog", [300], indirect=True),
]
FLIP, HOLD = "tests/test_flip.py", "tests/test_hold.py"
BY_CHANCE = TESTS.replace("from", "import os\nfrom", 1)


def own(name, **change):
    return OWN | {"name": name} | change


SOUND = [own("own"), {"repository": "roman", "variant": 2}]
FAULTY = {
    "wrong gold": (
        own("wrong gold", gold=[["helper.py", "VALUE = 1", "VALUE = 3"]]),
        r"a test fails after the known repair, in run 1 of 20: tests\.test_flip.*3 != 2",
    ),
    "gold that breaks": (
        own("gold that breaks", gold=[*OWN["gold"], ["tests/test_hold.py", "VALUE, ", "0, "]],
            pass_to_pass=[*OWN["pass_to_pass"], "helper.Absent.test"]),
        "a test that is to hold fails before the repair, in run 1 of 20: helper",
    ),
    "flips already": (
        own("flips already", hidden_tests={FLIP: TESTS.format(value=1)}),
        "a test that is to flip passes before the repair, in run 1 of 20",
    ),
    "flaky after": (
        own("flaky after", hidden_tests={FLIP: BY_CHANCE.format(
            value="2 + os.urandom(1)[0] % 2")}),
        r"a test fails after the known repair, in run \d+ of 20: .*2 != 3",
    ),
    "flaky before": (
        own("flaky before", tests={**OWN["tests"], HOLD: BY_CHANCE.format(
            value="VALUE + os.urandom(1)[0] % 2")}),
        r"(a test that is to hold fails before|a test fails after) the (known )?repair, in run \d+",
    ),
    "no gold": (own("no gold", gold=[]), "cannot be played: task 'no gold' has no gold edits"),
    "no task": ({"repository": "nothing"}, "cannot be played: unknown repository 'nothing'"),
    "too long": (
        own("too long", gold=[["helper.py", f"= {n}", f"= {n + 1}"] for n in range(1, 9)]),
        "cannot be played: an episode ends before the 10 replies of the oracle do",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def pool():
    """Environments for all tests of this module."""
    with InProcessPool(environments) as found:
        yield found


@pytest.mark.parametrize("name", FAULTY)
def test_a_task_that_is_not_sound_is_quarantined_with_the_reason(pool, name):  # C14
    """A flaky test comes through 20 runs with probability 2^-20 or less."""
    task, reason = FAULTY[name]
    checked = check_tasks(pool, [task], oracle, times=20)
    assert checked.sound == []
    ((found, why),) = checked.quarantined
    assert found == task
    assert re.search(reason, why), why


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_tasks_come_back_in_their_order_and_each_is_told(pool, at_once):
    tasks, told = [SOUND[0], FAULTY["no gold"][0], SOUND[1]], []
    checked = check_tasks(
        pool, tasks, oracle, times=2, at_once=at_once, done=lambda: told.append(1)
    )
    assert checked.sound == SOUND and len(told) == 3
    assert [task["name"] for task, _ in checked.quarantined] == ["no gold"]
    assert check_tasks(pool, [], oracle) == Checked([], [])


@pytest.mark.slow
def test_tasks_are_checked_side_by_side_in_worker_processes():
    tasks = [SOUND[0], FAULTY["flaky after"][0], SOUND[1], FAULTY["no task"][0]]
    with ProcessPool(environments, workers=2, limits=Limits(processes=64)) as found:
        checked = check_tasks(found, tasks, oracle, times=10, at_once=2)
    assert checked.sound == SOUND
    assert [task for task, _ in checked.quarantined] == tasks[1::2]


class Absent:
    """An environment without a sandbox."""

    def __init__(self, scratch):
        pass

    def reset(self, task, seed):
        raise SandboxError("no engine")

    def close(self):
        pass


def test_where_nothing_can_be_played_no_task_is_blamed():
    words = "none of 2 tasks can be played; the first: SandboxError: no engine"
    with InProcessPool(Absent) as found, pytest.raises(SandboxError, match=words):
        check_tasks(found, SOUND, oracle, times=1)


def test_how_often_is_a_number_above_0(pool):
    with pytest.raises(ValueError, match="times must be at least 1"):
        check_tasks(pool, SOUND, oracle, times=0)
    with pytest.raises(ValueError, match="at_once must be at least 1"):
        check_tasks(pool, SOUND, oracle, at_once=0)
