"""Checkpoint files: what they hold, and loading their weights safely, without importing lightning.

A ``.ckpt`` is the file that Lightning writes: ``state_dict`` (keys ``model.*``), ``hyper_parameters`` with the model's
shape and the tokenizer's name as plain values, ``format_version``, and the state of optimizer and loops, which only
training reads.
"""

import pickle
import re
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gpt.errors import UserError
from gpt.files import atomic_write
from gpt.huggingface import CONFIG, read_pretrained
from gpt.model.config import GPTConfig
from gpt.model.transformer import GPT
from gpt.tokenizer import Tokenizer

FORMAT_VERSION = 2
BEST, LAST = "best.ckpt", "last.ckpt"
_PREFIX = "model."
_HUB_NAME = re.compile(r"(?!checkpoints/)[\w-]+/[\w.-]+(?<!\.ckpt)|(distil)?gpt2(-medium|-large|-xl)?")


def find_checkpoint(path: str | Path) -> Path:
    """The file itself, or of a run folder ``best.ckpt``, else ``last.ckpt``."""
    path = Path(path)
    for file in (path, path / BEST, path / LAST):
        if file.is_file():
            return file
    if path.is_dir():
        raise UserError(f"folder {path} has neither {BEST} nor {LAST}; give the folder of a run that has saved")
    raise UserError(f"there is no checkpoint {path}; give a run folder, a .ckpt file, a Hugging Face folder or name")


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a run folder or ``.ckpt`` file, memory-mapped: tensors that are not used are not read from disk.

    Unpickles only tensors and plain values, so a hostile file runs no code.
    """
    file = find_checkpoint(path)
    if not zipfile.is_zipfile(file):  # nor is a truncated file
        raise UserError(f"{file} is not a checkpoint, or is damaged; give one that train.py wrote")
    try:
        content = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise UserError(f"{file} cannot be loaded safely: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict) or "format_version" not in content:
        raise UserError(f"{file} is not a checkpoint of this project (it has no format_version)")
    if content["format_version"] != FORMAT_VERSION:
        raise UserError(f"{file} has format {content['format_version']!r}; export it with the code that wrote it")
    return content


def load_model(path: str | Path, device: str | torch.device = "cpu") -> tuple[GPT, Tokenizer]:
    """Load a model, in eval mode, and its tokenizer.

    From a run folder, a ``.ckpt`` file, a Hugging Face folder, or the name of a GPT-2 on its Hub.
    """
    if is_huggingface(path):
        config, weights, tokenizer = read_pretrained(str(path))
    else:
        content = read_checkpoint(path)
        try:
            config = GPTConfig(**content["hyper_parameters"]["model"])
            tokenizer = Tokenizer(content["hyper_parameters"]["tokenizer"])
            weights = {name.removeprefix(_PREFIX): tensor for name, tensor in content["state_dict"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is not a checkpoint of this project: {error!r}") from None
    if tokenizer.vocab_size != config.vocab_size:
        raise UserError(
            f"{path} has {config.vocab_size} token ids and its tokenizer {tokenizer.name!r} {tokenizer.vocab_size}"
        )
    with torch.device("meta"), _SkipInitialisation():  # the weights are replaced at once
        model = GPT(config)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise UserError(f"the weights of {path} do not fit its config: {reason[:300]}") from None
    return model.to(device).requires_grad_(False).eval(), tokenizer


class _SkipInitialisation(TorchFunctionMode):
    """Skips random initialisation, which on the meta device would import torch's compiler for 2 seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init" or func is torch.Tensor.normal_:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def is_huggingface(path: str | Path) -> bool:
    """Whether a path is a Hugging Face folder, or does not exist and looks like a name on the Hub."""
    path = Path(path)
    return (path / CONFIG).is_file() or (not path.exists() and _HUB_NAME.fullmatch(str(path)) is not None)


def write_model(path: Path, config: GPTConfig, weights: Mapping[str, torch.Tensor], tokenizer: Tokenizer) -> None:
    """Write a model without training state to a ``.ckpt`` file, from weights named as in the model's state_dict."""
    content = {
        "state_dict": {_PREFIX + name: tensor for name, tensor in weights.items()},
        "hyper_parameters": {"model": asdict(config), "tokenizer": tokenizer.name, "document_mask": False},
        "format_version": FORMAT_VERSION,
    }
    with atomic_write(path) as file:
        torch.save(content, file)


def uses_document_mask(path: str | Path) -> bool:
    """Whether the model was trained with the block-diagonal mask for packed documents."""
    return not is_huggingface(path) and bool(read_checkpoint(path)["hyper_parameters"].get("document_mask", False))


def steps_trained(path: str | Path) -> int:
    """Optimizer steps of the model; 0 if unknown."""
    return 0 if is_huggingface(path) else int(read_checkpoint(path).get("global_step", 0))
