"""Packed weights for CPU decoding, in float32 or int8.

One token at a time, a matrix product is memory-bandwidth bound, and ``F.linear`` reaches half of the bandwidth. A
``PackedGPT`` is made from a model, holds its weights in layouts that reach more, and stands in for it.

Shape letters: B batch, T length, N tokens, I fan_in, O fan_out, E d_model.
"""

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from gpt.errors import UserError
from gpt.model.kv_cache import KVCache
from gpt.model.masks import document_mask, document_positions
from gpt.model.transformer import GPT, Transformer, TransformerBlock

_Linear = Callable[[Tensor], Tensor]
_Norm = tuple[Tensor, Tensor, float]  # weight, bias, epsilon

_MAX_ONEDNN_TOKENS = 64  # up to this many tokens oneDNN's packed weights are faster than F.linear
_DIGIT = 63  # largest value of a 7-bit digit: the sum of two, times 8-bit weights, still fits 16 bits
_MAX_INT8_TOKENS = 1024  # tokens per int8 product, which bounds the memory of its two digits
_MAX_BOUND = 64.0  # largest bound on an input, in typical inputs, at which a rounding step stays small


class PackedLinear:
    """A linear layer for few tokens on a CPU, in float32, from a weight (O, I) and a bias (O,).

    The weight is stored transposed. For one token, each of two threads reads the rows of one half of the inputs (if I
    is even). For a few tokens oneDNN packs the weight a second time, on first use.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        fan_out, fan_in = weight.shape
        self.bias = None if bias is None else bias.clone()
        self.transposed = weight.T.contiguous()  # (I, O)
        self.parts = 1 if fan_in % 2 else 2
        self.halves = self.transposed.view(self.parts, fan_in // self.parts, fan_out)  # (2, I / 2, O)
        self.half_bias = (weight.new_zeros(fan_out) if bias is None else bias / self.parts).view(1, 1, fan_out)
        self.onednn_weight: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """(..., I) to (..., O)."""
        fan_in, fan_out = self.transposed.shape
        N = x.numel() // fan_in
        if N == 1:
            y = torch.baddbmm(self.half_bias, x.reshape(self.parts, 1, -1), self.halves).sum(0, keepdim=True)
        elif N <= _MAX_ONEDNN_TOKENS and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            if self.onednn_weight is None:
                self.onednn_weight = torch.ops.mkldnn._reorder_linear_weight(self.transposed.T.contiguous(), 8)
            y = torch.ops.mkldnn._linear_pointwise(x.reshape(N, -1), self.onednn_weight, self.bias, "none", [], "")
        else:
            y = F.linear(x, self.transposed.T, self.bias)
        return y if x.ndim == y.ndim else y.view(*x.shape[:-1], fan_out)


class Int8Linear:
    """A linear layer in int8, from a weight (O, I) and a bias (O,): a scale per output, inputs as two 7-bit digits.

    Both digits are multiplied while the weights are read once; the second counts in 126ths of the first, so an input is
    rounded to 1 / 7938 of the largest input of its token. One digit is not enough: transformers have a few outlier
    features (Dettmers et al. 2022, "LLM.int8()"). Sums of integers do not depend on the batch. Without an upper
    ``bound`` on the magnitude of the inputs, each token's largest input is computed.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, bound: float | None = None) -> None:
        self.bias = (weight.new_zeros(len(weight)) if bias is None else bias.clone()).view(1, 1, -1)
        # The unit of each digit, where the largest input is the bound, or 1.
        units = weight.new_tensor([1 / _DIGIT, 1 / _DIGIT / (2 * _DIGIT)]) * (1.0 if bound is None else bound)
        self.has_bound, self.down, self.up = bound is not None, units.view(1, 1, 2), 1 / units.view(1, 2, 1)
        scale = (weight.abs().amax(dim=1).clamp(min=1e-12) / 127).double()
        zero = torch.zeros(len(weight), dtype=torch.int64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch announces that its quantised tensors will move
            quantised = torch.quantize_per_channel(weight, scale, zero, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(quantised, None)
        self.multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default

    def __call__(self, x: Tensor) -> Tensor:
        """(..., I) to (..., O)."""
        fan_in, fan_out = x.shape[-1], self.bias.shape[2]
        inputs = x.reshape(-1, 1, fan_in)  # (N, 1, I)
        N = inputs.shape[0]
        if N > _MAX_INT8_TOKENS:
            chunks = torch.split(inputs, _MAX_INT8_TOKENS)
            return torch.cat([self(chunk) for chunk in chunks]).view(*x.shape[:-1], fan_out)
        up, down = self.up, self.down
        if not self.has_bound:
            largest = inputs.abs().amax(dim=2, keepdim=True)  # (N, 1, 1)
            up, down = up / largest, down * largest  # of an all-zero input the digits are arbitrary, and times 0
        digits = inputs * up  # (N, 2, I)
        first, second = digits.unbind(1)
        # The first digit is rounded here; the product's scale 1 and zero point 64 round only the second.
        second.sub_(first.round_(), alpha=2 * _DIGIT)
        products = self.multiply(digits.view(2 * N, fan_in), 1.0, _DIGIT + 1, self.packed).view(N, 2, fan_out)
        y = torch.baddbmm(self.bias, down if N == 1 else down.expand(N, 1, 2), products)  # (N, 1, O)
        return y if inputs.shape == x.shape else y.view(*x.shape[:-1], fan_out)


class PackedTransformer(nn.Module):
    """``Transformer`` over packed layers, written out flat.

    Between two weight matrices a module's call costs several times as much as elsewhere, since the weights have pushed
    the interpreter out of the caches: the flat form saves 1.7 of 29 ms a token (docs/experiments.md).
    """

    def __init__(self, transformer: Transformer, pack: Callable[..., _Linear]) -> None:
        super().__init__()
        self.num_heads = transformer.config.num_heads
        tables = transformer.token_embedding.weight, transformer.position_embedding.weight
        self.token_embedding, self.position_embedding = (t.clone() if t.requires_grad else t.detach() for t in tables)
        self.layers = []
        for block in transformer.blocks:
            assert isinstance(block, TransformerBlock)
            attention_norm, mlp_norm = _norm(block.attention_norm), _norm(block.mlp_norm)
            qkv = pack(block.attention.qkv, _bound(*attention_norm))
            out_proj = pack(block.attention.out_proj)
            fc_in, fc_out = pack(block.mlp.fc_in, _bound(*mlp_norm)), pack(block.mlp.fc_out)
            self.layers.append((attention_norm, mlp_norm, qkv, out_proj, fc_in, fc_out))
        self.final_norm = _norm(transformer.final_norm)

    def forward(self, token_ids: Tensor, documents: Tensor | None = None, cache: KVCache | None = None) -> Tensor:
        """(B, T) int64 to hidden states (B, T, E), with the arguments of ``Transformer``."""
        B, T = token_ids.shape
        width, positions = self.final_norm[0].shape, torch.arange(T)
        mask: Tensor | BlockMask | None = None
        if cache is not None:
            mask = cache.mask(T)
            positions = torch.tensor(cache.lengths)[:, None] if T == 1 else cache.positions(T)  # (B, T)
        elif documents is not None:
            mask, positions = document_mask(documents), document_positions(documents)
        assert not isinstance(mask, BlockMask)  # which is for GPUs
        x = torch.embedding(self.token_embedding, token_ids) + torch.embedding(self.position_embedding, positions)
        for layer, (attention_norm, mlp_norm, qkv, out_proj, fc_in, fc_out) in enumerate(self.layers):
            heads = qkv(torch.layer_norm(x, width, *attention_norm)).view(B, T, 3, self.num_heads, -1)
            queries, keys, values = heads.transpose(1, 3).unbind(2)  # (B, H, T, D)
            if cache is not None:
                keys, values = cache.append(layer, keys, values)  # (B, H, S, D)
            is_causal = mask is None and T > 1
            context = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=is_causal)
            x = x + out_proj(context.transpose(1, 2).reshape(B, T, -1))
            hidden = fc_in(torch.layer_norm(x, width, *mlp_norm))  # (B, T, 4E)
            x = x + fc_out(F.gelu(hidden, approximate="tanh"))
        return torch.layer_norm(x, width, *self.final_norm)  # (B, T, E)


class PackedGPT(nn.Module):
    """A model's packed copy for inference on a CPU, in float32 or int8, with the interface of ``GPT``.

    The model stays as it is and can go on training; only embeddings without ``requires_grad`` are shared.
    """

    @torch.no_grad()
    def __init__(self, model: GPT, quantize: str | None = None) -> None:
        super().__init__()
        if model.device.type != "cpu":
            raise UserError(f"the model is on {model.device}; choose device cpu, or leave out quantize")
        if quantize == "int8":
            if "fbgemm" not in torch.backends.quantized.supported_engines:
                raise UserError("int8 needs FBGEMM, which this build of torch does not have; leave out quantize")
            torch.backends.quantized.engine = "fbgemm"

        def pack(layer: nn.Linear | nn.Embedding, bound: float | None = None) -> _Linear:
            bias = layer.bias if isinstance(layer, nn.Linear) else None
            return Int8Linear(layer.weight, bias, bound) if quantize else PackedLinear(layer.weight, bias)

        self.config, self.device, self.dtype = model.config, model.device, model.dtype
        self.transformer = PackedTransformer(model.transformer, pack)
        # The tied LM head. It has no bound: the largest input of a diverged model is NaN, and then so are the logits.
        self.logits = pack(model.transformer.token_embedding)
        self.eval()

    def forward(self, token_ids: Tensor) -> Tensor:
        """Next-token logits: (B, T) int64 to (B, T, V)."""
        return self.logits(self.transformer(token_ids))


Model = GPT | PackedGPT


def _norm(norm: nn.LayerNorm) -> _Norm:
    return norm.weight.detach().clone(), norm.bias.detach().clone(), norm.eps


def _bound(weight: Tensor, bias: Tensor, epsilon: float) -> float | None:
    """Upper bound on a layer norm's output: of E numbers with variance 1, none is larger than sqrt(E).

    None where a few large gains make it much larger than a typical output.
    """
    bound = float((weight.abs() * len(weight) ** 0.5 + bias.abs()).max())
    typical = float((weight.square() + bias.square()).mean().sqrt())
    return bound if 0 < bound <= _MAX_BOUND * typical else None
