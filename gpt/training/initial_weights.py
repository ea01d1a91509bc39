"""Initial weights other than GPT-2's initialisation: from a checkpoint, or zero-initialised residual projections."""

import torch

from gpt.checkpoint import load_model
from gpt.errors import UserError
from gpt.model.transformer import GPT
from gpt.tokenizer import Tokenizer
from gpt.training.config import RunConfig

_POSITIONS = "transformer.position_embedding.weight"


def initialise(model: GPT, config: RunConfig, tokenizer: Tokenizer) -> None:
    """Apply ``init_from`` or ``zero_init`` to a new model.

    Raises:
        UserError: both are given, or ``init_from`` does not fit the run.
    """
    if config.init_from is not None and config.zero_init:
        raise UserError("init_from and zero_init exclude each other; give one of the two")
    if config.init_from is not None:
        _copy_weights(model, config.init_from, tokenizer)
    elif config.zero_init:
        zero_init_residual(model)


@torch.no_grad()
def zero_init_residual(model: GPT) -> None:
    """Zero-initialise the two projections of each block into the residual stream.

    Source: Zhang et al. 2019 (Fixup), section 3; modded-nanogpt combines it with Muon.
    """
    for name, parameter in model.named_parameters():
        if name.endswith(("attention.out_proj.weight", "mlp.fc_out.weight")):
            parameter.zero_()


@torch.no_grad()
def _copy_weights(model: GPT, init_from: str, tokenizer: Tokenizer) -> None:
    """Copy the weights of ``init_from``; a shorter context keeps the first positions, missing biases become zero."""
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
