"""Weights laid out for one token at a time: then a memory's read rate is the limit, and F.linear reaches half of it.

Shape letters: N tokens, I fan_in, O fan_out.
"""

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.errors import UserError
from gpt.model.kv_cache import KVCache
from gpt.model.transformer import GPT, TransformerBlock

_Linear = Callable[[Tensor], Tensor]
_Norm = tuple[Tensor, Tensor, float]  # weight, bias, epsilon

_FEW = 64  # tokens at once up to which oneDNN's packed weights are faster
_DIGIT = 63  # largest of a 7-bit digit: two of them times 8-bit weights still add up within 16 bits
_MOST = 1024  # tokens that int8 multiplies at once, so that its doubled rows stay small
_COARSEST = 64.0  # largest bound, in typical inputs, that leaves a step well below what rounding the weights costs


class DecodingLinear(nn.Module):
    """A linear layer for few tokens on a CPU, with the numbers of the one that it replaces.

    The weights lie transposed, (I, O). For one token, each of two threads streams through the rows of one half of
    the inputs (if they can be halved). For a few tokens oneDNN packs the weights once more, in an order of its own.

    Args:
        weight: (O, I), float32.
        bias: (O,), or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        fan_out, fan_in = weight.shape
        self.bias, self.transposed = bias, weight.T.contiguous()  # (I, O)
        self.parts = 1 if fan_in % 2 else 2
        self.halves = self.transposed.view(self.parts, fan_in // self.parts, fan_out)  # (2, I / 2, O)
        self.half_bias = (weight.new_zeros(fan_out) if bias is None else bias / self.parts).view(1, 1, fan_out)
        self.packed: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) to (..., O)."""
        fan_in, fan_out = self.transposed.shape
        N = x.numel() // fan_in
        if N == 1:
            y = torch.baddbmm(self.half_bias, x.reshape(self.parts, 1, -1), self.halves).sum(0, keepdim=True)
        elif N <= _FEW and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            if self.packed is None:
                self.packed = torch.ops.mkldnn._reorder_linear_weight(self.transposed.T.contiguous(), 8)
            y = torch.ops.mkldnn._linear_pointwise(x.reshape(N, -1), self.packed, self.bias, "none", [], "")
        else:
            y = F.linear(x, self.transposed.T, self.bias)
        return y if x.ndim == y.ndim else y.view(*x.shape[:-1], fan_out)


