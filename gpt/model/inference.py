"""Looking at a model without leaving a trace: what evaluation, generation and attention maps run under."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from gpt.model.transformer import GPT


@contextmanager
def inference(model: GPT, modules: Sequence[nn.Module] | None = None) -> Iterator[None]:
    """Eval mode (no dropout), no gradients, and eager even if the model was compiled.

    Afterwards each module is in the mode that it was in, whatever happened. Eager, because hooks in a compiled
    module never fire, and because a text that grows by a token at a time would be compiled again and again.

    Args:
        modules: all of its modules, for a caller that enters this for each token and has them at hand.
    """
    training = [module for module in (modules or model.modules()) if module.training]
    # set_stance imports the compiler, which takes a second: not for a model that was never compiled.
    compiled = model.transformer._compiled_call_impl is not None
    try:
        for module in training:
            module.training = False
        with torch.no_grad(), torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            yield
    finally:
        for module in training:
            module.training = True
