"""A training run from start to end."""

import logging
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from torch.distributed import DistError

from gpt.checkpoint import BEST, LAST, load_model, read_checkpoint, steps_trained
from gpt.errors import UserError
from gpt.files import exclusive
from gpt.model.transformer import GPT
from gpt.tokenizer import Tokenizer
from gpt.training.checkpoints import step_checkpoints
from gpt.training.config import RunConfig
from gpt.training.datamodule import TokenDataModule
from gpt.training.module import GPTModule
from gpt.training.preflight import format_bytes, memory_estimate, preflight
from gpt.training.ranks import ComparedDDP, rank_identity
from gpt.training.run_folder import (
    CONFIG_NAME,
    changes,
    environment_number,
    is_first_process,
    make_run_dir,
    save_config,
)
from gpt.training.step import StepCallback
from gpt.training.trainer import (
    build_trainer,
    choose_compile,
    choose_precision,
    compile_if_possible,
    wait_for_event_file_name,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunResult:
    """Result of a finished run."""

    run_dir: str
    steps: int  # optimizer steps of the whole run
    train_loss_nats: float  # of the last step, per token
    val_loss_nats: float  # of the last validation, per token over the whole split
    val_bits_per_byte: float
    tokens_per_second: float  # in training, without validation
    seconds: float  # wall time of this process; 0 if the run had finished before


def train(config: RunConfig, run_dir: Path, flags: list[str], resume: bool, check_only: bool) -> RunResult | None:
    """Train a model; everything that can be refused is refused before anything is written.

    Args:
        run_dir: created here unless ``resume``, which continues from ``last.ckpt`` if there is one.
        flags: recorded in the run folder.
        check_only: stop before anything is written.

    Returns:
        None if only checked, and on all ranks but the first.
    """
    started = time.monotonic()
    _check_launch(config)
    str(run_dir).encode()  # bytes that are not UTF-8 are an error: TensorBoard could not write there
    config = resolved(config, run_dir)
    data = TokenDataModule(config)
    checkpoint = _latest_checkpoint(run_dir) if resume else None
    content = _read_training_state(checkpoint, config, data) if checkpoint else {"global_step": 0}
    L.seed_everything(config.seed, verbose=False)
    module = GPTModule(config, data.manifest)
    if content["global_step"] >= config.trainer.max_steps:
        return _finished(run_dir, content) if is_first_process() else None
    if config.init_from and not checkpoint:
        copy_weights(module.model, config.init_from, data.tokenizer)
    callback = StepCallback(data, run_dir)
    strategy: Any = config.trainer.strategy
    if config.world_size > 1:
        identity = rank_identity(config, data.manifest.sha256, content["global_step"])
        strategy = ComparedDDP(identity, callback.interruption)
    trainer = build_trainer(config, run_dir, callback, strategy, content["global_step"] + 1 if checkpoint else 0)
    if trainer.is_global_zero:
        preflight(config, module, data, trainer, run_dir, flags, times_steps=check_only)
    if check_only:
        return None
    lock = _lock_run_dir(config, run_dir, flags, resume, content["global_step"])
    with lock if trainer.is_global_zero else nullcontext(), callback.interruption.handlers():
        _fit(trainer, module, data, checkpoint)
    if not trainer.is_global_zero:
        return None
    assert module.evaluation is not None  # the last step is validated
    return RunResult(
        run_dir=str(run_dir),
        steps=trainer.global_step,
        train_loss_nats=callback.training_log.train_loss,
        val_loss_nats=module.evaluation.loss_nats,
        val_bits_per_byte=module.evaluation.bits_per_byte,
        tokens_per_second=callback.training_log.tokens_per_second,
        seconds=time.monotonic() - started,
    )


def _check_launch(config: RunConfig) -> None:
    """Refuse a launcher's variables that do not fit the config, before Lightning reads them."""
    if (given := environment_number("WORLD_SIZE", config.world_size)) != config.world_size:
        raise UserError(f"torchrun started {given} processes, but trainer.devices * num_nodes is {config.world_size}")
    if not 0 <= (node := environment_number("NODE_RANK")) < (nodes := config.trainer.num_nodes):
        raise UserError(f"the environment variable NODE_RANK is {node}; expected 0 to {nodes - 1} (trainer.num_nodes)")
    environment_number("MASTER_PORT")


@contextmanager
def _lock_run_dir(config: RunConfig, run_dir: Path, flags: list[str], resume: bool, steps_done: int) -> Iterator[None]:
    """Create or resume the run folder, and lock it; delete it again if the run ends before it has written anything."""
    if not resume:
        make_run_dir(run_dir, config, flags)
    with exclusive(run_dir, f"another process is training in {run_dir}; wait for it or stop it"):
        if resume:
            save_config(run_dir, config, flags)
            wait_for_event_file_name(run_dir)
            log.info("resuming after step %d" if steps_done else "no checkpoint yet: starting at step %d", steps_done)
        try:
            yield
        finally:
            if not resume and run_dir.exists() and [path.name for path in run_dir.iterdir()] == [CONFIG_NAME]:
                shutil.rmtree(run_dir)


def _fit(trainer: L.Trainer, module: GPTModule, data: TokenDataModule, checkpoint: Path | None) -> None:
    if choose_compile(module.config):
        compile_if_possible(module, trainer)
    try:
        trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
    except UserError as error:
        if "in DataLoader worker process" not in str(error):  # else torch has put the worker's traceback around it
            raise
        raise UserError(str(error).strip().splitlines()[-1].partition("UserError: ")[2]) from None
    except torch.OutOfMemoryError:
        raise _out_of_memory(module, trainer) from None
    except RuntimeError as error:
        if "loading state_dict" in str(error):
            reason = str(error).splitlines()[-1].strip()
            raise UserError(f"the weights of {checkpoint} do not fit its config: {reason:.300}") from None
        if "DataLoader worker" not in str(error) and "gloo" not in str(error) and not isinstance(error, DistError):
            raise
        reason = str(error).partition(". ")[0].strip()
        raise UserError(f"a process of the run has ended: {reason}; --resume continues it") from None
    except BaseException:
        if isinstance(trainer.strategy.launcher, _SubprocessScriptLauncher):
            trainer.strategy.launcher.kill(signal.SIGKILL)  # the other ranks wait for this one
        raise
    finally:
        data.close()


class OutOfMemoryError(UserError):
    """The device's memory is full."""

    exit_status = 1


def _out_of_memory(module: GPTModule, trainer: L.Trainer) -> OutOfMemoryError:
    """An error that names the figures and the keys to change."""
    config, device = module.config, trainer.strategy.root_device
    needed = format_bytes(sum(memory_estimate(module.model, config, device).values()))
    total = f" of {format_bytes(torch.cuda.mem_get_info(device)[1])}" if device.type == "cuda" else ""
    remedies = [f"lower data.micro_batch_size ({config.data.micro_batch_size}), which does not change the run"]
    if not config.trainer.activation_checkpointing:
        remedies.append("set trainer.activation_checkpointing to true")
    remedies.append(f"lower model.context_length ({config.model.context_length})")
    return OutOfMemoryError(
        f"the memory{total} of {device} is full in step {trainer.global_step + 1}; training needs about {needed}, "
        f"without libraries. In this order: {', '.join(remedies)}"
    )


def resolved(config: RunConfig, run_dir: Path) -> RunConfig:
    """The config with run_name, precision and compile as chosen."""
    chosen = replace(config.trainer, precision=choose_precision(config), compile=choose_compile(config))
    return replace(config, run_name=run_dir.name, trainer=chosen)


@torch.no_grad()
def copy_weights(model: GPT, init_from: str, tokenizer: Tokenizer) -> None:
    """Copy the weights of a checkpoint; a shorter context keeps the first positions, missing biases become zero.

    Raises:
        UserError: the tokenizer is not that of the data, or the shape differs.
    """
    source, source_tokenizer = load_model(init_from)
    if source_tokenizer.sha256 != tokenizer.sha256:
        raise UserError(
            f"init_from {init_from} has tokenizer {source_tokenizer.name!r} and the data {tokenizer.name!r}; "
            f"prepare the data with --tokenizer {init_from if source_tokenizer.vocabulary else source_tokenizer.name}"
        )
    given, wanted = source.config, model.config
    wrong = [name for name in ("d_model", "num_layers", "num_heads") if getattr(given, name) != getattr(wanted, name)]
    if given.context_length < wanted.context_length:
        wrong.append("context_length")
    if given.qkv_bias and not wanted.qkv_bias:
        wrong.append("qkv_bias")
    if wrong:
        flags = " ".join(f"--model.{name} {str(getattr(given, name)).lower()}" for name in wrong)
        raise UserError(f"init_from {init_from} has another shape than this run; give {flags}, or leave it out")
    weights = source.state_dict()
    for name, parameter in model.state_dict().items():
        parameter.zero_()
        if name in weights:
            parameter.copy_(weights[name][: len(parameter)])  # cuts position embeddings only


def _latest_checkpoint(run_dir: Path) -> Path | None:
    """``last.ckpt``; if it is missing, the latest other checkpoint of the run; None if there is none."""
    if (run_dir / LAST).exists():
        return run_dir / LAST
    others: dict[Path, int] = {}
    for path in (run_dir / BEST, *step_checkpoints(run_dir)):
        with suppress(UserError):  # of a damaged file
            others[path] = steps_trained(path)
    latest = max(others, key=others.__getitem__, default=None)
    if latest:
        log.warning("%s is missing; continuing from %s", run_dir / LAST, latest)
    return latest


def _read_training_state(checkpoint: Path, config: RunConfig, data: TokenDataModule) -> dict[str, Any]:
    """Read the checkpoint to resume from, and refuse to resume with another config or on other data."""
    try:
        content = read_checkpoint(checkpoint, whole=True)
    except UserError as error:
        raise UserError(f"{error}: if you delete it, --resume continues from the run's latest other one") from None
    kinds = {"global_step": int, "optimizer_states": list, "lr_schedulers": list, "skipped_steps": list}
    kinds |= {"provenance": dict, "loops": dict, "callbacks": dict}
    is_whole = all(isinstance(content.get(key), kind) and content[key] not in ([], {}) for key, kind in kinds.items())
    if not is_whole or content["global_step"] < 0:
        raise UserError(f"{checkpoint} has no training state; start a new run, with its weights as --init_from")
    if isinstance(saved := content["provenance"].get("config"), dict):  # older checkpoints have none
        changes({**saved, "run_name": config.run_name}, config, checkpoint)
    if not data.manifest.is_data_of(content["provenance"].get("manifest_sha256")):
        raise UserError(f"{config.data.path} is not the data that {checkpoint} was trained on; start a new run")
    return content


def _finished(run_dir: Path, content: dict[str, Any]) -> RunResult:
    """The result of a run that had finished before; not an error, so that a restart loop ends."""
    steps, nan, provenance = content["global_step"], float("nan"), content["provenance"]
    log.info("%s has completed its %d steps; a larger --trainer.max_steps continues it", run_dir, steps)
    val_loss, bits_per_byte = (provenance.get(name) or nan for name in ("val_loss_nats", "val_bits_per_byte"))
    return RunResult(str(run_dir), steps, nan, val_loss, bits_per_byte, nan, seconds=0.0)
