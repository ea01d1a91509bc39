"""Prepare data: split documents by hash, encode them on several threads, write shards and a manifest."""

import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from itertools import groupby, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from gpt.data.documents import Document, PrepareOptions, counted
from gpt.data.encoding import EncodedBatch, TextChunk, chunk_text, encode_chunks
from gpt.data.manifest import MANIFEST_NAME, SPLITS, Manifest, SplitTokens
from gpt.data.sources import HUB, find_sources, read_documents
from gpt.data.split import CorpusStats, SplitPlan, measure_corpus, plan_split, split_key
from gpt.data.token_files import Split, SplitWriter
from gpt.data.train_tokenizer import sample, train_tokenizer
from gpt.errors import UserError
from gpt.files import exclusive
from gpt.tokenizer import END_OF_TEXT, Tokenizer

log = logging.getLogger(__name__)

T = TypeVar("T")
KeyedDocument = tuple[Document, int, int]  # with its split key and its size in bytes

_UNFINISHED = ".unfinished"  # marks the folder of an incomplete run


def prepare(
    sources: list[str],
    output: Path,
    tokenizer: str | Tokenizer = "gpt2",
    options: PrepareOptions | None = None,
    workers: int = 1,
) -> tuple[Manifest, bool]:
    """Write the shards and the manifest of the sources; returns the manifest, and False if all was there already.

    Two passes over the documents hash and measure them for ``plan_split`` and encode them. With ``streaming`` there
    is one: the hash alone decides, so ``val_fraction`` holds on average and no document is divided; complete
    data is not compared with the text. The result does not depend on the number of workers (threads that encode).
    With ``train_tokenizer`` the tokenizer is trained on a sample of the training split instead of given.
    """
    options = options or PrepareOptions()
    if workers < 1:
        raise UserError(f"workers is {workers}; expected at least 1")
    trained = None
    if not options.train_tokenizer:
        trained = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer(tokenizer)
    existing = _load_existing(output)
    found = find_sources(sources)
    corpus_sha256, plan, stats = _plan(sources, read_documents(found, options), options)
    if existing is not None:
        wanted = {"text": corpus_sha256, "tokenizer": trained and trained.sha256, **asdict(options)}
        if _is_complete(output, existing, wanted):
            (output / _UNFINISHED).unlink(missing_ok=True)
            return existing, False
    output.mkdir(parents=True, exist_ok=True)
    with exclusive(output, f"another process is writing to {output}; wait for it, or stop it"):
        if _load_existing(output) != existing:  # the first pass may have taken hours
            raise UserError(f"another process has written to {output}; run the command again, or choose another folder")
        (output / _UNFINISHED).touch()
        _remove_shards(output)
        try:
            documents = partial(_chunk_documents, found, options, plan, stats)
            total_bytes = sum(stats.sizes) if stats else math.inf
            trained, splits = _encode(documents, total_bytes, trained, output, options, workers)
        except UserError:  # leave nothing to continue: the same command would fail again
            if existing is None:
                _remove_shards(output)
                (output / _UNFINISHED).unlink()
                with suppress(OSError):  # the folder has other files
                    output.rmdir()
            raise
        manifest = Manifest.of(trained, splits, corpus_sha256, sources=tuple(sources), options=asdict(options))
        manifest.save(output, trained)
        (output / _UNFINISHED).unlink()
    return manifest, True


def _encode(
    read_chunks: Callable[[str | None], Iterator[TextChunk]],
    total_bytes: float,
    tokenizer: Tokenizer | None,
    output: Path,
    options: PrepareOptions,
    workers: int,
) -> tuple[Tokenizer, dict[str, Split]]:
    """Train a tokenizer if there is none, encode all chunks, and write the shards."""
    tokenizer = tokenizer or _train_tokenizer(read_chunks("gpt2"), options, total_bytes)
    chunks = _log_hints(read_chunks(tokenizer.pattern_family), options.special_tokens)
    batches = encode_chunks(chunks, tokenizer, options.special_tokens == "token", workers)
    batches = _log_progress(batches, _megabytes, "MB encoded", total_bytes / 1e6)
    return tokenizer, _write_splits(batches, output, tokenizer, options.shard_tokens)


def _load_existing(output: Path) -> Manifest | None:
    """Manifest of the folder, None if the folder is new or its run was interrupted; refuses a folder of other files."""
    if output.exists() and not output.is_dir():
        raise UserError(f"output {output} is a file; expected a folder")
    if (output / MANIFEST_NAME).exists():
        try:
            return Manifest.load(output)
        except UserError as error:
            raise UserError(f"{error}; if {output} is not needed, delete it and run the command again") from None
    if output.is_dir() and any(output.iterdir()) and not (output / _UNFINISHED).exists():
        raise UserError(f"output {output} is not empty (it has {min(output.iterdir()).name}); choose another folder")
    return None


def _plan(
    sources: list[str], documents: Iterator[Document], options: PrepareOptions
) -> tuple[str, SplitPlan, CorpusStats | None]:
    """Hash of the corpus, plan of the split, and, unless streaming, statistics of a first pass."""
    if options.streaming:
        plan = SplitPlan(val_below=int(options.val_fraction * 2**64))  # that fraction of all possible keys
        return hashlib.sha256("\n".join(sources).encode()).hexdigest(), plan, None
    stats = measure_corpus(_log_progress(documents, lambda _: 1, "documents read"), options.seed)
    if any(source.startswith(HUB) and not Path(source.removeprefix(HUB)).is_dir() for source in sources):
        log.info("the Hub's dataset is read a second time, to encode it; streaming reads it once")
    return stats.corpus_sha256, plan_split(stats, options.val_fraction), stats


