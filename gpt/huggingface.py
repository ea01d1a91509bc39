"""Import and export GPT-2 in Hugging Face's format: config.json, model.safetensors, tokenizer.json.

The weights have other names there, and the matrices of the blocks are stored transposed: its Conv1D weight is
(in, out), a Linear's is (out, in).
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt.errors import UserError
from gpt.files import atomic_write
from gpt.model.config import GPTConfig
from gpt.tokenizer import END_OF_TEXT, Tokenizer
from gpt.tokenizer_json import (
    TOKENIZER_FILES,
    TOKENIZER_JSON,
    TOKENIZER_KEY,
    read_json,
    read_tokenizer,
    tokenizer_json,
)

log = logging.getLogger(__name__)

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_WEIGHT_FILES = "model*.safetensors*"  # shards as well
_PREFIX = "transformer."
_EMBEDDING = "transformer.token_embedding.weight"

# Our name of a block's module to Hugging Face's.
_IN_BLOCK = {
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out_proj": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.fc_in": "mlp.c_fc",
    "mlp.fc_out": "mlp.c_proj",
}
# Field of GPTConfig to keys of config.json: the first one found counts, as in transformers; the last is written.
_SIZES = {
    "vocab_size": ("vocab_size",),
    "context_length": ("max_position_embeddings", "n_positions"),
    "d_model": ("hidden_size", "n_embd"),
    "num_layers": ("num_hidden_layers", "n_layer"),
    "num_heads": ("num_attention_heads", "n_head"),
}
# Supported values of other keys of config.json, which may also be absent.
_SUPPORTED = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}


def weight_names(num_layers: int) -> dict[str, str]:
    """Our name to Hugging Face's, without its prefix, for every weight."""
    names = {_EMBEDDING: "wte.weight", "transformer.position_embedding.weight": "wpe.weight"}
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


def to_float32(name: object, tensor: object) -> Tensor:
    """Cast a weight that was read; refuse one that is not a dense tensor of floating-point numbers."""
    if not isinstance(tensor, Tensor):
        raise UserError(f"{name} is of type {type(tensor).__name__}; expected a tensor")
    kind = "sparse" * (tensor.layout != torch.strided) + "meta" * tensor.is_meta + "nested" * tensor.is_nested
    if kind or tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        kind = kind or str(tensor.dtype).removeprefix("torch.")
        raise UserError(f"{name} is {kind}; expected a dense tensor in float16, bfloat16, float32 or float64")
    return tensor.float()


