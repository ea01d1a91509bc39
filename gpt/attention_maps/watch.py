"""Write the attention maps of prompts under a checkpoint, for TensorBoard's Attention tab."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from torch.utils.tensorboard import SummaryWriter

from gpt.attention_maps.capture import capture_attention
from gpt.attention_maps.probes import MAX_PROBE_TOKENS, Probe, repeated_random_probe, text_probe
from gpt.attention_maps.writer import write_captures
from gpt.checkpoint import load_model, steps_trained
from gpt.data.manifest import Manifest, SplitTokens
from gpt.errors import UserError
from gpt.generation.generate import Request, generate
from gpt.model.transformer import GPT
from gpt.tokenizer import Tokenizer

log = logging.getLogger(__name__)


def watch_prompts(
    checkpoint: str, prompts: Sequence[str], request: Request, seed: int, device: torch.device, logdir: Path
) -> Path:
    """Continue the prompts as requested, and write their attention maps and those of a repeated random sequence.

    Returns the folder that was written. Each training step of a model has its own folder in ``logdir``: within one
    folder, TensorBoard drops the events of later steps when an earlier step is written after them.
    """
    model, tokenizer = load_model(checkpoint, device)
    probes = _text_probes(model, tokenizer, prompts, request, seed)
    path = Path(checkpoint).resolve()
    folder = path.parent if path.is_file() else path  # does not exist if checkpoint is a name on the Hub
    random = repeated_random_probe(tokenizer, _id_counts(folder, tokenizer), model.config.context_length)
    if random is not None:
        probes.insert(0, random)  # first, because summaries and the image are those of the last probe
    step = steps_trained(checkpoint)
    # quickstart-step720 for checkpoints/quickstart, openai-community-gpt2 for a name on the Hub
    name = folder.name if folder.exists() else checkpoint.replace("/", "-")
    run_dir = logdir / (f"{name}-step{step}" if step else name)
    with SummaryWriter(str(run_dir)) as writer:
        write_captures(writer, step, capture_attention(model, probes), image=True)
    return run_dir


def _text_probes(model: GPT, tokenizer: Tokenizer, prompts: Sequence[str], request: Request, seed: int) -> list[Probe]:
    """Return a probe per prompt, with its continuation if ``request`` asks for one."""
    max_tokens = min(MAX_PROBE_TOKENS, model.config.context_length)
    prompt_ids = [tokenizer.encode(prompt) for prompt in prompts]
    for prompt, ids in zip(prompts, prompt_ids, strict=True):
        if (length := 1 + len(ids) + request.max_new_tokens) > max_tokens:
            raise UserError(
                f"prompt {prompt[:30]!r} has {length} tokens with end-of-text and the tokens to generate; expected at "
                f"most {max_tokens}. Shorten it or generate fewer tokens"
            )
    continuations = generate(model, tokenizer, prompt_ids, request, [seed] * len(prompts))
    probes = []
    for prompt, ids, continuation in zip(prompts, prompt_ids, continuations, strict=True):
        token_ids = [tokenizer.eot_id, *ids, *continuation.token_ids]
        if len(token_ids) < 2:
            raise UserError("a prompt and its continuation are empty; expected at least one token. Give some text")
        name, generated_from = ("generated", 1 + len(ids)) if request.max_new_tokens else ("prompt", None)
        probes.append(text_probe(tokenizer, token_ids, name, generated_from))
        log.info("watched: %s", prompt + continuation.text)
    return probes


def _id_counts(folder: Path, tokenizer: Tokenizer) -> NDArray[Any]:
    """Count the ids in the validation data of a run, as training does; all ones if there is none."""
    config = folder / "config.yaml"
    if config.is_file():
        data = Path(yaml.safe_load(config.read_text())["data"]["path"])
        try:
            manifest = Manifest.load(data)
            manifest.check_tokenizer(tokenizer)
            return SplitTokens(data, manifest, "val").id_counts()
        except UserError as error:
            log.info("sampling the random sequence from the whole vocabulary: %s", error)
    return np.ones(tokenizer.vocab_size)
