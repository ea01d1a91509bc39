"""Four times wider and back, with GPT-2's activation between; and the form in which a CPU trains it in less memory.

Shape letters: B batch, T length, E d_model.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.model.config import GPTConfig
from gpt.model.recompute import trains_on_cpu

# GELU's tanh approximation is 0.5 x (1 + tanh(u)); 0.5 (1 + tanh(u)) is sigmoid(2u), and 2u = x (A + B x²).
_A = 2 * math.sqrt(2 / math.pi)
_B = 0.044715 * _A
_CHUNK_NUMBERS = 3 * 2**19  # 6 MiB of float32: 512 tokens of GPT-2 small


class FeedForward(nn.Module):
    """Four times wider and back, with GPT-2's tanh approximation of GELU between: (B, T, E) to (B, T, E).

    Source: Radford et al. 2018 (GPT), section 4.1; GELU of Hendrycks & Gimpel 2016, section 2.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.expand = nn.Linear(config.d_model, 4 * config.d_model)
        self.project = nn.Linear(4 * config.d_model, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, E) to (B, T, E)."""
        if isinstance(self.expand, nn.Linear) and trains_on_cpu(x):  # not laid out for decoding
            expand, project = self.expand, self.project
            result: Tensor = _RecomputingFeedForward.apply(  # type: ignore[no-untyped-call]
                x, expand.weight, expand.bias, project.weight, project.bias
            )
            return result
        return self.project(F.gelu(self.expand(x), approximate="tanh"))


class _RecomputingFeedForward(torch.autograd.Function):
    """Keeps only what it was given and the expanded vectors; the activation is worked out again on the way back.

    A third of what autograd would keep, at the price of one more pass over the expanded vectors; a chunk of tokens at
    a time, so that nothing else of their width is ever there for all of them; and in place where possible, since on a
    CPU fresh memory costs as much as arithmetic (docs/experiments.md).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        expanded = F.linear(x, w1, b1)  # (..., 4E)
        ctx.save_for_backward(x, w1, w2, expanded)
        result = torch.empty_like(x)
        tokens = max(1, _CHUNK_NUMBERS // len(w1))
        for h, y in zip(_chunks(expanded, tokens), _chunks(result, tokens), strict=True):
            torch.addmm(b2, _gate(h).mul_(h), w2.T, out=y)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        x, w1, w2, expanded = ctx.saved_tensors
        grad_x, grad_w1, grad_w2 = torch.empty_like(x), torch.zeros_like(w1), torch.zeros_like(w2)
        grad_b1 = w1.new_zeros(len(w1))
        tokens = max(1, _CHUNK_NUMBERS // len(w1))
        for xs, gs, h, grad_xs in zip(*(_chunks(t, tokens) for t in (x, grad, expanded, grad_x)), strict=True):
            gate = _gate(h)
            # d/dh h sigmoid(2u) = gate (1 + s (1 - gate)), with s = h d(2u)/dh = h (A + 3 B h²)
            slope = torch.mul(h, h).mul_(3 * _B).add_(_A).mul_(h)
            slope.addcmul_(slope, gate, value=-1).add_(1).mul_(gate)
            activated = gate.mul_(h)
            grad_w2.addmm_(gs.T, activated)
            grad_h = slope.mul_(torch.mm(gs, w2, out=activated))
            torch.mm(grad_h, w1, out=grad_xs)
            grad_w1.addmm_(grad_h.T, xs)
            grad_b1 += grad_h.sum(0)
        return grad_x, grad_w1, grad_b1, grad_w2, grad.reshape(-1, grad.shape[-1]).sum(0)


def _chunks(x: Tensor, tokens: int) -> tuple[Tensor, ...]:
    """(..., n) as chunks of as many tokens, (tokens, n) each; views, where x is contiguous."""
    return x.reshape(-1, x.shape[-1]).split(tokens)  # type: ignore[no-untyped-call]


def _gate(x: Tensor) -> Tensor:
    return torch.mul(x, x).mul_(_B).add_(_A).mul_(x).sigmoid_()
