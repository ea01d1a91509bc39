import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

from gpt.model.config import GPTConfig
from gpt.model.loss import next_token_loss
from gpt.model.transformer import GPT
from tests.huggingface_twin import huggingface_twin

TINY = GPTConfig(vocab_size=97, context_length=24, d_model=32, num_layers=3, num_heads=4, dropout=0.0)


@pytest.mark.parametrize(
    "shape,parameters",
    [
        ({}, 124_439_808),
        ({"d_model": 1024, "num_layers": 24, "num_heads": 16}, 354_823_168),
        ({"d_model": 1280, "num_layers": 36, "num_heads": 20}, 774_030_080),
        ({"d_model": 1600, "num_layers": 48, "num_heads": 25}, 1_557_611_200),
    ],
    ids=["small", "medium", "large", "xl"],
)
def test_the_four_sizes_have_the_parameter_counts_of_gpt2(shape: dict[str, int], parameters: int) -> None:
    with torch.device("meta"):  # shapes without memory
        assert GPT(GPTConfig(**shape)).num_parameters == parameters


def test_logits_equal_those_of_transformers() -> None:
    ours, theirs = huggingface_twin(TINY)
    ours.eval()
    theirs.eval()
    token_ids = torch.randint(0, 97, (3, 24))
    with torch.no_grad():
        logits = ours(token_ids)
        assert logits.shape == (3, 24, 97)
        assert (logits - theirs(token_ids).logits).abs().max() < 1e-4


def test_logits_at_the_shape_of_gpt2_small_equal_those_of_transformers() -> None:
    ours, theirs = huggingface_twin(GPTConfig(dropout=0.0))
    token_ids = torch.randint(0, 50257, (1, 64))
    with torch.no_grad():
        assert (ours.eval()(token_ids) - theirs.eval()(token_ids).logits).abs().max() < 1e-4


def test_losses_of_ten_adamw_steps_equal_those_of_transformers() -> None:
    ours, theirs = huggingface_twin(TINY)
    ours_optimizer = torch.optim.AdamW(ours.parameters(), lr=1e-3)
    theirs_optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3)
    torch.manual_seed(6)
    for _ in range(10):
        token_ids = torch.randint(0, 97, (4, 25))
        inputs, targets = token_ids[:, :-1], token_ids[:, 1:]
        ours_loss = next_token_loss(ours.transformer(inputs), ours.lm_head_weight, targets) / targets.numel()
        theirs_loss = F.cross_entropy(theirs(inputs).logits.flatten(0, 1), targets.flatten())
        assert ours_loss.item() == pytest.approx(theirs_loss.item(), abs=1e-5)
        for loss, optimizer in ((ours_loss, ours_optimizer), (theirs_loss, theirs_optimizer)):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def test_the_initial_loss_is_that_of_gpt2() -> None:
    torch.manual_seed(7)
    model = GPT(GPTConfig(dropout=0.0))
    token_ids = torch.randint(0, 50257, (4, 129))
    with torch.no_grad():
        hidden = model.transformer(token_ids[:, :-1])
        loss = next_token_loss(hidden, model.lm_head_weight, token_ids[:, 1:]) / (4 * 128)
    assert loss.item() == pytest.approx(math.log(50257) + 768 * 0.02**2 / 2, abs=0.05)


def test_initial_weights_have_the_standard_deviations_of_gpt2() -> None:
    torch.manual_seed(8)
    block = GPT(GPTConfig(vocab_size=8, num_layers=8, d_model=256, num_heads=4)).transformer.blocks[0]
    for linear, std in (
        (block.attention.qkv, 0.02),
        (block.mlp.fc_in, 0.02),
        (block.attention.out_proj, 0.02 / 4),
        (block.mlp.fc_out, 0.02 / 4),
    ):
        assert linear.weight.std().item() == pytest.approx(std, rel=0.02)
        assert torch.equal(linear.bias, torch.zeros_like(linear.bias))


def test_one_batch_can_be_memorised() -> None:
    torch.manual_seed(9)
    model = GPT(TINY)
    token_ids = torch.randint(0, 97, (4, 17))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(250):
        hidden = model.transformer(token_ids[:, :-1])
        loss = next_token_loss(hidden, model.lm_head_weight, token_ids[:, 1:]) / 64
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.02


def test_changing_a_token_leaves_earlier_logits_bit_equal() -> None:
    torch.manual_seed(10)
    model = GPT(TINY).eval()
    token_ids = torch.randint(0, 97, (2, 24))
    changed = token_ids.clone()
    changed[:, 11] = (changed[:, 11] + 1) % 97
    before, after = model(token_ids), model(changed)
    assert torch.equal(before[:, :11], after[:, :11])
    assert not torch.equal(before[:, 11], after[:, 11])


@pytest.mark.parametrize("place", ["embedding", "attention", "residual"])
def test_each_dropout_applies_in_training_only(place: str) -> None:
    torch.manual_seed(11)
    model = GPT(TINY)
    for module in model.modules():
        if place == "attention" and hasattr(module, "qkv"):
            module.dropout = 0.5
    if place == "embedding":
        model.transformer.dropout.p = 0.5
    if place == "residual":
        for block in model.transformer.blocks:
            block.dropout.p = 0.5
    token_ids = torch.randint(0, 97, (1, 24))
    assert not torch.equal(model(token_ids), model(token_ids))
    model.eval()
    assert torch.equal(model(token_ids), model(token_ids))


def test_the_config_sets_all_three_dropouts() -> None:
    model = GPT(dataclasses.replace(TINY, dropout=0.25))
    block = model.transformer.blocks[-1]
    assert (model.transformer.dropout.p, block.dropout.p, block.attention.dropout) == (0.25, 0.25, 0.25)


@pytest.mark.parametrize(
    "change,words",
    [
        ({"d_model": 30}, ["d_model", "30", "num_heads", "4"]),
        ({"num_layers": 0}, ["num_layers", "0"]),
        ({"dropout": 1.0}, ["dropout", "1.0"]),
        ({"dropout": -0.1}, ["dropout", "-0.1"]),
    ],
)
def test_invalid_options_are_refused_by_name(change: dict[str, float], words: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        dataclasses.replace(TINY, **change)
    assert all(word in str(error.value) for word in words)


def test_a_sequence_longer_than_the_context_is_refused() -> None:
    with pytest.raises(ValueError, match=r"25.*24"):
        GPT(TINY)(torch.zeros(1, 25, dtype=torch.long))
