"""GPT-2 as Hugging Face stores it: its names and layouts to ours and back, its config, its tokenizer.

A folder holds ``config.json``, ``model.safetensors`` and ``tokenizer.json``. The weights are the same numbers under
other names; the matrices of the blocks lie transposed there (its Conv1D is (in, out), a Linear is (out, in)).
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt.errors import UserError
from gpt.files import atomic_write
from gpt.model.config import GPTConfig
from gpt.tokenizer import END_OF_TEXT, Tokenizer

log = logging.getLogger(__name__)

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_TOKENIZER_KEY = "mini_gpt_tokenizer"  # in config.json: which tokenizer of ours
_PREFIX = "transformer."

# Ours, theirs, whether transposed.
_OUTSIDE = {
    "transformer.token_embedding.weight": "wte.weight",
    "transformer.position_embedding.weight": "wpe.weight",
    "transformer.final_norm.weight": "ln_f.weight",
    "transformer.final_norm.bias": "ln_f.bias",
}
_IN_BLOCK = {
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out_proj": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.fc_in": "mlp.c_fc",
    "mlp.fc_out": "mlp.c_proj",
}
# What a config may say besides sizes: these values, or nothing, since others are another computation.
_COMPUTED = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}


def _pairs(num_layers: int) -> dict[str, str]:
    """Our name to theirs, for every weight."""
    names = dict(_OUTSIDE)
    for layer in range(num_layers):
        for ours, theirs in _IN_BLOCK.items():
            for kind in ("weight", "bias"):
                names[f"transformer.blocks.{layer}.{ours}.{kind}"] = f"h.{layer}.{theirs}.{kind}"
    return names


def lies_transposed(theirs: str) -> bool:
    """Whether a weight of theirs, by its name, is (in, out)."""
    return ".c_" in theirs and theirs.endswith(".weight")


def _shape_of(theirs: str, config: GPTConfig) -> tuple[int, ...]:
    """The shape of one of their weights."""
    E = config.d_model
    outputs = {"attn.c_attn": 3 * E, "attn.c_proj": E, "mlp.c_fc": 4 * E, "mlp.c_proj": E}
    inputs = {"mlp.c_proj": 4 * E}
    if theirs in ("wte.weight", "wpe.weight"):
        return (config.vocab_size if theirs == "wte.weight" else config.context_length, E)
    module, kind = theirs.split(".", 2)[-1].rsplit(".", 1) if theirs.startswith("h.") else ("", "")
    if module in outputs and kind == "weight":
        return (inputs.get(module, E), outputs[module])
    return (outputs.get(module, E),)


def to_gpt2(weights: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """Our weights under Hugging Face's names, contiguous; biases that we left out are zeros."""
    converted = {}
    for ours, theirs in _pairs(config.num_layers).items():
        tensor = weights[ours] if ours in weights else torch.zeros(3 * config.d_model)
        converted[_PREFIX + theirs] = (tensor.T if lies_transposed(theirs) else tensor).contiguous()
    return converted


