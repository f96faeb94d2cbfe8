"""SWE-bench instances that an agent repairs in a container.

Every command is a shell of its own and nothing else outlasts it, so the container's files are the
whole state: a snapshot is an image of them (`docker commit`), which the engine keeps as a layer
over the files before. It is restored wherever the same engine is. Judging is done in a fresh
container of the published image, to which the agent's changes are applied as a diff.

A process that is killed leaves its containers and images behind, all of them labelled:
`docker rm -f $(docker ps -aq --filter label=sepo_jax)` and
`docker image prune -af --filter label=sepo_jax` remove them.
"""

import functools
import json
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sepo_jax.domains.repository.actions import EditRefused
from sepo_jax.domains.repository.swe_bench import (
    REPORTER,
    REPORTER_NAME,
    REPORTER_PLACE,
    Instance,
    changed_files,
    read_instances,
    read_outcomes,
    scoring_command,
)
from sepo_jax.domains.repository.tasks import RepairRules
from sepo_jax.names import check_option
from sepo_jax.sandbox.base import BaseEnvironment
from sepo_jax.sandbox.command_process import KEPT, LEFT_OUT, MOST
from sepo_jax.sandbox.commands import Finished
from sepo_jax.sandbox.containers import Engine
from sepo_jax.sandbox.protocol import EnvironmentFactory, SandboxError, SnapshotRefused, Turn
from sepo_jax.sandbox.repairs import Repairing, Verdict, verdict
from sepo_jax.sandbox.snapshots import content_hash

TESTBED = "/testbed"
_MOST_FILE = 1 << 21  # bytes of a file that can be edited
# The published images keep what the repository needs in a conda environment of this name.
_PRELUDE = "[ -f /opt/miniconda3/bin/activate ] && . /opt/miniconda3/bin/activate testbed\n"
# Files that change how tests are run, by whoever wrote them: the agent's do not count.
_OF_TESTING = ("conftest.py", "sitecustomize.py", "usercustomize.py")


