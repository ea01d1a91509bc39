"""A training run from start to end."""

import logging
import os
import time
import warnings
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from gpt.checkpoint import LAST, read_checkpoint
from gpt.errors import UserError
from gpt.files import exclusive
from gpt.training.callbacks.attention_watch import AttentionWatch
from gpt.training.callbacks.divergence_guard import DivergedError, DivergenceGuard
from gpt.training.callbacks.interruption import Interruption
from gpt.training.callbacks.run_checkpoints import RunCheckpoints
from gpt.training.callbacks.samples import SampleTexts
from gpt.training.callbacks.training_log import TrainingLog
from gpt.training.checkpoint_io import AtomicCheckpointIO
from gpt.training.config import RunConfig
from gpt.training.datamodule import TokenDataModule
from gpt.training.initial_weights import initialise
from gpt.training.module import GPTModule
from gpt.training.preflight import preflight
from gpt.training.run_folder import is_first_process, make_run_dir, save_config

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunResult:
    """What a finished run has to say.

    Args:
        steps: optimizer steps taken.
        train_loss_nats: of the last step, per token.
        val_loss_nats: of the last validation, per token over the whole split.
        val_bits_per_byte: the same in bits per UTF-8 byte.
        tokens_per_second: trained on, validation time not counted.
        seconds: from start to end.
    """

    run_dir: str
    steps: int
    train_loss_nats: float
    val_loss_nats: float
    val_bits_per_byte: float
    tokens_per_second: float
    seconds: float


def train(config: RunConfig, run_dir: Path, flags: list[str], resume: bool, check_only: bool) -> RunResult | None:
    """Train a model as the config says.

    Everything that can be refused is refused before anything is written.

    Args:
        run_dir: its folder; made here unless ``resume``.
        flags: that the config was changed with, for the record.
        resume: continue from ``last.ckpt``, or from the start if there is none yet.
        check_only: stop before anything is written.

    Returns:
        Losses and speed; None if only checked, and in all processes of a run but its first.

    Raises:
        ValueError: the config, the data or the run folder do not allow the run.
    """
    started = time.monotonic()
    _check_number_of_processes(config)
    data = TokenDataModule(config)
    L.seed_everything(config.seed, verbose=False)
    module = GPTModule(config, data.manifest)
    checkpoint = run_dir / LAST if resume and (run_dir / LAST).exists() else None
    steps_done = 0
    if checkpoint is None:
        initialise(module.model, config, data.tokenizer)
    else:
        content = _read_own_checkpoint(checkpoint, data)
        steps_done = int(content["global_step"])
        if steps_done >= config.trainer.max_steps:
            return _finished(run_dir, content) if is_first_process() else None
    training_log, samples = TrainingLog(), SampleTexts(data.tokenizer, config.trainer.sample_tokens)
    checkpoints = RunCheckpoints(run_dir, config.checkpoint.keep_last)
    interruption = Interruption(checkpoints)
    watch = [AttentionWatch(data)] if config.attention_maps.enabled else []
    # In the order in which they act; Lightning moves the last two, which save, behind all others.
    callbacks = [training_log, samples, *watch, DivergenceGuard(), checkpoints, interruption]
    trainer = build_trainer(config, run_dir, callbacks, first_step=steps_done + 1 if checkpoint else 0)
    if trainer.is_global_zero:
        preflight(config, module, data, trainer, run_dir, flags)
    if check_only:
        return None
    if trainer.is_global_zero and not resume:
        make_run_dir(run_dir, resolved(config, run_dir), flags)
    with ExitStack() as stack:
        if trainer.is_global_zero:
            held_elsewhere = f"another process is training in {run_dir}; wait for it, or stop it"
            stack.enter_context(exclusive(run_dir, held_elsewhere))
        if trainer.is_global_zero and resume:
            save_config(run_dir, resolved(config, run_dir), flags)
            _let_event_files_sort(run_dir)
            log.info("continuing after step %d" if checkpoint else "no checkpoint yet (%d steps): afresh", steps_done)
        stack.enter_context(interruption.handlers())
        _fit(trainer, module, data, checkpoint)
    if not trainer.is_global_zero:
        return None
    if samples.text:
        log.info("\n--- a sample of the model ---\n%s\n---\n", printable(samples.text))
    assert module.evaluation is not None  # RunCheckpoints has the last step validated
    return RunResult(
        run_dir=str(run_dir),
        steps=trainer.global_step,
        train_loss_nats=training_log.train_loss,
        val_loss_nats=module.evaluation.loss_nats,
        val_bits_per_byte=module.evaluation.bits_per_byte,
        tokens_per_second=training_log.tokens_per_second,
        seconds=time.monotonic() - started,
    )


