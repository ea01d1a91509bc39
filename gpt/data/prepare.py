"""Documents to token shards: split them by hash, encode them on several threads, write shards and manifest."""

import hashlib
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpt.data.documents import Document, ReadOptions
from gpt.data.encoding import Piece, encode_pieces
from gpt.data.manifest import MANIFEST_NAME, SPLITS, Manifest, SplitTokens
from gpt.data.sources import HUB, read_documents
from gpt.data.split import Plan, Survey, key_of, plan, plan_by_hash_alone, survey
from gpt.data.token_files import Split, SplitWriter, dtype_for
from gpt.errors import UserError
from gpt.files import exclusive, sha256_of_text
from gpt.tokenizer import END_OF_TEXT, Tokenizer

log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 5.0
_UNFINISHED = ".unfinished"  # marks a folder that an interrupted run has written to


@dataclass(frozen=True)
class PrepareOptions:
    """What the user chose about splitting and encoding.

    Args:
        val_fraction: share of the UTF-8 bytes for validation, in (0, 1).
        shard_tokens: most tokens in one shard.
        special_tokens: whether a literal ``<|endoftext|>`` in the text is ordinary ``"text"``, the ``"token"``, or
            an ``"error"``.
        seed: another one chooses other documents for validation.
        streaming: go through the documents once only.

    Raises:
        ValueError: there is no such choice.
    """

    val_fraction: float = 0.1
    shard_tokens: int = 100_000_000
    special_tokens: str = "text"
    seed: int = 0
    streaming: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.val_fraction < 1.0:
            raise UserError(f"--val-fraction is {self.val_fraction}; it must lie between 0 and 1")
        if self.shard_tokens < 1:
            raise UserError(f"--shard-tokens is {self.shard_tokens}; it must be at least 1")
        if self.special_tokens not in ("text", "token", "error"):
            raise UserError(f"--special-tokens is {self.special_tokens!r}; it is text, token or error")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"--seed is {self.seed}; it must be 0 or more, and below 2**63")


def prepare(
    sources: list[str],
    output: Path,
    tokenizer_name: str,
    options: PrepareOptions | None = None,
    reading: ReadOptions | None = None,
    workers: int = 1,
) -> tuple[Manifest, bool]:
    """Turn sources into shards and a manifest; if just that is there already, leave it alone.

    The documents are read twice: first to know their hashes and sizes, by which ``split.plan`` chooses the
    validation split, then to encode them. With ``streaming`` the corpus is gone through once: a document's hash alone
    decides, so the fraction holds on average, no document is cut, and a finished folder is trusted, not compared.

    Args:
        sources: as ``read_documents`` takes them.
        output: folder to write into; made if missing.
        tokenizer_name: as ``Tokenizer`` takes it.
        options: how to split and encode.
        reading: how to read.
        workers: threads that encode; what is written does not depend on it.

    Returns:
        The manifest, and whether anything had to be written.

    Raises:
        ValueError: bad sources or options, a split would be empty, or the folder holds something else.
    """
    options, reading = options or PrepareOptions(), reading or ReadOptions()
    if workers < 1:
        raise UserError(f"--workers is {workers}; it must be at least 1")
    tokenizer = Tokenizer(tokenizer_name)
    existing = _existing(output)
    corpus, chosen, found = _choose(sources, options, reading)
    described = {**asdict(options), **asdict(reading)}
    if existing is not None:
        _check_same(output, existing, corpus, tokenizer, described)
        if _complete(output, existing):
            (output / _UNFINISHED).unlink(missing_ok=True)
            return existing, False
    output.mkdir(parents=True, exist_ok=True)
    with exclusive(output, f"another process is writing to {output}; wait for it, or stop it"):
        if _existing(output) != existing:  # reading may have taken hours
            raise UserError(f"another process has written to {output} meanwhile; run this again, or choose another")
        (output / _UNFINISHED).touch()
        _remove_shards(output)
        documents = read_documents(sources, reading)
        try:
            splits = _write_splits(documents, output, tokenizer, options, chosen, found, workers)
        except ValueError:  # the same again would come to the same end
            if existing is None:
                _remove_shards(output)
                (output / _UNFINISHED).unlink()
                with suppress(OSError):  # something else has come into it
                    output.rmdir()
            raise
        manifest = Manifest.of(tokenizer, splits, corpus, sources, described)
        manifest.save(output)
        (output / _UNFINISHED).unlink()
    return manifest, True


def _choose(sources: list[str], options: PrepareOptions, reading: ReadOptions) -> tuple[str, Plan, Survey | None]:
    """A hash of the corpus, what is validation, and what a first reading has found, if there was one."""
    if options.streaming:
        return sha256_of_text("\n".join(sources)), plan_by_hash_alone(options.val_fraction), None
    if any(source.startswith(HUB) and not Path(source.removeprefix(HUB)).is_dir() for source in sources):
        log.info("the Hub's dataset is read twice, first for its hashes; --streaming reads it once")
    found = survey(_reported(read_documents(sources, reading)), options.seed)
    return found.corpus_sha256, plan(found, options.val_fraction, read_documents(sources, reading)), found


