"""Documents to token shards: split them by hash, encode them, write shards and manifest."""

import hashlib
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.data.shards import MANIFEST_NAME, Manifest, Shard, Split, SplitTokens, dtype_for, write_shard
from gpt.data.sources import Document, read_documents
from gpt.files import sha256_of_file
from gpt.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 5.0
_UNFINISHED = ".unfinished"  # marks a folder that an interrupted run has written to


@dataclass(frozen=True)
class _Plan:
    """Which documents are validation, and which one, if any, is cut and gives only its end."""

    val_digests: frozenset[bytes]
    cut_digest: bytes | None
    cut: int  # in characters
    corpus_sha256: str
    utf8_bytes: int

    def parts(self, document: Document) -> Iterator[tuple[str, Document]]:
        """The document's pieces, each with its split."""
        if document.digest == self.cut_digest:
            yield "train", Document(document.name, document.text[: self.cut])
            yield "val", Document(document.name, document.text[self.cut :])
        else:
            yield ("val" if document.digest in self.val_digests else "train"), document


def prepare(
    sources: list[str], output: Path, tokenizer_name: str, val_fraction: float = 0.1, shard_tokens: int = 100_000_000
) -> tuple[Manifest, bool]:
    """Turn sources into shards and a manifest; if just that is there already, leave it alone.

    Documents go to validation in the order of their SHA-256 until ``val_fraction`` of the bytes are there, leaving
    out those that would bring more than twice that; so the split depends on no order and no machine. Where that
    yields less than half, because there is one document or one outweighs the rest, the largest gives its end.

    Args:
        sources: as ``read_documents`` takes them; they are read twice.
        output: folder to write into; made if missing.
        tokenizer_name: as ``Tokenizer`` takes it.
        val_fraction: share of the UTF-8 bytes for validation, in (0, 1).
        shard_tokens: most tokens in one shard.

    Returns:
        The manifest, and whether anything had to be written.

    Raises:
        ValueError: bad sources or options, a split would be empty, or the folder holds something else.
    """
    if not 0.0 < val_fraction < 1.0:
        raise ValueError(f"--val-fraction is {val_fraction}; it must lie between 0 and 1")
    if shard_tokens < 1:
        raise ValueError(f"--shard-tokens is {shard_tokens}; it must be at least 1")
    tokenizer = Tokenizer(tokenizer_name)
    plan = _plan(read_documents(sources), val_fraction)
    options = {"val_fraction": val_fraction, "shard_tokens": shard_tokens}
    existing = _existing(output)
    if existing is not None:
        same = (existing.corpus_sha256, existing.tokenizer_sha256, existing.options)
        if same != (plan.corpus_sha256, tokenizer.sha256, options):
            raise ValueError(
                f"{output} holds data prepared from other sources or options; delete it or choose another --output"
            )
        if _complete(output, existing):
            return existing, False
    output.mkdir(parents=True, exist_ok=True)
    (output / _UNFINISHED).touch()
    manifest = Manifest(
        tokenizer=tokenizer.name,
        tokenizer_sha256=tokenizer.sha256,
        vocab_size=tokenizer.vocab_size,
        eot_id=tokenizer.eot_id,
        dtype=dtype_for(tokenizer.vocab_size).name,
        splits=_write_splits(sources, output, tokenizer, plan, shard_tokens),
        corpus_sha256=plan.corpus_sha256,
        sources=tuple(sources),
        options=options,
    )
    manifest.save(output)
    (output / _UNFINISHED).unlink()
    return manifest, True


def _plan(documents: Iterable[Document], val_fraction: float) -> _Plan:
    sizes: dict[bytes, int] = {}  # equal documents count together: they share a split
    largest: Document | None = None
    corpus = hashlib.sha256()
    for document in documents:
        sizes[document.digest] = sizes.get(document.digest, 0) + len(document.utf8)
        corpus.update(document.digest)
        if largest is None or len(document.utf8) > len(largest.utf8):
            largest = document
    assert largest is not None  # read_documents raises rather than yield nothing
    total = sum(sizes.values())
    wanted = val_fraction * total
    chosen: set[bytes] = set()
    chosen_bytes = 0
    for digest in sorted(sizes)[:-1]:  # never the last: training needs a document too
        if chosen_bytes >= wanted:
            break
        if chosen_bytes + sizes[digest] <= 2 * wanted:
            chosen.add(digest)
            chosen_bytes += sizes[digest]
    if chosen_bytes >= wanted / 2:
        return _Plan(frozenset(chosen), None, 0, corpus.hexdigest(), total)
    chosen.discard(largest.digest)
    missing = min(wanted - chosen_bytes, len(largest.utf8) / 2 if len(sizes) > 1 else wanted)
    return _Plan(frozenset(chosen), largest.digest, _cut(largest, missing), corpus.hexdigest(), total)