class ContainerRepository(Repairing, BaseEnvironment):
    """Plays repository repair in a container.

    A task is {"instance_id": a name of the instances}.

    Args:
      scratch: as in `BaseEnvironment`; not used.
      instances: the JSONL file, see `domains.repository.swe_bench.read_instances`.
      rules: of the episodes.
      seconds: time of a command.
      test_seconds: time of a run of the tests.
    """

    kind = "container"
    name = "repository repair in containers"

    def __init__(
        self,
        scratch: Path,
        instances: str,
        rules: RepairRules | None = None,
        seconds: float = 60.0,
        test_seconds: float = 1800.0,
    ):
        super().__init__(scratch)
        self.instances, self.rules = instances, rules or RepairRules(long_forms=True)
        self.version = content_hash((1, self.rules))
        self._seconds, self._test_seconds = seconds, test_seconds
        self.engine = Engine()
        self._container = ""
        self._images: list[str] = []

    def start(self, task: Any, seed: int) -> Turn:
        """Starts the instance's container; ValueError for what is no task."""
        instance = self._instance(task)
        self.engine.check()
        self._replace(self.engine.start(instance.image, TESTBED))
        head = self._execute(self._container, "git rev-parse HEAD")
        if head.code != 0:
            raise SandboxError(
                f"image {instance.image} holds no git repository in {TESTBED}: "
                f"{head.output.strip()[-200:]}"
            )
        commit = head.output.strip()
        self.state = {"instance_id": instance.instance_id, "head": commit, "past": ""}
        return self.begin(instance.problem_statement, ())

    def play(self, actions: Mapping[int, str]) -> Turn:
        """Plays the agent's reply."""
        self.state["past"] = content_hash((self.state["past"], actions[0]))
        return super().play(actions)

    def close(self) -> None:
        """Removes the container, and the images of all snapshots that were taken here."""
        self._replace("")
        while self._images:
            self.engine.remove_image(self._images.pop())

    def run_command(self, command: str) -> Finished:
        """Runs a command in the container."""
        return self._execute(self._container, command)

    def read_file(self, path: str) -> str:
        """The text of a file in the container."""
        done = self._execute(self._container, f"cat -- {shlex.quote(path)}", keep=_MOST_FILE)
        if done.code != 0:
            raise EditRefused(done.output.strip() or f"{path} cannot be read")
        if LEFT_OUT in done.output or "\ufffd" in done.output:
            raise EditRefused(f"{path} is larger than {_MOST_FILE} bytes, or no UTF-8 text")
        return done.output

    def write_file(self, path: str, text: str) -> None:
        """Writes a file in the container in place."""
        done = self._execute(self._container, f"cat > {shlex.quote(path)}", given=text)
        if done.code != 0:
            raise EditRefused(done.output.strip() or f"{path} cannot be written")

    def judge(self) -> Verdict:
        """Runs the instance's tests in a fresh container that has the agent's changes."""
        instance = self._instance(self.state)
        excluded = " ".join(f"':(exclude,glob)**/{name}'" for name in _OF_TESTING)
        diff = f"git diff --cached --binary {shlex.quote(self.state['head'])} -- . {excluded}"
        # In base64, for diffs of files that are no UTF-8.
        command = f"set -o pipefail; git add -A 2>/dev/null && {diff} 2>/dev/null | base64 -w 0"
        patch = self._execute(self._container, command, keep=MOST)
        fresh = self.engine.start(instance.image, TESTBED)
        try:
            problem = self._prepare(fresh, instance, patch)
            output = "" if problem else self._run_tests(fresh, instance)
        finally:
            self.engine.remove(fresh)
        outcomes = read_outcomes(instance, output)
        if problem:
            tests = (*instance.fail_to_pass, *instance.pass_to_pass)
            outcomes = dict.fromkeys(tests, ("not run", problem))
        return verdict(outcomes, instance.fail_to_pass, instance.pass_to_pass)

    def _prepare(self, container: str, instance: Instance, patch: Finished) -> str:
        """Applies the agent's changes and then the tests; what went wrong, "" if nothing did."""
        if patch.code != 0:
            return f"no diff of the changes: {patch.output.strip()[-200:]}"
        steps = [("base64 -d | git apply -", patch.output)] if patch.output.strip() else []
        tests = shlex.join(changed_files(instance.test_patch))
        # Those that are there get back what they held, the others go.
        restore = f"for f in {tests}; do git checkout -q HEAD -- $f 2>/dev/null || rm -rf $f; done"
        steps += [(restore, ""), ("git apply -", instance.test_patch)]
        reporter = f"{REPORTER_PLACE}/{REPORTER_NAME}.py"
        steps.append((f"mkdir -p {REPORTER_PLACE} && cat > {reporter}", REPORTER))
        for command, given in steps:
            done = self._execute(container, command, given=given)
            if done.code != 0:
                return f"{command.split(' ')[0]} failed: {done.output.strip()[-200:]}"
        return ""

    def _run_tests(self, container: str, instance: Instance) -> str:
        command = scoring_command(instance)
        return self._execute(container, command, seconds=self._test_seconds, keep=MOST).output

    def _execute(
        self,
        container: str,
        command: str,
        *,
        given: str = "",
        seconds: float | None = None,
        keep: int = KEPT,
    ) -> Finished:
        seconds, command = seconds or self._seconds, _PRELUDE + command
        return self.engine.execute(container, command, seconds=seconds, given=given, keep=keep)

    def _instance(self, task: Any) -> Instance:
        found = _instances(os.path.abspath(self.instances))
        if not isinstance(task, Mapping) or "instance_id" not in task:
            raise ValueError(f'a task is {{"instance_id": a name}}, not {repr(task)[:80]}')
        return found[check_option("instance", task["instance_id"], found)]

    def _replace(self, container: str) -> None:
        """Puts a container in place of the one of the last episode."""
        before, self._container = self._container, container
        if before:
            self.engine.remove(before)

    def _snapshot_save(self, turn: Turn) -> tuple[str, bytes]:
        try:
            image = self.engine.commit(self._container)
        except SandboxError as error:
            raise SnapshotRefused(f"the container cannot be kept: {error}") from error
        self._images.append(image)
        body = {"image": image, "state": self.state, "turn": turn.to_json()}
        return self._snapshot_content(turn, self.state), json.dumps(body).encode()

    def _snapshot_load(self, body: bytes) -> tuple[str, Callable[[], Turn]]:
        try:
            kept = json.loads(body)
            image, state, turn = kept["image"], kept["state"], Turn.from_json(kept["turn"])
            self._instance(state)
        except Exception as error:
            raise SnapshotRefused(f"the snapshot cannot be read here: {error}") from error
        if not self.engine.has_image(image):
            raise SnapshotRefused(
                f"the engine here has no image {image}: it was removed, or another engine made it"
            )

        def install() -> Turn:
            self._replace(self.engine.start(image, TESTBED))
            self.state = state
            return turn

        return self._snapshot_content(turn, state), install


@functools.lru_cache(maxsize=4)
def _instances(path: str) -> dict[str, Instance]:
    return read_instances(path)


def container_environments(instances: str, rules: RepairRules | None = None) -> EnvironmentFactory:
    """A factory of environments of SWE-bench instances, for pools.

    Those of `ProcessPool` need workers whose limits allow processes and sockets.
    """
    return functools.partial(ContainerRepository, instances=instances, rules=rules)
