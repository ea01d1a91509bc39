"""A GPT and a transformers GPT2LMHeadModel with the same random weights."""

from typing import Any

import pytest
import torch

from gpt.model.config import GPTConfig
from gpt.model.transformer import GPT

# Names in gpt.model -> names in transformers, where Conv1D stores its weight transposed.
BLOCK_NAMES = {
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out_proj": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.fc_in": "mlp.c_fc",
    "mlp.fc_out": "mlp.c_proj",
}


def huggingface_twin(config: GPTConfig) -> tuple[GPT, Any]:
    """Return our model and a randomly initialised GPT2LMHeadModel with the same weights."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(5)
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=config.vocab_size,
            n_positions=config.context_length,
            n_embd=config.d_model,
            n_layer=config.num_layers,
            n_head=config.num_heads,
            resid_pdrop=config.dropout,
            embd_pdrop=config.dropout,
            attn_pdrop=config.dropout,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    with torch.no_grad():
        for parameter in theirs.parameters():  # zeros and ones in biases and norms would hide a wrong name
            parameter.add_(torch.randn_like(parameter) * 0.02)
    state = theirs.transformer.state_dict()
    weights = {
        "token_embedding.weight": state["wte.weight"],
        "position_embedding.weight": state["wpe.weight"],
        "final_norm.weight": state["ln_f.weight"],
        "final_norm.bias": state["ln_f.bias"],
    }
    for layer in range(config.num_layers):
        for ours_name, their_name in BLOCK_NAMES.items():
            weight = state[f"h.{layer}.{their_name}.weight"]
            weights[f"blocks.{layer}.{ours_name}.weight"] = weight.T if weight.ndim == 2 else weight
            weights[f"blocks.{layer}.{ours_name}.bias"] = state[f"h.{layer}.{their_name}.bias"]
    ours = GPT(config)
    ours.transformer.load_state_dict(weights)  # strict: every name must match
    return ours, theirs
