"""Which device to compute on."""

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
