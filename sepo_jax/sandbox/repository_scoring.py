"""Scoring of repositories: the task's tests, on a fresh confined copy.

Test files come from the task, so editing them gains nothing, nor does code beside them that would
be imported in their place. As in every benchmark of this kind the code under test shares a process
with its tests: printing verdicts or exiting early passes no test, but code that sets out to change
`unittest` itself can.
"""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from sepo_jax.domains.repository.tasks import RepositoryTask
from sepo_jax.sandbox.archive import Entry, unpack_directory
from sepo_jax.sandbox.commands import CommandRunner
from sepo_jax.sandbox.scratch import empty_directory


def run_tests(
    runner: CommandRunner, entries: Iterable[Entry], task: RepositoryTask, scratch: Path
) -> dict[str, tuple[str, str]]:
    """Runs a task's tests on a fresh copy of a repository: test -> (outcome, why).

    Args:
      runner: of a scratch directory.
      entries: what the repository holds.
      task: its tests judge.
      scratch: the runner's scratch directory.
    """
    copy = scratch / "scored"
    copy.mkdir(exist_ok=True)
    try:
        unpack_directory(judged_entries(entries, task), copy, scratch / "unpacking")
        found = runner.run_tests([*task.fail_to_pass, *task.pass_to_pass], copy)
        place = str(copy.resolve())  # differs from sandbox to sandbox
        return {test: (what, why.replace(place, ".")) for test, (what, why) in found.items()}
    finally:
        empty_directory(copy)
        copy.rmdir()


def judged_entries(entries: Iterable[Entry], task: RepositoryTask) -> list[Entry]:
    """What a repository holds, with the task's test files and nothing in their place.

    Left out are `.git`; what lies where a test file or a directory above it belongs; what Python
    would import in place of either; and all else in directories that hold test files alone.
    """
    places = {*task.scored, *(folder for path in task.scored for folder in _above(path))}
    sources = {*task.files, *(folder for path in task.files for folder in _above(path))}
    folders = {place for place in places if place not in task.scored}
    of_tests = folders - sources
    stems = {(_parent(place), _stem(place)) for place in places}

    def is_out(entry: Entry) -> bool:
        for name in (entry.name, *_above(entry.name)):
            if name == ".git" or name in task.scored or _parent(name) in of_tests:
                return True
            if name in folders and (name != entry.name or entry.kind == "directory"):
                continue
            if (_parent(name), _stem(name)) in stems and name not in sources:
                return True
        return False

    kept: dict[str, Entry] = {}
    dropped: dict[str, Entry] = {}
    for entry in entries:
        if entry.kind == "hard link" and entry.link in dropped:
            # The first of several names is gone: this one becomes a file of its own.
            data = dropped[entry.link].data
            entry = entry._replace(kind="file", link="", data=data)
        (dropped if is_out(entry) else kept)[entry.name] = entry
    root = kept["."]
    for path, text in task.scored.items():
        for folder in reversed(_above(path)):
            kept.setdefault(folder, Entry(folder, "directory", 0o755, root.modified, "", root.data))
            kept[folder] = kept[folder]._replace(mode=0o755)  # the agent may have shut it
        data = memoryview(text.encode())
        kept[path] = Entry(path, "file", 0o644, root.modified, "", data)
    return list(kept.values())


def _above(path: str) -> list[str]:
    """The directories above a path, the nearest first, without the root."""
    return [str(parent) for parent in PurePosixPath(path).parents if str(parent) != "."]


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _stem(path: str) -> str:
    """The name under which Python would import what lies at a path."""
    return path.rpartition("/")[2].partition(".")[0]