def from_gpt2(weights: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """Hugging Face's weights under our names, in float32.

    Raises:
        ValueError: a weight is missing, of another shape, or one that we have no use for.
    """
    present = {name.removeprefix(_PREFIX): tensor for name, tensor in weights.items()}
    # Masks that older versions saved along with the weights.
    present = {n: t for n, t in present.items() if not n.endswith((".attn.bias", ".attn.masked_bias"))}
    head = present.pop("lm_head.weight", None)
    converted = {}
    for ours, theirs in _pairs(config.num_layers).items():
        if theirs not in present:
            raise UserError(f"there is no {theirs} in the weights; is this a whole GPT-2?")
        tensor = present.pop(theirs)
        expected = _shape_of(theirs, config)
        if tuple(tensor.shape) != expected:
            raise UserError(f"{theirs} has shape {tuple(tensor.shape)}; by config.json it is {expected}")
        converted[ours] = (tensor.T if lies_transposed(theirs) else tensor).float().contiguous()
    if present:
        raise UserError(f"the weights hold {min(present)}, which a plain GPT-2 does not have")
    if head is not None and not torch.equal(head.float(), converted["transformer.token_embedding.weight"]):
        raise UserError("lm_head.weight differs from wte.weight; an untied head is not computed here")
    return converted


def config_from_gpt2(content: Mapping[str, Any]) -> GPTConfig:
    """The shape of a model, from its ``config.json``.

    Raises:
        ValueError: it describes something that is not computed here, or no model.
    """
    for key, allowed in _COMPUTED.items():
        if key in content and content[key] not in allowed:
            raise UserError(f"{key} is {content[key]!r}; only {' or '.join(map(repr, allowed))} is computed here")
    if content.get("model_type") != "gpt2":
        raise UserError("config.json has no model_type gpt2")
    try:
        for key in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head"):
            if not isinstance(content[key], int):
                raise UserError(f"{key} is {content[key]!r}, not a number")
        width = content["n_embd"]
        if content.get("n_inner") not in (None, 4 * width):
            raise UserError(f"n_inner is {content['n_inner']}; only four times n_embd ({width}) is computed here")
        return GPTConfig(
            vocab_size=content["vocab_size"],
            context_length=content["n_positions"],
            d_model=width,
            num_layers=content["n_layer"],
            num_heads=content["n_head"],
            dropout=content.get("resid_pdrop", 0.1),
            qkv_bias=True,
        )
    except KeyError as error:
        raise UserError(f"config.json has no {error.args[0]}") from None


def _config_to_gpt2(config: GPTConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_positions": config.context_length,
        "n_embd": config.d_model,
        "n_layer": config.num_layers,
        "n_head": config.num_heads,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "embd_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
        "bos_token_id": tokenizer.eot_id,
        "eos_token_id": tokenizer.eot_id,
        "tie_word_embeddings": True,
        "dtype": "float32",
        _TOKENIZER_KEY: tokenizer.name,
    }


def is_pretrained_folder(path: Path) -> bool:
    """Whether a path is a folder as Hugging Face writes it."""
    return (path / CONFIG).is_file()


def read_pretrained(name_or_folder: str) -> tuple[GPTConfig, dict[str, Tensor], Tokenizer]:
    """Read a GPT-2 of the Hub or of a folder.

    Args:
        name_or_folder: a folder, or a name such as ``openai-community/gpt2``, which is downloaded once.

    Returns:
        The model's shape, its weights under our names, and its tokenizer.

    Raises:
        ValueError: it cannot be had, is damaged, or is not a GPT-2 that is computed here.
    """
    folder = Path(name_or_folder)
    if not is_pretrained_folder(folder):
        folder = _download(name_or_folder)
    try:
        content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise UserError("config.json is not an object")
        config = config_from_gpt2(content)
        weights = from_gpt2(_read_weights(folder), config)
        tokenizer = _tokenizer_of(folder, content, config.vocab_size)
    except (ValueError, TypeError) as error:
        raise UserError(f"{name_or_folder} cannot be used: {error}") from None
    return config, weights, tokenizer


def _read_weights(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    if not (folder / WEIGHTS).is_file():
        raise UserError(f"it has no {WEIGHTS} (pickled weights are not read: they can run code)")
    try:
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{WEIGHTS} is damaged: {error}") from None


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    if Path(name).exists():
        raise UserError(f"{name} is neither a checkpoint nor a Hugging Face folder (it has no {CONFIG})")
    try:
        return Path(snapshot_download(name, allow_patterns=[CONFIG, WEIGHTS, "tokenizer.json", "vocab.json"]))
    except Exception as error:  # the Hub's own, requests', httpx's: all of them mean that it cannot be had
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"there is no file or folder {name}, and it cannot be had from the Hub: {reason}") from None


def _tokenizer_of(folder: Path, content: Mapping[str, Any], vocab_size: int) -> Tokenizer:
    """The tokenizer of ours that a folder's model was trained with; checked against its files, if it has any."""
    tokenizer = Tokenizer(content.get(_TOKENIZER_KEY, "gpt2"))
    if tokenizer.vocab_size != vocab_size:
        raise UserError(f"vocab_size is {vocab_size} and tokenizer {tokenizer.name!r} has {tokenizer.vocab_size} ids")
    vocabulary = None
    if (folder / "tokenizer.json").is_file():
        file = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        model = file.get("model") if isinstance(file, dict) else None
        vocabulary = model.get("vocab") if isinstance(model, dict) else None
        if not isinstance(vocabulary, dict):
            raise UserError("its tokenizer.json is no byte-pair vocabulary")
    elif (folder / "vocab.json").is_file():
        vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    if vocabulary is None:
        log.warning("%s has no tokenizer of its own: taking it for %s", folder, tokenizer.name)
    elif {k: v for k, v in vocabulary.items() if k != END_OF_TEXT} != _vocabulary(tokenizer):
        raise UserError(f"its tokenizer is not {tokenizer.name}, though of the same size; it is not supported")
    return tokenizer


def write_pretrained(folder: Path, config: GPTConfig, weights: Mapping[str, Tensor], tokenizer: Tokenizer) -> None:
    """Write a folder that ``GPT2LMHeadModel.from_pretrained`` and ``AutoTokenizer.from_pretrained`` load.

    Args:
        folder: made here; must not exist, or be empty.
        weights: under our names.
        tokenizer: ``gpt2`` or ``bytes``.

    Raises:
        ValueError: the folder is not empty, or the tokenizer is another.
    """
    from safetensors.torch import save

    if tokenizer.name not in ("gpt2", "bytes"):
        raise UserError(f"tokenizer {tokenizer.name!r} cannot be written for Hugging Face; gpt2 and bytes can")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not an empty folder; choose another")
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "generation_config.json": {"bos_token_id": tokenizer.eot_id, "eos_token_id": tokenizer.eot_id},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config.context_length,
            **dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT),
        },
        "tokenizer.json": _tokenizer_json(tokenizer),
        CONFIG: _config_to_gpt2(config, tokenizer),
    }
    with atomic_write(folder / WEIGHTS) as file:
        file.write(save(to_gpt2(weights, config), metadata={"format": "pt"}))
    for name, content in files.items():
        with atomic_write(folder / name) as file:
            file.write((json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def _tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """A tokenizer in the format of Hugging Face's ``tokenizers``."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": tokenizer.eot_id, "content": END_OF_TEXT, **special}],
        "pre_tokenizer": {**byte_level, "use_regex": tokenizer.name == "gpt2"},
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {**_vocabulary(tokenizer), END_OF_TEXT: tokenizer.eot_id},
            "merges": [[_printable(left), _printable(right)] for left, right in tokenizer.merges()],
        },
    }


def _vocabulary(tokenizer: Tokenizer) -> dict[str, int]:
    return {_printable(token): rank for token, rank in tokenizer.ranks.items()}


def _byte_characters() -> dict[int, str]:
    """GPT-2's way to write bytes as characters: printable ones as they are, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + n) for n, byte in enumerate(others)}}


_CHARACTERS = _byte_characters()


def _printable(token: bytes) -> str:
    return "".join(_CHARACTERS[byte] for byte in token)
