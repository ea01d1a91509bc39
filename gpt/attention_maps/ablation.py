"""Importance of attention heads: how much the loss on a sequence rises when a head's output is replaced.

Shape letters: L layers, H heads, T length, D head_dim.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from gpt.model.inference import inference
from gpt.model.loss import eval_losses
from gpt.model.transformer import GPT

ABLATIONS = ("mean", "zero")


def ablate_heads(model: GPT, token_ids: Sequence[int], ablation: str = "mean") -> Tensor:
    """Rise of the mean next-token loss when one head is ablated: (L, H) float32 nats on the CPU.

    Args:
        token_ids: T ids, at least two and at most ``context_length``.
        ablation: ``mean`` replaces the head's output at every position by its mean over the positions, which keeps what
            the head adds everywhere; ``zero`` replaces it by 0.

    Source: Wang et al. 2022 (interpretability in the wild), section 2.1; Michel et al. 2019, section 2.3, for zero.
    """
    ids = torch.tensor(token_ids, device=model.device)[None]  # (1, T)
    blocks: Any = model.transformer.blocks
    inputs: list[Tensor] = []  # of each block, (1, T, E)
    with inference(model):
        with ExitStack() as hooks:
            for block in blocks:
                hooks.enter_context(block.register_forward_pre_hook(lambda _block, args: inputs.append(args[0])))
            unchanged = _mean_losses(model, model.transformer(ids), ids)  # (1,)
        rises = []
        for layer, block in enumerate(blocks):
            # A row per head of this layer; the layers before it compute the same in all rows.
            x = inputs[layer].expand(block.attention.num_heads, -1, -1)
            with block.attention.out_proj.register_forward_pre_hook(_ablate_own_head(ablation)):
                x = block(x)
            for later in blocks[layer + 1 :]:
                x = later(x)
            rises.append(_mean_losses(model, model.transformer.final_norm(x), ids) - unchanged)
    return torch.stack(rises).cpu()


def _ablate_own_head(ablation: str) -> Any:
    """A hook on ``out_proj`` that ablates head h in row h."""

    def hook(out_proj: torch.nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        H, T, _ = args[0].shape
        heads = args[0].view(H, T, H, -1).clone()  # rows x T x H x D
        own = heads.diagonal(dim1=0, dim2=2)  # (T, D, H), a view: head h of row h
        own.copy_(own.mean(dim=0, keepdim=True) if ablation == "mean" else torch.zeros_like(own))
        return (heads.flatten(2),)

    return hook


def _mean_losses(model: GPT, hidden: Tensor, ids: Tensor) -> Tensor:
    """Mean next-token loss of each row: (rows, T, E) to (rows,)."""
    targets = ids[:, 1:].expand(len(hidden), -1)  # (rows, T - 1)
    return eval_losses(model.logits, len(model.lm_head_weight), hidden[:, :-1], targets).mean(dim=1)
