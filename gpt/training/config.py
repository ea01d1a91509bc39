"""The config of a run: dataclasses whose fields are the keys of the YAML file and the flags of train.py.

Imports nothing heavy, so that ``train.py --help`` and a misspelt key are answered at once. The docstrings are the help.
"""

import math
import os
import re
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal

from gpt.errors import UserError
from gpt.model.config import GPTConfig

MAX_CAPTURES = 500
_LARGEST = 10**12  # in place of infinity, which is a typing error

_RANGES: list[tuple[float, float, str]] = [  # smallest value, largest value, keys
    (1, _LARGEST, "data.global_batch_size data.micro_batch_size checkpoint.every_steps trainer.max_steps"),
    (1, _LARGEST, "trainer.devices trainer.num_nodes trainer.validate_every_steps trainer.log_every_n_steps"),
    (0, _LARGEST, "data.num_workers checkpoint.keep_last guard.max_skipped_steps optim.warmup_steps"),
    (
        0,
        _LARGEST,
        "trainer.gradient_clip_val trainer.sample_tokens trainer.patience optim.weight_decay optim.muon_learning_rate",
    ),
    (0, 1, "optim.decay_fraction optim.muon_momentum"),
    (0, 2**32 - 1, "seed"),
    (2, MAX_CAPTURES, "attention_maps.captures"),
]


@dataclass(frozen=True)
class DataConfig:
    """Training data and batch size."""

    path: str = "data/pydocs"
    """Folder that prepare_data.py wrote."""
    global_batch_size: int = 512
    """Sequences per optimizer step, over all processes and micro-batches."""
    micro_batch_size: int = 8
    """Sequences per forward pass of one process; gradient accumulation makes up the global batch."""
    num_workers: int = 0
    """Data loader processes; 0 loads in the training process."""
    document_mask: bool = False
    """Block-diagonal causal mask for packed documents; positions restart in each document."""


@dataclass(frozen=True)
class OptimConfig:
    """Optimizer and learning rate schedule."""

    name: Literal["adamw", "muon"] = "adamw"
    """AdamW, or Muon for the matrices of the blocks and AdamW for all other parameters."""
    learning_rate: float = 6e-4
    """AdamW's peak learning rate, reached after warmup."""
    min_learning_rate: float = 6e-5
    """AdamW's learning rate at the last step; Muon's decays in the same proportion."""
    warmup_steps: int = 700
    """Optimizer steps of linear warmup."""
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    """After warmup: cosine, wsd (warmup-stable-decay: constant, then linear decay) or constant."""
    decay_fraction: float = 0.4
    """Fraction of the run, at its end, in which wsd decays."""
    weight_decay: float = 0.1
    """Decoupled weight decay, on matrices and embeddings only."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's betas."""
    muon_learning_rate: float = 0.02
    """Muon's peak learning rate."""
    muon_momentum: float = 0.95
    """Muon's momentum."""


@dataclass(frozen=True)
class TrainerConfig:
    """Duration, hardware and intervals, in optimizer steps; otherwise as in Lightning's Trainer."""

    max_steps: int = 19_000
    """Optimizer steps of the run."""
    max_time: str | None = None
    """Stop after [DD:]HH:MM:SS; the last step is validated and saved."""
    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps"] = "auto"
    """``auto`` is CUDA, else MPS, else CPU."""
    devices: int = 1
    """Processes on each machine, one per device."""
    num_nodes: int = 1
    """Number of machines."""
    strategy: Literal["auto", "ddp"] = "auto"
    """``auto`` or ``ddp``."""
    precision: Literal["auto", "32-true", "bf16-mixed"] = "auto"
    """``auto`` is bf16-mixed on a GPU with native bf16, else 32-true."""
    gradient_clip_val: float = 1.0
    """Largest gradient norm; 0 disables clipping."""
    validate_every_steps: int = 250
    """Steps between validations over the whole split; the last step is always validated."""
    log_every_n_steps: int = 10
    """Steps between points in TensorBoard."""
    compile: bool | Literal["auto"] = "auto"
    """Use torch.compile, which takes a minute or two at the start; ``auto`` is true on CUDA."""
    activation_checkpointing: bool = False
    """Recompute each block in the backward pass instead of saving its activations: less memory, more time."""
    patience: int = 0
    """Stop after this many validations in a row without a lower loss; 0: never."""
    sample_tokens: int = 100
    """Length of the text generated at each validation; 0 disables it."""

    @property
    def max_seconds(self) -> float:
        """``max_time`` in seconds."""
        parts = reversed(self.max_time.split(":")) if self.max_time else ["inf"]
        return sum(float(part) * unit for part, unit in zip(parts, (1, 60, 3600, 86400), strict=False))


