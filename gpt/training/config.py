"""The run's config: documented dataclasses, which are also the keys of the YAML file and the flags of train.py.

No heavy import here, so that ``train.py --help`` and a refusal of a misspelt key take a fraction of a second.
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
        if not getattr(config, name) >= minimum:  # so, and not "<", a NaN is refused too
            raise UserError(f"{section}.{name} is {getattr(config, name)}; it must be at least {minimum}")


@dataclass(frozen=True)
class DataConfig:
    """What to train on, and how much at once.

    Args:
        path: folder that prepare_data.py wrote.
        global_batch_size: windows per optimizer step, over all processes and micro-batches together.
        micro_batch_size: windows per forward pass of one process; gradients are accumulated over as many passes
            as the global batch needs, so that changing devices changes neither batches nor steps.
        num_workers: processes that read windows ahead; 0 reads them in the training process.
        document_mask: keep the documents of a window apart: attention stays inside each, and positions restart.
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
    """The optimizer and its learning rate; weight decay acts on matrices only.

    Args:
        name: adamw, or muon: Muon for the matrices inside the blocks and AdamW for the rest.
        learning_rate: AdamW's highest one, reached after the warmup.
        min_learning_rate: where the schedule ends, at the last step; Muon's falls in the same proportion.
        warmup_steps: optimizer steps of linear rise from 0.
        schedule: what follows the warmup: cosine, wsd (no change, then a straight fall) or constant.
        decay_fraction: share of the run, at its end, in which wsd falls.
        weight_decay: decoupled, on matrices (embeddings included), not on biases and norms.
        betas: decay of AdamW's two averages.
        muon_learning_rate: Muon's highest one.
        muon_momentum: decay of Muon's average.
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
    """How long, on what, and how often to look; steps are optimizer steps, other words are Lightning's.

    Args:
        max_steps: optimizer steps in the whole run.
        max_time: end earlier, after [DD:]HH:MM:SS; the last step is validated and saved all the same.
        accelerator: ``auto`` takes a GPU if there is one, then Apple's MPS, then the CPU.
        devices: processes on this machine, one per device.
        num_nodes: machines.
        strategy: Lightning's, for several processes: ``auto`` or ``ddp``.
        precision: ``auto`` is bf16-mixed on a GPU that has it and 32-true elsewhere.
        gradient_clip_val: largest norm of the gradient; 0 does not clip.
        validate_every_steps: steps between validations over the whole split; the last step is always validated.
        log_every_n_steps: steps between points in TensorBoard.
        compile: use torch.compile (a minute or two of start-up); ``auto`` does on a CUDA GPU, where it pays.
        sample_tokens: length of the sample text written at each validation; 0 writes none.
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
    """When to save, beside the saves after each validation.

    Args:
        every_steps: steps between saves of ``last.ckpt``.
        keep_last: how many earlier saves to keep beside it, as ``step_00000250.ckpt`` and so on.
    """

    every_steps: int = 250
    keep_last: int = 0

    def __post_init__(self) -> None:
        _at_least(1, "checkpoint", self, "every_steps")
        _at_least(0, "checkpoint", self, "keep_last")


@dataclass(frozen=True)
class GuardConfig:
    """Against divergence: a step whose gradient is not finite is skipped, whatever this says.

    Args:
        max_skipped_steps: more than so many in a run stop it.
    """

    max_skipped_steps: int = 20

    def __post_init__(self) -> None:
        _at_least(0, "guard", self, "max_skipped_steps")


@dataclass(frozen=True)
class AttentionMapsConfig:
    """Attention maps in TensorBoard: of one fixed text, and of random tokens that come twice.

    Args:
        enabled: whether to write them.
        probe_text: the text; what does not fit into the context, or is beyond 256 tokens, is cut off.
        captures: how often in the run: at each power of two, evenly between, and always before and after it.
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
    """Everything that a run depends on.

    Args:
        run_name: folder under checkpoints/; by default the config's name, then with -2, -3, ...
        seed: of the initial weights, the data's order and dropout.
        init_from: weights to start from: a run folder, a .ckpt file, a Hugging Face folder or name.
        zero_init: start with every block adding nothing: zeros where it projects into the residual stream.
        checkpoints_dir: where run folders are made.
        model: shape of the model; the vocabulary comes with the data.
        data: what to train on.
        optim: the optimizer.
        trainer: how long and on what.
        checkpoint: when to save.
        guard: when to give up.
        attention_maps: what to watch.
    """

    run_name: str | None = None
    seed: int = 1234
    init_from: str | None = None
    zero_init: bool = False
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
        """Forward passes per optimizer step, in each process."""
        return self.data.global_batch_size // (self.data.micro_batch_size * self.world_size)

    @property
    def tokens_per_step(self) -> int:
        """Inputs per optimizer step, over all processes."""
        return self.data.global_batch_size * self.model.context_length

    def save(self, path: Path, comment: str) -> None:
        """Write the resolved config as YAML that ``train.py --config`` takes, under a line of comment."""
        content = asdict(self)
        del content["model"]["vocab_size"]
        content["optim"]["betas"] = list(self.optim.betas)
        with atomic_write(path) as file:
            file.write(f"{comment}\n{yaml.safe_dump(content, sort_keys=False)}".encode())