def _is_complete(output: Path, existing: Manifest, wanted: dict[str, Any]) -> bool:
    """Whether the shards are those of the manifest; refuses to overwrite data of another text, tokenizer or options."""
    found = {**asdict(PrepareOptions()), **existing.options}  # older data has fewer options
    found |= {"text": existing.corpus_sha256, "tokenizer": wanted["tokenizer"] and existing.tokenizer_sha256}
    if different := [name for name, value in wanted.items() if found.get(name) != value]:
        raise UserError(f"{output} has data of other sources or options ({', '.join(different)}); delete it first")
    try:
        existing.open_tokenizer(output)
        for split in existing.splits:
            SplitTokens(output, existing, split).check_bytes()
    except UserError as error:
        log.warning("%s", error)
        return False
    return True


def _remove_shards(output: Path) -> None:
    """Delete the shards of an earlier run, which may be more than this one's."""
    for split in SPLITS:
        for path in output.glob(f"{split}_[0-9][0-9][0-9][0-9][0-9][0-9].bin"):
            path.unlink()


def _with_keys(documents: Iterable[Document], stats: CorpusStats | None, seed: int) -> Iterator[KeyedDocument]:
    """Add keys and sizes, those of the first pass or, if there was none, measured now."""
    if stats is None:
        for document in documents:
            digest, size = document.measure()
            yield document, split_key(digest, seed), size
    else:
        for document, key, size in zip_longest(documents, stats.keys, stats.sizes):
            if document is None or key is None:
                raise UserError("the sources changed while they were read; run the command again")
            yield document, key, size


def _train_tokenizer(chunks: Iterable[TextChunk], options: PrepareOptions, total_bytes: float) -> Tokenizer:
    texts = (chunk.text for chunk in chunks if chunk.split == "train")
    if options.special_tokens == "token":
        texts = (part for text in texts for part in text.split(END_OF_TEXT))
    started = time.monotonic()
    tokenizer = train_tokenizer(sample(texts, total_bytes * (1 - options.val_fraction)), options.train_tokenizer)
    log.info("trained a vocabulary of %d ids in %.1f s", tokenizer.vocab_size, time.monotonic() - started)
    return tokenizer


def _chunk_documents(
    sources: list[str | Path],
    options: PrepareOptions,
    plan: SplitPlan,
    stats: CorpusStats | None,
    pattern_family: str | None,
) -> Iterator[TextChunk]:
    """Read all documents and cut them into chunks."""
    empty: list[str] = []
    for document, key, size in _with_keys(read_documents(sources, options), stats, options.seed):
        digest = hashlib.sha256()
        if size == 0:
            empty.append(document.name)
        for split, blocks in groupby(plan.assign(key, size, document), key=itemgetter(0)):
            for number, text in enumerate(chunk_text(map(itemgetter(1), blocks), pattern_family)):
                if options.special_tokens == "error" and END_OF_TEXT in text:
                    raise UserError(f"{document.name} has a literal {END_OF_TEXT}; set special_tokens to text or token")
                yield TextChunk(split, number == 0, text, document.name)
                digest.update(text.encode())
        if split_key(digest.digest(), options.seed) != key:
            raise UserError(f"{document.name} changed while it was read; run the command again")
    if empty:
        log.warning("skipped %s, the first of them %s", counted(len(empty), "empty document"), empty[0])


def _log_hints(chunks: Iterable[TextChunk], special_tokens: str) -> Iterator[TextChunk]:
    """Pass the chunks on; log one hint at the first NUL character, and one at the first literal end-of-text."""
    hints = {"\0": "contains NUL characters; is it text?"}
    if special_tokens == "text":
        remedy = "set special_tokens to token to make it a boundary between documents"
        hints[END_OF_TEXT] = f"contains {END_OF_TEXT}, which is encoded as ordinary text; {remedy}"
    for chunk in chunks:
        for mark in [mark for mark in hints if mark in chunk.text]:
            log.warning("%s %s", chunk.document, hints.pop(mark))
        yield chunk


def _write_splits(
    batches: Iterable[EncodedBatch], output: Path, tokenizer: Tokenizer, shard_tokens: int
) -> dict[str, Split]:
    with ExitStack() as stack:
        writers = {split: stack.enter_context(SplitWriter(output, split, tokenizer, shard_tokens)) for split in SPLITS}
        for batch in batches:
            for split, (tokens, utf8_bytes) in batch.items():
                writers[split].write(tokens, utf8_bytes)
        for split, writer in writers.items():
            if writer.tokens < 2:
                raise UserError(
                    f"split {split} has {writer.tokens} of {sum(writer.tokens for writer in writers.values())} tokens; "
                    "expected at least 2. Give more documents, do not stream, or change val_fraction or seed"
                )
        return {split: writer.finish() for split, writer in writers.items()}


def _megabytes(batch: EncodedBatch) -> float:
    return sum(utf8_bytes for _, utf8_bytes in batch.values()) / 1e6


def _log_progress(items: Iterable[T], size: Callable[[T], float], what: str, total: float = math.inf) -> Iterator[T]:
    """Log the amount done, the rate, and, if the total is known, the time left, every five seconds."""
    started = logged = time.monotonic()
    done = 0.0
    for item in items:
        yield item
        done += size(item)
        if (now := time.monotonic()) - logged >= 5.0:
            logged, rate = now, done / (now - started)
            left = f", {(total - done) / rate:.0f} s left" if math.isfinite(total) else ""
            log.info("%.0f %s, %.1f per second%s", done, what, rate, left)
