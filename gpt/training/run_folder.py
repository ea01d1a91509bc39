"""The folder of a run: its name, its config, and what may change when it is resumed. Imports nothing heavy."""

import errno
import itertools
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from gpt.errors import UserError
from gpt.files import atomic_write
from gpt.training.config import RunConfig
from gpt.training.config_parser import flat, parse_config, parse_values, read_yaml

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
    *(f"trainer.{name}" for name in ("activation_checkpointing", "patience")),
    *("checkpoint.every_steps", "checkpoint.keep_last", "guard.max_skipped_steps"),
    *(f"attention_maps.{name}" for name in ("enabled", "captures", "probe_text", "ablation")),
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
    """Find the run to resume: by ``run_name``, by its own ``config.yaml``, or else the config's only unfinished run.

    Returns:
        The folder, the config, and all flags, those of the start and the new ones; None if there is no such run yet.

    Raises:
        UserError: a change would make it another run.
    """
    if _started_with(config_file) is not None:
        if _split(flags, "checkpoints_dir")[0]:
            raise UserError(f"--checkpoints_dir has no effect: {config_file} is the config of the run in its folder")
        run_dir = config_file.parent
    else:
        # The other flags may be valid only together with those of the first start.
        named = parse_values(read_yaml(config_file), _split(flags, "checkpoints_dir", "run_name")[0])
        parent = Path(named.checkpoints_dir)
        run_dir = parent / named.run_name if named.run_name else _unfinished_run(parent, config_file.stem)
    if not run_dir.exists():
        return None
    started_with = _started_with(run_dir / CONFIG_NAME)
    if started_with is None:
        raise UserError(f"{run_dir} has no {CONFIG_NAME} written by train.py; name another run with --run_name")
    given_name, others = _split(flags, "run_name")
    all_flags = started_with if started_with[-len(others) :] == others else [*started_with, *others]
    saved = parse_config(run_dir / CONFIG_NAME, [])
    asked = parse_config(config_file, [*_split(all_flags, "config")[1], *given_name], lambda _: saved.model)
    is_other_name = given_name and asked.run_name != run_dir.name  # a renamed folder is the same run
    run_name = asked.run_name if is_other_name else saved.run_name
    asked = replace(asked, run_name=run_name, checkpoints_dir=str(run_dir.parent))
    for key in ("precision", "compile"):  # auto keeps the choice of the first start
        if getattr(asked.trainer, key) == "auto":
            asked = replace(asked, trainer=replace(asked.trainer, **{key: getattr(saved.trainer, key)}))
    for key, (before, after) in changes(asdict(saved), asked, run_dir).items():
        if key != "checkpoints_dir":  # a moved folder changes nothing
            log.info("%s: %s instead of %s from now on", key, after, before)
    return run_dir, asked, all_flags


def changes(saved: Mapping[str, Any], asked: RunConfig, where: Path) -> dict[str, tuple[Any, Any]]:
    """Keys of a saved config whose values change, with both values.

    Raises:
        UserError: a change would make it another run; ``where`` is the file or folder that holds the saved config.
    """
    before, after = flat(saved), flat(asdict(asked))
    changed = {key: (before[key], after[key]) for key in before.keys() & after.keys() if before[key] != after[key]}
    for key in sorted(changed.keys() - CHANGEABLE):
        raise UserError(
            f"{key} was {before[key]} in {where} and is now {after[key]}, which would be another run; "
            "leave it unchanged, or start a new run without --resume"
        )
    return changed


def _split(flags: list[str], *keys: str) -> tuple[list[str], list[str]]:
    """The flags of some keys, and the others, each with their values."""
    parts: tuple[list[str], list[str]] = [], []
    part = parts[1]
    for flag in flags:
        if flag.startswith("--"):
            part = parts[flag[2:].partition("=")[0] not in keys]
        part.append(flag)
    return parts


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
        if isinstance(error, OSError) and error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise UserError(f"another run has just created {run_dir}; start again") from error
        raise


