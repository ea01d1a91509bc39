"""``scripts/benchmark.py generate``: greedy decoding of GPT-2 small on a CPU."""

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gpt.checkpoint import write_model
from gpt.errors import UserError
from gpt.generation.generate import Request, generate
from gpt.generation.packed import Model, PackedGPT
from gpt.generation.sampling import Sampling
from gpt.model.config import GPTConfig
from gpt.model.kv_cache import KVCache
from gpt.model.transformer import GPT
from gpt.tokenizer import Tokenizer
from scripts.benchmarks.contenders import nanogpt_model, transformers_model
from scripts.benchmarks.protocol import SCRIPTS, Peers, Row, Rows, alternate, ratio_row, time_python, value_row
from scripts.benchmarks.train import GPT2_SMALL

log = logging.getLogger(__name__)

_PROMPT_TOKENS, _NEW_TOKENS = 32, 128
_REQUEST = Request(_NEW_TOKENS, Sampling(temperature=0))
_WORK = f"decoding with GPT-2 small, batch 1, prompt {_PROMPT_TOKENS}, {_NEW_TOKENS} new tokens"

_Decoder = Callable[[], list[int]]  # generates, and returns the new ids


def rows(peers: Peers) -> Rows:
    """The rows by name."""
    return {
        "peers": lambda folder: peer_rows(peers),
        "own": lambda folder: own_rows(),
        "position": lambda folder: position_rows(),
        "start": start_rows,
    }


def _gpt2_small() -> GPT:
    torch.manual_seed(0)
    return GPT(GPT2_SMALL).eval().requires_grad_(False)


def _prompt(number: int) -> list[int]:
    """Random ids; an end-of-text comes before them."""
    generator = torch.Generator().manual_seed(number)
    return torch.randint(50256, (_PROMPT_TOKENS - 1,), generator=generator).tolist()


def _decoder(model: Model, batch_size: int = 1) -> _Decoder:
    tokenizer, prompts = Tokenizer("gpt2"), [_prompt(number) for number in range(batch_size)]

    def decode() -> list[int]:
        continuations = generate(model, tokenizer, prompts, _REQUEST, range(batch_size))
        return [token for continuation in continuations for token in continuation.token_ids]

    return decode


def _peer_decoder(model: GPT, nanogpt: Path | None) -> _Decoder:
    """Decoder of nanoGPT's checkout, if one is given, else of transformers."""
    ids = torch.tensor([[50256, *_prompt(0)]])
    options: dict[str, Any] = {"max_new_tokens": _NEW_TOKENS}
    if nanogpt is not None:
        peer = nanogpt_model(nanogpt, model).eval()
        options["top_k"] = 1  # nanoGPT always samples; of one token that is greedy
    else:
        peer = transformers_model(model).eval()
        options |= {"min_new_tokens": _NEW_TOKENS, "do_sample": False, "pad_token_id": 50256}
        options["attention_mask"] = torch.ones_like(ids)

    def decode() -> list[int]:
        with torch.no_grad():
            return peer.generate(ids, **options)[0, _PROMPT_TOKENS:].tolist()

    return decode


def _rate(decode: _Decoder) -> float:
    """Tokens per second."""
    started = time.perf_counter()
    tokens = len(decode())
    return tokens / (time.perf_counter() - started)


def peer_rows(peers: Peers) -> list[Row]:
    """mini-gpt against transformers' generate with its cache, and against nanoGPT's, which has none."""
    model = _gpt2_small()
    own, rates, measured = _decoder(PackedGPT(model)), [], []
    for name, nanogpt in peers.items():
        peer = _peer_decoder(model, nanogpt)
        if own() != peer():
            raise UserError(f"{name} generates other tokens than mini-gpt; expected equal ones from equal weights")
        log.info("%s: mini-gpt and %s (tokens/s)", _WORK, name)
        results = alternate(partial(_rate, own), partial(_rate, peer), pairs=3 if name == "nanogpt" else 4)
        rates += [rate for rate, _ in results]
        measured.append(ratio_row(f"{_WORK}, fp32", name, results))
        measured.append(value_row(f"{_WORK}, fp32: {name}", "-", [rate for _, rate in results], "tokens/s"))
    if rates:
        measured.append(value_row(f"{_WORK}, fp32: mini-gpt", "-", rates, "tokens/s"))
    return measured


def own_rows(pairs: int = 4) -> list[Row]:
    """fp32 against the memory bandwidth, int8 against fp32, and a batch of 8 against a batch of 1."""
    model = _gpt2_small()
    packed = PackedGPT(model)
    fp32, batch, int8 = _decoder(packed), _decoder(packed, batch_size=8), _decoder(PackedGPT(model, "int8"))
    weight_bytes = 4 * (model.num_parameters - GPT2_SMALL.context_length * GPT2_SMALL.d_model)
    bandwidth = [(_rate(fp32) * weight_bytes, memory_bandwidth()) for _ in range(pairs)]
    log.info("int8 and fp32, then batch 8 and batch 1 (tokens/s)")
    int8_results = alternate(partial(_rate, int8), partial(_rate, fp32), pairs)
    batch()  # oneDNN packs the weights
    batch_results = alternate(partial(_rate, batch), partial(_rate, fp32), pairs)
    return [
        ratio_row(f"{_WORK}, fp32: weights read per second", "memory bandwidth", bandwidth, "of it"),
        ratio_row(f"{_WORK}, int8", "fp32", int8_results),
        ratio_row(f"{_WORK}, fp32: batch 8, tokens of all sequences", "batch 1", batch_results),
    ]


def memory_bandwidth(seconds: float = 2.0) -> float:
    """Median of the bytes per second that sums over a tensor larger than the caches read."""
    numbers, rates, deadline = torch.ones(2**27), [], time.perf_counter() + seconds
    while (started := time.perf_counter()) < deadline:
        numbers.sum()
        rates.append(numbers.nbytes / (time.perf_counter() - started))
    return sorted(rates)[len(rates) // 2]


def position_rows(pairs: int = 5) -> list[Row]:
    """Time per token late in the context against early in it."""
    model = PackedGPT(_gpt2_small())
    cache = KVCache(model.config, 1)  # of zeros: the time does not depend on the values

    @torch.inference_mode()
    def seconds(position: int) -> float:
        cache.lengths = [position]
        started = time.perf_counter()
        for token in range(20):
            model.logits(model.transformer(torch.tensor([[token]]), cache=cache))
            cache.advance([1])
        return (time.perf_counter() - started) / 20

    results = alternate(partial(seconds, 1000), partial(seconds, 50), pairs)
    work = "decoding with GPT-2 small, fp32: time per token at position 1000"
    return [ratio_row(work, "at position 50", results, "times as long", higher_is_better=False)]


def start_rows(folder: Path, pairs: int = 4) -> list[Row]:
    """Time of generate.py to the first token of a small checkpoint, minus that of importing torch."""
    tokenizer, path = Tokenizer("gpt2"), folder / "small.ckpt"
    config = GPTConfig(tokenizer.vocab_size, context_length=256, d_model=128, num_layers=4, num_heads=4)
    write_model(path, config, GPT(config).state_dict(), tokenizer)
    command = [SCRIPTS / "generate.py", path, "--max-new-tokens", "1"]
    log.info("the first token, and importing torch (s)")
    results = alternate(lambda: time_python(*command)[0], lambda: time_python("-c", "import torch")[0], pairs)
    work, extra = "first token of a small checkpoint, from the shell", [first - second for first, second in results]
    return [value_row(work, "importing torch", extra, "s more", higher_is_better=False)]
