"""Options of data preparation."""

from dataclasses import dataclass

from gpt.errors import UserError

_CHOICES = {
    "special_tokens": ("text", "token", "error"),
    "encoding_errors": ("strict", "replace"),
    "newlines": ("keep", "lf"),
}


@dataclass(frozen=True)
class PrepareOptions:
    """How sources are read, split and encoded; the manifest stores these options."""

    val_fraction: float = 0.1  # of the UTF-8 bytes
    shard_tokens: int = 100_000_000  # maximum per file
    special_tokens: str = "text"  # a literal <|endoftext|> is ordinary "text", the "token", or an "error"
    seed: int = 0  # of the choice of validation documents
    streaming: bool = False  # read the documents only once
    text_column: str = "text"  # of JSON, CSV, Parquet and datasets
    split: str = "train"  # of a dataset
    encoding_errors: str = "strict"  # refuse bytes that are not UTF-8, or "replace" them by U+FFFD
    newlines: str = "keep"  # or normalise them to "lf"

    def __post_init__(self) -> None:
        if not 0.0 < self.val_fraction < 1.0:
            raise UserError(f"val_fraction is {self.val_fraction}; expected a value between 0 and 1")
        if self.shard_tokens < 1:
            raise UserError(f"shard_tokens is {self.shard_tokens}; expected at least 1")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed is {self.seed}; expected a value from 0 to 2**63 - 1")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise UserError(f"{name} is {getattr(self, name)!r}; expected {' or '.join(choices)}")
