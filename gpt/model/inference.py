"""Context manager for inference: eval mode, no gradients, the model's modes restored on exit."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Run a model in eval mode, without gradients, and eagerly even if its transformer is compiled.

    Eagerly, because a compiled module does not call forward hooks (they capture attention), and each length of a text
    would be compiled. A model in eval mode is not searched for modules in training mode: a twentieth of a token's time.
    """
    training = [module for module in model.modules() if module.training] if model.training else []
    # set_stance imports the compiler, which takes a second: only for a model that was compiled.
    is_compiled = getattr(model.transformer, "_compiled_call_impl", None) is not None
    try:
        for module in training:
            module.training = False
        with torch.no_grad(), torch.compiler.set_stance("force_eager") if is_compiled else nullcontext():
            yield
    finally:
        for module in training:
            module.training = True
