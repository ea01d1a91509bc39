"""Import and export GPT-2 in Hugging Face's format: config.json, model.safetensors, tokenizer.json.

The weights have other names there, and the matrices of the blocks are stored transposed: its Conv1D weight is
(in, out), a Linear's is (out, in).
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
_TOKENIZER_KEY = "mini_gpt_tokenizer"  # in config.json: name of this project's tokenizer
_PREFIX = "transformer."

# Our name of a block's module to Hugging Face's.
_IN_BLOCK = {
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out_proj": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.fc_in": "mlp.c_fc",
    "mlp.fc_out": "mlp.c_proj",
}
# Our field of GPTConfig to the key of config.json.
_SIZES = {
    "vocab_size": "vocab_size",
    "context_length": "n_positions",
    "d_model": "n_embd",
    "num_layers": "n_layer",
    "num_heads": "n_head",
}
# Supported values of other keys of config.json, which may also be absent.
_SUPPORTED = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}


def weight_names(num_layers: int) -> dict[str, str]:
    """Our name to Hugging Face's, without its prefix, for every weight."""
    names = {"transformer.token_embedding.weight": "wte.weight", "transformer.position_embedding.weight": "wpe.weight"}
    for kind in ("weight", "bias"):
        names[f"transformer.final_norm.{kind}"] = f"ln_f.{kind}"
        for layer in range(num_layers):
            for module, hf_module in _IN_BLOCK.items():
                names[f"transformer.blocks.{layer}.{module}.{kind}"] = f"h.{layer}.{hf_module}.{kind}"
    return names


def is_conv1d_weight(name: str) -> bool:
    """Whether Hugging Face stores the weight with this name as (in, out)."""
    return ".c_" in name and name.endswith(".weight")


def to_gpt2(weights: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """Our weights under Hugging Face's names, contiguous; missing qkv biases become zeros."""
    converted = {}
    for name, hf_name in weight_names(config.num_layers).items():
        tensor = weights[name] if name in weights else torch.zeros(3 * config.d_model)
        converted[_PREFIX + hf_name] = (tensor.T if is_conv1d_weight(hf_name) else tensor).contiguous()
    return converted


def from_gpt2(weights: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """Hugging Face's weights under our names, in float32; ``load_state_dict`` checks that they are complete."""
    names = {hf_name: name for name, hf_name in weight_names(config.num_layers).items()}
    converted = {}
    for hf_name, tensor in ((name.removeprefix(_PREFIX), tensor) for name, tensor in weights.items()):
        if hf_name.endswith((".attn.bias", ".attn.masked_bias")):  # masks, which older versions saved
            continue
        converted[names.get(hf_name, hf_name)] = (
            (tensor.T if is_conv1d_weight(hf_name) else tensor).float().contiguous()
        )
    head = converted.pop("lm_head.weight", None)
    if head is not None and not torch.equal(head, converted.get("transformer.token_embedding.weight", head)):
        raise UserError("lm_head.weight differs from wte.weight; an untied LM head is not supported")
    return converted


def config_from_gpt2(content: Mapping[str, Any]) -> GPTConfig:
    """The model's shape from its ``config.json``; a UserError names what is missing or not supported."""
    for key, supported in _SUPPORTED.items():
        if content.get(key, supported[0]) not in supported:
            raise UserError(f"{key} is {content[key]!r}; only {' or '.join(map(repr, supported))} is supported")
    for key in _SIZES.values():
        if not isinstance(content.get(key), int):
            raise UserError(f"{key} is {content.get(key)!r}; expected an integer")
    width = 4 * content["n_embd"]
    if "model_type" not in content or content.get("n_inner") not in (None, width):
        raise UserError(f"model_type must be 'gpt2', and n_inner null or 4 * n_embd ({width})")
    sizes = {field: content[key] for field, key in _SIZES.items()}
    return GPTConfig(**sizes, dropout=content.get("resid_pdrop", 0.1), qkv_bias=True)


def read_pretrained(name_or_folder: str) -> tuple[GPTConfig, dict[str, Tensor], Tokenizer]:
    """Read a GPT-2 from a folder, or from the Hub by a name such as ``openai-community/gpt2``.

    Its weights are returned under our names.
    """
    folder = Path(name_or_folder)
    if not (folder / CONFIG).is_file():
        folder = _download(name_or_folder)
    try:
        content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise UserError("config.json is not an object")
        config = config_from_gpt2(content)
        return config, from_gpt2(_read_weights(folder), config), _read_tokenizer(folder, content, config.vocab_size)
    except (ValueError, TypeError) as error:
        raise UserError(f"{name_or_folder} cannot be used: {error}") from None


def _read_weights(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not (folder / WEIGHTS).is_file():
        raise UserError(f"it has no {WEIGHTS} (pickled weights are not read, since they can run code)")
    try:
        return load_file(folder / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{WEIGHTS} is damaged: {error}") from None


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=[CONFIG, WEIGHTS, "tokenizer.json", "vocab.json"]))
    except Exception as error:  # the Hub's, requests' or httpx's
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"cannot read {name} from a folder or the Hub; check name and network: {reason}") from None


def _read_tokenizer(folder: Path, content: Mapping[str, Any], vocab_size: int) -> Tokenizer:
    """The tokenizer that the model was trained with, compared with the folder's tokenizer files, if there are any."""
    tokenizer = Tokenizer(content.get(_TOKENIZER_KEY, "gpt2"))
    if tokenizer.vocab_size != vocab_size:
        raise UserError(f"vocab_size is {vocab_size} and tokenizer {tokenizer.name!r} has {tokenizer.vocab_size} ids")
    files = [folder / name for name in ("tokenizer.json", "vocab.json") if (folder / name).is_file()]
    if not files:
        log.warning("%s has no tokenizer files; assuming %s", folder, tokenizer.name)
        return tokenizer
    vocabulary = json.loads(files[0].read_text(encoding="utf-8"))
    try:
        vocabulary = vocabulary["model"]["vocab"] if files[0].name == "tokenizer.json" else vocabulary
        ranks = {token: rank for token, rank in vocabulary.items() if token != END_OF_TEXT}
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"its {files[0].name} is not a byte-pair vocabulary") from None
    if ranks != _vocabulary(tokenizer):
        raise UserError(f"its tokenizer has as many ids as {tokenizer.name} but differs from it, and is not supported")
    return tokenizer


