"""Importance of heads, against weights edited by hand."""

import copy

import pytest
import torch
import torch.nn.functional as F

from gpt.attention_maps.ablation import ablate_heads
from gpt.model.config import GPTConfig
from gpt.model.transformer import GPT

TOKEN_IDS = torch.randint(0, 50, (17,), generator=torch.Generator().manual_seed(1)).tolist()


def _model(qkv_bias: bool) -> GPT:
    torch.manual_seed(0)
    model = GPT(GPTConfig(50, 20, d_model=32, num_layers=3, num_heads=4, dropout=0.5, qkv_bias=qkv_bias))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def _loss(model: GPT) -> float:
    ids = torch.tensor(TOKEN_IDS)
    return F.cross_entropy(model.eval()(ids[None])[0, :-1].double(), ids[1:]).item()


@torch.no_grad()
def _rise_by_edited_weights(model: GPT, layer: int, head: int, ablation: str) -> float:
    """Remove the head's columns of the output projection; its mean output becomes part of the bias."""
    edited = copy.deepcopy(model)
    attention = edited.transformer.blocks[layer].attention
    outputs: list[torch.Tensor] = []
    with attention.out_proj.register_forward_pre_hook(lambda _, args: outputs.append(args[0])):
        unchanged = _loss(edited)
    columns = slice(8 * head, 8 * (head + 1))
    if ablation == "mean":
        attention.out_proj.bias += attention.out_proj.weight[:, columns] @ outputs[0][0, :, columns].mean(dim=0)
    attention.out_proj.weight[:, columns] = 0
    return _loss(edited) - unchanged


@pytest.mark.parametrize("ablation", ["mean", "zero"])
@pytest.mark.parametrize("qkv_bias", [True, False])
def test_each_rise_equals_that_of_weights_edited_by_hand(ablation: str, qkv_bias: bool) -> None:
    model = _model(qkv_bias)
    expected = [[_rise_by_edited_weights(model, layer, head, ablation) for head in range(4)] for layer in range(3)]
    model.train()
    rises = ablate_heads(model, TOKEN_IDS, ablation)
    assert model.training
    assert rises.shape == (3, 4)
    torch.testing.assert_close(rises, torch.tensor(expected), atol=1e-5, rtol=0)
    assert rises.abs().max() > 0.01


def test_a_head_whose_output_is_the_same_everywhere_matters_only_to_zero_ablation() -> None:
    model = _model(qkv_bias=True)
    with torch.no_grad():
        qkv = model.transformer.blocks[1].attention.qkv
        qkv.weight[64 + 8 : 64 + 16] = 0  # the values of head 1 are its bias
    assert ablate_heads(model, TOKEN_IDS)[1, 1] == pytest.approx(0, abs=1e-6)
    assert abs(ablate_heads(model, TOKEN_IDS, "zero")[1, 1]) > 1e-3