def from_gpt2(weights: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """Hugging Face's weights under our names, in float32; ``load_state_dict`` checks that they are complete."""
    num_layers = min(config.num_layers, len(weights))  # of which load_model refuses an absurd number
    names = {hf_name: name for name, hf_name in weight_names(num_layers).items()}
    converted: dict[str, Tensor] = {}
    for full_name, stored in weights.items():
        hf_name = full_name.removeprefix(_PREFIX)
        if hf_name.endswith((".attn.bias", ".attn.masked_bias")):  # masks, which older versions saved
            continue
        name, tensor = names.get(hf_name, hf_name), to_float32(full_name, stored)
        if name in converted:
            raise UserError(f"{hf_name} is there with and without {_PREFIX}")
        converted[name] = (tensor.T if is_conv1d_weight(hf_name) and tensor.ndim == 2 else tensor).contiguous()
    head = converted.pop("lm_head.weight", None)
    if head is not None and not torch.equal(head, converted.get(_EMBEDDING, head)):
        raise UserError("lm_head.weight differs from wte.weight; an untied LM head is not supported")
    return converted


def config_from_gpt2(content: Mapping[str, Any]) -> GPTConfig:
    """The model's shape from its ``config.json``, with transformers' defaults, which are the shape of GPT-2 small.

    A UserError names what is not supported.
    """
    for key, supported in _SUPPORTED.items():
        if content.get(key, supported[0]) not in supported:
            raise UserError(f"{key} is {content[key]!r}; only {' or '.join(map(repr, supported))} is supported")
    content = {"n_positions": content.get("n_ctx", 1024), **content}  # n_ctx: in old files
    sizes = {field: content[key] for field, keys in _SIZES.items() for key in reversed(keys) if key in content}
    config = GPTConfig(**sizes, dropout=content.get("resid_pdrop", 0.1))
    if content.get("n_inner") not in (None, 4 * config.d_model):
        raise UserError(f"n_inner is {content['n_inner']!r}; expected null or 4 * n_embd ({4 * config.d_model})")
    return config


def read_pretrained(name_or_folder: str) -> tuple[GPTConfig, dict[str, Tensor], Tokenizer]:
    """Read a GPT-2 from a folder, or from the Hub by a name such as ``openai-community/gpt2``.

    Its weights are returned under our names, without the rows of ids that the tokenizer does not have: of a pad token,
    or of a vocabulary that was padded to a round size.
    """
    folder = Path(name_or_folder)
    if not (folder / CONFIG).is_file():
        folder = _download(name_or_folder)
    try:
        content = read_json(folder / CONFIG)
        config = config_from_gpt2(content)
        tokenizer = read_tokenizer(folder, content, config.vocab_size)
        weights = from_gpt2(_read_weights(folder), config)
    except (ValueError, TypeError) as error:
        raise UserError(f"{name_or_folder} cannot be used: {error}") from None
    rows = weights.get(_EMBEDDING, torch.empty(0))
    if len(rows) == config.vocab_size > tokenizer.vocab_size:
        log.warning("leaving out token ids from %d to %d, which are padding", tokenizer.vocab_size, len(rows) - 1)
        weights[_EMBEDDING] = rows[: tokenizer.vocab_size]
        config = replace(config, vocab_size=tokenizer.vocab_size)
    return config, weights, tokenizer


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Read the only file of weights, or the shards that an index names."""
    from safetensors.torch import load_file

    shard_of: Any = {}
    weights: dict[str, Tensor] = {}
    if not (folder / WEIGHTS).is_file():
        if not (folder / INDEX).is_file():
            raise UserError(f"it has no {WEIGHTS} or {INDEX} (pickled weights are not read, since they can run code)")
        shard_of = read_json(folder / INDEX).get("weight_map")
        if not isinstance(shard_of, dict) or not all(Path(str(shard)).name == shard for shard in shard_of.values()):
            raise UserError(f"its {INDEX} has no weight_map from weights to files in the same folder")
    for shard in sorted(set(shard_of.values())) or [WEIGHTS]:
        try:
            tensors = load_file(folder / shard)
        except Exception as error:  # of any type, on bytes that are not safetensors'
            raise UserError(f"its {shard} is missing or damaged: {error}") from None
        weights |= {name: tensor for name, tensor in tensors.items() if shard_of.get(name, shard) == shard}
    return weights


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=[CONFIG, _WEIGHT_FILES, *TOKENIZER_FILES]))
    except Exception as error:  # the Hub's, requests' or httpx's
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"cannot read {name} from a folder or the Hub; check name and network: {reason}") from None


def write_pretrained(folder: Path, config: GPTConfig, weights: Mapping[str, Tensor], tokenizer: Tokenizer) -> None:
    """Write a folder for ``GPT2LMHeadModel.from_pretrained`` and ``AutoTokenizer.from_pretrained``.

    The weights are given under our names; the folder must not exist, or be empty.
    """
    from safetensors.torch import save

    if tokenizer.name not in ("gpt2", "bytes") and not tokenizer.vocabulary:
        raise UserError(f"tokenizer {tokenizer.name!r} cannot be exported; gpt2, bytes or your own vocabulary can")
    end_of_text = next(iter(tokenizer.vocabulary.special_tokens)) if tokenizer.vocabulary else END_OF_TEXT
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not an empty folder; choose another")
    folder.mkdir(parents=True, exist_ok=True)
    token_ids = {"bos_token_id": tokenizer.eot_id, "eos_token_id": tokenizer.eot_id}
    files = {
        "generation_config.json": token_ids,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config.context_length,
            **dict.fromkeys(("bos_token", "eos_token", "unk_token"), end_of_text),
        },
        TOKENIZER_JSON: tokenizer_json(tokenizer),
        CONFIG: {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            **{keys[-1]: getattr(config, field) for field, keys in _SIZES.items()},
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            **dict.fromkeys(("embd_pdrop", "resid_pdrop", "attn_pdrop"), config.dropout),
            **token_ids,
            "tie_word_embeddings": True,
            "dtype": "float32",
            TOKENIZER_KEY: tokenizer.name,
        },
    }
    with atomic_write(folder / WEIGHTS) as file:
        file.write(save(to_gpt2(weights, config), metadata={"format": "pt"}))
    for name, content in files.items():
        with atomic_write(folder / name) as file:
            file.write((json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
