"""The config of a run: dataclasses whose fields are the keys of the YAML file and the flags of train.py.

Imports nothing heavy, so that ``train.py --help`` and a misspelt key are answered at once. The docstrings are the help.
"""

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from gpt.errors import UserError
from gpt.files import atomic_write
from gpt.model.config import GPTConfig

MAX_CAPTURES = 500


def _at_least(minimum: int, section: str, config: Any, *names: str) -> None:
    for name in names:
        if not getattr(config, name) >= minimum:  # not "<", so that NaN is refused
            raise UserError(f"{section}.{name} is {getattr(config, name)}; it must be at least {minimum}")


@dataclass(frozen=True)
class DataConfig:
    """Training data and batch size.

    Args:
        path: folder that prepare_data.py wrote.
        global_batch_size: sequences per optimizer step, over all processes and micro-batches.
        micro_batch_size: sequences per forward pass of one process; gradient accumulation makes up the global batch.
        num_workers: data loader processes; 0 loads in the training process.
        document_mask: block-diagonal causal mask for packed documents; positions restart in each document.
    """

    path: str = "data/pydocs"
    global_batch_size: int = 512
    micro_batch_size: int = 8
    num_workers: int = 0
    document_mask: bool = False

    def __post_init__(self) -> None:
        _at_least(1, "data", self, "global_batch_size", "micro_batch_size")
        _at_least(0, "data", self, "num_workers")


@dataclass(frozen=True)
class OptimConfig:
    """Optimizer and learning rate schedule.

    Args:
        name: adamw; or muon, which uses Muon for the matrices of the blocks and AdamW for all other parameters.
        learning_rate: AdamW's peak learning rate, reached after warmup.
        min_learning_rate: AdamW's learning rate at the last step; Muon's decays in the same proportion.
        warmup_steps: optimizer steps of linear warmup.
        schedule: after warmup: cosine, wsd (warmup-stable-decay: constant, then linear decay) or constant.
        decay_fraction: fraction of the run, at its end, in which wsd decays.
        weight_decay: decoupled weight decay, on matrices and embeddings only.
        betas: AdamW's betas.
        muon_learning_rate: Muon's peak learning rate.
        muon_momentum: Muon's momentum.
    """

    name: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = 6e-4
    min_learning_rate: float = 6e-5
    warmup_steps: int = 700
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    decay_fraction: float = 0.4
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    muon_learning_rate: float = 0.02
    muon_momentum: float = 0.95

    def __post_init__(self) -> None:
        if not 0 <= self.min_learning_rate <= self.learning_rate or self.learning_rate == 0:
            raise UserError(
                f"optim.learning_rate is {self.learning_rate} and optim.min_learning_rate {self.min_learning_rate}; "
                "the first must be positive and the second between 0 and it"
            )
        _at_least(0, "optim", self, "warmup_steps", "weight_decay", "muon_learning_rate")
        for name, value in [("decay_fraction", self.decay_fraction), ("muon_momentum", self.muon_momentum)]:
            if not 0 <= value <= 1:
                raise UserError(f"optim.{name} is {value}; it must be between 0 and 1")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UserError(f"optim.betas are {list(self.betas)}; each must be at least 0 and below 1")


@dataclass(frozen=True)
class TrainerConfig:
    """Duration, hardware and intervals, in optimizer steps; otherwise as in Lightning's Trainer.

    Args:
        max_steps: optimizer steps of the run.
        max_time: stop after [DD:]HH:MM:SS; the last step is validated and saved.
        accelerator: auto is CUDA, else MPS, else CPU.
        devices: processes on this machine, one per device.
        num_nodes: number of machines.
        strategy: auto or ddp.
        precision: auto is bf16-mixed on a GPU with native bf16, else 32-true.
        gradient_clip_val: largest gradient norm; 0 disables clipping.
        validate_every_steps: steps between validations over the whole split; the last step is always validated.
        log_every_n_steps: steps between points in TensorBoard.
        compile: use torch.compile, which takes a minute or two at the start; auto is true on CUDA.
        sample_tokens: length of the text generated at each validation; 0 disables it.
    """

    max_steps: int = 19_000
    max_time: str | None = None
    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps"] = "auto"
    devices: int = 1
    num_nodes: int = 1
    strategy: Literal["auto", "ddp"] = "auto"
    precision: Literal["auto", "32-true", "bf16-mixed"] = "auto"
    gradient_clip_val: float = 1.0
    validate_every_steps: int = 250
    log_every_n_steps: int = 10
    compile: bool | Literal["auto"] = "auto"
    sample_tokens: int = 100

    def __post_init__(self) -> None:
        _at_least(1, "trainer", self, "max_steps", "devices", "num_nodes", "validate_every_steps", "log_every_n_steps")
        _at_least(0, "trainer", self, "gradient_clip_val", "sample_tokens")
        if self.max_time is not None and not re.fullmatch(r"(\d+:)?\d+:\d\d:\d\d", self.max_time):
            raise UserError(f"trainer.max_time is {self.max_time!r}; it must be HH:MM:SS or DD:HH:MM:SS")

    @property
    def max_seconds(self) -> int | None:
        """``max_time`` in seconds."""
        if self.max_time is None:
            return None
        days, hours, minutes, seconds = map(int, f"0:{self.max_time}".split(":")[-4:])
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


