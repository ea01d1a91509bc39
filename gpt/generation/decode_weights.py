"""Weights laid out for one token at a time: then a memory's read rate is the limit, and F.linear reaches half of it.

Shape letters: N tokens, I fan_in, O fan_out.
"""

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.model.transformer import GPT

_FEW = 64  # tokens at once up to which oneDNN's packed weights are faster
_OUTLIERS = 8


class DecodingLinear(nn.Module):
    """A linear layer for few tokens on a CPU, with the numbers of the one that it replaces.

    The weights lie in two halves of the outputs, each (I, O / 2): for one token, two threads stream each through one
    of them. For a few tokens oneDNN packs them once more, in an order of its own.

    Args:
        weight: (O, I), float32.
        bias: (O,), or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.fan_out, self.bias = len(weight), bias
        halves = F.pad(weight, (0, 0, 0, len(weight) % 2)).view(2, -1, weight.shape[1])
        self.halves = halves.mT.contiguous()  # (2, I, O / 2)
        self.packed: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) to (..., O)."""
        rows = x.reshape(-1, x.shape[-1])  # (N, I)
        if 1 < len(rows) <= _FEW and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            if self.packed is None:
                weight = self.halves.mT.reshape(-1, x.shape[-1])[: self.fan_out]
                self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, 8)
            y = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        else:
            y = torch.bmm(rows.expand(2, -1, -1), self.halves)  # (2, N, O / 2)
            y = y.transpose(0, 1).reshape(len(rows), -1)[:, : self.fan_out]
            y = y if self.bias is None else y + self.bias
        return y.reshape(*x.shape[:-1], self.fan_out)


class Int8Linear(nn.Module):
    """A linear layer that multiplies in 8 bits: its weights, to a scale for each output, and what it is given.

    The few largest inputs of a token are multiplied as they are: rounding is relative to the largest number, and
    transformers have a few features that dwarf all others (Dettmers et al. 2022, "LLM.int8()").

    Args:
        weight: (O, I), float32.
        bias: (O,), or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.fan_out, self.bias = len(weight), bias
        self.transposed = weight.T.contiguous()  # (I, O)
        # Two inputs without weight, always 1 and -1: so every row has the same range and none affects another.
        padded = F.pad(weight, (0, 2))
        scale = (weight.abs().amax(dim=1).clamp(min=1e-12) / 127).double()
        zero = torch.zeros(len(weight), dtype=torch.int64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch means to move its 8-bit tensors elsewhere
            quantised = torch.quantize_per_channel(padded, scale, zero, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(quantised, None)

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) to (..., O)."""
        rows = x.reshape(-1, x.shape[-1])  # (N, I)
        if len(rows) > _FEW:
            y = rows @ self.transposed
        else:
            largest = rows.abs().topk(min(_OUTLIERS, rows.shape[-1])).indices  # (N, 8)
            exact = torch.bmm(rows.gather(1, largest)[:, None], self.transposed[largest])[:, 0]  # (N, O)
            rest = rows.scatter(1, largest, 0.0)
            scale = rest.abs().amax(dim=1, keepdim=True).clamp(min=1e-12)
            ends = rest.new_tensor([1.0, -1.0]).expand(len(rows), 2)
            # reduce_range: with all 8 bits, sums of pairs overflow on a CPU without VNNI.
            rounded = torch.ops.quantized.linear_dynamic(torch.cat([rest / scale, ends], dim=1), self.packed, True)
            y = torch.addcmul(exact, rounded, scale)
        y = y if self.bias is None else y + self.bias
        return y.view(*x.shape[:-1], self.fan_out)


def lay_out_for_decoding(model: GPT, quantize: str | None = None) -> None:
    """Replace the linear layers of a model on a CPU by faster ones for few tokens; anywhere else, do nothing.

    Args:
        model: changed in place: it can generate and be evaluated, and no longer be trained.
        quantize: None keeps every number; ``"int8"`` multiplies in 8 bits.

    Raises:
        ValueError: int8 on a device or a CPU that does not have it.
    """
    if model.head_weight.device.type != "cpu":
        if quantize:
            raise ValueError(f"--quantize {quantize} is for CPUs; leave it out, or give --device cpu")
        return
    make: Callable[[Tensor, Tensor | None], nn.Module] = DecodingLinear
    if quantize == "int8":
        if "fbgemm" not in torch.backends.quantized.supported_engines:
            raise ValueError("--quantize int8 needs FBGEMM, which this build of torch has not; leave it out")
        torch.backends.quantized.engine = "fbgemm"
        make = Int8Linear
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, make(child.weight.detach(), None if child.bias is None else child.bias.detach()))
    model.decoding_head = make(model.head_weight.detach(), None)
