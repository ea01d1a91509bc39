import pytest
import torch

from gpt.model.config import GPTConfig
from gpt.model.inference import inference
from gpt.model.transformer import GPT


@pytest.fixture
def model() -> GPT:
    return GPT(GPTConfig(vocab_size=11, context_length=8, d_model=8, num_layers=1, num_heads=2, dropout=0.5))


def test_the_mode_of_each_module_is_restored(model: GPT) -> None:
    model.train()
    model.transformer.dropout.eval()  # differs from the other modules
    with inference(model):
        assert not any(module.training for module in model.modules())
        assert not model(torch.zeros(1, 3, dtype=torch.long)).requires_grad
    assert model.training
    assert not model.transformer.dropout.training
    assert torch.is_grad_enabled()


def test_the_mode_is_restored_after_an_exception(model: GPT) -> None:
    model.train()
    with pytest.raises(KeyboardInterrupt), inference(model):
        raise KeyboardInterrupt
    assert all(module.training for module in model.modules())
    assert torch.is_grad_enabled()


def test_a_compiled_model_runs_eagerly_so_that_hooks_fire(model: GPT) -> None:
    model.transformer.compile(backend="eager")
    compiling = []
    model.transformer.blocks[0].register_forward_pre_hook(
        lambda module, inputs: compiling.append(torch.compiler.is_compiling())
    )
    with inference(model):
        model(torch.zeros(1, 3, dtype=torch.long))
        model(torch.zeros(1, 4, dtype=torch.long))
    assert compiling == [False, False]
