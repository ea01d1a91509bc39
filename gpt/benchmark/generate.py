"""``scripts/benchmark.py generate``: tokens per second of GPT-2 small on a CPU, greedy, prompt 32, 128 new tokens."""

import itertools
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gpt.benchmark.contenders import nanogpt_model, transformers_model
from gpt.benchmark.protocol import Row, alternate, ratio_row, value_row
from gpt.benchmark.train import GPT2_SMALL, Peers
from gpt.checkpoint import write_model
from gpt.errors import UserError
from gpt.generation.decode_weights import lay_out_for_decoding, one_token_step
from gpt.generation.generate import Request, generate, prefill
from gpt.generation.sampling import Sampling
from gpt.model.config import GPTConfig
from gpt.model.inference import inference
from gpt.model.kv_cache import KVCache
from gpt.model.transformer import GPT
from gpt.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_Greedy = Callable[[], list[int]]  # a contender's greedy continuation of the first prompt

PROMPT, NEW = 32, 128
_REQUEST = Request(NEW, Sampling(temperature=0))
_SCRIPT = Path(__file__).parents[2] / "scripts" / "generate.py"


def _model(quantize: str | None = None, laid_out: bool = True) -> GPT:
    torch.manual_seed(0)
    model = GPT(GPT2_SMALL).eval().requires_grad_(False)
    if laid_out:
        lay_out_for_decoding(model, quantize)
    return model


def _prompt(number: int) -> list[int]:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(50256, (PROMPT - 1,), generator=generator).tolist()  # and the end of text before it


def _our_rate(model: GPT, tokenizer: Tokenizer, rows: int = 1) -> float:
    started = time.perf_counter()
    prompts = [_prompt(number) for number in range(rows)]
    finished = generate(model, tokenizer, prompts, _REQUEST, list(range(rows)))
    return sum(len(continuation.token_ids) for continuation in finished) / (time.perf_counter() - started)


def _transformers() -> _Greedy:
    model = transformers_model(GPT2_SMALL, _model(laid_out=False).state_dict()).eval()
    ids = torch.tensor([[50256, *_prompt(0)]])
    options: dict[str, Any] = {
        "do_sample": False,
        "max_new_tokens": NEW,
        "min_new_tokens": NEW,
        "pad_token_id": 50256,
        "attention_mask": torch.ones_like(ids),
    }

    def continuation() -> list[int]:
        with torch.no_grad():
            return model.generate(ids, **options)[0, PROMPT:].tolist()

    return continuation


def _nanogpt(folder: Path) -> _Greedy:
    model = nanogpt_model(folder, GPT2_SMALL, _model(laid_out=False).state_dict()).eval()
    ids = torch.tensor([[50256, *_prompt(0)]])

    def continuation() -> list[int]:
        with torch.no_grad():
            return model.generate(ids, NEW, top_k=1)[0, PROMPT:].tolist()  # it always samples; of one, greedily

    return continuation


def _rate(continuation: _Greedy) -> float:
    started = time.perf_counter()
    tokens = len(continuation())
    return tokens / (time.perf_counter() - started)


