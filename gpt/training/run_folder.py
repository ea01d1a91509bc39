"""Which folder a run has, and what may be changed when it is continued. No heavy import here."""

import itertools
import json
import logging
import os
import re
import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from gpt.errors import UserError
from gpt.training.config import RunConfig
from gpt.training.config_parser import flat, parse_config

log = logging.getLogger(__name__)

CONFIG_NAME = "config.yaml"

# What keeps it the same run: the same data in the same order and the same model. (max_steps changes the learning
# rates that are still to come, and with dropout another division of the batch draws other masks.)
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
        "checkpoint.keep_last",
        "guard.max_skipped_steps",
        "attention_maps.enabled",
        "attention_maps.captures",
        "attention_maps.probe_text",
    }
)

_RUN_DIR_VARIABLE = "MINI_GPT_RUN_DIR"  # from a run's first process to those that it starts
_STARTED_WITH = "# started with the flags "  # first line of a run's config.yaml


def new_run_dir(config: RunConfig, default_name: str) -> Path:
    """The folder of a new run: a named one must be new, the default name is counted up until it is.

    Of several processes the first chooses. Those that it starts are told by an environment variable; those that
    torchrun or SLURM starts need ``run_name``.

    Raises:
        ValueError: a folder of the given name is there already, or the processes could not agree on a name.
    """
    parent = Path(config.checkpoints_dir)
    if not is_first_process():
        if _RUN_DIR_VARIABLE in os.environ:
            return Path(os.environ[_RUN_DIR_VARIABLE])
        if config.run_name is None:
            raise UserError("with processes started from outside (torchrun, SLURM), give --run_name")
        return parent / config.run_name
    if config.run_name is None:
        counted = (parent / f"{default_name}-{number}" for number in itertools.count(2))
        run_dir = next(path for path in itertools.chain([parent / default_name], counted) if not path.exists())
    else:
        run_dir = parent / config.run_name
    if run_dir.exists():
        raise UserError(f"run folder {run_dir} exists already; choose another --run_name, or --resume to continue it")
    if config.world_size > 1:
        os.environ[_RUN_DIR_VARIABLE] = str(run_dir)
    return run_dir


def find_run(config_file: Path, flags: list[str]) -> tuple[Path, RunConfig, list[str]] | None:
    """The run that ``--resume`` means, and its config with what the flags change.

    It is the run named by ``run_name``, or the latest of the config's default names, or the one whose own
    ``config.yaml`` is given as the config. The saved config rules; the file and the flags (those that the run was
    started with, then the new ones) are compared with it.

    Args:
        config_file: as given by ``--config``.
        flags: as given beside it.

    Returns:
        The folder, the config, and all flags; None if there is no such run yet.

    Raises:
        ValueError: something would be changed that makes it another run.
    """
    if _started_with(config_file) is not None:
        if _only(flags, "checkpoints_dir"):
            raise UserError(
                f"--checkpoints_dir would have no effect: {config_file} is the config of the run in its folder"
            )
        run_dir = config_file.parent
    else:
        asked = parse_config(config_file, _only(flags, "checkpoints_dir", "run_name"))
        run_dir = _latest(Path(asked.checkpoints_dir), asked.run_name, config_file.stem)
    if not run_dir.exists():
        return None
    started_with = _started_with(run_dir / CONFIG_NAME)
    if started_with is None:
        raise UserError(f"{run_dir} has no {CONFIG_NAME} of ours in it; name another run with --run_name")
    all_flags = [*started_with, *flags]
    saved, asked = parse_config(run_dir / CONFIG_NAME, []), parse_config(config_file, all_flags)
    asked = replace(asked, run_name=asked.run_name or saved.run_name, checkpoints_dir=str(run_dir.parent))
    for key in ("precision", "compile"):  # what was chosen then is not chosen anew
        if getattr(asked.trainer, key) == "auto":
            asked = replace(asked, trainer=replace(asked.trainer, **{key: getattr(saved.trainer, key)}))
    before, after = flat(asdict(saved)), flat(asdict(asked))
    for key in before:
        if before[key] != after[key] and key not in CHANGEABLE:
            raise UserError(
                f"{key} was {before[key]} in {run_dir} and is now {after[key]}: that would be another run; "
                "leave it as it was, or start a new run without --resume"
            )
        if before[key] != after[key] and key != "checkpoints_dir":  # a moved folder changes nothing
            log.info("%s: %s instead of %s from here on", key, after[key], before[key])
    return run_dir, asked, all_flags


def _only(flags: list[str], *keys: str) -> list[str]:
    """The flags of some keys, with their values."""
    chosen = []
    for number, flag in enumerate(flags):
        name, equals, _ = flag.partition("=")
        if name.removeprefix("--") in keys:
            chosen += [flag] if equals else flags[number : number + 2]
    return chosen


def make_run_dir(run_dir: Path, config: RunConfig, flags: list[str]) -> None:
    """Make a run's folder with its config in it, both at once: a kill leaves no folder without a config.

    Raises:
        ValueError: the folder has come into being meanwhile.
    """
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{run_dir.name}.", suffix=".tmp", dir=run_dir.parent))
    try:
        save_config(unfinished, config, flags)
        unfinished.chmod(0o755)  # mkdtemp's is private
        unfinished.rename(run_dir)
    except BaseException as error:
        shutil.rmtree(unfinished)
        if run_dir.exists():
            raise UserError(f"run folder {run_dir} was made by another run meanwhile; start again") from error
        raise


def save_config(run_dir: Path, config: RunConfig, flags: list[str]) -> None:
    """Write the resolved config of a run, under a comment with the flags that it was started with."""
    config.save(run_dir / CONFIG_NAME, comment=_STARTED_WITH + json.dumps(flags))


def _latest(parent: Path, run_name: str | None, default_name: str) -> Path:
    """The run of that name, or the last of the default names, counted."""
    if run_name is not None:
        return parent / run_name
    numbers = {1: parent / default_name}
    if parent.is_dir():
        for path in parent.iterdir():
            if match := re.fullmatch(re.escape(default_name) + r"-(\d+)", path.name):
                numbers[int(match[1])] = path
    return numbers[max(numbers)]


def _started_with(config_file: Path) -> list[str] | None:
    """The flags noted in a run's own config; None for any other file."""
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
    """Whether this is a run's first process, the one that speaks for all; known before any of them has met another."""
    # torchrun's, Lightning's own (machine and process) and SLURM's numbers: the first has none above 0.
    names = ("RANK", "NODE_RANK", "LOCAL_RANK", "SLURM_PROCID")
    return not any(int(os.environ.get(name, 0)) for name in names)
