"""Training on a CPU in less memory: what is cheap to work out again is not kept for the way back."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def trains_on_cpu(x: Tensor) -> bool:
    """Whether autograd is about to keep things for a tensor, eagerly, in float32, on a CPU."""
    return (
        torch.is_grad_enabled()
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
    )


@contextmanager
def recomputed(tensor: Tensor, recipe: Callable[[], Tensor]) -> Iterator[None]:
    """What autograd keeps of one tensor while in here is its recipe; on the way back it is worked out again.

    Args:
        tensor: as it is, or as a view of another shape, it may be given to any module in here.
        recipe: gives the same numbers again, and keeps nothing alive that autograd would not keep anyway.
    """
    address, numel = tensor.data_ptr(), tensor.numel()  # autograd holds on to pack, which must not hold the tensor

    def pack(saved: Tensor) -> Any:
        return (recipe, saved.shape) if saved.data_ptr() == address and saved.numel() == numel else saved

    def unpack(packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        again, shape = packed
        with torch.no_grad():
            return again().view(shape)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield
