"""Initial weights from another checkpoint."""

import torch

from gpt.checkpoint import load_model
from gpt.errors import UserError
from gpt.model.transformer import GPT
from gpt.tokenizer import Tokenizer

_POSITIONS = "transformer.position_embedding.weight"


@torch.no_grad()
def copy_weights(model: GPT, init_from: str, tokenizer: Tokenizer) -> None:
    """Copy the weights of a checkpoint; a shorter context keeps the first positions, missing biases become zero.

    Raises:
        UserError: the tokenizer is not that of the data, or the shape differs.
    """
    source, source_tokenizer = load_model(init_from)
    if source_tokenizer.sha256 != tokenizer.sha256:
        raise UserError(
            f"init_from {init_from} has tokenizer {source_tokenizer.name!r} and the data {tokenizer.name!r}; "
            f"prepare the data with --tokenizer {source_tokenizer.name}"
        )
    given, wanted = source.config, model.config
    wrong = [name for name in ("d_model", "num_layers", "num_heads") if getattr(given, name) != getattr(wanted, name)]
    if given.context_length < wanted.context_length:
        wrong.append("context_length")
    if given.qkv_bias and not wanted.qkv_bias:
        wrong.append("qkv_bias")
    if wrong:
        flags = " ".join(f"--model.{name} {str(getattr(given, name)).lower()}" for name in wrong)
        raise UserError(f"init_from {init_from} has another shape than this run; give {flags}")
    weights = source.state_dict()
    for name, parameter in model.state_dict().items():
        if name not in weights:
            parameter.zero_()
        else:
            parameter.copy_(weights[name][: wanted.context_length] if name == _POSITIONS else weights[name])
