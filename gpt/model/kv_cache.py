"""KV cache: keys and values of the tokens read so far.

Shape letters: L layers, B batch, H heads, T new tokens, S keys (longest length + T), D head_dim.
"""

import torch
from torch import Tensor

from gpt.model.config import GPTConfig


class KVCache:
    """Preallocated KV cache with a length per sequence; an argument of ``Transformer``'s call, never module state.

    Prompts are prefilled (read in one call), padded at the end to one length. ``append`` stores keys and values of the
    padding too, but ``advance`` counts real tokens only: the next tokens overwrite them, and ``mask`` hides the rest.
    ``max_length``, the most tokens of a sequence, is at most the context length, which is the default.
    """

    def __init__(
        self,
        config: GPTConfig,
        batch_size: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        max_length: int | None = None,
    ) -> None:
        head_dim = config.d_model // config.num_heads
        max_length = min(max_length or config.context_length, config.context_length)
        shape = (config.num_layers, batch_size, config.num_heads, max_length, head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)  # (L, B, H, max_length, D)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.lengths = [0] * batch_size

    def sequence(self, index: int) -> "KVCache":
        """An empty cache on one sequence's memory, to prefill that again; then set ``lengths[index]`` of this cache."""
        part = object.__new__(KVCache)
        part.keys, part.values = self.keys[:, index : index + 1], self.values[:, index : index + 1]
        part.lengths = [0]
        return part

    def compact(self, indices: list[int]) -> None:
        """Keep only these sequences, in increasing order, compacting the cache in place."""
        for target, source in enumerate(indices):
            if target != source:  # targets are in front of sources, so none is overwritten before it has moved
                used = slice(self.lengths[source])
                for stored in (self.keys, self.values):
                    stored[:, target, :, used] = stored[:, source, :, used]
        self.keys, self.values = self.keys[:, : len(indices)], self.values[:, : len(indices)]
        self.lengths = [self.lengths[index] for index in indices]

    def positions(self, T: int) -> Tensor:
        """Position of each of T new tokens in its sequence: (B, T), int64."""
        start = torch.tensor(self.lengths, device=self.keys.device)
        return start[:, None] + torch.arange(T, device=self.keys.device)

    def mask(self, T: int) -> Tensor | None:
        """Mask for T new tokens: (B, 1, T, S), bool; None if the cache is empty, or for one token and equal lengths."""
        end = max(self.lengths) + T
        assert end <= self.keys.shape[3], f"{end} tokens do not fit into a cache of {self.keys.shape[3]}"
        if len(set(self.lengths)) == 1 and (T == 1 or self.lengths[0] == 0):
            return None
        key_positions = torch.arange(end, device=self.keys.device)
        return (key_positions <= self.positions(T)[:, :, None])[:, None]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values of new tokens, (B, H, T, D), after ``lengths``; return the layer's, (B, H, S, D)."""
        T, shortest, longest = keys.shape[2], min(self.lengths), max(self.lengths)
        all_keys, all_values = self.keys[layer, :, :, : longest + T], self.values[layer, :, :, : longest + T]
        if shortest == longest:
            all_keys[:, :, longest:] = keys
            all_values[:, :, longest:] = values
        else:
            for index, length in enumerate(self.lengths):
                all_keys[index, :, length : length + T] = keys[index]
                all_values[index, :, length : length + T] = values[index]
        return all_keys, all_values

    def advance(self, counts: list[int]) -> None:
        """Count the new tokens of each sequence, without padding, after all layers have appended them."""
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]
