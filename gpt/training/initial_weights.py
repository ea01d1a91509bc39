"""What a run's weights begin as, where that is not GPT-2's initialisation: released ones, or silent blocks."""

import torch

from gpt.checkpoint import load_model
from gpt.errors import UserError
from gpt.model.transformer import GPT, TransformerBlock
from gpt.tokenizer import Tokenizer
from gpt.training.config import RunConfig

_POSITIONS = "transformer.position_embedding.weight"


def initialise(model: GPT, config: RunConfig, tokenizer: Tokenizer) -> None:
    """Change a new model's weights as ``init_from`` or ``zero_init`` say; without either they stay GPT-2's.

    Args:
        model: the run's, just made.

    Raises:
        ValueError: both are given, or ``init_from`` does not fit.
    """
    if config.init_from is not None and config.zero_init:
        raise UserError("init_from brings its own weights, and zero_init would erase some; give one of the two")
    if config.init_from is not None:
        _take_over(model, config.init_from, tokenizer)
    elif config.zero_init:
        _silence_blocks(model)


@torch.no_grad()
def _silence_blocks(model: GPT) -> None:
    """Let every block begin by adding nothing, whatever it computes: its two projections into the residual stream.

    Source: Zhang et al. 2019 (Fixup), section 3; modded-nanogpt has it with Muon.
    """
    for block in model.transformer.blocks:
        assert isinstance(block, TransformerBlock)
        block.attention.out_proj.weight.zero_()
        block.mlp.fc_out.weight.zero_()


@torch.no_grad()
def _take_over(model: GPT, init_from: str, tokenizer: Tokenizer) -> None:
    """Overwrite the weights with those of ``init_from``.

    A shorter context keeps the first positions. Queries, keys and values without biases there are given zeros.
    """
    source, source_tokenizer = load_model(init_from)
    if source_tokenizer.sha256 != tokenizer.sha256:
        raise UserError(
            f"init_from {init_from} has tokenizer {source_tokenizer.name!r} and the data {tokenizer.name!r}; "
            f"prepare the data with --tokenizer {source_tokenizer.name}"
        )
    theirs, ours = source.config, model.config
    same = ("d_model", "num_layers", "num_heads")
    wrong = [name for name in same if getattr(theirs, name) != getattr(ours, name)]
    if theirs.context_length < ours.context_length:
        wrong.append("context_length")
    if theirs.qkv_bias and not ours.qkv_bias:
        wrong.append("qkv_bias")
    if wrong:
        flags = " ".join(f"--model.{name} {str(getattr(theirs, name)).lower()}" for name in wrong)
        raise UserError(f"init_from {init_from} has another shape than this run; give {flags}")
    weights = source.state_dict()
    for name, parameter in model.state_dict().items():
        if name not in weights:
            parameter.zero_()
        else:
            parameter.copy_(weights[name][: ours.context_length] if name == _POSITIONS else weights[name])
