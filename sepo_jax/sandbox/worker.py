"""What runs in a spawned process: environments, served one call at a time.

The process ends with its parent however that ends, and takes the processes it started along.
"""

import ctypes
import os
import pickle
import select
import signal
import sys
import threading
import time
import types
import warnings
from io import BytesIO
from pathlib import Path
from typing import Any

from sepo_jax.sandbox.frames import read_frame, write_frame
from sepo_jax.sandbox.hosting import Host, Reply, reply_of
from sepo_jax.sandbox.isolation import Limits, allow_cpu, confine
from sepo_jax.sandbox.protocol import Call

_PR_SET_PDEATHSIG = 1
_CLEANING_SECONDS = 0.5


def main(channel: int) -> None:
    """Serves the parent at the other end of a stream socket until it asks for the end, or is gone.

    Args:
      channel: descriptor of the socket.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # some parents block what limits rely on
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt ends
    os.set_inheritable(channel, False)
    end_with_parent()
    try:
        header, body = read_frame(channel)
    except EOFError:
        sys.exit(1)
    directory = Path(header["directory"])
    try:
        limits, factory = pickle.loads(body)
        with warnings.catch_warnings():
            if not header["warn"]:
                warnings.simplefilter("ignore")
            confine(limits, directory, own_threads=1)
        end_with_parent()  # a change of rights forgets it
        watcher = threading.Thread(target=_watch, args=(channel, directory), daemon=True)
        watcher.start()
        host = Host(_load(factory, header["main"]), directory)
    except Exception as error:
        write_frame(channel, _answer(0, "unready", 0), reply_of(error).body)
        sys.exit(1)
    try:
        write_frame(channel, _answer(0, "ready", 0))
        serve(channel, host, limits, header["main"])
    except (EOFError, ConnectionError):
        watcher.join()  # the parent is gone: this thread ends the process


def serve(channel: int, host: Host, limits: Limits, main_module: dict[str, str]) -> None:
    """Performs calls until the parent asks for the end."""
    while True:
        header, body = read_frame(channel)
        if header["kind"] == "end":
            host.close()
            return
        allow_cpu(limits)
        reply = _perform(host, header, body, main_module)
        if reply is not None:
            answer = _answer(header["number"], reply.kind, host.constructed)
            write_frame(channel, answer, reply.body)


def _answer(number: int, kind: str, constructed: int) -> dict[str, Any]:
    return {"number": number, "kind": kind, "constructed": constructed}


def _perform(
    host: Host, header: dict[str, Any], body: bytes, main_module: dict[str, str]
) -> Reply | None:
    number, episode, kind = header["number"], header["episode"], header["kind"]
    try:
        payload = body if kind == "restore" else _load(body, main_module)
    except Exception as error:
        host.discard(episode)
        return reply_of(error)
    return host.perform(Call(number, episode, kind, payload))


def end_with_parent() -> None:
    """Has the kernel end this process when its parent ends, a second after the watching thread
    should have done it: that one also removes files, but needs the interpreter's lock."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.signal.restype = libc.signal.argtypes = None
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # The handler is libc's own alarm(). It gets the signal's number, which is 1: an alarm that ends
    # the process rings a second later.
    handler = ctypes.cast(libc.alarm, ctypes.c_void_p)
    libc.signal(int(signal.SIGHUP), handler)
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGHUP), 0, 0, 0)


def _watch(channel: int, directory: Path) -> None:
    """Waits until the parent's end of the channel closes, then ends the process group."""
    poll = select.poll()
    poll.register(channel, 0)  # nothing but the hang-up, which is always reported
    poll.poll()
    _empty(directory, time.monotonic() + _CLEANING_SECONDS)
    os.kill(0, signal.SIGKILL)


def _empty(directory: Path, deadline: float) -> None:
    """Removes what a directory holds, as far as it gets by then."""
    for folder, directories, files in os.walk(directory, topdown=False):
        for name in (*files, *directories):
            path = os.path.join(folder, name)
            try:
                is_directory = os.path.isdir(path) and not os.path.islink(path)
                (os.rmdir if is_directory else os.unlink)(path)
            except OSError:
                pass  # the next pool's start sweeps what is left
        if time.monotonic() > deadline:
            return


class _Unpickler(pickle.Unpickler):
    """Finds what the parent's main module defines, and imports that module only then."""

    def __init__(self, data: bytes, main_module: dict[str, str]):
        super().__init__(BytesIO(data))
        self._main_module = main_module

    def find_class(self, module: str, name: str) -> Any:
        if module == "__main__" and "__mp_main__" not in sys.modules:
            _import_main(self._main_module)
        return super().find_class(module, name)


def _load(data: bytes, main_module: dict[str, str]) -> Any:
    return _Unpickler(data, main_module).load()


def _import_main(main_module: dict[str, str]) -> None:
    """Imports the parent's main module under the name that guards its `if __name__ == ...`."""
    import runpy

    if "name" in main_module:
        found = runpy.run_module(main_module["name"], run_name="__mp_main__", alter_sys=True)
    elif "path" in main_module:
        found = runpy.run_path(main_module["path"], run_name="__mp_main__")
    else:
        raise ImportError(
            "environments defined in an interactive session cannot be found by their workers: "
            "put them in a module"
        )
    module = types.ModuleType("__mp_main__")
    module.__dict__.update(found)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
