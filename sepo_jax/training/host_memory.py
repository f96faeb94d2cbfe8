"""Memory of the host: freed blocks stay with the process, for the next step to take."""

import ctypes
import sys

# Of malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_NEVER = 2**31 - 1  # the largest that mallopt takes


def keep_freed_memory() -> bool:
    """Asks the C library to keep large blocks that are freed; whether it does.

    XLA on CPU takes the temporaries of a step from malloc and frees them after it. The GNU C
    library then hands each large block back to the system, which clears every page anew a step
    later: half the time of a training step of a small policy. With one arena, no blocks of their
    own for large requests and no trimming they are used again. Other C libraries are left as they
    are.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return (
        mallopt(_ARENA_MAX, 1) == 1
        and mallopt(_MMAP_THRESHOLD, _NEVER) == 1
        and mallopt(_TRIM_THRESHOLD, _NEVER) == 1
    )
