"""Attention maps of two probes during training, for TensorBoard's Attention tab."""

import lightning as L

from gpt.attention_maps.capture import capture_attention
from gpt.attention_maps.head_roles import head_roles, validation_windows
from gpt.attention_maps.probes import MAX_PROBE_TOKENS, repeated_random_probe, text_probe, token_label
from gpt.attention_maps.writer import write_captures, write_loss_by_position
from gpt.errors import UserError
from gpt.training.datamodule import TokenDataModule
from gpt.training.module import GPTModule


class AttentionCapture:
    """Captures every head's attention on a text and on a repeated random sequence, without any effect on training.

    Scores and predictions of both and maps of the text are written at every capture; at ``full_capture_steps`` also the
    maps of the random sequence, and importance and role of each head; at ``image_steps`` an image, for the Images tab.
    """

    def __init__(self, data: TokenDataModule) -> None:
        config, tokenizer = data.config, data.tokenizer
        context_length = config.model.context_length
        given = config.attention_maps.probe_text
        text_ids = [tokenizer.eot_id, *tokenizer.encode(data.opening if given is None else given)]
        text_ids = text_ids[: min(MAX_PROBE_TOKENS, context_length)]
        if len(text_ids) < 2:
            raise UserError(
                "attention_maps.probe_text is empty or model.context_length is 1; a probe needs two tokens. Give some "
                "text, or set attention_maps.enabled to false"
            )
        text = text_probe(tokenizer, text_ids, "text")
        random = repeated_random_probe(tokenizer, data.val_windows.tokens.id_counts(), context_length)
        self._probes = [text] if random is None else [random, text]
        self._random_ids = None if random is None else random.token_ids
        self._windows = validation_windows(data.val_windows.tokens, context_length)
        self._max_steps = config.trainer.max_steps
        self._capture_steps = capture_steps(self._max_steps, config.attention_maps.captures)
        self._image_steps = image_steps(self._max_steps)
        self._full_steps = full_capture_steps(self._capture_steps)
        self._ablation = None if config.attention_maps.ablation == "none" else config.attention_maps.ablation
        self._label = token_label(tokenizer)
        self._captured_step = -1

    def after_step(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Capture if the step is one of ``capture_steps``."""
        if trainer.global_step in self._capture_steps:
            self.capture(trainer, module, is_last=trainer.global_step == self._max_steps)

    def after_validation(self, trainer: L.Trainer, module: GPTModule) -> None:
        """Write the validation loss by position."""
        if trainer.is_global_zero and trainer.logger is not None:
            writer = trainer.logger.experiment  # type: ignore[attr-defined]
            write_loss_by_position(writer, trainer.global_step, *module.loss_by_position)

    def capture(self, trainer: L.Trainer, module: L.LightningModule, is_last: bool = False) -> None:
        """Write maps and scores of the probes, once per step: TensorBoard shows one capture of a step."""
        assert isinstance(module, GPTModule)
        step = trainer.global_step
        if not trainer.is_global_zero or trainer.logger is None or step == self._captured_step:
            return
        self._captured_step = step
        writer = trainer.logger.experiment  # type: ignore[attr-defined]
        is_full = is_last or step in self._full_steps
        captures = capture_attention(module.model, self._probes, self._label, self._ablation if is_full else None)
        roles = head_roles(module.model, self._windows, self._random_ids) if is_full else None
        is_drawn = is_last or step in self._image_steps
        write_captures(writer, step, captures, roles=roles, random_maps=is_full, image=is_drawn)


def capture_steps(max_steps: int, captures: int) -> frozenset[int]:
    """Step 0, the powers of two, the last step, and the remaining captures evenly spaced.

    Heads form early and fast in some runs, late in others. With fewer captures than powers of two, a subset of these.
    """
    powers = sorted({0, *(2**power for power in range(max_steps.bit_length())), max_steps})
    if captures <= len(powers):
        return frozenset(powers[round(i * (len(powers) - 1) / (captures - 1))] for i in range(captures))
    evenly = captures - len(powers)
    return frozenset({*powers, *(round(max_steps * (i + 1) / (evenly + 1)) for i in range(evenly))})


def full_capture_steps(capture_steps: frozenset[int]) -> frozenset[int]:
    """Every eighth capture and the last: ablation and roles take as long as several captures."""
    return frozenset({*sorted(capture_steps)[::8], max(capture_steps)})


def image_steps(max_steps: int) -> frozenset[int]:
    """Step 0, the last eight powers of two and the last step: TensorBoard keeps ten images by default."""
    powers = [2**power for power in range(max_steps.bit_length()) if 2**power < max_steps]
    return frozenset({0, *powers[-8:], max_steps})
