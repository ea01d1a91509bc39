"""The folder of a run: its name, its config, and what may change when it is resumed. Imports nothing heavy."""

import itertools
import json
import logging
import os
import re
import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import yaml

from gpt.errors import UserError
from gpt.files import atomic_write
from gpt.training.config import RunConfig
from gpt.training.config_parser import flat, parse_config

log = logging.getLogger(__name__)

CONFIG_NAME = "config.yaml"

# The keys that a resume may change; none changes the data, their order, the model or the optimizer. (max_steps changes
# later learning rates; with dropout, micro_batch_size, accelerator, devices and num_nodes change the masks.)
CHANGEABLE = {
    "checkpoints_dir",
    "data.path",  # its manifest must be the same
    *(f"data.{name}" for name in ("micro_batch_size", "num_workers")),
    *(f"trainer.{name}" for name in ("max_steps", "max_time", "accelerator", "devices", "num_nodes", "strategy")),
    *(f"trainer.{name}" for name in ("compile", "validate_every_steps", "log_every_n_steps", "sample_tokens")),
    *("checkpoint.every_steps", "checkpoint.keep_last", "guard.max_skipped_steps"),
    *(f"attention_maps.{name}" for name in ("enabled", "captures", "probe_text")),
}

_RUN_DIR_VARIABLE = "MINI_GPT_RUN_DIR"  # passes the folder to child processes
_STARTED_WITH = "# started with the flags "  # first line of a run's config.yaml


def new_run_dir(config: RunConfig, default_name: str) -> Path:
    """The folder of a new run: ``run_name``, or the first free default name, which the first process chooses."""
    parent = Path(config.checkpoints_dir)
    if not is_first_process():
        if config.run_name is None and _RUN_DIR_VARIABLE not in os.environ:
            raise UserError("processes started by torchrun or SLURM cannot agree on a default name; give --run_name")
        return Path(os.environ.get(_RUN_DIR_VARIABLE, parent / str(config.run_name)))
    names = itertools.chain([default_name], (f"{default_name}-{number}" for number in itertools.count(2)))
    run_dir = parent / (config.run_name or next(name for name in names if not (parent / name).exists()))
    if run_dir.exists():
        raise UserError(f"run folder {run_dir} exists; choose another --run_name, or --resume to continue it")
    if config.world_size > 1:
        os.environ[_RUN_DIR_VARIABLE] = str(run_dir)
    return run_dir


def find_run(config_file: Path, flags: list[str]) -> tuple[Path, RunConfig, list[str]] | None:
    """Find the run to resume: by ``run_name``, else the latest with the config's name, or by its own ``config.yaml``.

    Returns:
        The folder, the config, and all flags, those of the start and the new ones; None if there is no such run yet.

    Raises:
        UserError: a change would make it another run.
    """
    if _started_with(config_file) is not None:
        if _only(flags, "checkpoints_dir"):
            raise UserError(f"--checkpoints_dir has no effect: {config_file} is the config of the run in its folder")
        run_dir = config_file.parent
    else:
        # The other flags may be valid only together with those of the first start.
        named = parse_config(config_file, _only(flags, "checkpoints_dir", "run_name"))
        run_dir = _latest(Path(named.checkpoints_dir), named.run_name, config_file.stem)
    if not run_dir.exists():
        return None
    started_with = _started_with(run_dir / CONFIG_NAME)
    if started_with is None:
        raise UserError(f"{run_dir} has no {CONFIG_NAME} written by train.py; name another run with --run_name")
    all_flags = started_with if started_with[-len(flags) :] == flags else [*started_with, *flags]
    saved, asked = parse_config(run_dir / CONFIG_NAME, []), parse_config(config_file, all_flags)
    is_other_name = _only(flags, "run_name") and asked.run_name != run_dir.name  # a renamed folder is the same run
    run_name = asked.run_name if is_other_name else saved.run_name
    asked = replace(asked, run_name=run_name, checkpoints_dir=str(run_dir.parent))
    for key in ("precision", "compile"):  # auto keeps the choice of the first start
        if getattr(asked.trainer, key) == "auto":
            asked = replace(asked, trainer=replace(asked.trainer, **{key: getattr(saved.trainer, key)}))
    _compare(run_dir, saved, asked)
    return run_dir, asked, all_flags


def _compare(run_dir: Path, saved: RunConfig, asked: RunConfig) -> None:
    before, after = flat(asdict(saved)), flat(asdict(asked))
    for key in (key for key in before if before[key] != after[key]):
        if key not in CHANGEABLE:
            raise UserError(
                f"{key} was {before[key]} in {run_dir} and is now {after[key]}, which would be another run; "
                "leave it unchanged, or start a new run without --resume"
            )
        if key != "checkpoints_dir":  # a moved folder changes nothing
            log.info("%s: %s instead of %s from now on", key, after[key], before[key])


def _only(flags: list[str], *keys: str) -> list[str]:
    """The flags of some keys, with their values."""
    chosen = []
    for index, flag in enumerate(flags):
        name, equals, _ = flag.partition("=")
        if name.removeprefix("--") in keys:
            chosen += [flag] if equals else flags[index : index + 2]
    return chosen


def make_run_dir(run_dir: Path, config: RunConfig, flags: list[str]) -> None:
    """Create a run folder and its config in one atomic step."""
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{run_dir.name}.", suffix=".tmp", dir=run_dir.parent))
    try:
        save_config(unfinished, config, flags)
        unfinished.chmod(0o755)  # mkdtemp makes it private
        unfinished.rename(run_dir)
    except BaseException as error:
        shutil.rmtree(unfinished)
        if run_dir.exists():
            raise UserError(f"another run has just created {run_dir}; start again") from error
        raise


def save_config(run_dir: Path, config: RunConfig, flags: list[str]) -> None:
    """Write the resolved config of a run as YAML for ``train.py --config``, with its flags in the first line."""
    content = asdict(config)
    del content["model"]["vocab_size"]  # it comes with the data
    content["optim"]["betas"] = list(config.optim.betas)
    with atomic_write(run_dir / CONFIG_NAME) as file:
        file.write(f"{_STARTED_WITH}{json.dumps(flags)}\n{yaml.safe_dump(content, sort_keys=False)}".encode())


def _latest(parent: Path, run_name: str | None, default_name: str) -> Path:
    """The run with this name, or the highest numbered one with the default name."""
    if run_name is not None:
        return parent / run_name
    name = re.compile(rf"{re.escape(default_name)}-(\d+)")
    numbered = {int(match[1]): path for path in parent.glob("*") if (match := name.fullmatch(path.name))}
    return numbered[max(numbered)] if numbered else parent / default_name


def _started_with(config_file: Path) -> list[str] | None:
    """The flags in the first line of a run's config; None for any other file."""
    if not config_file.is_file():
        return None
    first_line = config_file.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    if not first_line.startswith(_STARTED_WITH):
        return None
    try:
        return [str(flag) for flag in json.loads(first_line.removeprefix(_STARTED_WITH))]
    except (json.JSONDecodeError, TypeError):
        raise UserError(f"the first line of {config_file} is damaged; it must list the flags of the run") from None


def is_first_process() -> bool:
    """Whether this is the first process of a run, known before the processes communicate."""
    # torchrun's, Lightning's (machine and process) and SLURM's variables: in the first process all are 0.
    names = ("RANK", "NODE_RANK", "LOCAL_RANK", "SLURM_PROCID")
    return not any(int(os.environ.get(name, 0)) for name in names)
