"""Beginning a run from weights that are there: finetuning."""

import torch

from gpt.checkpoint import load_model
from gpt.model.transformer import GPT
from gpt.tokenizer import Tokenizer
from gpt.training.config import RunConfig

_POSITIONS = "transformer.position_embedding.weight"


@torch.no_grad()
def initialise_from(model: GPT, config: RunConfig, tokenizer: Tokenizer) -> None:
    """Overwrite a new model's weights with those of ``config.init_from``.

    A shorter context keeps the first positions. Queries, keys and values without biases there are given zeros.

    Args:
        model: the run's, just made.
        config: the run's; ``init_from`` is set.
        tokenizer: the data's.

    Raises:
        ValueError: there is no such model, or it has another shape or tokenizer.
    """
    assert config.init_from is not None
    source, source_tokenizer = load_model(config.init_from)
    if source_tokenizer.sha256 != tokenizer.sha256:
        raise ValueError(
            f"init_from {config.init_from} has tokenizer {source_tokenizer.name!r} and the data {tokenizer.name!r}; "
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
        raise ValueError(f"init_from {config.init_from} has another shape than this run; give {flags}")
    weights = source.state_dict()
    for name, parameter in model.state_dict().items():
        if name not in weights:
            parameter.zero_()
        else:
            parameter.copy_(weights[name][: ours.context_length] if name == _POSITIONS else weights[name])
