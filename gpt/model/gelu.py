"""GPT-2's activation, and a form of it in which a CPU trains faster."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# 0.5 (1 + tanh(u)) is sigmoid(2u), and 2u = x (A + B x²).
_A = 2 * math.sqrt(2 / math.pi)
_B = 0.044715 * _A


def gelu(x: Tensor) -> Tensor:
    """The tanh approximation of GELU: any shape and float dtype, to the same.

    Source: Hendrycks & Gimpel 2016, section 2.
    """
    # On a CPU the kernel's tanh and its backward take twice the time of the sigmoid form (docs/experiments.md).
    if x.requires_grad and x.device.type == "cpu" and x.dtype == torch.float32 and not torch.compiler.is_compiling():
        result: Tensor = _SigmoidGELU.apply(x)  # type: ignore[no-untyped-call]
        return result
    return F.gelu(x, approximate="tanh")


class _SigmoidGELU(torch.autograd.Function):
    """``x * sigmoid(2u)``, in place where possible: fresh memory costs as much as arithmetic here."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        gate = torch.mul(x, x).mul_(_B).add_(_A).mul_(x).sigmoid_()
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, gate = ctx.saved_tensors
        # d/dx x sigmoid(2u) = gate (1 + s (1 - gate)), with s = x d(2u)/dx = x (A + 3 B x²)
        slope = torch.mul(x, x).mul_(3 * _B).add_(_A).mul_(x)
        return slope.addcmul_(slope, gate, value=-1).add_(1).mul_(gate).mul_(grad)
