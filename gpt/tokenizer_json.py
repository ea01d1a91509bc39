"""Vocabularies in the format of Hugging Face's ``tokenizers``: tokenizer.json, or vocab.json with merges.txt.

Only byte-level BPE in GPT-2's pattern is read. Any other tokenizer would give a model other ids than it was trained
with, so it is refused, and named.
"""

import json
import logging
import operator
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from gpt.errors import UserError
from gpt.tokenizer import END_OF_TEXT, Tokenizer, Vocabulary

log = logging.getLogger(__name__)

TOKENIZER_JSON = "tokenizer.json"
TOKENIZER_KEY = "mini_gpt_tokenizer"  # in a model's config.json: name of this project's tokenizer
TOKENIZER_FILES = ("*token*", "*vocab*", "*bpe*", "merges.txt", "*.model")
_SETTINGS = ("special_tokens_map.json", "tokenizer_config.json", "added_tokens.json")
_CLASSES = (None, "GPT2Tokenizer", "GPT2TokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend")
_BPE_OPTIONS = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
# Customary special tokens, which are in no text that a GPT-2 reads.
_UNUSED = ("<s>", "</s>", "<pad>", "<unk>", "<mask>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_MAX_IDS = 2**24
_GPT2_SPLITS = {"type": "ByteLevel", "use_regex": True, "add_prefix_space": False}

# GPT-2 writes bytes as characters: printable ones as they are, the others from U+0100 on.
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = {byte: 0x100 + n for n, byte in enumerate(sorted({*range(256)} - _PRINTABLE))}
_BYTES = {chr(_OTHERS.get(byte, byte)): byte for byte in range(256)}


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds a JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # RecursionError: nested too deeply
        raise UserError(f"its {path.name} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"its {path.name} is not an object")
    return content


def read_tokenizer(folder: Path, model_config: Mapping[str, Any], vocab_size: int) -> Tokenizer:
    """The tokenizer of a model in Hugging Face's format: GPT-2's if the folder has no tokenizer files."""
    names = [path.name for path in folder.iterdir() if path.name not in _SETTINGS]
    files = sorted(name for name in names if any(fnmatch(name, pattern) for pattern in TOKENIZER_FILES))
    settings = {**model_config, **read_settings(folder)}
    if (name := settings.get("tokenizer_class")) not in _CLASSES:
        raise UserError(f"its tokenizer is a {name}; only GPT-2's byte-level BPE is supported")
    if not files:
        tokenizer = Tokenizer(model_config.get(TOKENIZER_KEY, "gpt2"))
        log.warning("%s has no tokenizer files; assuming %s", folder, tokenizer.name)
    elif TOKENIZER_JSON in files:
        tokenizer = parse_tokenizer(read_json(folder / TOKENIZER_JSON), settings)
    elif {"vocab.json", "merges.txt"} <= {*files}:
        lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
        merges = [line.strip() for line in lines if line.strip() and not line.startswith("#version")]
        model = {"type": "BPE", "vocab": read_json(folder / "vocab.json"), "merges": merges}
        tokenizer = parse_tokenizer({"model": model, "pre_tokenizer": _GPT2_SPLITS}, settings)
    else:
        raise UserError(f"its tokenizer, in {files[0]}, is not supported; only byte-level BPE in tokenizer.json is")
    if vocab_size < tokenizer.vocab_size or (vocab_size > tokenizer.vocab_size and not files):
        raise UserError(f"vocab_size is {vocab_size} and tokenizer {tokenizer.name!r} has {tokenizer.vocab_size} ids")
    return tokenizer


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of a tokenizer in the files beside it."""
    special, settings, added = (read_json(folder / name) if (folder / name).is_file() else {} for name in _SETTINGS)
    return {**special, **settings, "added_tokens": added}


def parse_tokenizer(content: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> Tokenizer:
    """The tokenizer that the content of a tokenizer.json describes: gpt2 or bytes if it is one of these.

    Args:
        settings: those of the files beside it. Their ``eos_token`` is end-of-text if there is no ``<|endoftext|>``.
    """
    settings = settings or {}
    try:
        model = content["model"]
        if (kind := model.get("type", "BPE")) != "BPE":
            raise UserError(f"its tokenizer is of type {kind}; only byte-level BPE is supported")
        splits_words = _check_splits(content, settings)
        tokens: dict[str, int] = {**model["vocab"], **settings.get("added_tokens", {})}
        tokens |= {token["content"]: token["id"] for token in content.get("added_tokens") or []}
        merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
        merged = {left + right for left, right in merges}
        special = {token: i for token, i in tokens.items() if token not in merged and token not in _BYTES}
        ranks = {_to_bytes(token): i for token, i in tokens.items() if token not in special}
        if len({*tokens.values()}) < len(tokens) or not all(0 <= operator.index(i) < _MAX_IDS for i in tokens.values()):
            raise UserError(f"its vocabulary has an id twice, or one that is not from 0 to {_MAX_IDS}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError("its tokenizer is not a byte-level BPE tokenizer") from None
    settings_tokens = {_content(value) for name, value in settings.items() if name.endswith("_token")}
    if unknown := special.keys() - settings_tokens - {END_OF_TEXT, *_UNUSED}:
        raise UserError(f"its tokenizer has the special token {min(unknown)!r:.40}, which is not supported")
    for name in ("gpt2", "bytes"):
        known = Tokenizer(name)
        is_end = special.get(END_OF_TEXT, known.eot_id) == known.eot_id
        if ranks == known.ranks and is_end and splits_words is (name == "gpt2"):
            return _with_same_merges(known, merges)
    if len(ranks) < 256 or not splits_words:
        raise UserError("its tokenizer is not a byte-level BPE tokenizer that splits text as GPT-2's")
    return _with_same_merges(Tokenizer(Vocabulary(ranks, _end_of_text_first(special, settings))), merges)


def _content(token: Any) -> str | None:
    """The text of a token in the settings."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _check_splits(content: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether text is split into words, by GPT-2's pattern; refuses any other way."""
    pre_tokenizer = content["pre_tokenizer"]
    if pre_tokenizer["type"] == "Sequence" and len(pre_tokenizer["pretokenizers"]) == 1:
        (pre_tokenizer,) = pre_tokenizer["pretokenizers"]
    pre_tokenizer = _GPT2_SPLITS | pre_tokenizer
    is_other = (
        pre_tokenizer["type"] != "ByteLevel" or pre_tokenizer["add_prefix_space"] or settings.get("add_prefix_space")
    )
    if is_other or content.get("normalizer") or any(map(content["model"].get, _BPE_OPTIONS)):
        raise UserError("its tokenizer differs from GPT-2's in how it splits text, and is not supported")
    return bool(pre_tokenizer["use_regex"])


def _end_of_text_first(special: dict[str, int], settings: Mapping[str, Any]) -> dict[str, int]:
    """The special tokens, end-of-text first: ``<|endoftext|>``, else the eos token, else the only one."""
    eos = _content(settings.get("eos_token", settings.get("bos_token")))
    candidates = [END_OF_TEXT, eos, *(special if len(special) == 1 else ())]
    end = next((token for token in candidates if token in special), None)
    if end is None:
        raise UserError(f"its tokenizer has no {END_OF_TEXT} and names no eos_token among its special tokens")
    return {end: special[end], **special}


def _with_same_merges(tokenizer: Tokenizer, merges: list[tuple[str, ...]]) -> Tokenizer:
    """The tokenizer, if tiktoken, which merges by rank, merges as this list does."""
    if [tuple(map(_printable, pair)) for pair in tokenizer.merges()] != merges:
        raise UserError(f"its tokenizer differs from {tokenizer.name!r} in its merges, and is not supported")
    return tokenizer


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """The content of the tokenizer.json of a tokenizer."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = tokenizer.vocabulary.special_tokens if tokenizer.vocabulary else {END_OF_TEXT: tokenizer.eot_id}
    return {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": token, **flags} for token, i in special.items()],
        "pre_tokenizer": {**byte_level, "use_regex": tokenizer.name != "bytes"},
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {**{_printable(token): rank for token, rank in tokenizer.ranks.items()}, **special},
            # Strings: tokenizers before version 0.20 does not read pairs.
            "merges": [f"{_printable(left)} {_printable(right)}" for left, right in tokenizer.merges()],
        },
    }


def _printable(token: bytes) -> str:
    return token.decode("latin-1").translate(_OTHERS)


def _to_bytes(token: str) -> bytes:
    return bytes(_BYTES[character] for character in token)
