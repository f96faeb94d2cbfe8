"""Settings of every test: CPU, eight virtual devices, no silent rank promotion."""

import gc
import os
import signal
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Programs that tests start keep nothing of theirs in the user's cache.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", "")
flags = os.environ.get("XLA_FLAGS", "")
if "host_platform_device_count" not in flags:
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=8".strip()

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in jobs that a shell puts aside
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def compile_fast():
    """Dozens of small programs run once each: spend less on optimising them."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module", autouse=True)
def bounded_mappings():
    """Every compiled program maps memory, and a process may have 65,530 mappings: it is aborted at
    the next. Programs are dropped when half of them are used."""
    yield
    mappings = Path("/proc/self/maps")
    if mappings.exists() and mappings.read_bytes().count(b"\n") > 30_000:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="module", autouse=True)
def no_checker_left():
    """The process that compares answers serves this one until it ends; other modules count which
    processes are left."""
    yield
    if "sepo_jax.sandbox.answers" in sys.modules:
        sys.modules["sepo_jax.sandbox.answers"]._checker.cache_clear()
        gc.collect()
