"""AdamW, Muon for the matrices of the blocks, and the learning rate as a function of the step."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gpt.training.config import OptimConfig


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """The configured optimizer; weight decay acts on parameters with two or more dimensions."""
    block_matrices, matrices, vectors = [], [], []
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            vectors.append(parameter)
        elif config.name == "muon" and ".blocks." in name:
            block_matrices.append(parameter)
        else:
            matrices.append(parameter)
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    if config.name == "muon":
        return MuonWithAdamW(block_matrices, groups, config)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)


class MuonWithAdamW(torch.optim.AdamW):
    """Muon for the matrices of the blocks and AdamW for all other parameters.

    One optimizer, so that Lightning counts one step, and schedule, clipping and checkpoint apply to both. Muon replaces
    each momentum-averaged gradient by about the nearest orthogonal matrix, so that every direction is learned at the
    same pace, and scales it by ``sqrt(max(1, rows / columns))``. As in fused AdamW, ``found_inf`` 1 skips the step.

    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks".
    """

    found_inf: Tensor | None = None

    def __init__(self, block_matrices: list[nn.Parameter], groups: list[dict[str, Any]], config: OptimConfig) -> None:
        muon = {"params": block_matrices, "lr": config.muon_learning_rate, "weight_decay": config.weight_decay}
        muon["momentum"] = config.muon_momentum
        super().__init__([muon, *groups], lr=config.learning_rate, betas=config.betas, fused=True)

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.optim.Optimizer.__setstate__(self, state)  # AdamW's expects its own state for every parameter

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = self.param_groups
        self._muon_step(groups[0])
        self.param_groups = groups[1:]  # AdamW's step does not see Muon's group
        super().step()
        self.param_groups = groups
        return loss

    def _muon_step(self, group: dict[str, Any]) -> None:
        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            # 1, or 0 if the step is skipped: a factor, so that the host does not wait (and 0 * nan is nan).
            valid = torch.ones_like(parameter[0, 0]) if self.found_inf is None else 1 - self.found_inf
            grad = parameter.grad if self.found_inf is None else parameter.grad.nan_to_num(0.0, 0.0, 0.0)
            state["momentum_buffer"].lerp_(grad, valid * (1 - group["momentum"]))
            update = grad.lerp(state["momentum_buffer"], group["momentum"])  # Nesterov
            parameter.mul_(1 - valid * (group["lr"] * group["weight_decay"]))
            # Queries, keys and values are separate matrices that are stored as one.
            for part, part_update in zip(_square_parts(parameter), _square_parts(update), strict=True):
                by_shape.setdefault(part.shape, []).append((part, part_update))
        for (rows, columns), pairs in by_shape.items():
            updates = orthogonalise(torch.stack([update for _, update in pairs])) * valid
            scale = group["lr"] * max(1.0, rows / columns) ** 0.5
            torch._foreach_add_([part for part, _ in pairs], list(updates.unbind()), alpha=-scale)


def orthogonalise(matrices: Tensor, iterations: int = 5) -> Tensor:
    """Bring the singular values of matrices (N, rows, columns) to about 1: an iteration maps s to a s + b s³ + c s⁵.

    Five iterations bring singular values in [0.01, 1] to about [0.7, 1.2]. In bfloat16 on a GPU; elsewhere in
    float32, since a CPU without bfloat16 units takes 40 times longer with it.

    Source: Jordan et al. 2024 (Newton-Schulz), with its coefficients.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    tall = x.shape[-2] > x.shape[-1]
    if tall:  # so that the Gram matrices have the size of the smaller side
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)  # no singular value exceeds 1
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)  # a x + (b G + c G²) x
    return (x.mT if tall else x).to(matrices.dtype)


def _square_parts(matrix: Tensor) -> list[Tensor]:
    """``qkv``, the only (3n, n) matrix of a block, as three views (n, n); any other matrix as it is."""
    rows, columns = matrix.shape
    return list(matrix.view(3, columns, columns).unbind()) if rows == 3 * columns else [matrix]


def learning_rate_factor(step: int, config: OptimConfig, max_steps: int) -> float:
    """The learning rate of an optimizer step, counted from 0, as a fraction of the peak learning rate.

    Source: linear warmup and cosine as in Radford et al. 2018 (GPT), section 4.1; warmup-stable-decay, here with a
    linear decay, as in Hu et al. 2024 (MiniCPM), section 4.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    minimum = config.min_learning_rate / config.learning_rate
    decay_start = config.warmup_steps
    if config.schedule == "wsd":
        decay_start = max(decay_start, round(max_steps * (1 - config.decay_fraction)))
    progress = min(1.0, max(0.0, (step - decay_start) / max(1, max_steps - 1 - decay_start)))
    remaining = 1 - progress if config.schedule == "wsd" else 0.5 * (1 + math.cos(math.pi * progress))
    return minimum + remaining * (1 - minimum)
