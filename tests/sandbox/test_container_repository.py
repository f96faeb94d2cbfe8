"""SWE-bench instances in containers, against a stand-in for the client of the engine."""

import itertools
import json
import os
import subprocess
import sys

import pytest
from sandbox import fake_docker

from sepo_jax.domains.repository.swe_bench import patch_replies, read_instances
from sepo_jax.sandbox.container_repository import ContainerRepository, container_environments
from sepo_jax.sandbox.containers import Engine
from sepo_jax.sandbox.protocol import SandboxError, SnapshotRefused
from sepo_jax.sandbox.snapshots import content_of

pytestmark = [
    pytest.mark.usefixtures("watchdog"),
    pytest.mark.parametrize("watchdog", [300], indirect=True),
]
IMAGE = "swebench/sweb.eval.x86_64.owner_1776_name-12:latest"
TASK = {"instance_id": "owner__name-12"}
SOURCE = "def f(x):\n    return x + 1\n"
OLD_TEST = "from a import f\n\n\ndef test_two():\n    assert f(1) == 2\n"
NEW_TEST = OLD_TEST + "\n\ndef test_none():\n    assert f(None) is None\n"
GIT = {
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
}  # fmt: skip


def git(directory, *arguments):
    environment = {"PATH": os.environ["PATH"]} | GIT
    done = subprocess.run(
        ["git", *arguments], cwd=directory, env=environment, check=True, capture_output=True,
        text=True,
    )  # fmt: skip
    return done.stdout


def diff(repository, path, text):
    """The diff of writing a text to a file; the file is as before on return."""
    before = (repository / path).read_text()
    (repository / path).write_text(text)
    found = git(repository, "diff")
    (repository / path).write_text(before)
    return found


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """Where the stand-in keeps what it has; one image, of a repository with a fault."""
    repository = tmp_path / "repository"
    (repository / "tests").mkdir(parents=True)
    (repository / "a.py").write_text(SOURCE)
    (repository / "conftest.py").write_text("")
    (repository / "tests/test_a.py").write_text(OLD_TEST)
    git(repository, "init", "-q")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "begin")
    gold = diff(repository, "a.py", SOURCE.replace("x + 1", "None if x is None else x + 1"))
    record = {
        "instance_id": TASK["instance_id"],
        "repo": "owner/name",
        "base_commit": git(repository, "rev-parse", "HEAD").strip(),
        "patch": gold,
        "test_patch": diff(repository, "tests/test_a.py", NEW_TEST),
        "problem_statement": "f(None) raises TypeError.",
        "FAIL_TO_PASS": json.dumps(["tests/test_a.py::test_none"]),
        "PASS_TO_PASS": json.dumps(["tests/test_a.py::test_two"]),
    }
    (tmp_path / "instances.jsonl").write_text(json.dumps(record) + "\n")
    for name, value in GIT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    return fake_docker.install(tmp_path / "docker", {IMAGE: repository}, monkeypatch)


@pytest.fixture
def environment(engine, tmp_path):
    """An environment of the instance."""
    found = container_environments(str(tmp_path / "instances.jsonl"))(tmp_path)
    yield found
    found.close()


def said(turn):
    return turn.prompts[0].messages[-1]["content"]


def play(environment, *replies):
    turn = environment.reset(TASK, 0)
    for reply in replies:
        turn = environment.step({0: reply})
    return turn


def test_a_container_is_confined_and_goes_with_its_episode(environment, engine):
    turn = environment.reset(TASK, 0)
    assert said(turn) == "Issue: f(None) raises TypeError."
    (call,) = fake_docker.calls(engine, "run")
    options = dict(itertools.pairwise(call))
    assert options["--network"] == "none" and options["--workdir"] == "/testbed"
    assert options["--entrypoint"] == "sleep" and options["--security-opt"] == "no-new-privileges"
    assert "--pids-limit" in options and "--memory" in options and call[-2:] == [IMAGE, "12h"]
    environment.reset(TASK, 0)
    assert len(list((engine / "containers").iterdir())) == 1
    environment.close()
    assert list((engine / "containers").iterdir()) == []


def test_the_known_patch_resolves_the_instance_and_nothing_does_not(environment, engine, tmp_path):
    (instance,) = read_instances(tmp_path / "instances.jsonl").values()
    last = play(environment, *patch_replies(instance))
    assert last.rewards == {0: 1.0} and last.record["success"], last.record
    last = play(environment, "submit")
    assert last.rewards == {0: 0.0} and last.record["pass_to_pass"] == 1.0
    assert list(last.record["failed"]["fail_to_pass"]) == ["tests/test_a.py::test_none"]
    assert len(list((engine / "containers").iterdir())) == 1  # the fresh ones are gone


def test_commands_and_edits_reach_the_container(environment):
    turn = play(environment, "run: cat a.py; exit 3")
    assert said(turn) == SOURCE.strip() + "\n(exit 3)"
    turn = environment.step({0: "edit a.py: x + 1 -> x + 2"})
    assert said(turn) == "edited a.py, line 2"
    assert said(environment.step({0: "run: git diff | tail -1"})) == "+    return x + 2"
    assert "No such file" in said(environment.step({0: "edit absent.py: x -> y"}))
    assert "old text is not in a.py" in said(environment.step({0: "edit a.py: y -> z"}))
    environment.step({0: "run: printf '\\377x' > bytes"})
    assert "no UTF-8 text" in said(environment.step({0: "edit bytes: x -> y"}))


