"""Continue prompts: prefill, then decode token by token, each sequence of a batch as if it were alone."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gpt.errors import UserError
from gpt.generation.packed import Model
from gpt.generation.sampling import Sampling, StopFinder
from gpt.model.inference import inference
from gpt.model.kv_cache import KVCache
from gpt.tokenizer import StreamDecoder, Tokenizer

log = logging.getLogger(__name__)

FinishReason = Literal["length", "eos", "stop"]


@dataclass(frozen=True)
class Request:
    """What to generate: stop strings end a sequence and are not part of its text.

    Without the KV cache, the reference for it, the whole context is computed for each token.
    """

    max_new_tokens: int = 100
    sampling: Sampling = field(default_factory=Sampling)
    stops: tuple[str, ...] = ()
    use_cache: bool = True

    def __post_init__(self) -> None:
        if self.max_new_tokens < 0:
            raise UserError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 0")
        StopFinder(self.stops)  # refuses an empty stop string


@dataclass(frozen=True)
class Continuation:
    """Generated text without its prompt; it ends before a stop string, whose ids are part of ``token_ids``."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason


@dataclass(frozen=True)
class Piece:
    """Final text of the sequence with this index; its last piece holds the whole continuation."""

    sequence: int
    text: str
    finished: Continuation | None = None


