"""Which device to compute on, and whether torch can compile for it."""

import torch


def choose_device(name: str | None = None) -> torch.device:
    """The named device, or the best one here: CUDA, then Apple's MPS, then the CPU.

    Raises:
        ValueError: the named device does not exist here.
    """
    if name is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):  # torch asserts that CUDA was compiled in
        raise ValueError(f"there is no device {name!r} here; leave --device away to have one chosen") from None
    return device


def compiler_error(device: torch.device) -> str | None:
    """Why torch.compile does not work for a device (no C++ compiler, no Triton, an old GPU); None if it does."""
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(8, device=device))
    except Exception as error:  # whatever it is: a compiler has many ways to fail
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return None
