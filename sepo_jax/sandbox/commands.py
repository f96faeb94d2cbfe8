"""Shell commands and unit tests in a confined process of their own.

Nothing outlasts a command but the files in its directory: what it started is killed, whatever
session it went to, and its temporary files are removed.
"""

import os
import secrets
import signal
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sepo_jax.sandbox.isolation import Limits
from sepo_jax.sandbox.peers import Peer, warn_left_open
from sepo_jax.sandbox.protocol import BadAnswer, SandboxError
from sepo_jax.sandbox.unit_tests import read_report

# Loops end by their processor time; wall time is ample, for machines that are busy.
COMMAND_LIMITS = Limits(
    seconds=20.0, cpu_seconds=5.0, memory_bytes=2**30, processes=32, file_bytes=16 * 2**20
)
_GRACE = 15.0  # seconds beyond its limit in which a command must have been ended
_STARTING = 60.0  # seconds in which a process is ready, on a busy machine
_REPORT_BYTES = 1 << 22
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
_AUTHOR = {"NAME": "agent", "EMAIL": "agent@localhost", "DATE": "2024-01-01T00:00:00Z"}


@dataclass(frozen=True)
class Finished:
    """How a command ended.

    Attributes:
      output: what it printed, standard output and errors as they came; the middle of a long one is
        left out.
      code: its exit code, that of a signal negative; None when it was ended.
      ending: "ended" by itself, for lack of "time", for too much "output", or "lost": it took the
        process that ran it along.
    """

    output: str
    code: int | None
    ending: str


NO_COMMAND = Finished("a command cannot hold the character NUL\n", 126, "ended")


class CommandRunner:
    """Runs commands and tests one at a time, in a process that is started when it is first needed.

    It is for one thread at a time, and goes when the runner is closed or lost.
    """

    def __init__(self, scratch: Path, limits: Limits = COMMAND_LIMITS):
        """A runner; starts nothing yet.

        Args:
          scratch: an existing directory; commands may write in the one they run in, which lies
            here, and for temporary files.
          limits: of each command; `processes` counts at one time, and the process itself is not
            among them.
        """
        self._scratch, self._limits = Path(scratch).resolve(), limits
        self._temporary = self._scratch / "temporary"
        self._peer: Peer | None = None
        self._finish = lambda: None

    def run(self, command: str, directory: Path, seconds: float | None = None) -> Finished:
        """Runs a command in /bin/sh; nothing that it started is left on return.

        Args:
          command: text of the command.
          directory: where it runs, in the scratch directory.
          seconds: time it may take; that of the limits by default.

        Raises SandboxError where no process can be had.
        """
        if "\0" in command:
            return NO_COMMAND
        command = command.encode("utf-8", "replace").decode()
        answer = self._ask("command", directory, seconds, {"command": command})
        if answer is None:
            return Finished("", None, "lost")
        return Finished(answer["output"], answer["code"], answer["ending"])

    def run_tests(
        self, tests: Sequence[str], directory: Path, seconds: float | None = None
    ) -> dict[str, tuple[str, str]]:
        """Runs unit tests: test -> (outcome, why).

        The outcome is "passed", "failed", "skipped" or, of those that the process did not come to,
        "time", "lost" or "not run". Arguments as in `run`, tests as in `unit_tests.run`.

        Raises SandboxError where no process can be had.
        """
        token = secrets.token_hex(16)
        fields = {"tests": list(tests), "token": token, "report_bytes": _REPORT_BYTES}
        answer = self._ask("tests", directory, seconds, fields)
        if answer is None:
            return dict.fromkeys(tests, ("lost", "the tests ended the process that ran them"))
        found = read_report(answer["output"], token)
        late = answer["ending"] == "time" or answer["code"] == -signal.SIGXCPU
        outcome = "time" if late else "not run"
        missing = (outcome, f"the tests ended before this one did, exit code {answer['code']}")
        return {test: found.get(test, missing) for test in tests}

    def close(self) -> None:
        """Ends the process; the next command starts another."""
        self._finish()
        self._peer = None

    def _ask(
        self, kind: str, directory: Path, seconds: float | None, fields: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """The answer to a request; None when the process ended over it."""
        seconds = self._limits.seconds if seconds is None else seconds
        request = {**fields, "directory": str(Path(directory).resolve()), "seconds": seconds}
        if self._peer is None:
            self._start()
        try:
            self._peer.send(kind, request)
            answered, answer = self._peer.receive(seconds + _GRACE)
            if answered != kind or not answer.keys() & {"ending", "error"}:
                raise BadAnswer(f"a {kind} was answered with {answered!r}")
        except (OSError, EOFError, BadAnswer, TimeoutError):
            self.close()
            return None
        except BaseException:  # an interrupt: the next request must not get this one's answer
            self.close()
            raise
        if "error" in answer:
            raise SandboxError(
                f"no process for a {kind} is to be had: {answer['error']}. {_ADVICE}"
            )
        return answer

    def _start(self) -> None:
        self._temporary.mkdir(exist_ok=True)
        try:
            self._peer = Peer("sepo_jax.sandbox.command_process")
        except OSError as error:
            raise SandboxError(f"commands cannot be run here: {error}. {_ADVICE}") from error
        self._finish = weakref.finalize(self, self._peer.close, os.getpid())
        settings = {
            "limits": asdict(self._limits),
            "scratch": str(self._scratch),
            "temporary": str(self._temporary),
            "environment": _variables(self._temporary),
        }
        try:
            self._peer.send("start", settings)
            kind, answer = self._peer.receive(_STARTING)
            if kind != "ready":
                raise BadAnswer(str(answer.get("message", answer)))
        except (OSError, EOFError, BadAnswer) as error:
            self.close()
            raise SandboxError(f"commands cannot be run here: {error}. {_ADVICE}") from error
        warn_left_open(answer["left_open"])


_ADVICE = (
    "A worker whose environments run commands needs limits.processes (sandbox.processes in a "
    "config): 2 for each environment at one time and what the commands start, such as 64"
)


def _variables(temporary: Path) -> dict[str, str]:
    """Environment variables of commands: all that could make two runs differ is fixed."""
    git = {
        f"GIT_{role}_{name}": _AUTHOR[name] for role in ("AUTHOR", "COMMITTER") for name in _AUTHOR
    }
    return git | {
        "PATH": f"{os.path.dirname(sys.executable)}:{_SYSTEM_PATH}",
        "HOME": str(temporary),
        "TMPDIR": str(temporary),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PAGER": "cat",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONNOUSERSITE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",  # looking at the status writes nothing
    }