def _existing(output: Path) -> Manifest | None:
    """The manifest in the folder, or None where we may write; never touches a file that we did not make."""
    if output.exists() and not output.is_dir():
        raise UserError(f"--output {output} is a file; name a folder")
    if (output / MANIFEST_NAME).exists():
        try:
            return Manifest.load(output)
        except ValueError as error:
            raise UserError(f"{error}; if {output} is not needed, delete it and run this again") from None
    # What an interrupted run leaves is written again, to the same bytes.
    if output.is_dir() and any(output.iterdir()) and not (output / _UNFINISHED).exists():
        raise UserError(
            f"--output {output} is not empty (it holds {min(output.iterdir()).name}); choose another folder"
        )
    return None


def _check_same(output: Path, existing: Manifest, corpus: str, tokenizer: Tokenizer, described: dict[str, Any]) -> None:
    """Refuse to write over what was prepared from anything else."""
    same = {
        "text": existing.corpus_sha256 == corpus,
        "tokenizer": existing.tokenizer_sha256 == tokenizer.sha256,
        **{f"--{key.replace('_', '-')}": existing.options.get(key) == value for key, value in described.items()},
    }
    if others := [name for name, equal in same.items() if not equal]:
        raise UserError(
            f"{output} holds data prepared from other sources or options ({', '.join(others)}); delete it or "
            "choose another --output"
        )


def _complete(output: Path, manifest: Manifest) -> bool:
    try:
        for split in manifest.splits:
            SplitTokens(output, manifest, split).check_bytes()
    except ValueError as error:
        log.warning("%s", error)
        return False
    return True


def _remove_shards(output: Path) -> None:
    """Clear away what an earlier run left: other options may have made more shards."""
    for split in SPLITS:
        for path in output.glob(f"{split}_[0-9][0-9][0-9][0-9][0-9][0-9].bin"):
            path.unlink()


def _write_splits(
    documents: Iterable[Document],
    output: Path,
    tokenizer: Tokenizer,
    options: PrepareOptions,
    chosen: Plan,
    found: Survey | None,
    workers: int,
) -> dict[str, Split]:
    dtype = dtype_for(tokenizer.vocab_size)
    progress = _Progress(found.utf8_bytes if found else None)
    with ExitStack() as stack:
        writers = {name: SplitWriter(output, name, dtype, options.shard_tokens, tokenizer.eot_id) for name in SPLITS}
        for writer in writers.values():
            stack.callback(writer.leave)
        pieces = _pieces(documents, tokenizer, options, chosen, found)
        for encoded in encode_pieces(pieces, tokenizer, options.special_tokens == "token", workers):
            for name, tokens in encoded.tokens.items():
                writers[name].add(tokens, encoded.utf8_bytes[name])
            progress.add(sum(encoded.utf8_bytes.values()))
        for name, writer in writers.items():
            if writer.tokens < 2:
                raise UserError(
                    f"split {name} needs at least 2 tokens and got {writer.tokens} of "
                    f"{sum(writer.tokens for writer in writers.values())}; give more documents, leave out --streaming, "
                    "or choose another --val-fraction or --seed"
                )
        return {name: writer.finish() for name, writer in writers.items()}


def _pieces(
    documents: Iterable[Document], tokenizer: Tokenizer, options: PrepareOptions, chosen: Plan, found: Survey | None
) -> Iterator[Piece]:
    number = -1
    for number, document in enumerate(documents):
        if found is None:
            digest, size = document.measure()
            key = key_of(digest, options.seed)
            if size == 0:
                log.warning("left out %s, which is empty", document.name)
        elif number == len(found.keys):
            break
        else:
            key, size = found.keys[number], found.sizes[number]
        seen = hashlib.sha256()
        for split, chunks in chosen.parts(key, size, document):
            begins = True
            for text in tokenizer.pieces(chunks):
                if options.special_tokens == "error" and END_OF_TEXT in text:
                    raise UserError(
                        f"{document.name} holds a literal {END_OF_TEXT}; --special-tokens text takes it for ordinary "
                        "characters, --special-tokens token for the end of a document"
                    )
                yield Piece(split, begins, text, document.name)
                begins = False
                seen.update(text.encode())
        if key_of(seen.digest(), options.seed) != key:
            raise UserError(f"{document.name} changed while it was read; run this again")
    if found is not None and number + 1 != len(found.keys):
        raise UserError("the sources changed while they were read; run this again")


class _Progress:
    """Says now and then how far the work is, and how fast."""

    def __init__(self, total: int | None) -> None:
        self._total, self._done = total, 0
        self._started = time.monotonic()
        self._due = self._started + _PROGRESS_SECONDS

    def add(self, utf8_bytes: int) -> None:
        """Count what was just done."""
        self._done += utf8_bytes
        now = time.monotonic()
        if now < self._due:
            return
        rate = self._done / (now - self._started)
        of = f" of {self._total / 1e6:.0f}" if self._total else ""
        left = f", {(self._total - self._done) / rate:.0f} s left" if self._total else ""
        log.info("encoded %.0f%s MB, %.1f MB/s%s", self._done / 1e6, of, rate / 1e6, left)
        self._due = now + _PROGRESS_SECONDS


def _reported(documents: Iterable[Document]) -> Iterator[Document]:
    """The same documents, with a word now and then: of a large corpus, the first reading takes its time too."""
    due = time.monotonic() + _PROGRESS_SECONDS
    for number, document in enumerate(documents):
        if (now := time.monotonic()) > due:
            log.info("read %d documents", number)
            due = now + _PROGRESS_SECONDS
        yield document
