from pathlib import Path

import pytest
import torch

from gpt.model.config import GPTConfig
from gpt.model.loss import next_token_loss
from gpt.model.transformer import GPT
from gpt.training.activation_checkpointing import checkpoint_activations
from gpt.training.cpu_memory import reduce_cpu_memory
from gpt.training.preflight import activation_bytes
from tests.runs import TrainTiny, same_weights, scalars

CONFIG = GPTConfig(50, context_length=16, d_model=32, num_layers=3, num_heads=4, dropout=0.2)


def _gradients(is_lean: bool, is_checkpointed: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = GPT(CONFIG)
    if is_lean:
        reduce_cpu_memory(model, torch.optim.AdamW(model.parameters()))
    if is_checkpointed:
        checkpoint_activations(model)
    ids = torch.randint(0, 50, (2, 17), generator=torch.Generator().manual_seed(1))
    torch.manual_seed(2)  # dropout
    loss = next_token_loss(model.transformer(ids[:, :-1]), model.lm_head_weight, ids[:, 1:])
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]


@pytest.mark.parametrize("is_lean", [False, True], ids=["plain", "lean"])
def test_loss_and_gradients_are_bit_equal_with_dropout(is_lean: bool) -> None:
    plain, checkpointed = _gradients(is_lean, False), _gradients(is_lean, True)
    assert len(plain) == len(checkpointed) > 30
    assert all(map(torch.equal, plain, checkpointed))


def test_a_block_saves_only_its_input() -> None:
    saved: list[int] = []

    def count(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.numel())
        return tensor

    sizes = []
    for is_checkpointed in (False, True):
        saved.clear()
        model = GPT(CONFIG)
        if is_checkpointed:
            checkpoint_activations(model)
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            model.transformer(torch.zeros(2, 16, dtype=torch.int64))
        sizes.append(sum(saved))
    assert sizes[1] < sizes[0] / 4


def test_the_estimate_knows_it() -> None:
    full, checkpointed = (activation_bytes(CONFIG, 2, True, choice) for choice in (False, True))
    one = activation_bytes(
        GPTConfig(50, context_length=16, d_model=32, num_layers=1, num_heads=4, dropout=0.2), 2, True
    )
    assert checkpointed == one + 4 * 2 * 16 * 3 * 32  # of one block, and the inputs of three
    assert checkpointed < full


def test_a_run_is_bit_equal(train_tiny: TrainTiny, tiny_run: Path, tmp_path: Path) -> None:
    assert train_tiny(tmp_path, "--trainer.activation_checkpointing", "true") == 0
    assert same_weights(tmp_path / "tiny", tiny_run)
    assert scalars(tmp_path / "tiny", "loss/val_nats") == scalars(tiny_run, "loss/val_nats")
