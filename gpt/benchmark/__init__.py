"""Measuring: ours against theirs, in one run, on the same machine, alternating."""