@dataclass(frozen=True)
class CheckpointConfig:
    """Saving, in addition to the save after each validation.

    Args:
        every_steps: steps between saves of last.ckpt.
        keep_last: number of earlier saves to keep, as step_00000250.ckpt and so on.
    """

    every_steps: int = 250
    keep_last: int = 0

    def __post_init__(self) -> None:
        _at_least(1, "checkpoint", self, "every_steps")
        _at_least(0, "checkpoint", self, "keep_last")


@dataclass(frozen=True)
class GuardConfig:
    """Divergence: a step whose gradient is not finite is always skipped.

    Args:
        max_skipped_steps: a run with more skipped steps stops.
    """

    max_skipped_steps: int = 20

    def __post_init__(self) -> None:
        _at_least(0, "guard", self, "max_skipped_steps")


@dataclass(frozen=True)
class AttentionMapsConfig:
    """Attention maps in TensorBoard, of a probe text and of a repeated random sequence.

    Args:
        enabled: whether to capture them.
        probe_text: the probe text; truncated to the context and to 256 tokens.
        captures: captures in the run: at its start, its end, each power of two, and evenly between.
    """

    enabled: bool = True
    probe_text: str = (
        "When Mary and John went to the store, Mary gave a drink to John. When the cat sat on the mat, the dog sat on "
        "the rug. When the cat ran to the door, the dog ran to the door and the cat ran to the mat."
    )
    captures: int = 200

    def __post_init__(self) -> None:
        if not 2 <= self.captures <= MAX_CAPTURES:
            raise UserError(f"attention_maps.captures is {self.captures}; it must be between 2 and {MAX_CAPTURES}")


@dataclass(frozen=True)
class RunConfig:
    """Everything a run depends on.

    Args:
        run_name: folder under checkpoints_dir; default: the config's name, then with -2, -3, ...
        seed: seed of the initial weights, the data order and dropout.
        init_from: initial weights: a run folder, a .ckpt file, a Hugging Face folder or name.
        checkpoints_dir: parent of the run folders.
    """

    run_name: str | None = None
    seed: int = 1234
    init_from: str | None = None
    checkpoints_dir: str = "checkpoints"
    model: GPTConfig = field(default_factory=GPTConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    attention_maps: AttentionMapsConfig = field(default_factory=AttentionMapsConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed is {self.seed}; it must be at least 0 and below 2**32")
        if self.run_name is not None and (not self.run_name or Path(self.run_name).name != self.run_name):
            raise UserError(f"run_name is {self.run_name!r}; it must be a plain name, without folders")
        data, world_size = self.data, self.world_size
        if data.global_batch_size % (data.micro_batch_size * world_size) != 0:
            raise UserError(
                f"data.global_batch_size ({data.global_batch_size}) must be a multiple of data.micro_batch_size "
                f"({data.micro_batch_size}) times the number of processes ({world_size})"
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

    def save(self, path: Path, comment: str) -> None:
        """Write the resolved config as YAML for ``train.py --config``, under a comment line."""
        content = asdict(self)
        del content["model"]["vocab_size"]
        content["optim"]["betas"] = list(self.optim.betas)
        with atomic_write(path) as file:
            file.write(f"{comment}\n{yaml.safe_dump(content, sort_keys=False)}".encode())
