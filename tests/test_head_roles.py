"""Roles of hand-made heads."""

import random

import pytest
import torch
from torch import Tensor

from gpt.attention_maps import head_roles as module
from gpt.attention_maps.head_roles import head_roles
from gpt.checkpoint import load_model

W, T = 3, 24
WINDOWS = torch.randint(0, 6, (W, T), generator=torch.Generator().manual_seed(0))
RANDOM_IDS = [99, *range(12), *range(12)]


def _attending_to(targets: list[list[int]]) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(targets), len(targets[0])).float()


def _everywhere(target: list[int]) -> Tensor:
    return _attending_to([target] * W)


def _last_copy() -> Tensor:
    """Each query attends to the last earlier copy of its token, or to itself."""
    return _attending_to(
        [[max((j for j in range(i) if row[j] == row[i]), default=i) for i in range(T)] for row in WINDOWS.tolist()]
    )


UNIFORM = (torch.ones(T, T).tril() / torch.arange(1, T + 1)[:, None]).expand(W, T, T)
HEADS = {
    "previous token": _everywhere([max(i - 1, 0) for i in range(T)]),
    "3 tokens back": _everywhere([max(i - 3, 0) for i in range(T)]),
    "itself": _everywhere(list(range(T))),
    "first token": _everywhere([0] * T),
    "same token": _last_copy(),
    "uniform": UNIFORM,
    None: _everywhere([random.Random(i).randint(0, i) for i in range(T)]),
}


def _roles(monkeypatch: pytest.MonkeyPatch, heads: list[Tensor], random_map: Tensor | None) -> list:
    def maps(model: object, ids: Tensor) -> Tensor:
        return torch.stack(heads, dim=1)[None] if ids.shape == (W, T) else random_map[None, None, None]

    monkeypatch.setattr(module, "attention_maps", maps)
    return head_roles(None, WINDOWS, None if random_map is None else RANDOM_IDS)


@pytest.mark.parametrize("name", list(HEADS))
def test_the_role_of_an_ideal_head(name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    ((role,),) = _roles(monkeypatch, [HEADS[name]], None)
    if name is None:
        assert role is None
    else:
        assert role is not None
        assert role[0] == name
        assert role[1] > 0.8


def test_a_head_that_attends_after_the_earlier_copy_is_an_induction_head(monkeypatch: pytest.MonkeyPatch) -> None:
    random_map = _attending_to([[i - 12 + 1 if i > 12 else 0 for i in range(25)]])[0]
    ((role,),) = _roles(monkeypatch, [HEADS[None]], random_map)
    assert role == ("induction", 1.0)


def test_every_head_of_a_model_has_a_role_or_none(tiny_run: object) -> None:
    model, _ = load_model(tiny_run)
    roles = head_roles(model, WINDOWS, None)
    assert [len(layer) for layer in roles] == [2, 2]
    assert all(role is None or 0.3 <= role[1] <= 1 for layer in roles for role in layer)
