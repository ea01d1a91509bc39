"""What a whole run costs beside its arithmetic: ``train.py`` against a bare loop over the same batches."""

import json
import logging
import multiprocessing
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gpt.benchmark.protocol import Row, alternate, ratio_row
from gpt.data.manifest import Manifest, SplitTokens
from gpt.data.prepare import prepare
from gpt.data.windows import TokenWindows, TrainingBatches, TrainingLoader
from gpt.model.config import GPTConfig
from gpt.model.loss import next_token_loss
from gpt.model.transformer import GPT
from gpt.training.config_parser import parse_config
from gpt.training.cpu_memory import disable_malloc_trim
from gpt.training.optim import build_optimizer

log = logging.getLogger(__name__)

_ROOT = Path(__file__).parents[2]
_WARMUP_STEPS = 2


def bare_rate(config_file: Path, flags: list[str]) -> float:
    """Tokens per second of the shortest loop that takes the same steps: no log, no schedule, no checkpoint."""
    disable_malloc_trim()
    config = parse_config(config_file, flags)
    manifest = Manifest.load(Path(config.data.path))
    torch.manual_seed(0)
    shape = GPTConfig(**{**vars(config.model), "vocab_size": manifest.vocab_size})
    model = GPT(shape)
    optimizer = build_optimizer(model, config.optim)
    windows = TokenWindows(SplitTokens(Path(config.data.path), manifest, "train"), shape.context_length)
    batches = TrainingBatches(windows, 0, config.data.global_batch_size, config.data.micro_batch_size)
    started = 0.0
    for step, batch in enumerate(TrainingLoader(batches)):
        if step == _WARMUP_STEPS:
            started = time.perf_counter()
        if step == config.trainer.max_steps:
            break
        optimizer.zero_grad()
        hidden = model.transformer(batch["inputs"])
        loss = next_token_loss(hidden, model.lm_head_weight, batch["targets"]) / batch["global_targets"]
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
    steps = config.trainer.max_steps - _WARMUP_STEPS
    return steps * config.tokens_per_step / (time.perf_counter() - started)


def _run_rate(config_file: Path, flags: list[str], folder: Path) -> float:
    command = [sys.executable, str(_ROOT / "scripts" / "train.py"), "--config", str(config_file), "--json"]
    where = ["--checkpoints_dir", str(folder / f"run{time.monotonic_ns()}")]
    finished = subprocess.run([*command, *flags, *where], check=True, capture_output=True, text=True)
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it tells of each file that it has read
    events = EventAccumulator(json.loads(finished.stdout)["run_dir"])
    events.Reload()
    # Step 1 and the rest of the first quarter find everything cold; the bare loop leaves its first steps out, too.
    rates = [event.value for event in events.Scalars("train/tokens_per_second")][2:]
    return len(rates) / sum(1 / rate for rate in rates)


def overhead_rows(folder: Path, small: bool, pairs: int = 3) -> list[Row]:
    """A whole run's rate of training over the bare loop's.

    Args:
        small: the 4-layer model of shakespeare.yaml, or GPT-2 small.
        pairs: how often each runs.
    """
    tokenizer = "bytes" if small else "gpt2"
    prepare(["pydocs"], folder / "data", tokenizer)
    flags = ["--data.path", str(folder / "data"), "--trainer.sample_tokens", "0", "--trainer.accelerator", "cpu"]
    flags += ["--attention_maps.enabled", "false"]  # 200 looks at a model are little in a run, and much in eight steps
    if small:
        config_file, steps, what = _ROOT / "configs" / "shakespeare.yaml", 400, "the 4-layer model"
    else:
        config_file, steps, what = _ROOT / "configs" / "gpt2_small.yaml", 8, "GPT-2 small, batch 2, T 256"
        flags += ["--model.context_length", "256", "--data.global_batch_size", "2", "--data.micro_batch_size", "2"]
        flags += ["--data.num_workers", "0"]
    flags += ["--trainer.max_steps", str(steps), "--trainer.validate_every_steps", str(steps)]
    flags += ["--trainer.log_every_n_steps", str(steps // 4)]
    log.info("%s: train.py against a bare loop (tokens/s)", what)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        results = alternate(
            lambda: _run_rate(config_file, flags, folder),
            lambda: pool.submit(bare_rate, config_file, flags).result(),
            pairs,
        )
    must, aim = (0.90, 0.97) if small else (0.98, 0.995)
    return [ratio_row(f"{what}: train.py", "our own bare loop", results, must, aim)]
