"""What is learned in a given time: the 4-layer model on tiny Shakespeare, whole runs, against nanoGPT's CPU example."""

import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gpt.benchmark.protocol import Row, value_row
from gpt.errors import UserError

log = logging.getLogger(__name__)

_ROOT = Path(__file__).parents[2]
_THEIR_LOSS = 1.90  # nats over the whole validation part after those 2,000 steps: 1.9038, measured once
_STEPS_TO_THEIR_LOSS = 345  # of ours: enough to be below it, found by trying
_NANOGPT_FLAGS = (
    "--device=cpu --compile=False --eval_iters=20 --eval_interval=2000 --log_interval=500 --block_size=64 "
    "--batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"
)  # its README's, with one evaluation, at the end


def learning_rows(folder: Path, nanogpt: Path | None) -> list[Row]:
    """Our ``shakespeare_muon.yaml`` against nanoGPT's run of 2,000 steps with a model of the same size.

    Two things: the loss over the whole validation part in that run's time, and the time in which ours gets to its
    loss. Wall time from the shell, imports and validation included.

    Args:
        nanogpt: a checkout whose data/shakespeare_char has been prepared.

    Raises:
        ValueError: that data is not there.
    """
    if nanogpt is None:
        log.warning("nanogpt is left out: name it with --peers")
        return []
    text = nanogpt / "data" / "shakespeare_char" / "input.txt"
    if not text.with_name("train.bin").is_file():
        raise UserError(f"{text.parent} is not prepared; run prepare.py there once")
    script = [sys.executable, str(_ROOT / "scripts" / "prepare_data.py")]
    data = folder / "shakespeare"
    subprocess.run([*script, str(text), "--output", str(data), "--tokenizer", "bytes"], check=True, capture_output=True)
    before = _ours(folder / "first", data, steps=None)
    started = time.monotonic()
    flags = [*_NANOGPT_FLAGS.split(), f"--out_dir={folder / 'nanogpt'}"]
    command = [sys.executable, "train.py", "config/train_shakespeare_char.py", *flags]
    subprocess.run(command, cwd=nanogpt, check=True, capture_output=True)
    their_seconds = time.monotonic() - started
    log.info("  nanoGPT: 2,000 steps in %.1f s", their_seconds)
    after = _ours(folder / "second", data, steps=None)
    quick = _ours(folder / "third", data, steps=_STEPS_TO_THEIR_LOSS)
    what, against = "shakespeare_muon.yaml", "nanoGPT's 2,000 steps"
    seconds = [before["wall_seconds"], after["wall_seconds"]]
    share = quick["wall_seconds"] / their_seconds
    loss, quick_loss = after["val_loss_nats"], quick["val_loss_nats"]
    goal = (0.5, 1 / 3) if quick_loss <= _THEIR_LOSS else (0.0, 0.0)  # not there: no time is short enough
    of_time = [value / their_seconds for value in seconds]
    return [
        Row(f"{what}: loss", against, loss, loss, loss, "nats per byte", False, 1.70, 1.60),
        value_row(f"{what}: wall time of that run", against, of_time, "of its", 1.0, 0.9, higher_is_better=False),
        Row(f"{what}: wall time to {quick_loss:.4f} nats", against, share, share, share, "of its", False, *goal),
    ]


def _ours(folder: Path, data: Path, steps: int | None) -> dict[str, Any]:
    command = [sys.executable, str(_ROOT / "scripts" / "train.py")]
    command += ["--config", str(_ROOT / "configs" / "shakespeare_muon.yaml"), "--data.path", str(data), "--json"]
    command += ["--checkpoints_dir", str(folder), "--trainer.accelerator", "cpu"]
    if steps is not None:
        command += ["--trainer.max_steps", str(steps), "--trainer.validate_every_steps", str(steps)]
    started = time.monotonic()
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(finished.stdout)
    result["wall_seconds"] = time.monotonic() - started
    log.info("  ours: %d steps in %.1f s, %.4f nats", result["steps"], result["wall_seconds"], result["val_loss_nats"])
    return result