@dataclass(frozen=True)
class CheckpointConfig:
    """Saving, in addition to the save after each validation."""

    every_steps: int = 250
    """Steps between saves of last.ckpt."""
    keep_last: int = 0
    """Number of saves to keep as step_00000250.ckpt and so on, the latest included."""


@dataclass(frozen=True)
class GuardConfig:
    """Divergence: a step whose gradient is not finite is always skipped."""

    max_skipped_steps: int = 20
    """A run with more skipped steps stops."""


@dataclass(frozen=True)
class AttentionMapsConfig:
    """Attention maps in TensorBoard, of a probe text and of a repeated random sequence."""

    enabled: bool = True
    """Whether to capture them."""
    probe_text: str | None = None
    """The probe text, truncated to the context and to 256 tokens; default: the beginning of a validation document."""
    captures: int = 200
    """Captures in the run: at its start, its end, each power of two, and evenly between."""
    ablation: Literal["mean", "zero", "none"] = "mean"
    """Measures each head's importance at every eighth capture and the last: the rise of the loss on the probes with the
    head's output replaced by its mean over the positions, or by zero."""


@dataclass(frozen=True)
class RunConfig:
    """Everything a run depends on."""

    run_name: str | None = None
    """Folder under checkpoints_dir; default: the config's name, then with -2, -3, ..."""
    seed: int = 1234
    """Seed of the initial weights, the data order and dropout."""
    init_from: str | None = None
    """Initial weights: a run folder, a .ckpt file, a Hugging Face folder or name."""
    checkpoints_dir: str = "checkpoints"
    """Parent of the run folders."""
    model: GPTConfig = field(default_factory=GPTConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    attention_maps: AttentionMapsConfig = field(default_factory=AttentionMapsConfig)

    def __post_init__(self) -> None:
        for low, high, key in ((low, high, key) for low, high, keys in _RANGES for key in keys.split()):
            value = attrgetter(key)(self)
            if not low <= value <= high:  # NaN is refused too
                expected = f"at least {low}" if value < low and high == _LARGEST else f"between {low} and {high}"
                raise UserError(f"{key} is {value}; it must be {expected}")
        optim, data = self.optim, self.data
        for section, name in ((self, "checkpoints_dir"), (self, "init_from"), (data, "path")):
            path = getattr(section, name)
            if path is not None and (not path or "\0" in path):
                raise UserError(f"{'data.' * (section is data)}{name} is {path!r}; it must be a path")
            # As a shell does, but not in YAML or after `=`.
            object.__setattr__(section, name, path and os.path.expanduser(path))  # noqa: PTH111 (that raises for ~nobody)
        if not 0 <= optim.min_learning_rate <= optim.learning_rate or not 0 < optim.learning_rate < math.inf:
            raise UserError(
                f"optim.learning_rate is {optim.learning_rate} and optim.min_learning_rate {optim.min_learning_rate}; "
                "the first must be positive and finite, the second between 0 and it"
            )
        if not all(0 <= beta < 1 for beta in optim.betas):
            raise UserError(f"optim.betas are {list(optim.betas)}; each must be at least 0 and below 1")
        if self.trainer.max_time is not None and not re.fullmatch(r"(\d+:)?\d+:\d\d:\d\d", self.trainer.max_time):
            raise UserError(f"trainer.max_time is {self.trainer.max_time!r}; it must be HH:MM:SS or DD:HH:MM:SS")
        if self.run_name is not None and not re.fullmatch(r"(?!\.{1,2}$)[^/\0]+", self.run_name):
            raise UserError(f"run_name is {self.run_name!r}; it must be a plain name, without folders")
        if data.global_batch_size % (data.micro_batch_size * self.world_size) != 0:
            raise UserError(
                f"data.global_batch_size ({data.global_batch_size}) must be a multiple of data.micro_batch_size "
                f"({data.micro_batch_size}) times the number of processes ({self.world_size})"
            )

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self.trainer.devices * self.trainer.num_nodes

    @property
    def accumulation(self) -> int:
        """Micro-batches per optimizer step, in each process."""
        return self.data.global_batch_size // (self.data.micro_batch_size * self.world_size)

    @property
    def tokens_per_step(self) -> int:
        """Input tokens per optimizer step, over all processes."""
        return self.data.global_batch_size * self.model.context_length
