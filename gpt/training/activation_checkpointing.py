"""Recompute each block in the backward pass instead of saving its activations.

Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gpt.model.transformer import GPT


def checkpoint_activations(model: GPT) -> None:
    """Have each block save only its input, (B, T, E); losses and gradients stay bit-equal, with dropout too."""
    for block in model.transformer.blocks:
        block.forward = partial(_recompute, block.forward)


def _recompute(forward: Callable[..., Tensor], *args: Any) -> Tensor:
    if not torch.is_grad_enabled():
        return forward(*args)
    return checkpoint(forward, *args, use_reentrant=False)  # which also restores dropout's random state
