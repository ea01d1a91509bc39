"""Tokenizer files of Hugging Face's folders: compared with this project's tokenizers, and written.

A tokenizer that differs from ours would give a model other ids than it was trained with, so it is refused by name.
"""

import json
import logging
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from gpt.errors import UserError
from gpt.tokenizer import END_OF_TEXT, Tokenizer

log = logging.getLogger(__name__)

TOKENIZER_KEY = "mini_gpt_tokenizer"  # in config.json: name of this project's tokenizer
TOKENIZER_FILES = ("*token*", "*vocab*", "*bpe*", "merges.txt", "*.model")
_SETTINGS = ("special_tokens_map.json", "tokenizer_config.json", "added_tokens.json")
_CLASSES = (None, "GPT2Tokenizer", "GPT2TokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend")
_BPE_OPTIONS = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds a JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
        raise UserError(f"its {path.name} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"its {path.name} is not an object")
    return content


def read_tokenizer(folder: Path, model_config: Mapping[str, Any], vocab_size: int) -> Tokenizer:
    """The tokenizer that a model was trained with, compared with the folder's tokenizer files, if there are any."""
    tokenizer = Tokenizer(model_config.get(TOKENIZER_KEY, "gpt2"))
    names = [path.name for path in folder.iterdir() if path.name not in _SETTINGS]
    files = sorted(name for name in names if any(fnmatch(name, pattern) for pattern in TOKENIZER_FILES))
    special, settings, added = (read_json(folder / name) if (folder / name).is_file() else {} for name in _SETTINGS)
    settings = {**model_config, **special, **settings}
    if (name := settings.get("tokenizer_class")) not in _CLASSES:
        raise UserError(f"its tokenizer is a {name}; only GPT-2's is supported")
    if not files:
        log.warning("%s has no tokenizer files; assuming %s", folder, tokenizer.name)
    elif not {"tokenizer.json", "vocab.json"} & {*files}:
        raise UserError(f"its tokenizer, in {files[0]}, is not supported; only GPT-2's tokenizer.json or vocab.json is")
    else:
        try:
            _compare(folder, settings, added, tokenizer)
        except (KeyError, TypeError, AttributeError):
            raise UserError(f"its tokenizer, in {files[0]}, is not a byte-level BPE tokenizer") from None
    if vocab_size < tokenizer.vocab_size or (vocab_size > tokenizer.vocab_size and not files):
        raise UserError(f"vocab_size is {vocab_size} and tokenizer {tokenizer.name!r} has {tokenizer.vocab_size} ids")
    return tokenizer


def _compare(folder: Path, settings: dict[str, Any], added: dict[str, int], tokenizer: Tokenizer) -> None:
    """Refuse a folder's tokenizer if it differs from ours, except in a pad token, which is in no text."""
    difference = "how it splits text" if settings.get("add_prefix_space") else ""
    if (folder / "tokenizer.json").is_file():
        content = read_json(folder / "tokenizer.json")
        model, pre_tokenizer = content["model"], {"use_regex": True, **content["pre_tokenizer"]}
        tokens = {**model["vocab"], **{token["content"]: token["id"] for token in content.get("added_tokens", [])}}
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        splits = pre_tokenizer["type"], pre_tokenizer["use_regex"], pre_tokenizer["add_prefix_space"]
        is_other = splits != ("ByteLevel", tokenizer.name == "gpt2", False)
        if is_other or any((content.get("normalizer"), *map(model.get, _BPE_OPTIONS))):
            difference = "how it splits text"
    else:
        tokens = read_json(folder / "vocab.json")
        lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
        merges = [line.strip() for line in lines if line.strip() and not line.startswith("#version")]
    ours, pad = _vocabulary(tokenizer), settings.get("pad_token")
    pad = pad["content"] if isinstance(pad, dict) else pad
    different = {token for token, _ in {**tokens, **added}.items() ^ ours.items() if token != pad or pad in ours}
    if different:
        difference = difference or f"token {min(different)!r:.40}"
    elif merges != _merges(tokenizer):
        difference = difference or "its merges"
    if difference:
        raise UserError(f"its tokenizer differs from {tokenizer.name!r} in {difference}, and is not supported")


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """The tokenizer in the format of Hugging Face's ``tokenizers``."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": tokenizer.eot_id, "content": END_OF_TEXT, **special}],
        "pre_tokenizer": {**byte_level, "use_regex": tokenizer.name == "gpt2"},
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": _vocabulary(tokenizer),
            "merges": _merges(tokenizer),  # strings: tokenizers before version 0.20 does not read pairs
        },
    }


def _vocabulary(tokenizer: Tokenizer) -> dict[str, int]:
    return {**{_printable(token): rank for token, rank in tokenizer.ranks.items()}, END_OF_TEXT: tokenizer.eot_id}


def _merges(tokenizer: Tokenizer) -> list[str]:
    return [f"{_printable(left)} {_printable(right)}" for left, right in tokenizer.merges()]


# GPT-2 writes bytes as characters: printable ones as they are, the others from U+0100 on.
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = {byte: 0x100 + n for n, byte in enumerate(sorted({*range(256)} - _PRINTABLE))}


def _printable(token: bytes) -> str:
    return token.decode("latin-1").translate(_OTHERS)
