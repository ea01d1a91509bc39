"""``scripts/benchmark.py data``: prepare_data.py against tiktoken alone, and the rate of the training loader."""

import logging
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

from gpt.data.manifest import Manifest, SplitTokens
from gpt.data.windows import TokenWindows, TrainingBatches, TrainingLoader
from gpt.tokenizer import Tokenizer
from scripts.benchmarks.protocol import SCRIPTS, Row, Rows, alternate, ratio_row, time_python, value_row

log = logging.getLogger(__name__)

_SCRIPT = SCRIPTS / "prepare_data.py"
_CHUNK = 2**17  # characters; the size at which tiktoken is fastest


def write_text(path: Path, megabytes: int) -> int:
    """Write numbered paragraphs of the Python reference, in a new order each time; returns the size in bytes."""
    paragraphs = [paragraph for text in topics.values() for paragraph in text.split("\n\n") if paragraph.strip()]
    generator, number = random.Random(0), 0
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < megabytes * 1_000_000:
            generator.shuffle(paragraphs)
            file.writelines(f"{number}. {paragraph}\n\n" for number, paragraph in enumerate(paragraphs, number))
            number += len(paragraphs)
    return path.stat().st_size


def _prepare_rate(text: Path, size: int, folder: Path, workers: int) -> float:
    shutil.rmtree(folder, ignore_errors=True)
    return size / 1e6 / time_python(_SCRIPT, text, "--output", folder, "--workers", str(workers))[0]


def _tiktoken_rate(text: str, size: int, threads: int) -> float:
    """Only encoding: the text is in memory, nothing is written, and the process runs already."""
    encode = partial(Tokenizer("gpt2")._encoding.encode_to_numpy, disallowed_special=())
    chunks = [text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK)]
    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(encode, chunks))
    return size / 1e6 / (time.perf_counter() - started)


def prepare_rows(folder: Path, megabytes: int = 100, pairs: int = 4) -> list[Row]:
    """Runs of prepare_data.py, from the shell, against tiktoken alone."""
    path, measured = folder / "text.txt", []
    size = write_text(path, megabytes)
    text = path.read_text(encoding="utf-8")
    for workers, plural in ((1, ""), (2, "s")):
        work = f"prepare_data.py, {megabytes} MB, gpt2, {workers} worker{plural}"
        log.info("%s, and tiktoken alone (MB/s)", work)
        prepare = partial(_prepare_rate, path, size, folder / "prepared", workers)
        results = alternate(prepare, partial(_tiktoken_rate, text, size, workers), pairs)
        measured.append(ratio_row(work, f"tiktoken alone, {workers} thread{plural}", results))
        measured.append(value_row(work, "-", [rate for rate, _ in results], "MB/s"))
    return measured


def loader_rows(folder: Path, megatokens: int = 40) -> list[Row]:
    """Rate at which two loader workers deliver micro-batches of 8 windows of 1,024 tokens, from four files."""
    for number, name in enumerate(["train_0", "train_1", "train_2", "train_3", "val"]):
        tokens = np.random.default_rng(number).integers(0, 50257, megatokens * 250_000, dtype=np.uint16)
        tokens.tofile(folder / f"{name}.bin")
    time_python(_SCRIPT, folder, "--tokenizer", "gpt2")  # adds a manifest
    tokens_of_split = SplitTokens(folder, Manifest.load(folder), "train")
    batches = TrainingBatches(TokenWindows(tokens_of_split, 1024), seed=0, global_batch_size=480, micro_batch_size=8)
    iterator = iter(TrainingLoader(batches, num_workers=2))
    for _ in range(20):
        next(iterator)
    rates = []
    for _ in range(3):
        started, count = time.perf_counter(), 0
        while time.perf_counter() - started < 5:
            count += next(iterator)["inputs"].numel()
        rates.append(count / 1e6 / (time.perf_counter() - started))
    return [value_row("training loader, 2 workers, T 1024", "-", rates, "million tokens/s")]


ROWS: Rows = {"prepare": prepare_rows, "loader": loader_rows}
