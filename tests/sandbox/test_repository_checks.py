"""Tasks whose tests do not behave are found and named."""

import re

import pytest
from sandbox.repositories import OWN, RULES, TESTS, oracle

from sepo_jax.sandbox.repository import RepositoryEnvironment
from sepo_jax.sandbox.repository_checks import check_tasks

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
def environment(tmp_path_factory):
    """An environment for all tests of this module."""
    found = RepositoryEnvironment(tmp_path_factory.mktemp("checks"), RULES)
    yield found
    found.close()


@pytest.mark.parametrize("name", FAULTY)
def test_a_task_that_is_not_sound_is_quarantined_with_the_reason(environment, name):  # C14
    """A flaky test comes through 20 runs with probability 2^-20 or less."""
    task, reason = FAULTY[name]
    checked = check_tasks(environment, [task], oracle, times=20)
    assert checked.sound == []
    ((found, why),) = checked.quarantined
    assert found == task
    assert re.search(reason, why), why


def test_sound_tasks_come_back_in_their_order(environment):
    tasks = [SOUND[0], FAULTY["no gold"][0], SOUND[1]]
    checked = check_tasks(environment, tasks, oracle, times=2)
    assert checked.sound == SOUND
    assert [task["name"] for task, _ in checked.quarantined] == ["no gold"]


def test_how_often_is_a_number_above_0(environment):
    with pytest.raises(ValueError, match="times must be at least 1"):
        check_tasks(environment, SOUND, oracle, times=0)
