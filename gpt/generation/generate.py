"""Continue prompts, token by token: prefill, then decode, each row of a batch as if it were alone."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gpt.errors import UserError
from gpt.generation.decode_weights import one_token_step
from gpt.generation.sampling import Sampling
from gpt.generation.stops import StopFinder
from gpt.model.inference import inference
from gpt.model.kv_cache import KVCache
from gpt.model.transformer import GPT
from gpt.tokenizer import StreamDecoder, Tokenizer

log = logging.getLogger(__name__)

FinishReason = Literal["length", "eos", "stop"]


@dataclass(frozen=True)
class Request:
    """What is to be generated.

    Args:
        max_new_tokens: most tokens per row, at least 0.
        sampling: how to draw.
        stops: texts that end a row; they are not part of its text.
        use_cache: False reads the whole window anew for each token: slow, and the reference for the cache.

    Raises:
        ValueError: a value is out of its range.
    """

    max_new_tokens: int = 100
    sampling: Sampling = field(default_factory=Sampling)
    stops: tuple[str, ...] = ()
    use_cache: bool = True

    def __post_init__(self) -> None:
        if self.max_new_tokens < 0:
            raise UserError(f"--max-new-tokens is {self.max_new_tokens}; it must be at least 0")
        StopFinder(self.stops)  # raises what it has to say


@dataclass(frozen=True)
class Continuation:
    """What was generated, the prompt not included.

    Args:
        text: ends before a stop text.
        token_ids: the new ids, those of a stop text included; an end-of-text that stopped it is not among them.
        finish_reason: ``"length"`` (max_new_tokens reached), ``"eos"`` (the model ended the text) or ``"stop"``.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason


@dataclass(frozen=True)
class Piece:
    """Some text of a row that is certain; the last piece of each row says why it ended.

    Args:
        row: number of the prompt.
        text: may be empty in the last piece.
        finished: the whole row, in its last piece.
    """

    row: int
    text: str
    finished: Continuation | None = None


class _Row:
    """A text under way."""

    def __init__(
        self, number: int, prompt_ids: Sequence[int], tokenizer: Tokenizer, request: Request, seed: int
    ) -> None:
        self.number = number
        self.window = [tokenizer.eot_id, *prompt_ids]  # what the model sees
        self.so_far = list(prompt_ids)  # what the repetition penalty sees
        self.new_ids: list[int] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None if request.max_new_tokens > 0 else "length"
        # A generator per row: another row does not change this one.
        self.generator = torch.Generator().manual_seed(seed)
        self._request, self._eot_id = request, tokenizer.eot_id
        self._decoder, self._stops = StreamDecoder(tokenizer), StopFinder(request.stops)

    def draw(self, logits: Tensor) -> str:
        """Take the next token from (V,) logits; returns the text that it makes certain."""
        token = self._request.sampling.draw(logits, self.generator, self.so_far)
        if token == self._eot_id:
            return self._finish("eos")
        for ids in (self.window, self.so_far, self.new_ids):
            ids.append(token)
        text = self._stops.push(self._decoder.push(token))
        self.text += text
        if self._stops.found:
            self.finish_reason = "stop"
        elif len(self.new_ids) == self._request.max_new_tokens:
            text += self._finish("length")
        return text

    def _finish(self, reason: FinishReason) -> str:
        text = self._stops.push(self._decoder.finish())
        if not self._stops.found:
            text += self._stops.finish()
        self.finish_reason = "stop" if self._stops.found else reason
        self.text += text
        return text

    def continuation(self) -> Continuation:
        assert self.finish_reason is not None
        return Continuation(self.text, self.new_ids, self.finish_reason)


def generate(
    model: GPT, tokenizer: Tokenizer, prompts: Sequence[Sequence[int]], request: Request, seeds: Sequence[int]
) -> list[Continuation]:
    """Continue prompts; as ``stream``, all at once.

    Returns:
        One continuation per prompt, in their order.
    """
    finished = {
        piece.row: piece.finished for piece in stream(model, tokenizer, prompts, request, seeds) if piece.finished
    }
    return [finished[row] for row in range(len(prompts))]


