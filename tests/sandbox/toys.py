"""Environments for the tests of pools: scripted, and at fault exactly where told to be.

Spawned workers import this module: standard library and `sepo_jax.sandbox` only.
"""

import ctypes
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from sepo_jax.sandbox.frames import LENGTHS, pack
from sepo_jax.sandbox.protocol import Prompt, SnapshotRefused, Turn

STEPS = 3


class Toy:
    """A chain of texts that depends on the task, the seed and all actions; no faults.

    It ends after task["steps"] steps (3), with its actions as the record. Seat 1 acts in odd turns.
    """

    def __init__(self, scratch: Path):
        self.scratch, self.task = scratch, {}

    def reset(self, task, seed):
        self.task, self.seed, self.actions = dict(task or {}), seed, []
        return self.turn()

    def step(self, actions):
        ((seat, text),) = actions.items()
        assert seat == len(self.actions) % 2, f"seat {seat} was not asked"
        self.actions.append(text)
        return self.turn()

    def turn(self):
        script = json.dumps([self.task.get("name"), self.seed, self.actions])
        text = hashlib.sha256(script.encode()).hexdigest()[:12]
        count = len(self.actions)
        if count >= self.task.get("steps", STEPS):
            return Turn({}, {0: float(count)}, True, {"actions": list(self.actions)})
        message = {"role": "user", "content": text}
        return Turn({count % 2: Prompt((message,), bool(count), observation=text)}, {0: 0.5})

    def snapshot(self):
        if self.task.get("snapshot") == "refuse":
            raise SnapshotRefused("not today")
        return json.dumps([self.task, self.seed, self.actions]).encode()

    def restore(self, state):
        if not state.startswith(b"["):
            raise SnapshotRefused("this is no state of a toy")
        self.task, self.seed, self.actions = json.loads(state)
        return self.turn()

    def close(self):
        if self.task.get("close") == "raise":
            raise OSError("will not close")
        if "mark" in self.task:
            Path(self.task["mark"], f"closed-{self.seed}").write_text("")


class Exclusive(Toy):
    """A toy that notices two calls at once, of any two objects."""

    busy = threading.Lock()

    def turn(self):
        assert self.busy.acquire(blocking=False), "two calls at once"
        time.sleep(0.0005)
        self.busy.release()
        return super().turn()


class OneThread(Toy):
    """A toy that only the thread which made it may use, as with many native libraries."""

    def __init__(self, scratch):
        super().__init__(scratch)
        self.thread = threading.get_ident()

    def turn(self):
        assert self.thread == threading.get_ident(), "served by another thread"
        return super().turn()


class Commanded(Toy):
    """A toy that does what the action says before it steps: "exit 9", "hang", "raise", ..."""

    def step(self, actions):
        ((_, self.text),) = actions.items()
        command, _, argument = self.text.partition(" ")
        act = getattr(self, f"do_{command}", None)
        returned = act(argument) if act else None
        return super().step(actions) if returned is None else returned

    def do_exit(self, code):
        os._exit(int(code))

    def do_hang(self, seconds):
        time.sleep(float(seconds or 1000))

    def do_spin(self, seconds):
        end = time.process_time() + float(seconds)
        while time.process_time() < end:
            pass

    def do_clutch(self, _):
        ctypes.PyDLL(None).sleep(1000)  # and no other thread of Python runs

    def do_kill(self, signal):
        os.kill(os.getpid(), int(signal))

    def do_raise(self, text):
        raise RuntimeError(text)

    def do_quit(self, _):
        sys.exit("by itself")

    def do_interrupt(self, _):
        raise KeyboardInterrupt

    def do_print(self, text):
        print(text, flush=True)

    def do_write(self, name):
        (self.scratch / name).write_text("x" * 1000)

    def do_fork(self, _):
        if os.fork() == 0:  # holds the channel and the pid's group, and outlives the worker
            time.sleep(1000)
        os._exit(7)

    def do_child(self, name):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        (self.scratch / name).write_text(str(child.pid))

    def do_modules(self, _):
        return Turn(done=True, record=sorted(sys.modules))

    def do_variable(self, name):
        return Turn(done=True, record=os.environ.get(name))

    def do_turn(self, which):
        message = {"role": "user", "content": "?"}
        return {
            "none": "not a turn",
            "rude": Turn({0: Prompt(({"role": "user", "content": "\ud800"},))}),
            "nan": Turn({0: Prompt((message,))}, {0: float("nan")}),
            "object": Turn(done=True, record=object()),
            "long": Turn(done=True, record="x" * (1 << 24)),
        }[which]

    def do_unjust(self, _):
        self.snapshot = lambda: "text"

    def do_twice(self, _):
        self.actions.append(self.text)
        answer_early(self.turn())
        self.actions.pop()

    def do_stale(self, _):
        send_raw(pack({"number": call_number() - 1, "kind": "turn", "constructed": 1}, b"{}"))

    def do_send(self, which):
        send_raw(nonsense(which))
        time.sleep(1000)

    def do_shut(self, _):
        os.close(worker_local("channel"))


