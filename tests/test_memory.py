import platform
import subprocess
import sys

import pytest

# In a process of its own: the setting is for the rest of a process.
SCRIPT = """
import resource, sys
import torch
from gpt.training.memory import keep_memory
if sys.argv[1] == "keep":
    assert keep_memory()
def faults():
    torch.empty(10_000_000).fill_(1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):  # it takes some rounds until blocks are found where others were
    before = faults()
for _ in range(5):
    after = faults()
print(after - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_kept_memory_is_taken_again_without_fresh_pages() -> None:
    faults = {
        mode: int(
            subprocess.run([sys.executable, "-c", SCRIPT, mode], capture_output=True, text=True, check=True).stdout
        )
        for mode in ("keep", "default")
    }
    # 40 MB are 9,765 pages (fewer faults where the system maps large ones), five times.
    assert faults["keep"] < 100
    assert faults["default"] > 10 * faults["keep"] + 100
