"""Where a step's memory comes from: on a CPU, fresh pages cost as much as the arithmetic on them."""

import ctypes
import platform

# glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_memory() -> bool:
    """Have malloc keep what is freed rather than hand it back, for the rest of the process.

    A step frees hundreds of megabytes of gradients, logits and activations, and the next one takes them again. glibc
    gives each large block back to the system, which then has to clear every page anew: a seventh of the time of a
    GPT-2-small step (docs/experiments.md). The price is a tenth more memory.

    Returns:
        Whether this C library can do so; only glibc, that is on most Linuxes.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