def _cut(document: Document, val_bytes: float) -> int:
    """Where a document's validation part starts: at the first line start in its last ``val_bytes``, if one is near."""
    head = document.utf8[: len(document.utf8) - round(val_bytes)]
    cut = len(head.decode("utf-8", errors="ignore"))
    next_line = document.text.find("\n", max(0, cut - 1)) + 1
    if 0 < next_line < len(document.text) and next_line - cut < (len(document.text) - cut) / 2:
        cut = next_line
    if not 0 < cut < len(document.text):
        raise ValueError(f"{document.name} is too short to split: {len(document.text)} characters; give more text")
    return cut


def _existing(output: Path) -> Manifest | None:
    """The manifest in the folder, or None where we may write; never touches a file that we did not make."""
    if output.exists() and not output.is_dir():
        raise ValueError(f"--output {output} is a file; name a folder")
    if (output / MANIFEST_NAME).exists():
        try:
            return Manifest.load(output)
        except ValueError as error:
            raise ValueError(f"{error}; if {output} is not needed, delete it and run this again") from None
    # What an interrupted run leaves is written again, to the same bytes.
    if output.is_dir() and any(output.iterdir()) and not (output / _UNFINISHED).exists():
        raise ValueError(
            f"--output {output} is not empty (it holds {min(output.iterdir()).name}); choose another folder"
        )
    return None


def _complete(output: Path, manifest: Manifest) -> bool:
    try:
        for split in manifest.splits:
            SplitTokens(output, manifest, split)
    except ValueError as error:
        log.warning("%s", error)
        return False
    return True


def _write_splits(
    sources: list[str], output: Path, tokenizer: Tokenizer, plan: _Plan, shard_tokens: int
) -> dict[str, Split]:
    writers = {
        name: _SplitWriter(output, name, dtype_for(tokenizer.vocab_size), shard_tokens) for name in ("train", "val")
    }
    done, started = 0, time.monotonic()
    due = started + _PROGRESS_SECONDS
    for document in read_documents(sources):
        for split, part in plan.parts(document):
            tokens = np.append(np.uint32(tokenizer.eot_id), tokenizer.encode_array(part.text))
            writers[split].add(tokens, utf8_bytes=len(part.utf8))
        done += len(document.utf8)
        if (now := time.monotonic()) > due:
            rate = done / (now - started)
            log.info(
                "%d of %d MB, %.1f MB/s, %.0f s left",
                done / 1e6,
                plan.utf8_bytes / 1e6,
                rate / 1e6,
                (plan.utf8_bytes - done) / rate,
            )
            due = now + _PROGRESS_SECONDS
    return {name: writer.finish() for name, writer in writers.items()}


class _SplitWriter:
    """Collects a split's tokens and writes a shard whenever one is full."""

    def __init__(self, folder: Path, split: str, dtype: np.dtype[Any], shard_tokens: int) -> None:
        self._folder, self._split, self._dtype, self._shard_tokens = folder, split, dtype, shard_tokens
        self._pending: list[NDArray[Any]] = []
        self._pending_tokens = self._documents = self._utf8_bytes = 0
        self._shards: list[Shard] = []

    def add(self, tokens: NDArray[Any], utf8_bytes: int) -> None:
        """Add one document: (n,) ids, the end of text first."""
        self._documents += 1
        self._utf8_bytes += utf8_bytes
        tokens = tokens.astype(self._dtype)
        while len(tokens):
            room = self._shard_tokens - self._pending_tokens
            self._pending.append(tokens[:room])
            self._pending_tokens += len(tokens[:room])
            tokens = tokens[room:]
            if self._pending_tokens == self._shard_tokens:
                self._flush()

    def finish(self) -> Split:
        """Write what is left and sum up."""
        if self._pending_tokens:
            self._flush()
        total = sum(shard.tokens for shard in self._shards)
        return Split(total, self._documents, self._utf8_bytes, tuple(self._shards))

    def _flush(self) -> None:
        path = self._folder / f"{self._split}_{len(self._shards):06d}.bin"
        write_shard(path, np.concatenate(self._pending))
        self._shards.append(Shard(path.name, self._pending_tokens, sha256_of_file(path)))
        self._pending, self._pending_tokens = [], 0
