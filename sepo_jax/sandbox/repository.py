"""Repositories that an agent repairs in a directory of its own, its commands confined."""

import functools
import os
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from sepo_jax.domains.base import derive_seed
from sepo_jax.domains.repository.actions import EditRefused
from sepo_jax.domains.repository.bundle import bundled_task, repository
from sepo_jax.domains.repository.tasks import RepairRules, RepositoryTask, read_task
from sepo_jax.names import check_option
from sepo_jax.sandbox.archive import Entry, archive_content, pack_directory, read_archive
from sepo_jax.sandbox.commands import COMMAND_LIMITS, CommandRunner, Finished
from sepo_jax.sandbox.environments import Workspace
from sepo_jax.sandbox.git_files import git_directory
from sepo_jax.sandbox.isolation import Limits
from sepo_jax.sandbox.protocol import EnvironmentFactory, SnapshotRefused, Turn
from sepo_jax.sandbox.repairs import Repairing, Verdict, verdict
from sepo_jax.sandbox.repository_scoring import run_tests
from sepo_jax.sandbox.snapshots import content_hash

MAX_FILE = 1 << 20  # bytes of a file that can be edited
_WRITTEN = 1_700_000_000  # seconds since 1970: when the files of a task were written
# Git notes the times and numbers of files there, which differ from place to place.
_OF_THE_PLACE = frozenset({".git/index"})


class RepositoryEnvironment(Repairing, Workspace):
    """Plays repository repair in its directory.

    A task is {"repository": a bundled one, "variant": its number}, where without a number the seed
    draws one, or a task of your own as `domains.repository.tasks.read_task` reads it. Nothing
    outlasts a command but files, so the directory is the whole state. Commands see fixed dates and
    hash seeds, and in their output the directory's path is cut off: equal states show equal text
    as long as programs print no times and draw no random numbers.

    Args:
      scratch: as in `Workspace`.
      rules: of the episodes.
      limits: of each command, and of each run of the tests.
    """

    name = "repository repair"
    version = 1

    def __init__(
        self, scratch: Path, rules: RepairRules | None = None, limits: Limits = COMMAND_LIMITS
    ):
        super().__init__(scratch)
        self.rules = rules or RepairRules()
        self.version = content_hash((RepositoryEnvironment.version, self.rules))
        self.runner = CommandRunner(self.scratch, limits)

    def start(self, task: Any, seed: int) -> Turn:
        """Writes the repository; ValueError for what is no task."""
        value = _with_variant(task, seed)
        found = task_of(value)
        _write_repository(found, self.directory)
        self.state = {"task": value}
        return self.begin(found.issue, list(found.shown))

    def close(self) -> None:
        """Ends the process that runs commands."""
        self.runner.close()

    def run_command(self, command: str) -> Finished:
        """Runs a command; its output does not name the directory."""
        finished = self.runner.run(command, self.directory)
        place = str(self.directory.resolve())
        output = finished.output.replace(f"{place}/", "").replace(place, ".")
        return Finished(output, finished.code, finished.ending)

    def read_file(self, path: str) -> str:
        """The text of an ordinary file of the repository."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self._place(path), flags)
        except PermissionError:
            raise EditRefused(f"{path} is read-protected") from None
        with open(descriptor, "rb") as file:
            data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise EditRefused(f"{path} is larger than {MAX_FILE} bytes")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise EditRefused(f"{path} is no UTF-8 text") from None

    def write_file(self, path: str, text: str) -> None:
        """Writes an ordinary file of the repository in place."""
        flags = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW
        try:
            descriptor = os.open(self._place(path), flags)
        except PermissionError:
            raise EditRefused(f"{path} is write-protected") from None
        with open(descriptor, "wb") as file:
            file.write(text.encode("utf-8", "replace"))

    def _place(self, path: str) -> Path:
        """Where a file lies; EditRefused unless it is an ordinary one, reached through no link."""
        parts = PurePosixPath(path.removeprefix("./")).parts
        if not parts or path.startswith("/") or ".." in parts or "\0" in path:
            raise EditRefused(f"{path!r} is no path in the repository")
        place = self.directory
        for part in parts:
            place = place / part
            try:
                mode = os.lstat(place).st_mode
            except OSError:
                raise EditRefused(f"there is no file {path}") from None
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                raise EditRefused(f"{path} is a link or no file")
        if not stat.S_ISREG(mode):
            raise EditRefused(f"{path} is a directory")
        return place

    def judge(self) -> Verdict:
        """Runs the task's tests on a copy of the directory."""
        task = task_of(self.state["task"])
        tests = (*task.fail_to_pass, *task.pass_to_pass)
        try:
            entries = read_archive(pack_directory(self.directory, self.max_bytes))
        except SnapshotRefused as error:
            outcomes = dict.fromkeys(tests, ("not run", str(error)))
        else:
            outcomes = run_tests(self.runner, entries, task, self.scratch)
        return verdict(outcomes, task.fail_to_pass, task.pass_to_pass)

    def situation(self) -> str:
        """Hash of the files, of a repository that can be kept."""
        try:
            entries = read_archive(pack_directory(self.directory, self.max_bytes))
        except SnapshotRefused:
            return ""
        return archive_content(self.described(entries))[:16]

    def described(self, entries: list[Entry]) -> list[Entry]:
        """All but what git notes of the place where the files lie."""
        return [entry for entry in entries if entry.name not in _OF_THE_PLACE]


def repository_environments(
    rules: RepairRules | None = None, limits: Limits = COMMAND_LIMITS
) -> EnvironmentFactory:
    """A factory of environments of repository repair, for pools.

    Those of `ProcessPool` run commands only in workers whose own limits allow processes.
    """
    return functools.partial(RepositoryEnvironment, rules=rules, limits=limits)


def task_of(value: Any) -> RepositoryTask:
    """The task that a JSON value stands for; ValueError for what is none."""
    if not (isinstance(value, Mapping) and "repository" in value):
        return read_task(value)
    for name in value:
        check_option("field of a bundled task", name, ("repository", "variant"))
    return bundled_task(value["repository"], value.get("variant", 0))


def _with_variant(task: Any, seed: int) -> Any:
    """The task, where it names a bundled repository alone with a variant drawn by the seed."""
    if isinstance(task, Mapping) and "repository" in task and "variant" not in task:
        count = repository(task["repository"]).variants
        return {**task, "variant": derive_seed(seed, "variant") % count}
    return task


def _write_repository(task: RepositoryTask, directory: Path) -> None:
    files = {path: text.encode() for path, text in task.shown.items()}
    for path, data in {**files, **_git_files(tuple(task.shown.items()))}.items():
        place = directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        os.utime(place, (_WRITTEN, _WRITTEN))
    for name in ("objects/pack", "refs/tags"):
        (directory / ".git" / name).mkdir(parents=True, exist_ok=True)


@functools.lru_cache(maxsize=1024)
def _git_files(files: tuple[tuple[str, str], ...]) -> dict[str, bytes]:
    return {f".git/{path}": data for path, data in git_directory(dict(files)).items()}
