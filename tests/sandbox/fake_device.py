"""Stand-ins for a device and a policy: exact, in numpy, so that the queue is tested alone."""

import hashlib
import random
import threading
import time

from sepo_jax.sandbox.exchange import RUNNING, no_report
from sepo_jax.sandbox.protocol import Answer, Failure, SnapshotRefused

END, VOCABULARY = 0, 50


class FakeCodec:
    """One id a character, so that texts and ids are easy to follow."""

    end_ids = (END,)

    def start(self, prompt):
        return list(prompt.tokens) or [
            ord(letter) for message in prompt.messages for letter in message["content"]
        ]

    def follow(self, messages, prompt, ended):
        if prompt.tokens:
            return list(prompt.tokens)
        assert messages[-1]["role"] == "assistant"
        return ([] if ended else [END]) + self.start(prompt)

    def text(self, tokens):
        return "".join(chr(97 + token % 26) for token in tokens if token != END)


class FakeSlots:
    """Executes commands on lists of tokens; samples a hash of the context, the key and the index.

    It checks what a real device would silently get wrong: chunks that leave holes, forks of tokens
    that are not there, starts without the context, slots used twice in a call.
    """

    def __init__(self, shape, can_cut=True):
        self.shape, self.can_cut = shape, can_cut
        self.cache = [[] for _ in range(shape.slots)]
        self.pending = [None] * shape.slots
        self.keys, self.index = [()] * shape.slots, [0] * shape.slots
        self.left = [0] * shape.slots
        self.computed = 0

    def apply(self, commands):
        for slot in range(self.shape.slots):
            if commands.halt[slot]:
                self.left[slot] = 0
            if commands.clear[slot]:
                self.cache[slot] = []
        for chunks in reversed(commands.chunks):
            for call in range(int(chunks.calls)):
                used = [s for s in chunks.slots[call] if s < self.shape.slots]
                assert len(set(used)) == len(used)
                for row, slot in enumerate(chunks.slots[call]):
                    length = int(chunks.lengths[call, row])
                    if slot < self.shape.slots:
                        assert length > 0 and not self.left[slot]
                        self.cache[slot] += chunks.tokens[call, row, :length].tolist()
                        self.computed += length
        for source, target, length in commands.forks[: int(commands.fork_count)].tolist():
            assert not self.left[target] and length <= len(self.cache[source])
            if not self.can_cut:
                assert length == -1
            kept = self.cache[source] if length == -1 else self.cache[source][:length]
            self.cache[target] = list(kept)
        for slot in range(self.shape.slots):
            if commands.start[slot]:
                assert not self.left[slot]
                self.pending[slot] = int(commands.pending[slot])
                self.keys[slot] = tuple(commands.keys[slot][:4].tolist())
                self.index[slot] = int(commands.keys[slot][4])
                self.left[slot] = int(commands.limit[slot])

    def decode(self):
        report = no_report(self.shape)
        for slot in range(self.shape.slots):
            while self.left[slot] and report.count[slot] < self.shape.interval:
                self.cache[slot].append(self.pending[slot])
                token, logp = sample(self.cache[slot], self.keys[slot], self.index[slot])
                place = report.count[slot]
                report.tokens[slot, place] = self.pending[slot] = token
                report.logp[slot, place] = logp
                report.count[slot] += 1
                self.index[slot] += 1
                self.left[slot] = 0 if token == END else self.left[slot] - 1
            report.decoding[slot] = self.left[slot] > 0
        return report


def sample(context, key, index):
    """A token that depends on the whole context, the key and the index; ends one time in six."""
    digest = hashlib.sha256(repr((context, key, index)).encode()).digest()
    return (END if digest[0] < 43 else 1 + digest[1] % (VOCABULARY - 1)), -digest[2] / 256


def run_device(queue, device, tables, seconds=60.0):
    """One device's loop; returns the last code."""
    reports = tuple(no_report(table.shape) for table in tables)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        commands = queue.exchange(device, reports)
        if int(commands[0].code) != RUNNING:
            return int(commands[0].code)
        for table, each in zip(tables, commands, strict=True):
            table.apply(each)
        reports = tuple(table.decode() for table in tables)
    raise AssertionError("the loop did not end")


class ShuffledPool:
    """Environments in this process that answer after a random number of looks, in random order."""

    def __init__(self, make, seed=0, patience=3):
        self.make, self.random, self.most = make, random.Random(seed), patience
        self.environments, self.held, self.lock = {}, [], threading.Lock()
        self.calls = []

    def submit(self, call):
        with self.lock:
            self.calls.append((call.kind, call.episode))
            if call.kind == "close":
                return self.environments.pop(call.episode, None)
            try:
                answer = self.answer(call)
            except RuntimeError as error:
                kind = "refused" if isinstance(error, SnapshotRefused) else "raised"
                failure = Failure(kind, str(error))
                answer = Answer(call.number, call.episode, failure=failure)
            self.held.append([self.random.randint(0, self.most), answer])

    def answer(self, call):
        if call.kind in ("reset", "restore"):
            self.environments[call.episode] = self.make()
        environment = self.environments[call.episode]
        if call.kind == "snapshot":
            return Answer(call.number, call.episode, state=environment.snapshot())
        payload = call.payload if call.kind == "reset" else (call.payload,)
        turn = getattr(environment, call.kind)(*payload)
        return Answer(call.number, call.episode, turn=turn)

    def take(self):
        with self.lock:
            for entry in self.held:
                entry[0] -= 1
            ready = [answer for left, answer in self.held if left < 0]
            self.held = [entry for entry in self.held if entry[0] >= 0]
            self.random.shuffle(ready)
            return ready

    def wait(self, seconds):
        time.sleep(0.0005)
        return bool(self.held)

    def close(self):
        self.environments.clear()