class Escaping(Commanded):
    """A toy that tries what no sandbox lets it do."""

    def do_socket(self, _):
        socket.socket()

    def do_outside(self, path):
        Path(path).write_text("escaped")

    def do_bomb(self, _):
        while True:
            os.fork()

    def do_memory(self, _):
        bytearray(10 * 2**30)

    def do_deaf(self, _):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)


class OncePerPlace(Commanded):
    """Faults that depend on how often they were asked for in a directory."""

    def do_once(self, place):
        """Hangs the first time; the second time a late answer, one too early, and then one."""
        if is_first(place):
            time.sleep(1000)
        self.do_stale("")
        self.do_twice("")

    def do_second(self, place):
        """Exits the second time."""
        if not is_first(place):
            os._exit(3)


def is_first(place):
    """Whether nobody asked this of a directory before."""
    mark = Path(place) / "asked"
    found = not mark.exists()
    mark.write_text("")
    return found


class SlowToReset(Toy):
    def reset(self, task, seed):
        time.sleep(task["sleep"])
        return super().reset(task, seed)


class Wilful(Commanded):
    """A toy that shows which process it lives in: its turns cannot be reproduced elsewhere."""

    def turn(self):
        turn = super().turn()
        if not turn.done:
            turn.prompts[len(self.actions) % 2].messages[0]["content"] += f" {os.getpid()}"
        return turn


class Faulty(Commanded):
    """A toy whose faults follow from its seed and step, see `fault_of`."""

    def step(self, actions):
        ((_, self.text),) = actions.items()
        fault = fault_of(self.seed, len(self.actions))
        if fault is not None:
            getattr(self, f"do_{fault}")("9" if fault == "exit" else "")
        return Toy.step(self, actions)


def fault_of(seed, step):
    """What goes wrong in a step: 10% exit, 5% hang, 5% raise, 2% answer twice; None otherwise."""
    draw = random.Random(f"{seed} {step}").random()
    limits = {"exit": 0.10, "hang": 0.15, "raise": 0.20, "twice": 0.22}
    return next((fault for fault, limit in limits.items() if draw < limit), None)


class Unconstructible(Toy):
    def __init__(self, scratch):
        raise ValueError("no toy today")


def worker_local(name):
    """A local variable of the worker's own loop, which runs this environment."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "serve" and name in frame.f_locals:
            return frame.f_locals[name]
        frame = frame.f_back
    raise LookupError(name)


def call_number():
    return worker_local("header")["number"]


def send_raw(data):
    channel = worker_local("channel")
    while data:
        data = data[os.write(channel, data) :]


def answer_early(turn):
    """Sends an answer to the call in progress, which will be answered again."""
    header = {"number": call_number(), "kind": "turn", "constructed": 1}
    send_raw(pack(header, turn.to_json().encode()))


def nonsense(which):
    """Bytes that no worker sends in answer to the call in progress."""
    good = {"number": call_number(), "kind": "turn", "constructed": 1}
    turn = Turn(done=True).to_json()
    return {
        "half": pack(good, turn.encode())[:-1],
        "noise": b"\xff" * 64,
        "huge": LENGTHS.pack(20, 1 << 40),
        "text": LENGTHS.pack(5, 0) + b"hello",
        "list": LENGTHS.pack(2, 0) + b"[]",
        "deep header": LENGTHS.pack(4000, 0) + b"[" * 4000,
        "no kind": pack({"number": 1}),
        "number": pack(good | {"number": "1"}),
        "count": pack(good | {"constructed": -1}),
        "kind": pack(good | {"kind": "applause"}, turn.encode()),
        "ready": pack(good | {"kind": "ready"}),
        "state": pack(good | {"kind": "state"}, b"state"),
        "empty": pack(good),
        "bytes": pack(good, b"\xff\xfe"),
        "deep": pack(good, b"[" * 1_000_000),
        "types": pack(good, b'{"prompts": 3, "rewards": [], "done": 1, "record": 0}'),
        "infinite": pack(good, turn.replace("{}", '{"0": 1e999}').encode()),
        "integer": pack(good, turn.replace("{}", '{"0": 1' + "0" * 400 + "}").encode()),
        "NaN": pack(good, turn.replace("null", "NaN").encode()),
        "surrogate": pack(good, turn.replace("null", '"\\ud800"').encode()),
        "long": pack(good, turn.encode() + b" " * (1 << 24)),
    }[which]
