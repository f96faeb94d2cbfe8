"""Both loops give the same bits on one device and on several; errors and signals end them."""

import dataclasses
import os
import signal
import threading
import time

import jax
import pytest
from rollout.scripted_host import (
    CONFIG,
    OPTIONS,
    ScriptedHost,
    compare,
    contexts,
    make_agent,
    play,
)

from sepo_jax.rollout import driver
from sepo_jax.rollout.driver import DRIVERS, EngineOptions, drive

IN_JIT = dataclasses.replace(OPTIONS, driver="in_jit")
SECONDS = 300  # a whole file's worth of compilation on a busy machine


@pytest.fixture(scope="module")
def agent():
    return make_agent()


@pytest.fixture(scope="module")
def base(agent):
    return play(agent)


def within(function, *arguments, **keywords):
    """What a function returns or raises; an error instead of a hang."""
    found = []

    def run():
        try:
            found.append((function(*arguments, **keywords), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert found, f"hung for {SECONDS} s"
    value, error = found[0]
    if error is not None:
        raise error
    return value


def test_one_program_gives_the_bits_of_the_host_loop(agent, base):
    compare(base, within(play, agent, IN_JIT))


@pytest.mark.slow
def test_one_program_of_another_interval_with_copies(agent, base):
    options = dataclasses.replace(IN_JIT, exchange_interval=7)
    compare(base, within(play, agent, options, share=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRIVERS)
def test_four_devices_give_the_bits_of_one(agent, base, kind):
    options = dataclasses.replace(OPTIONS, driver=kind, devices=4)
    for _ in range(3):
        compare(base, within(play, agent, options))


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRIVERS)
def test_two_policies_play_side_by_side(agent, base, kind):
    other = make_agent(dataclasses.replace(CONFIG, num_layers=1), seed=1)
    played = [*contexts(policy=0), *contexts(seed=5, policy=1)]
    options = dataclasses.replace(OPTIONS, driver=kind)
    both = within(play, [agent, other], options, played)
    compare(base, both[: len(base)])
    compare(play(other, played=contexts(seed=5)), both[len(base) :])


@pytest.mark.parametrize("kind", DRIVERS)
def test_a_second_run_compiles_nothing(agent, kind):
    options = dataclasses.replace(OPTIONS, driver=kind)
    within(play, agent, options)
    before = driver.loop_program.cache_info().misses, driver._decode._cache_size()
    within(play, agent, options)
    assert (driver.loop_program.cache_info().misses, driver._decode._cache_size()) == before


class Breaks(ScriptedHost):
    """Raises at its third exchange, as no queue should."""

    error_raised = RuntimeError("out of prompts")

    def exchange(self, device, reports):
        if self.exchanges == 2:
            raise self.error_raised
        return super().exchange(device, reports)


class Silent(ScriptedHost):
    """Has work but hands it out to nobody, until it is stopped."""

    def exchange(self, device, reports):
        while self.error is None:
            time.sleep(0.01)
        return super().exchange(device, reports)


@pytest.mark.parametrize("kind", DRIVERS)
@pytest.mark.parametrize("error", [RuntimeError("out of prompts"), SystemExit(3)])
def test_an_error_of_the_host_ends_the_loop_and_the_next_run_works(agent, base, kind, error):
    options = dataclasses.replace(OPTIONS, driver=kind)
    host = Breaks(options.exchange_shape(), contexts())
    host.error_raised = error
    with pytest.raises(type(error)) as caught:
        within(drive, [agent], host, options)
    assert caught.value is error
    compare(base, within(play, agent, options))


@pytest.mark.parametrize("kind", DRIVERS)
def test_an_interrupt_reaches_the_caller_at_once(agent, kind):
    """While the loop waits for a host that never answers; it ends before the error goes on up."""
    options = dataclasses.replace(OPTIONS, driver=kind)
    host = Silent(options.exchange_shape(), contexts())
    watchdog = threading.Timer(SECONDS, host.stop, [AssertionError("no interrupt arrived")])
    watchdog.start()
    threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
    before = threading.active_count()
    try:
        with pytest.raises(KeyboardInterrupt):
            drive([agent], host, options)
    finally:
        watchdog.cancel()
    assert isinstance(host.error, KeyboardInterrupt)
    assert threading.active_count() <= before


def test_an_error_of_the_device_stops_the_queue(agent):
    """Parameters of other shapes: the loop ends, and the host hears of it."""
    policy, _ = agent
    _, params = make_agent(dataclasses.replace(CONFIG, intermediate_size=20))
    host = ScriptedHost(OPTIONS.exchange_shape(), contexts())
    with pytest.raises(Exception, match="reshape"):
        within(drive, [(policy, params)], host, OPTIONS)
    assert host.error is not None


def test_nothing_to_play_ends_at_once(agent):
    for kind in DRIVERS:
        assert within(play, agent, dataclasses.replace(OPTIONS, driver=kind), []) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"slots": 0}, "slots must be a whole number from 1 on, got 0"),
        ({"capacity": 1.5}, "capacity must be a whole number from 1 on, got 1.5"),
        ({"devices": 0}, "devices must be a whole number from 1 on, got 0"),
        ({"driver": "callback"}, "callback.*host_loop.*in_jit"),
        ({"max_action_tokens": 97, "capacity": 96}, "97 do not fit in capacity=96"),
        ({"prefill_widths": (32, 16)}, r"ascending.*got \(32, 16\)"),
        ({"slots": 512, "exchange_interval": 64}, "safe inside a device loop"),
    ],
)
def test_sizes_that_cannot_be(fields, message):
    with pytest.raises(ValueError, match=message):
        EngineOptions(**fields)


def test_a_run_that_cannot_be(agent):
    options = dataclasses.replace(OPTIONS, capacity=8192)
    with pytest.raises(ValueError, match="capacity=8192 exceeds the policy's 4096 positions"):
        drive([agent], None, options)
    options = dataclasses.replace(OPTIONS, devices=jax.local_device_count() + 1)
    with pytest.raises(ValueError, match="set XLA_FLAGS"):
        drive([agent], None, options)