def _fit(trainer: L.Trainer, module: GPTModule, data: TokenDataModule, checkpoint: Path | None) -> None:
    if choose_compile(module.config):
        compile_if_possible(module, trainer)
    try:
        trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
    except UserError as error:
        raise _without_the_workers_traceback(error) from None
    except DivergedError as error:
        log.error("error: %s", error)
        raise SystemExit(1 if trainer.is_global_zero else 0) from None


def _without_the_workers_traceback(error: UserError) -> UserError:
    """What a loader's worker raised, such as an id outside the vocabulary: torch wraps a whole traceback around it."""
    if "in DataLoader worker process" not in str(error):
        return error
    return UserError(str(error).strip().splitlines()[-1].removeprefix("ValueError: "))


def _check_number_of_processes(config: RunConfig) -> None:
    """Refuse a config that expects another number of processes than torchrun has started."""
    if int(os.environ.get("WORLD_SIZE", config.world_size)) != config.world_size:
        raise UserError(
            f"torchrun started {os.environ['WORLD_SIZE']} processes, and trainer.devices times trainer.num_nodes is "
            f"{config.world_size}; make them equal"
        )


def _read_own_checkpoint(checkpoint: Path, data: TokenDataModule) -> dict[str, Any]:
    """Read the checkpoint to continue from, and refuse to continue on other data."""
    content = read_checkpoint(checkpoint)
    if content["provenance"]["manifest_sha256"] != data.manifest.sha256:
        raise UserError(f"{data.config.data.path} is not the data that {checkpoint} was trained on; start a new run")
    return content


