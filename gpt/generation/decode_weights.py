"""Weights laid out for one token at a time: then a memory's read rate is the limit, and F.linear reaches half of it.

Shape letters: N tokens, I fan_in, O fan_out.
"""

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.model.kv_cache import KVCache
from gpt.model.transformer import GPT, TransformerBlock

_Linear = Callable[[Tensor], Tensor]
_Norm = tuple[Tensor, Tensor, float]  # weight, bias, epsilon

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
        odd = len(weight) % 2
        self.halves = F.pad(weight, (0, 0, 0, odd)).view(2, -1, weight.shape[1]).mT.contiguous()  # (2, I, O / 2)
        self.half_biases = F.pad(weight.new_zeros(len(weight)) if bias is None else bias, (0, odd)).view(2, 1, -1)
        self.packed: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) to (..., O)."""
        *shape, fan_in = x.shape
        N = x.numel() // fan_in
        if N == 1:
            y = torch.baddbmm(self.half_biases, x.view(1, 1, fan_in).expand(2, 1, fan_in), self.halves)  # (2, 1, O / 2)
            if self.fan_out % 2:
                y = y.view(-1)[: self.fan_out]
            return y.view(*shape, self.fan_out)
        rows = x.reshape(N, fan_in)
        if N <= _FEW and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            if self.packed is None:
                weight = self.halves.mT.reshape(-1, fan_in)[: self.fan_out]
                self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, 8)
            y = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")  # (N, O)
        else:
            y = torch.baddbmm(self.half_biases, rows.expand(2, N, fan_in), self.halves)  # (2, N, O / 2)
            y = y.transpose(0, 1).reshape(N, -1)[:, : self.fan_out]
        return y.reshape(*shape, self.fan_out)


class Int8Linear(nn.Module):
    """A linear layer that multiplies in 8 bits: its weights, to a scale for each output, and what it is given.

    A single token per row, (B, 1, I) or (B, I), is multiplied so, each row by itself; several, (B, T, I), exactly.

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
        scale = (weight.abs().amax(dim=1).clamp(min=1e-12) / 127).double()
        zero = torch.zeros(len(weight), dtype=torch.int64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch means to move its 8-bit tensors elsewhere
            quantised = torch.quantize_per_channel(weight, scale, zero, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(quantised, bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) to (..., O)."""
        *shape, fan_in = x.shape
        rows = x.reshape(-1, fan_in)  # (N, I)
        if x.ndim == 3 and x.shape[1] > 1:  # a prompt: nothing is gained by rounding
            y = rows @ self.transposed
            y = y if self.bias is None else y + self.bias
        elif len(rows) == 1:
            y = self._multiply(rows)
        else:  # one by one: a range for all of them would let one row round another
            y = torch.cat([self._multiply(row) for row in rows[:, None]])
        return y.view(*shape, self.fan_out)

    def _multiply(self, row: Tensor) -> Tensor:
        """(1, I) to (1, O)."""
        largest = row.abs().topk(min(_OUTLIERS, row.shape[1])).indices  # (1, 8)
        exact = F.embedding_bag(largest, self.transposed, per_sample_weights=row.gather(1, largest), mode="sum")
        rest = row.scatter(1, largest, 0.0)
        # reduce_range: with all 8 bits, sums of pairs overflow on a CPU without VNNI.
        return exact.add_(torch.ops.quantized.linear_dynamic(rest, self.packed, True))


class DecodingTransformer:
    """A laid-out transformer's step by one token per row, written out flat.

    The same arithmetic as the modules' own call. But while half a gigabyte of weights streams through the caches,
    each bit of interpreter that runs in between comes from memory too: a module's call costs ten times what it does
    elsewhere, and all of them together a third of a token (docs/experiments.md).

    Args:
        model: as ``lay_out_for_decoding`` leaves it.
    """

    def __init__(self, model: GPT) -> None:
        transformer = model.transformer
        self._width, self._heads = model.config.d_model, model.config.num_heads
        self._tokens, self._positions = transformer.token_embedding.weight, transformer.position_embedding.weight
        self._layers: list[tuple[_Norm, _Norm, _Linear, _Linear, _Linear, _Linear]] = []
        for block in transformer.blocks:
            assert isinstance(block, TransformerBlock)
            attention, feed_forward = block.attention, block.feed_forward
            self._layers.append(
                (
                    _parts(block.attention_norm),
                    _parts(block.feed_forward_norm),
                    attention.qkv.forward,
                    attention.out_proj.forward,
                    feed_forward.expand.forward,
                    feed_forward.project.forward,
                )
            )
        self._final_norm = _parts(transformer.final_norm)

    def step(self, token_ids: Tensor, cache: KVCache) -> Tensor:
        """Read one token per row.

        Args:
            token_ids: (B, 1), int64.
            cache: is given the tokens; its owner then counts them.

        Returns:
            (B, E).
        """
        B, width = len(token_ids), (self._width,)
        mask, positions = cache.mask(1), cache.positions(1)
        x = torch.embedding(self._tokens, token_ids) + torch.embedding(self._positions, positions)  # (B, 1, E)
        for layer, (attention_norm, feed_forward_norm, qkv, out_proj, expand, project) in enumerate(self._layers):
            heads = qkv(torch.layer_norm(x, width, *attention_norm)).view(B, 3, self._heads, 1, -1)
            queries, keys, values = heads.unbind(1)  # (B, H, 1, D)
            keys, values = cache.append(layer, keys, values)  # (B, H, S, D)
            context = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)  # (B, H, 1, D)
            x = x + out_proj(context.reshape(B, 1, -1))
            hidden = expand(torch.layer_norm(x, width, *feed_forward_norm))  # (B, 1, 4E)
            x = x + project(F.gelu(hidden, approximate="tanh"))
        return torch.layer_norm(x, width, *self._final_norm)[:, 0]


def _parts(norm: nn.LayerNorm) -> _Norm:
    return norm.weight, norm.bias, norm.eps


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


def one_token_step(model: GPT) -> Callable[[Tensor, KVCache], Tensor]:
    """How a model best reads one token per row: (B, 1) ids and their cache to hidden states (B, E)."""
    if isinstance(model.decoding_head, DecodingLinear | Int8Linear):
        return DecodingTransformer(model).step
    return lambda token_ids, cache: model.transformer(token_ids, cache=cache)[:, -1]
