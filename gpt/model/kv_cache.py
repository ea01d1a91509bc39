"""Keys and values of the tokens read so far, so that the next token costs one token's work.

Shape letters: L layers, B batch, H heads, T new tokens, S tokens in the cache, D head_dim.
"""

import torch
from torch import Tensor

from gpt.model.config import GPTConfig


class KVCache:
    """Room for keys and values of some tokens per row; each row has read its own number of them.

    An argument of the model's call, never its state: whoever generates holds it, and two texts never meet.

    Args:
        batch_size: B.
        device: where the model is.
        dtype: of keys and values.
        room: most tokens that a row will have; the context, if that is less or nothing is said.
    """

    def __init__(
        self,
        config: GPTConfig,
        batch_size: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        room: int | None = None,
    ) -> None:
        head_dim = config.d_model // config.num_heads
        room = min(room or config.context_length, config.context_length)
        shape = (config.num_layers, batch_size, config.num_heads, room, head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)  # (L, B, H, room, D)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.lengths = [0] * batch_size

    def row(self, number: int) -> "KVCache":
        """An empty cache of one row, on the same memory."""
        part = object.__new__(KVCache)
        part.keys, part.values = self.keys[:, number : number + 1], self.values[:, number : number + 1]
        part.lengths = [0]
        return part

    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these, in rising order; the rest closes up, in the same memory."""
        for place, row in enumerate(rows):
            if place != row:  # each row moves forward: none is overwritten before it has moved itself
                read = slice(self.lengths[row])
                for stored in (self.keys, self.values):
                    stored[:, place, :, read] = stored[:, row, :, read]
        self.keys, self.values = self.keys[:, : len(rows)], self.values[:, : len(rows)]
        self.lengths = [self.lengths[row] for row in rows]

    def positions(self, T: int) -> Tensor:
        """Position of each new token in its row: (B, T), int64."""
        start = torch.tensor(self.lengths, device=self.keys.device)
        return start[:, None] + torch.arange(T, device=self.keys.device)

    def mask(self, T: int) -> Tensor | None:
        """Which tokens the T new ones may look at: (B, 1, T, S), bool; None where plain causal attention says it all.

        Raises:
            ValueError: a row would have more tokens than the context.
        """
        end = max(self.lengths) + T
        if end > self.keys.shape[3]:
            raise ValueError(f"{end} tokens are more than the cache has room for ({self.keys.shape[3]})")
        if len(set(self.lengths)) == 1 and (T == 1 or self.lengths[0] == 0):
            return None
        seen = torch.arange(end, device=self.keys.device)
        return (seen <= self.positions(T)[:, :, None])[:, None]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values, (B, H, T, D) each.

        Returns:
            All of the layer's so far, (B, H, S, D) each; what lies beyond a row's own length is to be masked.
        """
        T = keys.shape[2]
        shortest, longest = min(self.lengths), max(self.lengths)
        all_keys, all_values = self.keys[layer, :, :, : longest + T], self.values[layer, :, :, : longest + T]
        if shortest == longest:
            all_keys[:, :, longest:] = keys
            all_values[:, :, longest:] = values
        else:
            for row, length in enumerate(self.lengths):
                all_keys[row, :, length : length + T] = keys[row]
                all_values[row, :, length : length + T] = values[row]
        return all_keys, all_values

    def advance(self, lengths: list[int]) -> None:
        """Count new tokens as read: per row, since of a padded batch only a row's own tokens count."""
        self.lengths = [length + more for length, more in zip(self.lengths, lengths, strict=True)]
