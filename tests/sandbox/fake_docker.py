"""A stand-in for the client `docker`: containers are directories, calls are noted.

`install` puts it on PATH. It knows the calls that `sandbox.containers` makes, refuses all others,
and runs commands in a container's directory. With "broken" in place of an image list, its daemon
does not answer. Nothing here confines anything: it is for commands that the tests wrote.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path


def install(place: Path, images: dict[str, Path], monkeypatch) -> Path:
    """Puts the stand-in on PATH; where it keeps its images, containers and notes.

    Args:
      place: an empty directory.
      images: name -> directory with the files that a container of it finds.
    """
    root, programs = place / "engine", place / "programs"
    for directory in (root / "images", root / "containers", programs):
        directory.mkdir(parents=True)
    for name, source in images.items():
        shutil.copytree(source, root / "images" / _file_name(name), symlinks=True)
    program = programs / "docker"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -ISE {__file__} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_DOCKER", str(root))
    return root


def calls(root: Path, name: str = "") -> list[list[str]]:
    """The calls so far, or those of one name."""
    notes = root / "calls"
    lines = notes.read_text().splitlines() if notes.exists() else []
    return [call for call in map(json.loads, lines) if name in ("", call[0])]


def _file_name(image: str) -> str:
    return image.replace("/", "%")


def _fail(message: str) -> None:
    print(message, file=sys.stderr)
    sys.exit(1)


def _take(arguments: list[str], flags: tuple[str, ...], options: tuple[str, ...]) -> list[str]:
    """What is left of arguments behind known flags, and options with a value."""
    while arguments and arguments[0].startswith("-"):
        if arguments[0] in flags:
            arguments = arguments[1:]
        elif arguments[0] in options:
            arguments = arguments[2:]
        else:
            _fail(f"unknown flag: {arguments[0]}")
    return arguments


class Engine:
    """The calls, by their names."""

    def __init__(self, root: Path):
        self.root = root

    def version(self, arguments):
        print("1.0")

    def run(self, arguments):
        options = ("--network", "--label", "--memory", "--pids-limit", "--security-opt")
        image, *command = _take(
            arguments, ("--detach", "--init"), (*options, "--workdir", "--entrypoint")
        )
        assert command == ["12h"], command
        source = self.root / "images" / _file_name(image)
        if not source.is_dir():
            _fail(f"Unable to find image '{image}' locally")
        name = os.urandom(16).hex()
        shutil.copytree(source, self.root / "containers" / name, symlinks=True)
        print(name)

    def exec(self, arguments):
        name, *command = _take(arguments, ("--interactive",), ())
        code = subprocess.run(command, cwd=self._container(name)).returncode
        sys.exit(code if code >= 0 else 128 - code)

    def top(self, arguments):
        self._container(arguments[0])
        print("PID CMD\n1 init\n2 sleep" + "\n3 left" * (self.root / "left").exists())

    def restart(self, arguments):
        (name,) = _take(arguments, (), ("-t",))
        self._container(name)
        (self.root / "left").unlink(missing_ok=True)

    def commit(self, arguments):
        (name,) = _take(arguments, (), ("--change",))
        image = f"sha256:{os.urandom(16).hex()}"
        shutil.copytree(
            self._container(name), self.root / "images" / _file_name(image), symlinks=True
        )
        print(image)

    def image(self, arguments):
        verb, *rest = arguments
        assert verb == "inspect"
        (name,) = _take(rest, (), ("--format",))
        if not (self.root / "images" / _file_name(name)).is_dir():
            _fail(f"No such image: {name}")
        print(name)

    def rm(self, arguments):
        (name,) = _take(arguments, ("--force", "--volumes"), ())
        shutil.rmtree(self._container(name))

    def rmi(self, arguments):
        shutil.rmtree(self.root / "images" / _file_name(arguments[0]))

    def _container(self, name):
        place = self.root / "containers" / name
        if not place.is_dir():
            _fail(f"No such container: {name}")
        return place


if __name__ == "__main__":
    root = Path(os.environ["FAKE_DOCKER"])
    with (root / "calls").open("a") as notes:
        notes.write(json.dumps(sys.argv[1:]) + "\n")
    if (root / "broken").exists():
        _fail("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.")
    verb, *rest = sys.argv[1:]
    if not hasattr(Engine, verb) or verb.startswith("_"):
        _fail(f"unknown command: docker {verb}")
    getattr(Engine(root), verb)(rest)
