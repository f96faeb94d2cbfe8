"""Freed memory is kept: the pages of a large block are not cleared again."""

import platform
import subprocess
import sys

import pytest

# Page faults of ten rounds of taking, filling and freeing 64 MB, after a first one.
ROUNDS = """
import resource, sys
import numpy as np
from sepo_jax.training.host_memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def fill():
    block = np.empty(2**26, np.uint8)
    block[:] = 1
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how):
    command = [sys.executable, "-c", ROUNDS, how]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library has no mallopt")
def test_a_block_that_was_freed_is_taken_again():
    assert faults("keep") < 100
    assert faults("usual") > 100
