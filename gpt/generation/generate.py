"""Continue a prompt, token by token."""

from dataclasses import dataclass
from typing import Literal

import torch

from gpt.generation.sampling import Sampling
from gpt.model.inference import inference
from gpt.model.transformer import GPT


@dataclass(frozen=True)
class Continuation:
    """What was generated, the prompt not included.

    Args:
        token_ids: the new ids; an end-of-text that stopped it is not among them.
        finish_reason: ``"length"`` (max_new_tokens reached) or ``"eos"`` (the model ended the text).
    """

    token_ids: list[int]
    finish_reason: Literal["length", "eos"]


def generate(
    model: GPT, prompt_ids: list[int], eot_id: int, max_new_tokens: int, sampling: Sampling, seed: int
) -> Continuation:
    """Continue a prompt.

    The prompt follows an end-of-text, which is how every training document began. When the context is full, its
    older half is forgotten. The model is in eval mode meanwhile (no dropout) and back in its own mode afterwards.

    Args:
        model: the model.
        prompt_ids: ids of the prompt; may be empty.
        eot_id: id of the end of text.
        max_new_tokens: most tokens to generate, at least 0.
        sampling: how to draw.
        seed: the same one gives the same text.

    Raises:
        ValueError: as ``check_request``; or the model's logits are not finite.
    """
    check_request(model, prompt_ids, max_new_tokens, seed)
    context_length = model.config.context_length
    generator = torch.Generator().manual_seed(seed)
    window = [eot_id, *prompt_ids]
    new_ids: list[int] = []
    with inference(model):
        while len(new_ids) < max_new_tokens:
            if len(window) > context_length:
                window = window[-(context_length // 2 or 1) :]
            hidden = model.transformer(torch.tensor([window], device=model.head_weight.device))[0, -1]  # (E,)
            token = sampling.draw(model.head_weight @ hidden, generator)
            if token == eot_id:
                return Continuation(new_ids, "eos")
            new_ids.append(token)
            window.append(token)
    return Continuation(new_ids, "length")


def check_request(model: GPT, prompt_ids: list[int], max_new_tokens: int, seed: int) -> None:
    """Refuse what ``generate`` cannot do; for a caller with several prompts, before the first is answered.

    Raises:
        ValueError: the prompt does not fit into the context, or a number is out of range.
    """
    context_length = model.config.context_length
    if len(prompt_ids) + 1 > context_length:
        raise ValueError(
            f"the prompt has {len(prompt_ids)} tokens and the model's context holds {context_length}, one of them for "
            "the start of the text; shorten the prompt"
        )
    if max_new_tokens < 0:
        raise ValueError(f"--max-new-tokens is {max_new_tokens}; it must be at least 0")
    if not 0 <= seed < 2**63:
        raise ValueError(f"--seed is {seed}; it must be at least 0 and below 2**63")
