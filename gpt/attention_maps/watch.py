"""Write the attention maps of prompts under a checkpoint, for TensorBoard's Attention tab."""

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from torch import Tensor

from gpt.attention_maps.capture import capture_attention
from gpt.attention_maps.head_roles import head_roles, validation_windows
from gpt.attention_maps.probes import MAX_PROBE_TOKENS, Probe, repeated_random_probe, text_probe, token_label
from gpt.attention_maps.writer import summarise_captures, write_event_file
from gpt.checkpoint import load_model, steps_trained
from gpt.data.manifest import Manifest, SplitTokens
from gpt.errors import UserError
from gpt.generation.generate import Request, generate
from gpt.model.transformer import GPT
from gpt.tokenizer import Tokenizer

log = logging.getLogger(__name__)


def watch_prompts(
    checkpoint: str,
    prompts: Sequence[str],
    request: Request,
    seed: int,
    device: torch.device,
    logdir: Path,
    ablation: str = "mean",
) -> Path:
    """Continue the prompts as requested, and write their attention maps and those of a repeated random sequence.

    With them go the model's predictions, the importance of each head by this kind of ablation, and its role: on the
    validation data of the run, or on the first prompt if there are none.

    Returns the folder that was written. Each model and training step has its own in ``logdir``, with a hash of both in
    its name: TensorBoard shows one of several models in a folder, and drops the events of steps after an earlier one.
    """
    model, tokenizer = load_model(checkpoint, device)
    probes = _text_probes(model, tokenizer, prompts, request, seed)
    path = Path(checkpoint).resolve()
    folder = path.parent if path.is_file() else path  # does not exist if checkpoint is a name on the Hub
    on_first_prompt = torch.tensor([probes[0].token_ids]), np.ones(tokenizer.vocab_size)
    windows, counts = _validation_data(folder, tokenizer, model.config.context_length) or on_first_prompt
    random = repeated_random_probe(tokenizer, counts, model.config.context_length)
    roles = head_roles(model, windows, None if random is None else random.token_ids)
    if random is not None:
        probes.insert(0, random)  # first, because summaries and the image are those of the last probe
    step = steps_trained(checkpoint)
    captures = capture_attention(model, probes, token_label(tokenizer), ablation)
    if not all(capture.maps.isfinite().all() for capture in captures):
        raise UserError(
            f"the attention of {checkpoint} is not finite: it diverged in training; use an earlier checkpoint"
        )
    # quickstart-step720-0a1b2c3d for checkpoints/quickstart, openai-community-gpt2 for a name on the Hub
    name = folder.name if folder.exists() else checkpoint.replace("/", "-")
    if step:
        name += f"-step{step}"
    run_dir = logdir / f"{name}-{_sha256(model, tokenizer, step)[:8]}"
    write_event_file(run_dir, step, summarise_captures(captures, roles, image=True))
    return run_dir


def _sha256(model: GPT, tokenizer: Tokenizer, step: int) -> str:
    digest = hashlib.sha256(repr((model.config, tokenizer.sha256, step)).encode())
    for weights in model.parameters():
        digest.update(weights.flatten().view(torch.uint8).cpu().numpy().data)
    return digest.hexdigest()


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


def _validation_data(folder: Path, tokenizer: Tokenizer, context_length: int) -> tuple[Tensor, NDArray[Any]] | None:
    """Windows of the validation data of a run, and its ids counted, as training takes them; None without data."""
    config = folder / "config.yaml"
    if config.is_file():
        try:
            data = Path(yaml.safe_load(config.read_text(encoding="utf-8"))["data"]["path"])
            manifest = Manifest.load(data)
            manifest.check_tokenizer(tokenizer)
            tokens = SplitTokens(data, manifest, "val")
            return validation_windows(tokens, context_length), tokens.id_counts()
        except Exception as error:  # a file of this name may be another program's, and hold anything
            reason = " ".join(f"{config}: {error}".split())
            log.info("sampling the random sequence from the whole vocabulary: %.300s", reason)
    return None
