"""Complete training runs of a tiny model."""

import dataclasses
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml

from gpt.checkpoint import read_checkpoint
from gpt.data.manifest import Manifest, SplitTokens
from gpt.data.windows import IGNORED, TokenWindows, epoch_permutation
from gpt.model.config import GPTConfig
from gpt.model.transformer import GPT
from gpt.training.config import RunConfig
from gpt.training.module import GPTModule
from tests.attention_events import read_captures
from tests.runs import TrainTiny, at_step, events, is_one_line_error, same_weights, scalars, weights


def test_a_run_folder_contains_config_checkpoints_and_events(tiny_run: Path) -> None:
    names = sorted(path.name for path in tiny_run.iterdir())
    assert names[:2] == ["best.ckpt", "config.yaml"]
    assert names[2].startswith("events.out.tfevents")
    assert names[3:] == ["last.ckpt", "metrics.csv"]
    config = yaml.safe_load((tiny_run / "config.yaml").read_text())
    assert config["model"]["d_model"] == 32
    assert config["optim"]["betas"] == [0.9, 0.95]


def test_scalars_are_logged_at_their_intervals(tiny_run: Path) -> None:
    for tag in ("loss/train_nats", "optimizer/learning_rate", "optimizer/gradient_norm", "speed/tokens_per_second"):
        assert list(scalars(tiny_run, tag)) == list(range(1, 31)), tag
    for tag in ("loss/val_nats", "loss/val_perplexity", "loss/val_bits_per_byte"):
        assert list(scalars(tiny_run, tag)) == [12, 24, 30], tag  # at the interval, and at the last step
    rates = scalars(tiny_run, "optimizer/learning_rate")
    assert rates[1] == pytest.approx(3e-3 / 5)
    assert rates[5] == pytest.approx(3e-3)
    assert rates[30] == pytest.approx(3e-4)
    losses = scalars(tiny_run, "loss/val_nats")
    assert losses[30] < losses[12] < math.log(257)
    assert scalars(tiny_run, "loss/val_perplexity")[30] == pytest.approx(math.exp(losses[30]), rel=1e-5)
    assert min(scalars(tiny_run, "speed/tokens_per_second").values()) > 0


def test_sample_texts_are_logged_at_each_validation(tiny_run: Path) -> None:
    written = events(tiny_run)
    samples = written.Tensors("sample/text_summary")
    assert [event.step for event in samples] == [12, 24, 30]
    assert samples[-1].tensor_proto.string_val[0].startswith(b"    ")