def save_config(run_dir: Path, config: RunConfig, flags: list[str]) -> None:
    """Write the resolved config of a run as YAML for ``train.py --config``, with its flags in the first line."""
    content = asdict(config)
    del content["model"]["vocab_size"]  # it comes with the data
    content["optim"]["betas"] = list(config.optim.betas)
    with atomic_write(run_dir / CONFIG_NAME) as file:
        file.write(f"{_STARTED_WITH}{json.dumps(flags)}\n{yaml.safe_dump(content, sort_keys=False)}".encode())


def _unfinished_run(parent: Path, default_name: str) -> Path:
    """The only unfinished run that a config has named; if all are finished, the one that was used last."""
    folders = {path.resolve(): path for path in sorted(parent.glob("*"), key=lambda path: not path.is_symlink())}
    runs = {path: path.stat().st_mtime_ns for path in folders.values() if _is_named_by(path, default_name)}
    run_dir = parent / default_name
    if not runs and _started_with(run_dir / CONFIG_NAME) is not None:
        raise UserError(f"{run_dir} is a run of another config; name the run with --run_name")
    if len(runs) < 2:
        return next(iter(runs), run_dir)
    from gpt.checkpoint import LAST, steps_trained  # takes seconds

    def is_finished(run_dir: Path) -> bool:
        with suppress(UserError):  # a damaged run is named with the others
            max_steps = parse_config(run_dir / CONFIG_NAME, []).trainer.max_steps
            return (run_dir / LAST).exists() and steps_trained(run_dir / LAST) >= max_steps
        return False

    unfinished = sorted(run_dir.name for run_dir in runs if not is_finished(run_dir))
    if len(unfinished) > 1:
        raise UserError(f"{', '.join(unfinished)} in {parent} are unfinished; choose one with --run_name")
    run_dir = parent / unfinished[0] if unfinished else max(runs, key=runs.__getitem__)
    log.info("%s is %s", run_dir, "the only unfinished run" if unfinished else "the run that was used last")
    return run_dir


def _is_named_by(run_dir: Path, default_name: str) -> bool:
    """Whether a run has this default name, or a numbered one that ``new_run_dir`` chose for a config of this name."""
    if not re.fullmatch(rf"{re.escape(default_name)}(-\d+)?", run_dir.name):
        return False
    flags = _started_with(run_dir / CONFIG_NAME)
    if flags is None:
        return False
    config_name = Path(flags[1]).stem if flags[:1] == ["--config"] else default_name  # older runs did not record it
    return config_name == default_name and (run_dir.name == default_name or not _split(flags, "run_name")[0])


def _started_with(config_file: Path) -> list[str] | None:
    """The flags in the first line of a run's config, ``--config`` first; None for any other file."""
    if not config_file.is_file():
        return None
    first_line = config_file.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    if not first_line.startswith(_STARTED_WITH):
        return None
    with suppress(json.JSONDecodeError, RecursionError):
        flags = json.loads(first_line.removeprefix(_STARTED_WITH))
        if isinstance(flags, list) and all(isinstance(flag, str) for flag in flags) and flags != ["--config"]:
            return flags
    raise UserError(f"the first line of {config_file} is damaged; it must list the flags of the run")


def is_first_process() -> bool:
    """Whether this is the first process of a run, known before the processes communicate."""
    # torchrun's, Lightning's (machine and process) and SLURM's variables: in the first process all are 0.
    names = ("RANK", "NODE_RANK", "LOCAL_RANK", "SLURM_PROCID")
    return not any(map(environment_number, names))


def environment_number(name: str, default: int = 0) -> int:
    """An environment variable of a launcher, such as NODE_RANK; the default if it is not set or empty."""
    value = os.environ.get(name) or default
    try:
        return int(value)
    except ValueError:
        raise UserError(f"the environment variable {name} is {value!r}; expected a number") from None
