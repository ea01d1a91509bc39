"""``scripts/benchmark.py data``: prepare_data.py against bare tiktoken, and the loader against what a GPU eats."""

import logging
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from gpt.benchmark.protocol import Row, alternate, ratio_row, value_row
from gpt.data.manifest import Manifest, SplitTokens
from gpt.data.options import PrepareOptions
from gpt.data.sources import PYDOCS, read_documents
from gpt.data.token_files import Shard, Split, write_shard
from gpt.data.windows import TokenWindows, TrainingBatches, TrainingLoader
from gpt.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_SCRIPT = Path(__file__).parents[2] / "scripts" / "prepare_data.py"
_CHUNK = 2**17  # characters; tiktoken is at its best with chunks of this size
_LOADER_SECONDS = 5.0


def write_text(path: Path, megabytes: int) -> int:
    """Write a text of a given size: the paragraphs of the Python reference, again and again in other orders.

    Each is preceded by its number, so that no two are equal.

    Returns:
        Its size in bytes.
    """
    documents = read_documents([PYDOCS], PrepareOptions())
    paragraphs = [p for document in documents for p in "".join(document.read()).split("\n\n") if p.strip()]
    generator = random.Random(0)
    number = 0
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < megabytes * 1_000_000:
            generator.shuffle(paragraphs)
            for paragraph in paragraphs:
                number += 1
                file.write(f"{number}. {paragraph}\n\n")
    return path.stat().st_size


def _prepare_rate(text: Path, size: int, folder: Path, workers: int) -> float:
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, str(_SCRIPT), str(text), "--output", str(folder), "--workers", str(workers)]
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return size / 1e6 / (time.perf_counter() - started)


def _tiktoken_rate(text: str, size: int, threads: int) -> float:
    """Nothing but encoding: the text is in memory, nothing is written, and the process runs already."""
    encode = Tokenizer("gpt2")._encoding.encode_to_numpy
    chunks = [text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK)]
    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda chunk: encode(chunk, disallowed_special=()), chunks):
            pass
    return size / 1e6 / (time.perf_counter() - started)


def prepare_rows(folder: Path, megabytes: int, pairs: int) -> list[Row]:
    """Whole runs of the script, start of the interpreter included, against tiktoken alone."""
    size = write_text(folder / "text.txt", megabytes)
    text = (folder / "text.txt").read_text(encoding="utf-8")
    rows = []
    for workers in (1, 2):
        log.info("prepare_data.py against tiktoken, %d at once (MB/s):", workers)
        results = alternate(
            lambda workers=workers: _prepare_rate(folder / "text.txt", size, folder / "prepared", workers),  # type: ignore[misc]
            lambda workers=workers: _tiktoken_rate(text, size, workers),  # type: ignore[misc]
            pairs,
        )
        work = f"prepare_data.py, {megabytes} MB, gpt2, {workers} worker" + "s" * (workers > 1)
        rows.append(ratio_row(work, f"tiktoken alone, {workers} thread" + "s" * (workers > 1), results, 0.85, 0.95))
        rows.append(value_row(work, "-", [ours for ours, _ in results], "MB/s"))
    return rows


def loader_rows(folder: Path, megatokens: int) -> list[Row]:
    """How fast two loader workers deliver micro-batches of 8 windows of 1,024 tokens."""
    shards = []
    for number in range(4):
        tokens = np.random.default_rng(number).integers(0, 50257, megatokens * 250_000, dtype=np.uint16)
        shards.append(write_shard(folder / f"train_{number:06d}.bin", tokens))
    total = sum(shard.tokens for shard in shards)
    windows = TokenWindows(SplitTokens(folder, _manifest(shards, total), "train"), context_length=1024)
    batches = TrainingBatches(windows, seed=0, global_batch_size=480, micro_batch_size=8)
    iterator = iter(TrainingLoader(batches, num_workers=2))
    for _ in range(20):
        next(iterator)
    rates = []
    for _ in range(3):
        started, count = time.perf_counter(), 0
        while time.perf_counter() - started < _LOADER_SECONDS:
            count += next(iterator)["inputs"].numel()
        rates.append(count / 1e6 / (time.perf_counter() - started))
    return [value_row("loader, 2 workers, T 1024", "-", rates, "million tokens/s", must=3.0, aim=5.0)]


def _manifest(shards: list[Shard], total: int) -> Manifest:
    return Manifest.of(Tokenizer("gpt2"), {"train": Split(total, 1, total, tuple(shards))}, "", (), {})


ROWS: dict[str, Callable[[Path], list[Row]]] = {
    "prepare": lambda folder: prepare_rows(folder, megabytes=100, pairs=4),  # 3 minutes
    "loader": lambda folder: loader_rows(folder, megatokens=40),  # 20 seconds
}
