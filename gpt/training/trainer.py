"""Lightning's Trainer for a run: hardware, precision, compilation, and the parts of Lightning that are replaced."""

import logging
import os
import re
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.tensorboard import SummaryWriter

from gpt.errors import UserError
from gpt.training.checkpoints import AtomicCheckpointIO
from gpt.training.config import RunConfig
from gpt.training.metrics_file import MetricsFile
from gpt.training.module import GPTModule

log = logging.getLogger(__name__)


def build_trainer(
    config: RunConfig, run_dir: Path, callback: L.Callback, strategy: str | Strategy, first_step: int
) -> L.Trainer:
    """Build the Trainer of a run; events of an interrupted run from ``first_step`` on are discarded."""
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")  # windows load faster than models train
    warnings.filterwarnings("ignore", message=".*your dataloader is not resumable.*")  # it is: it starts at a step
    warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    torch.set_float32_matmul_precision("high")  # TF32 for float32 products on a GPU
    options = config.trainer
    # Lightning's requeueing saves in the middle of a step and loads that file in later runs; --resume replaces it.
    slurm = [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []
    names = ("accelerator", "devices", "num_nodes", "max_steps")
    try:
        return L.Trainer(
            **{name: getattr(options, name) for name in names},
            strategy=strategy,
            max_epochs=-1,
            precision=choose_precision(config),
            accumulate_grad_batches=config.accumulation,
            val_check_interval=options.validate_every_steps * config.accumulation,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,  # TokenDataModule distributes the batches
            callbacks=[callback],
            plugins=[AtomicCheckpointIO(), *slurm],
            default_root_dir=run_dir,
            logger=_RunLogger(run_dir.parent, run_dir.name, version="", default_hp_metric=False, purge_step=first_step),
            enable_model_summary=False,
            enable_progress_bar=False,
        )
    except (MisconfigurationException, ValueError, RuntimeError) as error:  # for example, a missing GPU
        raise UserError(f"trainer.accelerator, devices and strategy do not fit this machine: {error}") from None


class _RunLogger(TensorBoardLogger):
    """TensorBoard events in the run folder itself, and no hparams.yaml next to config.yaml."""

    _metrics_file: MetricsFile | None = None

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write to the events, and to metrics.csv beside them."""
        super().log_metrics(metrics, step)
        if self._metrics_file is None:
            self._metrics_file = MetricsFile(Path(self.root_dir) / "metrics.csv", self._kwargs["purge_step"])
        assert step is not None
        self._metrics_file.write(step, metrics)

    @property
    def log_dir(self) -> str:
        """The run folder; Lightning would expand ``~`` and ``$`` in its name."""
        return self.root_dir

    @property
    @rank_zero_experiment
    def experiment(self) -> SummaryWriter:
        """The writer of events."""
        if self._experiment is None:
            records = super().experiment._get_file_writer().event_writer._async_writer._writer
            records._writer = EventFile(records._writer)
        assert self._experiment is not None
        return self._experiment

    @rank_zero_only
    def save(self) -> None:
        """Flush."""
        self.experiment.flush()


class EventFile:
    """A file of TensorBoard events; after a write that fails (a full disk) the run goes on without it."""

    def __init__(self, file: Any) -> None:
        self._file, self._has_failed = file, False

    def write(self, record: bytes) -> None:
        """Write a record."""
        try:
            if not self._has_failed:
                self._file.write(record)
        except OSError as error:
            self._has_failed = True
            name = os.fsdecode(self._file.filename)
            log.warning("cannot write %s: %s; the run goes on without it", name, error.strerror)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def choose_precision(config: RunConfig) -> Any:
    """The configured precision; ``auto`` is bf16-mixed on a GPU with native bf16, else 32-true."""
    if config.trainer.precision != "auto":
        return config.trainer.precision
    return "bf16-mixed" if _on_cuda(config) and torch.cuda.is_bf16_supported(including_emulation=False) else "32-true"


def choose_compile(config: RunConfig) -> bool:
    """Whether to compile; ``auto`` compiles on CUDA."""
    return _on_cuda(config) if config.trainer.compile == "auto" else config.trainer.compile


def _on_cuda(config: RunConfig) -> bool:
    return config.trainer.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()


def compile_if_possible(module: GPTModule, trainer: L.Trainer) -> None:
    """Compile transformer and loss for training and validation; warn if the compiler does not work."""
    device = trainer.strategy.root_device
    error = compiler_error(device)
    if error is None:
        module.model.transformer.compile()
        module.is_loss_compiled = True
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


def wait_for_event_file_name(run_dir: Path) -> None:
    """Wait for the next second, which is part of an event file's name: TensorBoard reads the files in that order."""
    names = (re.match(r"events\.out\.tfevents\.(\d+)\.", path.name) for path in run_dir.iterdir())
    wait = max((int(name[1]) for name in names if name), default=0) + 1 - time.time()
    if wait > 2:
        log.warning("the clock is behind the event files of %s; TensorBoard may not show what this run adds", run_dir)
    time.sleep(min(2.0, max(0.0, wait)))