class Int8Linear(nn.Module):
    """A linear layer that multiplies in 8 bits: its weights, to a scale for each output, and what it is given.

    Weights are rounded to 8 bits. An input is two digits of 7 bits each, the second counting in 126ths of the first,
    and both are multiplied while the weights pass once; so it is rounded to 1 / 7938 of a token's largest. One digit
    would not do: transformers have a few features that dwarf all others (Dettmers et al. 2022, "LLM.int8()"). Sums are
    of integers, so a row is the same in any batch. Without gradients only.

    Args:
        weight: (O, I), float32.
        bias: (O,), or None.
        bound: no input is larger, if that is known; None looks for each token's largest.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, bound: float | None = None) -> None:
        super().__init__()
        self.bias = (weight.new_zeros(len(weight)) if bias is None else bias).view(1, 1, -1)
        # A unit of each digit, where the largest input is the bound, or 1.
        units = weight.new_tensor([1 / _DIGIT, 1 / _DIGIT / (2 * _DIGIT)]) * (1.0 if bound is None else bound)
        self.bounded, self.down, self.up = bound is not None, units.view(1, 1, 2), 1 / units.view(1, 2, 1)
        scale = (weight.abs().amax(dim=1).clamp(min=1e-12) / 127).double()
        zero = torch.zeros(len(weight), dtype=torch.int64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch means to move its 8-bit tensors elsewhere
            quantised = torch.quantize_per_channel(weight, scale, zero, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(quantised, None)
        self.multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) to (..., O)."""
        fan_in, fan_out = x.shape[-1], self.bias.shape[2]
        rows = x.reshape(-1, 1, fan_in)  # (N, 1, I)
        N = rows.shape[0]
        if N > _MOST:
            return torch.cat([self.forward(part) for part in torch.split(rows, _MOST)]).view(*x.shape[:-1], fan_out)
        up, down = self.up, self.down
        if not self.bounded:
            largest = rows.abs().amax(dim=2, keepdim=True)  # (N, 1, 1)
            # Where all is 0, digits are not a number; they are taken for some integer, and that is multiplied by 0.
            up, down = up / largest, down * largest
        digits = rows * up  # (N, 2, I)
        first, second = digits.unbind(1)
        # The first digit is rounded here, for good: scale 1 and zero point 64 round only the second.
        second.sub_(first.round_(), alpha=2 * _DIGIT)
        products = self.multiply(digits.view(2 * N, fan_in), 1.0, _DIGIT + 1, self.packed).view(N, 2, fan_out)
        y = torch.baddbmm(self.bias, down if N == 1 else down.expand(N, 1, 2), products)  # (N, 1, O)
        return y if rows.shape == x.shape else y.view(*x.shape[:-1], fan_out)


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
        mask, positions = cache.mask(1), torch.tensor(cache.lengths)[:, None]  # (B, 1)
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
        model: changed in place, once: it can generate and be evaluated, and no longer be trained.
        quantize: None keeps every number; ``"int8"`` multiplies in 8 bits.

    Raises:
        ValueError: int8 on a device or a CPU that does not have it.
    """
    if model.head_weight.device.type != "cpu":
        if quantize:
            raise UserError(f"--quantize {quantize} is for CPUs; leave it out, or give --device cpu")
        return
    if quantize == "int8":
        if "fbgemm" not in torch.backends.quantized.supported_engines:
            raise UserError("--quantize int8 needs FBGEMM, which this build of torch has not; leave it out")
        torch.backends.quantized.engine = "fbgemm"

    assert model.decoding_head is None

    def laid_out(weight: Tensor, bias: Tensor | None, norm: nn.LayerNorm | None = None) -> nn.Module:
        weight, bias = weight.detach(), None if bias is None else bias.detach()
        if quantize:
            layer: nn.Module = Int8Linear(weight, bias, None if norm is None else _bound(norm))
        else:
            layer = DecodingLinear(weight, bias)
        return layer.eval()  # a new layer is in training mode, and whoever generates would switch it for each token

    transformer = model.transformer
    for block in transformer.blocks:
        assert isinstance(block, TransformerBlock)
        for module, name, norm in (
            (block.attention, "qkv", block.attention_norm),
            (block.attention, "out_proj", None),
            (block.feed_forward, "expand", block.feed_forward_norm),
            (block.feed_forward, "project", None),
        ):
            linear = getattr(module, name)
            setattr(module, name, laid_out(linear.weight, linear.bias, norm))
    # The head always looks for the largest input: of a diverged model that is no number, and then the logits are none.
    model.decoding_head = laid_out(model.head_weight, None)


def _bound(norm: nn.LayerNorm) -> float | None:
    """What no number that a norm puts out exceeds: of E numbers with a variance of 1 none is larger than sqrt(E).

    None where a few large gains make that much larger than a typical number.
    """
    weight, bias = norm.weight.detach(), norm.bias.detach()
    bound = float((weight.abs() * len(weight) ** 0.5 + bias.abs()).max())
    typical = float((weight.square() + bias.square()).mean().sqrt())
    return bound if 0 < bound <= _COARSEST * typical else None


def one_token_step(model: GPT) -> Callable[[Tensor, KVCache], Tensor]:
    """How a model best reads one token per row: (B, 1) ids and their cache to hidden states (B, E)."""
    if isinstance(model.decoding_head, DecodingLinear | Int8Linear):
        return DecodingTransformer(model).step
    return lambda token_ids, cache: model.transformer(token_ids, cache=cache)[:, -1]