def test_a_run_equals_a_plain_training_loop(train_tiny: TrainTiny, tiny_data: Path, tmp_path: Path) -> None:
    """Compare with a loop without Lightning, gradient accumulation, chunked loss and data loader."""
    flags = ["--model.dropout", "0", "--trainer.gradient_clip_val", "0.5", "--trainer.max_steps", "12"]
    assert train_tiny(tmp_path, *flags) == 0
    torch.manual_seed(1234)
    model = GPT(GPTConfig(257, 32, 32, 2, 2, 0.0))
    windows = TokenWindows(SplitTokens(tiny_data, Manifest.load(tiny_data), "train"), 32)
    decaying = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decaying, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], 3e-3, (0.9, 0.95)
    )
    losses = scalars(tmp_path / "tiny", "loss/train_nats")
    norms = scalars(tmp_path / "tiny", "optimizer/gradient_norm")
    for step in range(12):
        for group in optimizer.param_groups:
            progress = (step - 5) / (12 - 1 - 5)
            cosine = 3e-4 + (3e-3 - 3e-4) * 0.5 * (1 + math.cos(math.pi * progress))
            group["lr"] = 3e-3 * (step + 1) / 5 if step < 5 else cosine
        slots = [divmod(slot, len(windows)) for slot in range(step * 4, step * 4 + 4)]
        batch = [windows[epoch_permutation(np.array([i]), len(windows), 1234, epoch)[0]] for epoch, i in slots]
        inputs, targets = (torch.stack([window[name] for window in batch]) for name in ("inputs", "targets"))
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        assert losses[step + 1] == pytest.approx(loss.item(), abs=2e-6)
        assert norms[step + 1] == pytest.approx(norm.item(), rel=1e-4)
    for name, tensor in weights(tmp_path / "tiny").items():
        torch.testing.assert_close(tensor, model.state_dict()[name.removeprefix("model.")], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("micro_batch_size", [1, 4])
def test_losses_do_not_depend_on_the_micro_batch_size(
    micro_batch_size: int, train_tiny: TrainTiny, tmp_path: Path
) -> None:
    # 30 steps exceed an epoch, so that the incomplete last window is included.
    flags = ["--model.dropout", "0"]
    assert train_tiny(tmp_path / "two", *flags) == 0
    assert train_tiny(tmp_path / "other", *flags, "--data.micro_batch_size", str(micro_batch_size)) == 0
    two, other = (scalars(tmp_path / name / "tiny", "loss/train_nats") for name in ("two", "other"))
    assert list(two) == list(other) == list(range(1, 31))
    assert max(abs(two[step] - other[step]) for step in two) < 1e-5
    assert abs(two[1] - other[1]) < 1e-6


def test_weights_depend_on_the_seed_and_not_on_logging_validation_or_workers(
    train_tiny: TrainTiny, tiny_run: Path, tmp_path: Path
) -> None:
    variants = {
        "same": [],
        "unmonitored": ["--attention_maps.enabled", "false", "--trainer.sample_tokens", "0"],
        "validating": ["--trainer.validate_every_steps", "4", "--checkpoint.every_steps", "3"],
        "quiet": ["--trainer.log_every_n_steps", "7"],
        "workers": ["--data.num_workers", "2"],
    }
    losses = scalars(tiny_run, "loss/train_nats")
    for name, flags in variants.items():
        assert train_tiny(tmp_path / name, *flags) == 0
        assert same_weights(tmp_path / name / "tiny", tiny_run), name
        if name != "quiet":  # which logs averages over 7 steps
            assert scalars(tmp_path / name / "tiny", "loss/train_nats") == losses, name
    assert not read_captures(tmp_path / "unmonitored" / "tiny")


@pytest.mark.parametrize(
    "flags",
    [
        ["--seed", "2"],
        ["--model.dropout", "0.2"],
        ["--model.qkv_bias", "false"],
        ["--model.num_heads", "4"],
        ["--model.num_layers", "1"],
        ["--model.d_model", "48"],
        ["--model.context_length", "24"],
        ["--data.global_batch_size", "6"],
        ["--optim.name", "muon"],
        ["--optim.learning_rate", "1e-3"],
        ["--optim.min_learning_rate", "1e-5"],
        ["--optim.warmup_steps", "2"],
        ["--optim.schedule", "wsd"],
        ["--optim.schedule", "constant"],
        ["--optim.weight_decay", "0.5"],
        ["--optim.betas", "[0.8,0.9]"],
        ["--trainer.gradient_clip_val", "0.1"],
        ["--trainer.precision", "bf16-mixed"],
    ],
    ids=lambda flags: flags[0].removeprefix("--") + "=" + flags[1],
)
def test_each_training_option_changes_the_weights(
    flags: list[str], train_tiny: TrainTiny, tiny_run: Path, tmp_path: Path
) -> None:
    assert train_tiny(tmp_path, "--attention_maps.enabled", "false", "--trainer.sample_tokens", "0", *flags) == 0
    assert not same_weights(tmp_path / "tiny", tiny_run)


@pytest.mark.parametrize(
    "flags,option,values",
    [
        (["--optim.name", "muon"], "--optim.muon_learning_rate", ("0.02", "0.01")),
        (["--optim.name", "muon"], "--optim.muon_momentum", ("0.95", "0.9")),
        (["--optim.schedule", "wsd"], "--optim.decay_fraction", ("0.2", "0.6")),
    ],
)
def test_options_of_muon_and_wsd_change_the_weights(
    flags: list[str], option: str, values: tuple[str, str], train_tiny: TrainTiny, tmp_path: Path
) -> None:
    for value in values:
        assert train_tiny(tmp_path / value, *flags, option, value, "--trainer.max_steps", "12") == 0
    assert not same_weights(tmp_path / values[0] / "tiny", tmp_path / values[1] / "tiny")


def test_a_compiled_run_has_the_same_keys_and_nearly_the_same_losses(train_tiny: TrainTiny, tmp_path: Path) -> None:
    flags = ["--model.dropout", "0", "--trainer.max_steps", "3"]
    assert train_tiny(tmp_path / "eager", *flags) == 0
    assert train_tiny(tmp_path / "compiled", *flags, "--trainer.compile", "true") == 0
    eager, compiled = (tmp_path / name / "tiny" for name in ("eager", "compiled"))
    assert weights(eager).keys() == weights(compiled).keys()
    for tag in ("loss/train_nats", "loss/val_nats"):
        assert scalars(compiled, tag) == pytest.approx(scalars(eager, tag), abs=1e-4)
    assert len(events(compiled).Images("thumbnails/all_heads")) >= 2  # hooks do not fire in a compiled module
    assert yaml.safe_load((eager / "config.yaml").read_text())["trainer"]["compile"] is False  # auto, on a CPU


def test_without_a_working_compiler_a_run_warns_and_trains_eagerly(
    train_tiny: TrainTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("InvalidCxxCompiler: there is no g++\nmore lines")

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr(torch.nn.Module, "compile", broken)
    assert train_tiny(tmp_path, "--trainer.max_steps", "2", "--trainer.compile", "true") == 0
    warning = "cannot compile for cpu, so training is not compiled: InvalidCxxCompiler: there is no g++\n"
    assert capfd.readouterr().err.count(warning) == 1


def test_compile_auto_compiles_on_cuda_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gpt.training.run import resolved
    from gpt.training.trainer import choose_compile

    def config(wanted: object, accelerator: str = "auto") -> RunConfig:
        trainer = dataclasses.replace(RunConfig().trainer, compile=wanted, accelerator=accelerator)  # type: ignore[arg-type]
        return dataclasses.replace(RunConfig(), trainer=trainer)

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **options: True)
    for available in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        assert choose_compile(config("auto")) == choose_compile(config("auto", "gpu")) == available
        assert not choose_compile(config("auto", "cpu"))
        assert [choose_compile(config(wanted)) for wanted in (True, False)] == [True, False]
        assert resolved(config("auto"), tmp_path).trainer.compile is available


def test_last_ckpt_is_the_last_step_and_best_ckpt_the_lowest_validation_loss(
    train_tiny: TrainTiny, tmp_path: Path
) -> None:
    # A rising learning rate without momentum makes the loss increase late in the run, so that the best is not the last.
    flags = ["--optim.betas", "[0,0]", "--optim.learning_rate", "0.3", "--optim.warmup_steps", "60"]
    assert train_tiny(tmp_path, *flags, "--trainer.validate_every_steps", "5", "--trainer.gradient_clip_val", "0") == 0
    losses = scalars(tmp_path / "tiny", "loss/val_nats")
    best_step = min(losses, key=losses.__getitem__)
    assert best_step < 30, "the loss does not increase"
    best, last = (read_checkpoint(tmp_path / "tiny" / f"{name}.ckpt") for name in ("best", "last"))
    assert (best["global_step"], last["global_step"]) == (best_step, 30)
    assert best["provenance"]["val_loss_nats"] == pytest.approx(losses[best_step])


def test_checkpoints_are_saved_at_intervals_and_after_validations(
    train_tiny: TrainTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpt.training.checkpoints import AtomicCheckpointIO

    saved = []
    original = AtomicCheckpointIO.save_checkpoint

    def spy(self, checkpoint, path, storage_options=None):
        saved.append(checkpoint["global_step"])
        original(self, checkpoint, path, storage_options)

    monkeypatch.setattr(AtomicCheckpointIO, "save_checkpoint", spy)
    assert train_tiny(tmp_path, "--checkpoint.every_steps", "8") == 0
    assert saved == [8, 12, 16, 24, 30]  # at 24 both are due: one save, after the validation


def test_json_is_one_object_and_run_names_are_numbered(
    train_tiny: TrainTiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("tiny", "tiny-2"):
        assert train_tiny(tmp_path, "--trainer.max_steps", "4", "--json") == 0
        result = json.loads(capfd.readouterr().out)
        assert set(result) == {
            "run_dir", "steps", "train_loss_nats", "val_loss_nats", "val_bits_per_byte", "tokens_per_second", "seconds",
        }  # fmt: skip
        assert result["run_dir"] == str(tmp_path / name)
        assert result["steps"] == 4
        assert scalars(tmp_path / name, "loss/val_nats")[4] == pytest.approx(result["val_loss_nats"])
        assert scalars(tmp_path / name, "loss/train_nats")[4] == pytest.approx(result["train_loss_nats"])


def test_progress_goes_to_stderr(train_tiny: TrainTiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train_tiny(tmp_path, "--trainer.max_steps", "4", "--run_name", "named") == 0
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "tokens/s" in captured.err
    assert "validation loss" in captured.err
    assert (tmp_path / "named").is_dir()


def test_an_existing_run_folder_named_explicitly_is_refused(
    train_tiny: TrainTiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    assert train_tiny(tmp_path, "--run_name", "mine") == 2
    assert capfd.readouterr().err.startswith(f"error: run folder {tmp_path / 'mine'} exists; choose another")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    "flags,words",
    [
        (["--data.path", "nowhere"], "no prepared data in nowhere"),
        (["--model.context_length", "5000"], "one window needs 5001 tokens and split 'train' has"),
        (["--model.context_length", "1000"], "one window needs 1001 tokens and split 'val' has"),
        (["--model.d_model", "33"], "model.d_model (33)"),
        (["--model.d_modle", "32"], "did you mean model.d_model?"),
        (["--attention_maps.probe_text", ""], "attention_maps.probe_text is empty"),
        (["--trainer.accelerator", "cuda"], "trainer.accelerator"),
        (["--trainer.strategy", "horovod"], "trainer.strategy"),
    ],
)
def test_invalid_options_are_refused_before_anything_is_written(
    flags: list[str], words: str, train_tiny: TrainTiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if "cuda" in flags and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert train_tiny(tmp_path / "checkpoints", *flags) == 2
    assert is_one_line_error(capfd.readouterr().err, words)
    assert not (tmp_path / "checkpoints").exists()


def test_a_terminal_shows_a_progress_bar(
    train_tiny: TrainTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpt.training.training_log.sys", types.SimpleNamespace(stderr=_Terminal(sys.stderr)))
    assert train_tiny(tmp_path, "--trainer.max_steps", "6") == 0
    error = capfd.readouterr().err
    assert "6/6" in error
    assert "tokens/s" in error
    assert "step 6: validation loss" in error


class _Terminal:
    def __init__(self, stream: object) -> None:
        self._stream = stream

    def isatty(self) -> bool:
        return True

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def test_a_validation_loss_that_is_not_finite_ends_the_run_and_replaces_no_checkpoint(
    train_tiny: TrainTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def corrupt(self: GPTModule) -> None:  # as finite gradients with a huge learning rate do
        if self.global_step == 12:
            self.model.transformer.final_norm.weight.data.fill_(float("nan"))

    monkeypatch.setattr(GPTModule, "on_train_batch_start", lambda self, *_: corrupt(self), raising=False)
    flags = ["--trainer.validate_every_steps", "10", "--checkpoint.every_steps", "1", "--json"]
    assert train_tiny(tmp_path, *flags) == 1
    captured = capfd.readouterr()
    assert captured.out == ""
    best = tmp_path / "tiny" / "best.ckpt"
    loss = scalars(tmp_path / "tiny", "loss/val_nats")[10]
    assert captured.err.splitlines()[-1].startswith(
        f"error: the validation loss at step 20 is nan; {best} has a validation loss of {loss:.4f} nats"
    )
    # Every save that was due after step 12 followed a skipped step.
    assert [read_checkpoint(tmp_path / "tiny" / name)["global_step"] for name in ("best.ckpt", "last.ckpt")] == [10, 12]


@pytest.mark.parametrize("end", ["save", "signal"])
def test_weights_that_are_not_finite_replace_no_checkpoint(
    end: str, train_tiny: TrainTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    modules: list[GPTModule] = []
    monkeypatch.setattr(GPTModule, "on_train_batch_start", lambda self, *_: modules.append(self), raising=False)

    def corrupt() -> None:  # as the update of a finite gradient with a huge learning rate does
        modules[0].model.transformer.final_norm.weight.data[3] = float("inf")
        if end == "signal":
            os.kill(os.getpid(), signal.SIGTERM)

    at_step(13, corrupt, monkeypatch)
    every = "1" if end == "save" else "4"
    assert train_tiny(tmp_path, "--trainer.validate_every_steps", "10", "--checkpoint.every_steps", every) == 1
    last_line = capfd.readouterr().err.splitlines()[-1]
    best = tmp_path / "tiny" / "best.ckpt"
    loss = scalars(tmp_path / "tiny", "loss/val_nats")[10]
    error = f"error: the weights at step 13 are not finite; {best} has a validation loss of {loss:.4f} nats"
    assert last_line.startswith(error)
    assert read_checkpoint(tmp_path / "tiny" / "last.ckpt")["global_step"] == 12


def test_a_run_that_diverges_before_its_first_validation_names_no_checkpoint(
    train_tiny: TrainTiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = ["--optim.learning_rate", "1e30", "--trainer.max_steps", "6", "--trainer.gradient_clip_val", "0"]
    assert train_tiny(tmp_path, *flags) == 1
    error = capfd.readouterr().err
    assert "error: the validation loss at step 6 is nan; no validated checkpoint exists" in error
    assert "next, text" not in error
    assert not list((tmp_path / "tiny").glob("*.ckpt"))


def test_skipped_steps_are_reported_at_the_end(
    train_tiny: TrainTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    original = GPTModule.training_step

    def broken_at_step_3(self: GPTModule, batch: Any, batch_idx: int) -> torch.Tensor:
        return original(self, batch, batch_idx) * (float("nan") if self.global_step == 2 else 1.0)

    monkeypatch.setattr(GPTModule, "training_step", broken_at_step_3)
    assert train_tiny(tmp_path, "--trainer.max_steps", "6") == 0
    assert "skipped: 1 step had a gradient that is not finite, the first of them step 3" in capfd.readouterr().err


def test_two_processes_train_as_one(
    train_command: Callable[..., list[str]], train_tiny: TrainTiny, tmp_path: Path
) -> None:
    """With gloo on a CPU: the losses of a single process, one run folder, one event file, one JSON object."""
    common = ["--model.dropout", "0", "--trainer.validate_every_steps", "4", "--json"]
    results = {}
    for name, flags in {"one": [], "two": ["--trainer.devices", "2", "--trainer.strategy", "ddp"]}.items():
        command = train_command(tmp_path, *common, "--trainer.max_steps", "8", "--run_name", name, *flags)
        finished = subprocess.run(command, capture_output=True, text=True)
        assert finished.returncode == 0, finished.stderr
        results[name] = json.loads(finished.stdout)  # one object, or this fails
        assert finished.stderr.count("done: step 8 after") == 1
    for tag in ("loss/train_nats", "loss/val_nats", "optimizer/gradient_norm"):
        one, two = scalars(tmp_path / "one", tag), scalars(tmp_path / "two", tag)
        assert two == pytest.approx(one, abs=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
    assert len(list((tmp_path / "two").glob("events*"))) == 1
    # A run of two processes is resumed by one, with the same data in the same order.
    for name in ("one", "two"):
        single = ["--run_name", name, "--trainer.devices", "1", "--trainer.strategy", "auto"]
        assert train_tiny(tmp_path, *common, *single, "--resume", "--trainer.max_steps", "14") == 0
    for tag in ("loss/train_nats", "loss/val_nats"):
        one, two = scalars(tmp_path / "one", tag), scalars(tmp_path / "two", tag)
        assert max(one) == 14
        assert two == pytest.approx(one, abs=1e-5)


def test_a_run_needs_a_config(capfd: pytest.CaptureFixture[str]) -> None:
    from scripts import train

    assert train.main([]) == 2
    assert "--config" in capfd.readouterr().err


@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_id_outside_the_vocabulary_is_a_one_line_error_with_and_without_workers(
    workers: str, train_tiny: TrainTiny, tiny_data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tiny_data, tmp_path / "data")
    shard = tmp_path / "data" / "train_000000.bin"
    content = bytearray(shard.read_bytes())
    content[2000:2002] = (300).to_bytes(2, "little")
    shard.write_bytes(content)
    flags = ("--data.path", str(tmp_path / "data"), "--data.num_workers", workers)
    assert train_tiny(tmp_path / "checkpoints", *flags) == 2
    errors = [line for line in capfd.readouterr().err.splitlines() if "error" in line.lower() or "Traceback" in line]
    assert len(errors) == 1
    assert re.fullmatch(r"error: id 300 in .*train_000000\.bin is outside the vocabulary of 257; .*--verify", errors[0])


def test_a_run_with_the_document_mask_is_evaluated_with_it(
    train_tiny: TrainTiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpt.data.prepare import prepare
    from scripts import evaluate

    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(f"{number} bottles of beer on the wall, {number} bottles of beer")
    prepare([str(tmp_path / "*.txt")], tmp_path / "data", "bytes")
    flags = ("--data.path", str(tmp_path / "data"), "--trainer.max_steps", "12")
    losses = {}
    for masked in ("false", "true"):
        assert train_tiny(tmp_path / masked, *flags, "--data.document_mask", masked, "--json") == 0
        losses[masked] = json.loads(capsys.readouterr().out)["val_loss_nats"]
        checkpoint = tmp_path / masked / "tiny" / "last.ckpt"
        assert evaluate.main([str(checkpoint), "--data", str(tmp_path / "data"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["loss_nats"] == pytest.approx(losses[masked], rel=1e-6)
    assert abs(losses["true"] - losses["false"]) > 1e-4


DIVERGING = ("--optim.learning_rate", "0.3", "--trainer.validate_every_steps", "2", "--attention_maps.enabled", "false")


def _stop_by_patience(losses: dict[int, float], patience: int) -> int:
    best, bad = math.inf, 0
    for step, loss in losses.items():
        best, bad = min(best, loss), 0 if loss < best else bad + 1
        if bad == patience:
            return step
    raise AssertionError(losses)


def test_patience_ends_a_run_at_the_same_step_with_and_without_a_resume(
    train_tiny: TrainTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train_tiny(tmp_path / "whole", *DIVERGING) == 0
    losses = scalars(tmp_path / "whole" / "tiny", "loss/val_nats")
    stop = _stop_by_patience(losses, 3)
    assert 6 < stop < 30
    flags = (*DIVERGING, "--trainer.patience", "3")
    assert train_tiny(tmp_path / "patient", *flags) == 0
    assert list(scalars(tmp_path / "patient" / "tiny", "loss/val_nats"))[-1] == stop
    assert "no lower loss in 3 validations; the run ends" in capfd.readouterr().err
    at_step(stop - 1, lambda: os.kill(os.getpid(), signal.SIGTERM), monkeypatch)
    with pytest.raises(SystemExit):
        train_tiny(tmp_path / "resumed", *flags)
    assert train_tiny(tmp_path / "resumed", *flags, "--resume") == 0
    assert list(scalars(tmp_path / "resumed" / "tiny", "loss/val_nats"))[-1] == stop
    assert same_weights(tmp_path / "patient" / "tiny", tmp_path / "resumed" / "tiny")


def test_a_full_gpu_is_one_line_that_names_figures_and_keys(
    train_tiny: TrainTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    at_step(7, fail, monkeypatch)
    assert train_tiny(tmp_path) == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert error == (
        "error: the memory of cpu is full in step 8; training needs about 1.1 MiB, without libraries. In this order: "
        "lower data.micro_batch_size (2), which does not change the run, set trainer.activation_checkpointing to true, "
        "lower model.context_length (32)"
    )
    assert read_checkpoint(tmp_path / "tiny" / "last.ckpt")["global_step"] == 5
    assert train_tiny(tmp_path, "--resume", "--data.micro_batch_size", "1") == 0