def stream(
    model: GPT, tokenizer: Tokenizer, prompts: Sequence[Sequence[int]], request: Request, seeds: Sequence[int]
) -> Iterator[Piece]:
    """Continue prompts of any lengths together, and give each row's text as soon as it is certain.

    A prompt follows an end-of-text, which is how every training document began. When a row's context is full, it
    forgets its older half and reads the rest anew; so a prompt longer than the context keeps its end. The model is
    in eval mode meanwhile (no dropout) and back in its own mode afterwards.

    Args:
        prompts: ids, one row each; may be empty.
        request: how to continue them.
        seeds: one for each row: the same one gives the same text, whatever the other rows are.

    Yields:
        Pieces of text, in the order in which they become certain.

    Raises:
        ValueError: a seed is out of its range, or the model has diverged.
    """
    check_seeds(seeds)
    context_length = model.config.context_length
    for size in sorted({len(prompt_ids) for prompt_ids in prompts if len(prompt_ids) + 1 > context_length}):
        log.warning(
            "a prompt has %d tokens and the context holds %d: its last %d are read",
            size,
            context_length,
            _half(context_length),
        )
    rows = [
        _Row(number, prompt_ids, tokenizer, request, seed)
        for number, (prompt_ids, seed) in enumerate(zip(prompts, seeds, strict=True))
    ]
    for row in rows:
        if row.finish_reason:
            yield Piece(row.number, "", row.continuation())
    rows = [row for row in rows if not row.finish_reason]
    next_logits = _cached(model, rows, request.max_new_tokens) if request.use_cache else _uncached(model, rows)
    modules = list(model.modules())
    while rows:
        # Entered for each step, so that whoever stops reading leaves the model as it was. The second mode also spares
        # torch its own bookkeeping of views and versions: a twentieth of a token's time.
        with inference(model, modules), torch.inference_mode():
            logits = next(next_logits)
        pieces = [(row, row.draw(row_logits)) for row, row_logits in zip(rows, logits, strict=True)]
        for row, text in pieces:
            if row.finish_reason:
                yield Piece(row.number, text, row.continuation())
            elif text:
                yield Piece(row.number, text)
        rows[:] = [row for row in rows if not row.finish_reason]


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse seeds that a generator does not take.

    Raises:
        ValueError: one is out of its range.
    """
    for seed in seeds:
        if not 0 <= seed < 2**63:
            raise UserError(f"--seed is {seed}; it must be at least 0 and below 2**63")


def _half(context_length: int) -> int:
    return context_length // 2 or 1


def _forget_older_half(row: _Row, context_length: int) -> bool:
    """Shorten a window that is longer than the context; returns whether it was."""
    if len(row.window) <= context_length:
        return False
    row.window = row.window[-_half(context_length) :]
    return True


def _uncached(model: GPT, rows: list[_Row]) -> Iterator[list[Tensor]]:
    """The reference: each row's whole window, by itself, for each token. Rows that end leave the list."""
    device = model.head_weight.device
    while True:
        logits = []
        for row in rows:
            _forget_older_half(row, model.config.context_length)
            logits.append(model.logits(model.transformer(torch.tensor([row.window], device=device))[0, -1]))
        yield logits


def _cached(model: GPT, rows: list[_Row], max_new_tokens: int) -> Iterator[list[Tensor]]:
    """Prefill all rows together, then one token of each at a time. Rows that end leave the list, and the cache."""
    config, device = model.config, model.head_weight.device
    for row in rows:
        _forget_older_half(row, config.context_length)
    room = max(len(row.window) for row in rows) + max_new_tokens
    cache = KVCache(config, len(rows), device, model.head_weight.dtype, room)
    hidden = prefill(model, cache, [row.window for row in rows])
    held, step = list(rows), one_token_step(model)
    while True:
        yield list(model.logits(hidden))
        if len(rows) < len(held):
            cache.keep([number for number, row in enumerate(held) if row in rows])
            held = list(rows)
        for number, row in enumerate(rows):
            if _forget_older_half(row, config.context_length):
                if len(row.window) > 1:
                    prefill(model, cache.row(number), [row.window[:-1]])
                cache.lengths[number] = len(row.window) - 1
        tokens = torch.tensor([row.window[-1:] for row in rows], device=device)  # (B, 1)
        hidden = step(tokens, cache)  # (B, E)
        cache.advance([1] * len(rows))


def prefill(model: GPT, cache: KVCache, windows: list[list[int]]) -> Tensor:
    """Read windows of any lengths in one pass, into an empty cache.

    Returns:
        (B, E): the hidden state of each row's last token.
    """
    lengths = [len(window) for window in windows]
    # At least 2, so that reading a prompt is the same kind of call for every one of them.
    size = min(max(2, *lengths), model.config.context_length)
    # Padded at the end: no token looks ahead, and the cache counts a row's own tokens only.
    padded = [window + [0] * (size - len(window)) for window in windows]
    hidden = model.transformer(torch.tensor(padded, device=model.head_weight.device), cache=cache)  # (B, T, E)
    cache.advance(lengths)
    return hidden[torch.arange(len(lengths)), torch.tensor(lengths) - 1]