def printable(text: str) -> str:
    """Text for a terminal: control characters, which a young byte model likes, become U+FFFD."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def resolved(config: RunConfig, run_dir: Path) -> RunConfig:
    """The config with what was chosen for the user filled in."""
    chosen = replace(config.trainer, precision=choose_precision(config), compile=choose_compile(config))
    return replace(config, run_name=run_dir.name, trainer=chosen)


def _finished(run_dir: Path, content: dict[str, Any]) -> RunResult:
    """What there is to say of a run that had ended already; not an error, so that a loop of restarts ends."""
    log.info("%s has done its %d steps; a larger --trainer.max_steps goes on", run_dir, content["global_step"])
    provenance, unknown = content["provenance"], float("nan")
    return RunResult(
        run_dir=str(run_dir),
        steps=int(content["global_step"]),
        train_loss_nats=unknown,
        val_loss_nats=provenance["val_loss_nats"] or unknown,
        val_bits_per_byte=provenance["val_bits_per_byte"] or unknown,
        tokens_per_second=unknown,
        seconds=0.0,
    )


def _let_event_files_sort(run_dir: Path) -> None:
    """TensorBoard reads event files by name, and a name begins with the second it was made in: wait for the next one.

    Two files of the same second may be read in the wrong order, and then the newer one's data vanishes.
    """
    seconds = [int(path.name.split(".")[3]) for path in run_dir.glob("events.out.tfevents.*")]
    if seconds and max(seconds) > time.time() + 2:
        log.warning("the clock is behind the events in %s: TensorBoard may not show what this run adds", run_dir)
    elif seconds:
        time.sleep(max(0.0, max(seconds) + 1 - time.time()))


def build_trainer(config: RunConfig, run_dir: Path, callbacks: list[L.Callback], first_step: int) -> L.Trainer:
    """Lightning's trainer, told to leave to us what we do ourselves.

    Args:
        run_dir: where the events go.
        callbacks: in their order.
        first_step: events from this step on, which an interrupted run may have left, are void.

    Raises:
        ValueError: the devices asked for are not there.
    """
    # Noise of a library, and advice that does not fit: windows are read faster than a model trains on them.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    # Our loader needs no state to be continued: it counts on from the number of steps done.
    warnings.filterwarnings("ignore", message=".*your dataloader is not resumable.*")
    warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    torch.set_float32_matmul_precision("high")  # on a GPU, float32 products in TF32
    options = config.trainer
    logger = _RunLogger(run_dir.parent, name=run_dir.name, version="", default_hp_metric=False, purge_step=first_step)
    plugins: list[Any] = [AtomicCheckpointIO()]
    if SLURMEnvironment.detect():
        # Its requeueing would save in mid-step, elsewhere, and silently load that into later runs. --resume does it.
        plugins.append(SLURMEnvironment(auto_requeue=False))
    try:
        return L.Trainer(
            accelerator=options.accelerator,
            devices=options.devices,
            num_nodes=options.num_nodes,
            strategy=options.strategy,
            precision=choose_precision(config),
            max_steps=options.max_steps,
            max_epochs=-1,
            accumulate_grad_batches=config.accumulation,
            val_check_interval=options.validate_every_steps * config.accumulation,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,  # our batches are dealt to the processes already
            callbacks=callbacks,
            plugins=plugins,
            default_root_dir=run_dir,
            logger=logger,
            enable_model_summary=False,
            enable_progress_bar=False,
        )
    except (MisconfigurationException, ValueError, RuntimeError) as error:  # a device that is not there, say
        raise UserError(f"trainer.accelerator, devices and strategy do not fit this machine: {error}") from None


def choose_precision(config: RunConfig) -> Any:
    """The configured precision, or bf16-mixed on a GPU that has it and 32-true elsewhere."""
    if config.trainer.precision != "auto":
        return config.trainer.precision
    return "bf16-mixed" if _on_cuda(config) and torch.cuda.is_bf16_supported(including_emulation=False) else "32-true"


def choose_compile(config: RunConfig) -> bool:
    """Whether to compile: as configured, or on a CUDA GPU."""
    wanted = config.trainer.compile
    return _on_cuda(config) if wanted == "auto" else bool(wanted)


def _on_cuda(config: RunConfig) -> bool:
    return config.trainer.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()


def compile_if_possible(module: GPTModule, trainer: L.Trainer) -> None:
    """Have training and validation compiled; where the compiler does not work, that is a warning.

    Samples and attention maps go on running eagerly.
    """
    device = trainer.strategy.root_device
    error = compiler_error(device)
    if error is None:
        module.model.transformer.compile()
        module.compiled_loss = True
    if trainer.is_global_zero and error is None:
        log.info("compiling: the first step and the first validation take a minute or so")
    elif trainer.is_global_zero:
        log.warning("torch cannot compile for %s, so training is not compiled: %s", device, error)


def compiler_error(device: torch.device) -> str | None:
    """Why torch.compile fails on a device (no C++ compiler, no Triton, an old GPU), or None if it works."""
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(8, device=device))
    except Exception as error:  # compilers fail with many types
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return None


class _RunLogger(TensorBoardLogger):
    """TensorBoard events straight in the run folder, and no hparams.yaml beside config.yaml."""

    @rank_zero_only
    def save(self) -> None:
        """Flush."""
        self.experiment.flush()