def write_pretrained(folder: Path, config: GPTConfig, weights: Mapping[str, Tensor], tokenizer: Tokenizer) -> None:
    """Write a folder for ``GPT2LMHeadModel.from_pretrained`` and ``AutoTokenizer.from_pretrained``.

    The weights are given under our names; the folder must not exist, or be empty.
    """
    from safetensors.torch import save

    if tokenizer.name not in ("gpt2", "bytes"):
        raise UserError(f"tokenizer {tokenizer.name!r} cannot be exported; gpt2 and bytes can")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not an empty folder; choose another")
    folder.mkdir(parents=True, exist_ok=True)
    token_ids = {"bos_token_id": tokenizer.eot_id, "eos_token_id": tokenizer.eot_id}
    files = {
        "generation_config.json": token_ids,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config.context_length,
            **dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT),
        },
        "tokenizer.json": _tokenizer_json(tokenizer),
        CONFIG: {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            **{key: getattr(config, field) for field, key in _SIZES.items()},
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            **dict.fromkeys(("embd_pdrop", "resid_pdrop", "attn_pdrop"), config.dropout),
            **token_ids,
            "tie_word_embeddings": True,
            "dtype": "float32",
            _TOKENIZER_KEY: tokenizer.name,
        },
    }
    with atomic_write(folder / WEIGHTS) as file:
        file.write(save(to_gpt2(weights, config), metadata={"format": "pt"}))
    for name, content in files.items():
        with atomic_write(folder / name) as file:
            file.write((json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def _tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
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
            "vocab": {**_vocabulary(tokenizer), END_OF_TEXT: tokenizer.eot_id},
            "merges": [[_printable(left), _printable(right)] for left, right in tokenizer.merges()],
        },
    }


def _vocabulary(tokenizer: Tokenizer) -> dict[str, int]:
    return {_printable(token): rank for token, rank in tokenizer.ranks.items()}


# GPT-2 writes bytes as characters: printable ones as they are, the others from U+0100 on.
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = {byte: 0x100 + n for n, byte in enumerate(sorted({*range(256)} - _PRINTABLE))}


def _printable(token: bytes) -> str:
    return token.decode("latin-1").translate(_OTHERS)
