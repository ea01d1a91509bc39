"""Whole runs of train.py: against a bare loop over the same batches, and against nanoGPT's CPU example."""

import json
import logging
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gpt.data.manifest import Manifest, SplitTokens
from gpt.data.windows import TokenWindows, TrainingBatches, TrainingLoader
from gpt.errors import UserError
from gpt.model.transformer import GPT
from gpt.training.config_parser import parse_config
from scripts.benchmarks.contenders import mini_gpt
from scripts.benchmarks.protocol import CONFIGS, SCRIPTS, Row, alternate, ratio_row, time_python

log = logging.getLogger(__name__)

_WARMUP_STEPS = 2
_NANOGPT_FLAGS = (
    "--device=cpu --compile=False --eval_iters=20 --eval_interval=2000 --log_interval=500 --block_size=64 "
    "--batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"
)  # of nanoGPT's README, with one evaluation, at the end
_NANOGPT_RESULT = "nanoGPT's 2,000 steps (1.90 nats)"  # over the whole validation split: 1.9038, measured once
_SHORT_STEPS = 345  # the loss is then below nanoGPT's; found by trying


def overhead_rows(folder: Path, gpt2_small: bool, pairs: int = 3) -> list[Row]:
    """Training rate of a whole run over that of a bare loop, with the 4-layer model or with GPT-2 small."""
    name, tokenizer, steps, work, options = "shakespeare.yaml", "bytes", 400, "train.py with the 4-layer model", ""
    if gpt2_small:
        name, tokenizer, steps, work = "gpt2_small.yaml", "gpt2", 8, "train.py with GPT-2 small, batch 2, T 256"
        options = "--model.context_length 256 --data.global_batch_size 2 --data.micro_batch_size 2"
    # Attention maps are off: 200 captures are a small share of a real run, and a large one of eight steps.
    options += " --trainer.accelerator cpu --trainer.sample_tokens 0 --attention_maps.enabled false"
    options += f" --trainer.max_steps {steps} --trainer.validate_every_steps {steps}"
    options += f" --trainer.log_every_n_steps {steps // 4}"
    config, flags = CONFIGS / name, ["--data.path", str(_prepare("pydocs", folder, tokenizer)), *options.split()]
    log.info("%s and a bare loop (tokens/s)", work)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        results = alternate(
            lambda: _run_rate(config, flags, folder), lambda: pool.submit(bare_rate, config, flags).result(), pairs
        )
    return [ratio_row(work, "a bare loop over the same batches", results)]


def bare_rate(config_file: Path, flags: list[str]) -> float:
    """Tokens per second of the shortest loop with the same steps: no logs, schedule or checkpoints."""
    config = parse_config(config_file, flags)
    manifest = Manifest.load(Path(config.data.path))
    torch.manual_seed(0)
    contender = mini_gpt(GPT(replace(config.model, vocab_size=manifest.vocab_size)), config.optim)
    windows = TokenWindows(SplitTokens(Path(config.data.path), manifest, "train"), config.model.context_length)
    batches = TrainingBatches(windows, 0, config.data.global_batch_size, config.data.micro_batch_size)
    started = 0.0
    for step, batch in zip(range(config.trainer.max_steps), TrainingLoader(batches), strict=False):
        if step == _WARMUP_STEPS:
            started = time.perf_counter()
        contender.step(batch["inputs"], batch["targets"])
    return (config.trainer.max_steps - _WARMUP_STEPS) * config.tokens_per_step / (time.perf_counter() - started)


def _run_rate(config_file: Path, flags: list[str], folder: Path) -> float:
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it logs every file that it reads
    events = EventAccumulator(_train(config_file, folder / f"run{time.monotonic_ns()}", flags)["run_dir"])
    events.Reload()
    # The first two rates are of step 1 and of the rest of the first quarter: cold, and left out of the bare loop too.
    rates = [event.value for event in events.Scalars("speed/tokens_per_second")][2:]
    return len(rates) / sum(1 / rate for rate in rates)


def learning_rows(folder: Path, nanogpt: Path | None) -> list[Row]:
    """Loss in about the wall time of nanoGPT's 2,000 steps, and wall time to about their loss, from the shell."""
    if nanogpt is None:
        return []
    text = nanogpt / "data" / "shakespeare_char" / "input.txt"
    if not text.with_name("train.bin").is_file():
        raise UserError(f"{text.parent} is not prepared; run prepare.py there once")
    config, unit = CONFIGS / "shakespeare_muon.yaml", "times as long"
    flags = ["--data.path", str(_prepare(text, folder, "bytes")), "--trainer.accelerator", "cpu"]
    before = _train(config, folder / "before", flags)
    command = ["train.py", "config/train_shakespeare_char.py", *_NANOGPT_FLAGS.split()]
    seconds, _ = time_python(*command, f"--out_dir={folder / 'nanogpt'}", cwd=nanogpt)
    log.info("  nanoGPT: 2,000 steps in %.1f s", seconds)
    after = _train(config, folder / "after", flags)
    flags += f"--trainer.max_steps {_SHORT_STEPS} --trainer.validate_every_steps {_SHORT_STEPS}".split()
    short = _train(config, folder / "short", flags)
    runs, loss = [(run["wall_seconds"], seconds) for run in (before, after, short)], after["val_loss_nats"]
    short_work = f"{config.name}: wall time to {short['val_loss_nats']:.4f} nats"
    return [
        Row(f"{config.name}: validation loss", _NANOGPT_RESULT, loss, loss, loss, "nats per byte", False),
        ratio_row(f"{config.name}: wall time of that run", _NANOGPT_RESULT, runs[:2], unit, higher_is_better=False),
        ratio_row(short_work, _NANOGPT_RESULT, runs[2:], unit, higher_is_better=False),
    ]


def _prepare(source: str | Path, folder: Path, tokenizer: str) -> Path:
    time_python(SCRIPTS / "prepare_data.py", source, "--output", folder / "data", "--tokenizer", tokenizer)
    return folder / "data"


def _train(config_file: Path, checkpoints_dir: Path, flags: list[str]) -> dict[str, Any]:
    """Run train.py; returns its JSON result and ``wall_seconds``."""
    where = ["--config", config_file, "--checkpoints_dir", checkpoints_dir]
    seconds, stdout = time_python(SCRIPTS / "train.py", *where, *flags, "--json")
    result = json.loads(stdout)
    log.info("  train.py: %d steps in %.1f s, %.4f nats", result["steps"], seconds, result["val_loss_nats"])
    return {**result, "wall_seconds": seconds}