def read_rate(seconds: float = 2.0) -> float:
    """Bytes per second that a sum over more memory than the caches reads."""
    numbers = torch.ones(2**27)
    rates = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        started = time.perf_counter()
        numbers.sum()
        rates.append(numbers.nbytes / (time.perf_counter() - started))
    return sorted(rates)[len(rates) // 2]


def peer_rows(peers: Peers, pairs: int = 4) -> list[Row]:
    """Ours against transformers' cached generate and nanoGPT's sampler."""
    model, tokenizer = _model(), Tokenizer("gpt2")
    what = f"GPT-2 small, fp32, batch 1, prompt {PROMPT}, {NEW} new tokens"
    rows, ours = [], []
    for name, goals, make in (
        ("transformers", (1.5, 1.9), _transformers),
        ("nanogpt", (7.0, 10.0), lambda: _nanogpt(peers.nanogpt)),  # type: ignore[arg-type]
    ):
        if name not in peers:
            log.warning("%s is left out: name it with --peers", name)
            continue
        theirs = make()
        [ours_alone], theirs_alone = generate(model, tokenizer, [_prompt(0)], _REQUEST, [0]), theirs()
        pairs_of_ids = itertools.zip_longest(ours_alone.token_ids, theirs_alone)
        parted = [number for number, (mine, other) in enumerate(pairs_of_ids) if mine != other]
        if parted:
            raise UserError(f"from its new token {parted[0]} on, {name} writes another text: not the same model")
        log.info("%s against %s, the same %d tokens (tokens/s)", what, name, NEW)
        results = alternate(
            partial(_our_rate, model, tokenizer), partial(_rate, theirs), pairs if name == "transformers" else 3
        )
        ours += [mine for mine, _ in results]
        rows.append(ratio_row(what, name, results, *goals))
        rows.append(value_row(what, f"{name} by itself", [other for _, other in results], "tokens/s"))
    if ours:
        rows.append(value_row(what, "-", ours, "tokens/s"))
    return rows


def own_rows(pairs: int = 4) -> list[Row]:
    """Against the memory's read rate, int8, and a batch of 8."""
    tokenizer, model, rounded = Tokenizer("gpt2"), _model(), _model("int8")
    weights = sum(p.numel() for p in _model(laid_out=False).parameters()) - 1024 * 768
    what = f"GPT-2 small, batch 1, prompt {PROMPT}, {NEW} new tokens"
    pieces = [(_our_rate(model, tokenizer), read_rate()) for _ in range(pairs)]
    shares = [rate * weights * 4 / read for rate, read in pieces]
    log.info("  reading %s GB/s", ", ".join(f"{read / 1e9:.1f}" for _, read in pieces))
    rows = [value_row(f"{what}: fp32", "the read rate over the weights' bytes", shares, "of it", 0.65, 0.85)]
    log.info("int8 against fp32, then batch 8 against 1 (tokens/s)")
    int8 = alternate(lambda: _our_rate(rounded, tokenizer), lambda: _our_rate(model, tokenizer), pairs)
    rows.append(ratio_row(f"{what}: int8", "our fp32", int8, 1.5, 3.0))
    _our_rate(model, tokenizer, 8)  # packs the weights
    batch = alternate(lambda: _our_rate(model, tokenizer, 8), lambda: _our_rate(model, tokenizer), pairs)
    rows.append(ratio_row("the same, batch 8, summed", "our batch 1", batch, 3.0, 5.0))
    return rows


def position_rows(pairs: int = 5) -> list[Row]:
    """A token late in the context against one early."""
    model = _model()
    step, caches = one_token_step(model), {}
    with inference(model):
        for start in (50, 1000):
            caches[start] = KVCache(model.config, 1)
            prefill(model, caches[start], [list(range(start))])

    def seconds(start: int) -> float:
        cache = caches[start]
        cache.lengths = [start]
        started = time.perf_counter()
        with inference(model):
            for token in range(20):
                model.logits(step(torch.tensor([[token]]), cache))
                cache.advance([1])
        return (time.perf_counter() - started) / 20

    results = alternate(lambda: seconds(1000), lambda: seconds(50), pairs)
    what = "GPT-2 small, fp32: seconds per token at position 1000"
    return [ratio_row(what, "at position 50", results, 1.3, 1.1, "times as long", higher_is_better=False)]


def start_rows(pairs: int = 4) -> list[Row]:
    """From the shell to the first token of a small checkpoint, beyond importing torch."""
    tokenizer = Tokenizer("gpt2")
    config = GPTConfig(tokenizer.vocab_size, context_length=256, d_model=128, num_layers=4, num_heads=4)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.ckpt"
        write_model(path, config, GPT(config).state_dict(), tokenizer)

        def first_token() -> float:
            return _wall([sys.executable, str(_SCRIPT), str(path), "--max-new-tokens", "1"])

        results = alternate(first_token, lambda: _wall([sys.executable, "-c", "import torch"]), pairs)
    beyond = [ours - torch_alone for ours, torch_alone in results]
    what = "first token of a small checkpoint, from the shell"
    return [value_row(what, "importing torch", beyond, "s more", 1.0, 0.5, higher_is_better=False)]


def _wall(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


def rows(peers: Peers) -> dict[str, Callable[[Path], list[Row]]]:
    """All rows."""
    return {
        "peers": lambda folder: peer_rows(peers),
        "own": lambda folder: own_rows(),
        "position": lambda folder: position_rows(),
        "start": lambda folder: start_rows(),
    }
