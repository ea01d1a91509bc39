"""Training steps on a CPU in less memory and time: there fresh memory costs as much as the arithmetic on it.

``reduce_cpu_memory`` is the entry point; losses and gradients change by rounding only (tests/test_cpu_memory.py).

Shape letters: B batch, T length, E d_model.
"""

import ctypes
import math
import platform
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.model.transformer import GPT, TransformerBlock

# tanh GELU is 0.5 x (1 + tanh(u)) = x sigmoid(2u) with u = sqrt(2 / pi) (x + 0.044715 x³), so 2u = x (A + B x²).
_A = 2 * math.sqrt(2 / math.pi)
_B = 0.044715 * _A
_CHUNK_ACTIVATIONS = 3 * 2**19  # 6 MiB of float32: 512 tokens of GPT-2 small

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # glibc's malloc.h


def reduce_cpu_memory(model: GPT, optimizer: torch.optim.Optimizer) -> None:
    """Make the training steps of a model on a CPU lean; call it once, before the first step."""
    disable_malloc_trim()
    for block in model.transformer.blocks:
        block.__class__ = LeanBlock  # another forward pass; modules, weights and state_dict keys stay the same
    _allocate_adamw_state(optimizer)


def disable_malloc_trim() -> bool:
    """Have malloc keep freed memory for the rest of the process; returns whether this C library (glibc) can.

    A step frees hundreds of megabytes that the next step allocates again. By default the system gets each large block
    back, and clears its pages again: a seventh of a GPT-2-small step. Keeping them costs a tenth more memory.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def _allocate_adamw_state(optimizer: torch.optim.Optimizer) -> None:
    """Allocate AdamW's averages before the first step rather than at its end.

    There they would lie between freed activations and fragment the memory of later steps: a twentieth of the peak.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if "momentum" not in group else ():  # Muon has no such state
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


class LeanBlock(TransformerBlock):
    """A transformer block that adds residuals in place and recomputes the MLP's activation in the backward pass."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """(B, T, E) to (B, T, E), equal to ``TransformerBlock``; only eager float32 training takes the lean form."""
        is_eager_fp32 = x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
        if not torch.is_grad_enabled() or not is_eager_fp32 or torch.compiler.is_compiling():
            return super().forward(x, *args, **kwargs)
        # The sum is written into the branch's memory, which nothing else needs.
        x = self.dropout(self.attention(self.attention_norm(x), *args, **kwargs)).add_(x)
        fc_in, fc_out = self.mlp.fc_in, self.mlp.fc_out
        branch: Tensor = _RecomputedMLP.apply(  # type: ignore[no-untyped-call]
            self.mlp_norm(x), fc_in.weight, fc_in.bias, fc_out.weight, fc_out.bias
        )
        return self.dropout(branch).add_(x)


class _RecomputedMLP(torch.autograd.Function):
    """MLP that saves its input and the expanded vectors only, and recomputes the activation in the backward pass.

    It saves 5E values per token, where autograd saves 9E. It works on a chunk of tokens at a time, so that no other
    tensor of width 4E exists for all of them, and in place where possible.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        expanded = F.linear(x, w1, b1)  # (B, T, 4E)
        ctx.save_for_backward(x, w1, w2, expanded)
        y = torch.empty_like(x)
        for h, y_chunk in zip(*_token_chunks(len(w1), expanded, y), strict=True):
            torch.addmm(b2, _sigmoid_2u(h).mul_(h), w2.T, out=y_chunk)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        x, w1, w2, expanded = ctx.saved_tensors
        grad_x, grad_w1, grad_w2 = torch.empty_like(x), torch.zeros_like(w1), torch.zeros_like(w2)
        grad_b1 = w1.new_zeros(len(w1))
        chunks = _token_chunks(len(w1), x, grad, expanded, grad_x)
        for x_chunk, grad_chunk, h, grad_x_chunk in zip(*chunks, strict=True):
            gate = _sigmoid_2u(h)
            # d/dh h sigmoid(2u) = gate (1 + s (1 - gate)), with s = h d(2u)/dh = h (A + 3 B h²)
            slope = torch.mul(h, h).mul_(3 * _B).add_(_A).mul_(h)
            slope.addcmul_(slope, gate, value=-1).add_(1).mul_(gate)
            activation = gate.mul_(h)  # its memory is reused for the gradient with respect to it
            grad_w2.addmm_(grad_chunk.T, activation)
            grad_h = slope.mul_(torch.mm(grad_chunk, w2, out=activation))
            torch.mm(grad_h, w1, out=grad_x_chunk)
            grad_w1.addmm_(grad_h.T, x_chunk)
            grad_b1 += grad_h.sum(0)
        return grad_x, grad_w1, grad_b1, grad_w2, grad.reshape(-1, grad.shape[-1]).sum(0)


def _token_chunks(fan_out: int, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Each tensor (..., n) as chunks (tokens, n), views where it is contiguous."""
    tokens = max(1, _CHUNK_ACTIVATIONS // fan_out)
    return [tensor.flatten(0, -2).split(tokens) for tensor in tensors]  # type: ignore[no-untyped-call]


def _sigmoid_2u(x: Tensor) -> Tensor:
    return torch.mul(x, x).mul_(_B).add_(_A).mul_(x).sigmoid_()