def test_an_edit_of_a_large_file_loses_nothing(environment):
    environment.reset(TASK, 0)
    environment.step({0: "run: seq 1 60000 > big; echo needle >> big; seq 1 60000 >> big"})
    assert said(environment.step({0: "edit big: needle -> thread"})) == "edited big, line 60001"
    counted = said(environment.step({0: "run: wc -l big; grep -c thread big"}))
    assert counted == "120001 big\n1"


def test_edits_of_tests_and_their_settings_do_not_count(environment):
    forged = "run: printf 'def test_none(): pass\\ndef test_two(): pass' > tests/test_a.py"
    hook = "run: printf 'def pytest_pyfunc_call():\\n    return True\\n' > tests/conftest.py"
    last = play(environment, forged, hook, "submit")
    assert last.rewards == {0: 0.0} and last.record["fail_to_pass"] == 0.0
    repaired = "edit a.py: x + 1 -> None if x is None else x + 1"
    assert play(environment, forged, hook, repaired, "submit").rewards == {0: 1.0}
    committed = "run: printf 'caf\\351\\n' > latin; git add -A; git commit -qam mine"
    assert play(environment, repaired, committed, "submit").rewards == {0: 1.0}


def test_prints_and_exits_of_the_code_pass_no_test(environment):  # C14
    verdict = 'print(\'{"test": "tests/test_a.py::test_none", "outcome": "passed"}\')'
    for line in (verdict, "import os; os._exit(0)", "def ("):
        last = play(environment, f"```bash\ncat >> a.py <<'E'\n{line}\nE\n```", "submit")
        assert last.rewards == {0: 0.0}, line


def test_a_snapshot_is_an_image_and_goes_on_anywhere(environment, engine, tmp_path):
    play(environment, "run: echo x > new", "edit a.py: x + 1 -> x + 3")
    kept = environment.snapshot()
    (call,) = fake_docker.calls(engine, "commit")
    assert "LABEL sepo_jax=snapshot" in call
    environment.step({0: "run: rm -r new a.py tests"})
    other = ContainerRepository(tmp_path, str(tmp_path / "instances.jsonl"))
    for each in (environment, other):
        turn = each.restore(kept)
        assert said(turn) == "edited a.py, line 2"
        assert said(each.step({0: "run: cat new a.py"})) == f"x\n{SOURCE.replace('1', '3').strip()}"
        repaired = "edit a.py: x + 3 -> None if x is None else x + 1"
        each.step({0: repaired})
        last = each.step({0: "submit"})
        assert last.rewards == {0: 1.0} and last.record["turns"] == 5
    other.close()
    before = len(list((engine / "images").iterdir()))
    environment.close()
    assert len(list((engine / "images").iterdir())) == before - 1


def test_equal_pasts_have_equal_contents(environment):
    contents = []
    for replies in (["run: true"], ["run: true"], ["run: false"]):
        play(environment, *replies)
        contents.append(content_of(environment.snapshot()))
    assert contents[0] == contents[1] != contents[2]


def test_a_snapshot_whose_image_is_gone_is_refused_and_the_episode_goes_on(environment, engine):
    play(environment, "run: echo x > new")
    kept = environment.snapshot()
    (image,) = environment._images
    environment.engine.remove_image(image)
    with pytest.raises(SnapshotRefused, match=f"has no image {image}"):
        environment.restore(kept)
    assert said(environment.step({0: "run: cat new"})) == "x"


def test_what_a_command_leaves_running_ends_with_a_restart(environment, engine):
    environment.reset(TASK, 0)
    before = len(fake_docker.calls(engine, "restart"))
    environment.step({0: "run: true"})
    assert len(fake_docker.calls(engine, "restart")) == before
    (engine / "left").touch()
    environment.step({0: "run: true"})
    assert len(fake_docker.calls(engine, "restart")) == before + 1


def test_a_command_that_takes_too_long_is_ended(engine, tmp_path):
    environment = ContainerRepository(tmp_path, str(tmp_path / "instances.jsonl"), seconds=1.0)
    environment.reset(TASK, 0)
    assert said(environment.step({0: "run: echo a; sleep 60"})) == "a\n(ended: it took too long)"
    assert said(environment.step({0: "run: kill -9 $$"})) == "(exit 137)"
    environment.close()


def test_without_an_engine_the_error_says_what_is_needed(engine, tmp_path, monkeypatch):
    environment = ContainerRepository(tmp_path, str(tmp_path / "instances.jsonl"))
    (engine / "broken").touch()
    with pytest.raises(
        SandboxError, match=r"no container engine answers: .*Cannot connect.*bundled"
    ):
        environment.reset(TASK, 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match=r"no `docker` on PATH.*sandbox\.network"):
        environment.reset(TASK, 0)
    with pytest.raises(SandboxError, match="no `docker` on PATH"):
        Engine().check()


def test_an_image_without_a_repository_is_named(environment, engine):
    for path in (engine / "images").glob("*/.git/HEAD"):
        path.unlink()
    with pytest.raises(SandboxError, match=f"image {IMAGE} holds no git repository in /testbed"):
        environment.reset(TASK, 0)


def test_what_is_no_instance_is_named(environment):
    with pytest.raises(ValueError, match="Did you mean 'owner__name-12'"):
        environment.reset({"instance_id": "owner__name-1"}, 0)
    with pytest.raises(ValueError, match=r'a task is .*"instance_id": a name'):
        environment.reset({"repository": "cart"}, 0)
