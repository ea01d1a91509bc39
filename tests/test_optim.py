import copy
import math

import pytest
import torch

from gpt.model.config import GPTConfig
from gpt.model.transformer import GPT
from gpt.training.config import OptimConfig
from gpt.training.optim import build_optimizer, learning_rate_factor, orthogonalise

TINY = GPTConfig(vocab_size=31, context_length=8, d_model=16, num_layers=2, num_heads=2, dropout=0.0)


def _step(model: GPT, optimizer: torch.optim.Optimizer, seed: int) -> None:
    torch.manual_seed(seed)
    optimizer.zero_grad()
    model(torch.randint(0, 31, (2, 8))).pow(2).mean().backward()
    optimizer.step()


def test_weight_decay_acts_on_matrices_only() -> None:
    model = GPT(TINY)
    optimizer = build_optimizer(model, OptimConfig(learning_rate=0.1, weight_decay=0.5, min_learning_rate=0.0))
    before = copy.deepcopy(model.state_dict())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # with zero gradients, only weight decay changes the weights
    for name, parameter in model.named_parameters():
        factor = 1 - 0.1 * 0.5 if parameter.ndim >= 2 else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor)


def test_adamw_equals_torch_adamw() -> None:
    torch.manual_seed(0)
    ours = GPT(TINY)
    theirs = copy.deepcopy(ours)
    config = OptimConfig(learning_rate=0.01, min_learning_rate=0.0, betas=(0.8, 0.9), weight_decay=0.0)
    optimizers = [
        build_optimizer(ours, config),
        torch.optim.AdamW(theirs.parameters(), 0.01, (0.8, 0.9), weight_decay=0),
    ]
    for seed in range(5):
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            _step(model, optimizer, seed)
    torch.testing.assert_close(list(ours.parameters()), list(theirs.parameters()))


@pytest.mark.parametrize("shape", [(12, 12), (12, 48), (48, 12)])
def test_orthogonalise_keeps_singular_vectors_and_equalises_singular_values(shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    matrices = torch.randn(3, *shape, dtype=torch.float64)
    result = orthogonalise(matrices).double()
    for matrix, orthogonal in zip(matrices, result, strict=True):
        u, original, vh = torch.linalg.svd(matrix, full_matrices=False)
        rotated = u.T @ orthogonal @ vh.T  # diagonal if the singular vectors are those of the matrix
        singular_values = rotated.diagonal()
        off_diagonal = rotated - torch.diag(singular_values)
        assert off_diagonal.abs().max() < 1e-4
        assert singular_values[original / original.norm() > 0.01].min() > 0.6
        assert singular_values.max() < 1.25


def test_muon_updates_hidden_matrices_by_the_orthogonalised_momentum() -> None:
    torch.manual_seed(2)
    model = GPT(TINY)
    config = OptimConfig(name="muon", muon_learning_rate=0.1, muon_momentum=0.5, weight_decay=0.2)
    optimizer = build_optimizer(model, config)
    weight = model.transformer.blocks[1].mlp.fc_in.weight  # (64, 16)
    momentum = torch.zeros_like(weight)
    for seed in range(3):
        before = weight.detach().clone()
        _step(model, optimizer, seed)
        gradient = weight.grad
        momentum = 0.5 * momentum + 0.5 * gradient
        update = orthogonalise((0.5 * gradient + 0.5 * momentum)[None])[0] * 2  # sqrt(64 / 16)
        torch.testing.assert_close(weight.detach(), before * (1 - 0.1 * 0.2) - 0.1 * update)


def test_muon_orthogonalises_query_key_and_value_weights_separately() -> None:
    torch.manual_seed(3)
    model = GPT(TINY)
    optimizer = build_optimizer(model, OptimConfig(name="muon", muon_learning_rate=1.0, weight_decay=0.0))
    weight = model.transformer.blocks[0].attention.qkv.weight
    before = weight.detach().clone()
    _step(model, optimizer, 0)
    for part in (before - weight.detach()).split(16):
        assert torch.linalg.svdvals(part).max() < 1.25  # one (48, 16) matrix would be scaled by sqrt(3)


def test_muon_leaves_embeddings_biases_and_norms_to_adamw() -> None:
    torch.manual_seed(4)
    with_muon = GPT(TINY)
    with_adamw = copy.deepcopy(with_muon)
    for model, name in ((with_muon, "muon"), (with_adamw, "adamw")):
        _step(model, build_optimizer(model, OptimConfig(name=name)), 0)
    adamw = dict(with_adamw.named_parameters())
    for name, parameter in with_muon.named_parameters():
        same = torch.equal(parameter, adamw[name])
        assert same == (parameter.ndim < 2 or ".blocks." not in name), name


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_loaded_optimizer_state_continues_bit_equal(name: str) -> None:
    torch.manual_seed(5)
    model = GPT(TINY)
    optimizer = build_optimizer(model, OptimConfig(name=name))
    for seed in range(3):
        _step(model, optimizer, seed)
    copied = copy.deepcopy(model)
    resumed = build_optimizer(copied, OptimConfig(name=name))
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for seed in range(3, 6):
        _step(model, optimizer, seed)
        _step(copied, resumed, seed)
    assert all(map(torch.equal, model.parameters(), copied.parameters()))


def test_a_schedule_applies_to_all_parameter_groups_of_muon() -> None:
    optimizer = build_optimizer(GPT(TINY), OptimConfig(name="muon", learning_rate=0.3, muon_learning_rate=0.7))
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.35, 0.15, 0.15])


def test_the_cosine_schedule_equals_its_closed_form() -> None:
    config = OptimConfig(learning_rate=1.0, min_learning_rate=0.1, warmup_steps=10)
    factors = [learning_rate_factor(step, config, 111) for step in range(111)]
    assert factors[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert factors[10] == pytest.approx(1.0)
    assert factors[60] == pytest.approx(0.55)
    assert factors[35] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4)))
    assert factors[110] == pytest.approx(0.1)


def test_the_wsd_schedule_is_constant_then_decays_linearly() -> None:
    config = OptimConfig(schedule="wsd", learning_rate=1.0, min_learning_rate=0.0, warmup_steps=5, decay_fraction=0.5)
    factors = [learning_rate_factor(step, config, 101) for step in range(101)]
    assert factors[4:51] == pytest.approx([1.0] * 47)
    assert factors[75] == pytest.approx(0.5)
    assert factors[100] == pytest.approx(0.0)


def test_the_constant_schedule_is_constant_after_warmup() -> None:
    config = OptimConfig(schedule="constant", warmup_steps=2)
    assert [learning_rate_factor(step, config, 10) for step in range(4)] == pytest.approx([0.5, 1, 1, 1])