class SequenceState:
    """State of one sequence being generated."""

    def __init__(
        self, index: int, prompt_ids: Sequence[int], seed: int, model: Model, tokenizer: Tokenizer, request: Request
    ) -> None:
        self.index = index
        self._context_length = model.config.context_length
        self.context = self._drop_older_half([tokenizer.eot_id, *prompt_ids])  # what the model reads
        self._history = list(prompt_ids)  # what the repetition penalty reads
        self._new_ids: list[int] = []
        self._text = ""
        self._generator = torch.Generator().manual_seed(seed)  # its own, so that other sequences do not matter
        self._request, self._eot_id = request, tokenizer.eot_id
        self._decoder, self._stops = StreamDecoder(tokenizer), StopFinder(request.stops)

    def sample(self, logits: Tensor) -> Piece:
        """Append the next token, sampled from (V,) logits; return the text that is final with it."""
        token = self._request.sampling.sample(logits, self._generator, self._history)
        text = ""
        reason: FinishReason | None = "eos" if token == self._eot_id else None
        if reason is None:
            self.context = self._drop_older_half([*self.context, token])
            self._history.append(token)
            self._new_ids.append(token)
            text = self._stops.push(self._decoder.push(token))
            if len(self._new_ids) == self._request.max_new_tokens:
                reason = "length"
        if reason is not None:  # what decoder and stop finder have held back is final
            # A text that was cut ends in whole characters.
            rest = "" if reason == "length" else self._decoder.finish()
            text += self._stops.push(rest) + self._stops.finish()
        if self._stops.found:
            reason = "stop"
        self._text += text
        return Piece(self.index, text, Continuation(self._text, self._new_ids, reason) if reason else None)

    def _drop_older_half(self, context: list[int]) -> list[int]:
        is_too_long = len(context) > self._context_length
        return context[-(self._context_length // 2 or 1) :] if is_too_long else context


def generate(
    model: Model, tokenizer: Tokenizer, prompts: Sequence[Sequence[int]], request: Request, seeds: Sequence[int]
) -> list[Continuation]:
    """Continue prompts, with the arguments of ``stream``; return a continuation per prompt, in their order."""
    pieces = stream(model, tokenizer, prompts, request, seeds)
    finished = {piece.sequence: piece.finished for piece in pieces if piece.finished}
    return [finished[index] for index in range(len(prompts))]


def stream(
    model: Model, tokenizer: Tokenizer, prompts: Sequence[Sequence[int]], request: Request, seeds: Sequence[int]
) -> Iterator[Piece]:
    """Continue prompts of any lengths as one batch, and yield each sequence's text as soon as it is final.

    Each prompt follows an end-of-text token, as every training document does. A sequence whose context is full drops
    the older half and prefills the rest. The model has its own mode again whenever a piece is yielded.

    Args:
        prompts: token ids of each sequence; may be empty.
        seeds: one per sequence; the same seed gives the same text, whatever the rest of the batch is.
    """
    check_seeds(seeds)
    states = [
        SequenceState(index, prompt_ids, seed, model, tokenizer, request)
        for index, (prompt_ids, seed) in enumerate(zip(prompts, seeds, strict=True))
    ]
    sizes = {(len(prompt_ids), len(state.context)) for prompt_ids, state in zip(prompts, states, strict=True)}
    limit = model.config.context_length
    for size, used in sorted(sizes):
        if size >= limit:  # with the end-of-text token before it
            log.warning("a prompt of %d tokens exceeds the context of %d; using its last %d", size, limit, used)
    if request.max_new_tokens == 0:
        yield from (Piece(state.index, "", Continuation("", [], "length")) for state in states)
        return
    next_logits = _cached_logits(model, states, request.max_new_tokens) if request.use_cache else _logits(model, states)
    while states:
        # Entered per token, so that the model has its own mode while the caller holds a piece. inference_mode also
        # skips autograd's bookkeeping of views and versions: a twentieth of a token's time.
        with inference(model), torch.inference_mode():
            logits = next(next_logits)
        pieces = [state.sample(own) for state, own in zip(states, logits, strict=True)]
        yield from (piece for piece in pieces if piece.text or piece.finished)
        states[:] = [state for state, piece in zip(states, pieces, strict=True) if not piece.finished]


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse a seed that ``torch.Generator`` does not take."""
    if wrong := [seed for seed in seeds if not 0 <= seed < 2**63]:
        raise UserError(f"seed is {wrong[0]}; it must be at least 0 and below 2**63")


def _logits(model: Model, states: list[SequenceState]) -> Iterator[list[Tensor]]:
    """Run each sequence's whole context for each token; the caller removes finished sequences."""
    while True:
        contexts = [torch.tensor([state.context], device=model.device) for state in states]  # (1, T) each
        yield [model.logits(model.transformer(context)[0, -1]) for context in contexts]


def _cached_logits(model: Model, states: list[SequenceState], max_new_tokens: int) -> Iterator[list[Tensor]]:
    """Prefill all sequences, then decode one token of each at a time; the caller removes finished sequences."""
    max_length = max(len(state.context) for state in states) + max_new_tokens
    cache = KVCache(model.config, len(states), model.device, model.dtype, max_length)
    hidden = prefill(model, cache, [state.context for state in states])
    while True:
        cached = list(states)
        yield list(model.logits(hidden))
        if len(states) < len(cached):
            cache.compact([index for index, state in enumerate(cached) if state in states])
        for index, state in enumerate(states):
            if len(state.context) <= cache.lengths[index]:  # its older half has been dropped
                prefill(model, cache.sequence(index), [state.context[:-1]])
                cache.lengths[index] = len(state.context) - 1
        token_ids = torch.tensor([state.context[-1:] for state in states], device=model.device)  # (B, 1)
        hidden = model.transformer(token_ids, cache=cache)[:, -1]  # (B, E)
        cache.advance([1] * len(states))


def prefill(model: Model, cache: KVCache, contexts: list[list[int]]) -> Tensor:
    """Read contexts of any lengths in one pass into an empty cache; return each one's last hidden state, (B, E)."""
    lengths = [len(context) for context in contexts]
    # At least 2, so that the kernel for a prompt does not depend on the prompt.
    size = min(max(2, *lengths), model.config.context_length)
    # Padded at the end: attention is causal, and the cache counts a sequence's own tokens only.
    padded = [context + [0] * (size - len(context)) for context in contexts]
    hidden = model.transformer(torch.tensor(padded, device=model.device), cache=cache)  # (B, T, E)
    cache.advance(lengths)
    return hidden[torch.arange(len(lengths)), torch.tensor(lengths) - 1]
