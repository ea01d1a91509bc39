"""Helpers that read, compare and interrupt training runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gpt.checkpoint import read_checkpoint
from gpt.training.training_log import TrainingLog

TrainTiny = Callable[..., int]
TAGS = ("loss/train_nats", "optimizer/learning_rate", "optimizer/gradient_norm", "loss/val_nats", "loss/val_perplexity")


def events(run_dir: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(run_dir), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def scalars(run_dir: Path, tag: str) -> dict[int, float]:
    """The values of a scalar by step."""
    return {event.step: event.value for event in events(run_dir).Scalars(tag)}


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    """The weights after the last step."""
    return read_checkpoint(run_dir / "last.ckpt")["state_dict"]


def same_tensors(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def same_weights(first: Path, second: Path) -> bool:
    return same_tensors(weights(first), weights(second))


def all_events(run_dir: Path) -> dict[str, dict[int, bytes]]:
    """Values of every tag by step, as TensorBoard shows them: scalars, images, texts, attention; not the speed."""
    board = plugin_event_accumulator.EventAccumulator(str(run_dir), size_guidance={"tensors": 0})
    board.Reload()
    contents = {}
    for tag in board.Tags()["tensors"]:
        read = board.Tensors(tag)
        contents[tag] = {event.step: event.tensor_proto.SerializeToString() for event in read}
        assert len(contents[tag]) == len(read), f"{tag} has a step twice"
    return {tag: content for tag, content in contents.items() if not tag.endswith("tokens_per_second")}


def run_differences(first: Path, second: Path) -> list[str]:
    """Name what is not bit-equal in two runs: weights, optimizer state, events, the step of the best checkpoint."""
    states = [read_checkpoint(run / "last.ckpt")["optimizer_states"][0]["state"] for run in (first, second)]
    one, two = all_events(first), all_events(second)
    best_steps = [read_checkpoint(run / "best.ckpt")["global_step"] for run in (first, second)]
    equal = {
        "weights": same_weights(first, second),
        "optimizer state": states[0].keys() == states[1].keys()
        and all(same_tensors(states[0][index], states[1][index]) for index in states[0]),
        "best step": best_steps[0] == best_steps[1],
        "tags": one.keys() == two.keys(),
        # A run that was stopped by a signal has a capture of its heads at that step as well.
        **{tag: one[tag].items() >= two.get(tag, {}).items() for tag in one},
        "steps": all(one[tag].keys() == two.get(tag, {}).keys() for tag in one if "/" not in tag or tag in TAGS),
    }
    return [name for name, is_equal in equal.items() if not is_equal]


def at_step(
    step: int, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch, hook: str = "after_step",
    owner: type = TrainingLog,
) -> None:  # fmt: skip
    """Call `act` once, at the end of the owner's hook, when `step` optimizer steps are done."""
    original = getattr(owner, hook)
    done = []

    def patched(self: Any, trainer: Any, *rest: Any) -> None:
        original(self, trainer, *rest)
        if trainer.global_step == step and not done:
            done.append(True)
            act()

    monkeypatch.setattr(owner, hook, patched)


def is_one_line_error(stderr: str, words: str) -> bool:
    """Whether stderr is a user's mistake in one line that contains the words."""
    return stderr.startswith("error: ") and stderr.count("\n") == 1 and words in stderr


class HostilePickle:
    """Creates a file when unpickled without weights_only."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.target,))
