"""Which folder a run has, and what may be changed when it is continued. No heavy import here."""

import itertools
import logging
import os
import shlex
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gpt.training.config import RunConfig, parse_config

log = logging.getLogger(__name__)

CONFIG_NAME = "config.yaml"

# What leaves the sequence of optimizer steps as it was (max_steps only appends to it, with its own schedule).
CHANGEABLE = frozenset(
    {
        "checkpoints_dir",
        "data.path",  # the data itself must be the same: its manifest is compared
        "data.micro_batch_size",
        "data.num_workers",
        "trainer.max_steps",
        "trainer.max_time",
        "trainer.accelerator",
        "trainer.devices",
        "trainer.num_nodes",
        "trainer.strategy",
        "trainer.compile",
        "trainer.validate_every_steps",
        "trainer.log_every_n_steps",
        "trainer.sample_tokens",
        "checkpoint.every_steps",
        "attention_maps.enabled",
        "attention_maps.captures",
    }
)

_RUN_DIR_VARIABLE = "MINI_GPT_RUN_DIR"  # from a run's first process to those that it starts
_ORIGIN = "# flags: "  # a comment in config.yaml: the flags that the run was started with


def new_run_dir(config: RunConfig, default_name: str) -> Path:
    """The folder of a new run: a named one must be new, the default name is counted up until it is.

    Of several processes the first chooses. Those that it starts are told by an environment variable; those that
    torchrun or SLURM starts need ``run_name``.

    Raises:
        ValueError: a folder of the given name is there already, or the processes could not agree on a name.
    """
    parent = Path(config.checkpoints_dir)
    if _rank() > 0:
        if _RUN_DIR_VARIABLE in os.environ:
            return Path(os.environ[_RUN_DIR_VARIABLE])
        if config.run_name is None:
            raise ValueError("with processes started from outside (torchrun, SLURM), give --run_name")
        return parent / config.run_name
    if config.run_name is None:
        run_dir = next(path for path in _counted(parent, default_name) if not path.exists())
    else:
        run_dir = parent / config.run_name
    if run_dir.exists():
        raise ValueError(f"run folder {run_dir} exists already; choose another --run_name, or --resume to continue it")
    if config.world_size > 1:
        os.environ[_RUN_DIR_VARIABLE] = str(run_dir)
    return run_dir


def find_run(config_file: Path, flags: list[str]) -> tuple[Path, RunConfig] | None:
    """The run that ``--resume`` means, and its config with what the flags change.

    It is the run named by ``run_name``, or the latest of the config's default names, or the one whose own
    ``config.yaml`` is given as the config. The saved config rules; the file and the flags (those that the run was
    started with, then the new ones) are compared with it.

    Args:
        config_file: as given by ``--config``.
        flags: as given beside it.

    Returns:
        The folder and the config; None if there is no such run yet.

    Raises:
        ValueError: something would be changed that makes it another run.
    """
    asked = parse_config(config_file, flags)
    if config_file.name == CONFIG_NAME:
        run_dir = config_file.parent
    elif asked.run_name is not None:
        run_dir = Path(asked.checkpoints_dir) / asked.run_name
    else:
        existing = itertools.takewhile(Path.exists, _counted(Path(asked.checkpoints_dir), config_file.stem))
        run_dir = max(existing, default=Path(asked.checkpoints_dir) / config_file.stem, key=_number)
    if not run_dir.exists():
        return None
    if not (run_dir / CONFIG_NAME).is_file():
        raise ValueError(f"{run_dir} has no {CONFIG_NAME}, so it is no run of ours; name another one with --run_name")
    saved = parse_config(run_dir / CONFIG_NAME, [])
    asked = parse_config(config_file, [*_original_flags(run_dir), *flags])
    asked = replace(asked, run_name=saved.run_name)
    if asked.trainer.precision == "auto":
        asked = replace(asked, trainer=replace(asked.trainer, precision=saved.trainer.precision))
    before, after = _leaves(saved), _leaves(asked)
    for key in before:
        if before[key] != after[key] and key not in CHANGEABLE:
            raise ValueError(
                f"{key} was {before[key]} in {run_dir} and is now {after[key]}: that would be another run; "
                "leave it as it was, or start a new run without --resume"
            )
        if before[key] != after[key]:
            log.info("%s: %s instead of %s from here on", key, after[key], before[key])
    return run_dir, asked


def make_run_dir(run_dir: Path, config: RunConfig, flags: list[str]) -> None:
    """Make a run's folder with its config in it, both at once: a kill leaves no folder without a config.

    Raises:
        ValueError: the folder has come into being meanwhile.
    """
    unfinished = run_dir.with_name(f".{run_dir.name}.{os.getpid()}.tmp")
    unfinished.mkdir(parents=True)
    config.save(unfinished / CONFIG_NAME, comment=_ORIGIN + shlex.join(flags))
    try:
        unfinished.rename(run_dir)
    except OSError:
        shutil.rmtree(unfinished)
        raise ValueError(f"run folder {run_dir} was made by another run meanwhile; start again") from None


def _counted(parent: Path, name: str) -> "itertools.chain[Path]":
    return itertools.chain([parent / name], (parent / f"{name}-{number}" for number in itertools.count(2)))


def _number(run_dir: Path) -> int:
    last = run_dir.name.rpartition("-")[2]
    return int(last) if last.isdigit() else 1


def _original_flags(run_dir: Path) -> list[str]:
    first_line = (run_dir / CONFIG_NAME).read_text(encoding="utf-8").partition("\n")[0]
    return shlex.split(first_line.removeprefix(_ORIGIN)) if first_line.startswith(_ORIGIN) else []


def _leaves(config: RunConfig) -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in asdict(config).items():
        leaves.update(
            {f"{name}.{key}": leaf for key, leaf in value.items()} if isinstance(value, dict) else {name: value}
        )
    return leaves


def _rank() -> int:
    names = ("RANK", "LOCAL_RANK", "SLURM_PROCID")  # as Lightning orders them: torchrun's, its own, SLURM's
    return int(next((os.environ[name] for name in names if name in os.environ), 0))
