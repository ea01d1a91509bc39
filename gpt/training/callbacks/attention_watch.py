"""Attention maps of two probes while the model trains, for TensorBoard's Attention tab."""

import lightning as L

from gpt.attention_maps.capture import capture_attention
from gpt.attention_maps.probes import MAX_PROBE_TOKENS, repeated_random_probe, text_probe
from gpt.attention_maps.writer import Capture, write_captures
from gpt.errors import UserError
from gpt.training.callbacks.divergence_guard import DivergedError
from gpt.training.callbacks.step_callback import StepCallback
from gpt.training.datamodule import TokenDataModule
from gpt.training.module import GPTModule


class AttentionWatch(StepCallback):
    """Captures how every head attends, without a trace in the training.

    The text probe is the user's. The other one, random tokens twice over, is what induction and duplicate-token
    scores are defined on; its maps are kept of the last step only.

    Args:
        data: the run's, with its config.
    """

    def __init__(self, data: TokenDataModule) -> None:
        config, tokenizer = data.config, data.tokenizer
        context_length = config.model.context_length
        text_ids = [tokenizer.eot_id, *tokenizer.encode(config.attention_maps.probe_text)]
        text_ids = text_ids[: min(MAX_PROBE_TOKENS, context_length)]
        if len(text_ids) < 2:
            raise UserError(
                "attention maps need a probe of two tokens: attention_maps.probe_text is empty, or the context holds "
                "one token; give some text, or set attention_maps.enabled false"
            )
        self.text = text_probe(tokenizer, text_ids, "text")
        self.random = repeated_random_probe(tokenizer, data.val_windows.tokens.id_counts(), context_length)
        self._max_steps = config.trainer.max_steps
        self._due = capture_steps(self._max_steps, config.attention_maps.captures)
        self._pictures_due = picture_steps(self._max_steps)
        self._captured_step = -1

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Capture the model as it starts."""
        assert isinstance(pl_module, GPTModule)
        if trainer.global_step == 0:
            self._capture(trainer, pl_module)

    def after_step(self, trainer: L.Trainer, module: GPTModule) -> None:
        """Capture after the steps that are due."""
        if trainer.global_step in self._due:
            self._capture(trainer, module, is_last=trainer.global_step == self._max_steps)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Capture where the run ends early, by a time limit."""
        self._capture_early_end(trainer, pl_module)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Capture where the run ends early, by a signal or because it diverged."""
        if isinstance(exception, SystemExit | DivergedError):
            self._capture_early_end(trainer, pl_module)

    def _capture_early_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, GPTModule)
        if self._captured_step != trainer.global_step:  # of a step that is written twice TensorBoard shows one
            self._capture(trainer, module, is_last=True)

    def _capture(self, trainer: L.Trainer, module: GPTModule, is_last: bool = False) -> None:
        if not trainer.is_global_zero or trainer.logger is None:
            return
        step = self._captured_step = trainer.global_step
        board = trainer.logger.experiment  # type: ignore[attr-defined]
        probes = [probe for probe in (self.random, self.text) if probe is not None]
        captured = capture_attention(module.model, [probe.token_ids for probe in probes])
        captures = [
            Capture(probe, attention, keep_maps=is_last or probe is self.text)
            for probe, attention in zip(probes, captured, strict=True)
        ]
        write_captures(board, step, captures, pictures=is_last or step in self._pictures_due)


def capture_steps(max_steps: int, captures: int) -> frozenset[int]:
    """When to look: step 0, every power of two, the last step, and the other captures evenly between.

    Heads form early and fast in some runs, late in others. Where captures are too few for that, evenly among these.
    """
    ladder = sorted({0, *(2**power for power in range(max_steps.bit_length())), max_steps})
    if captures <= len(ladder):
        return frozenset(ladder[round(i * (len(ladder) - 1) / (captures - 1))] for i in range(captures))
    evenly = captures - len(ladder)
    return frozenset({*ladder, *(round(max_steps * (i + 1) / (evenly + 1)) for i in range(evenly))})


def picture_steps(max_steps: int) -> frozenset[int]:
    """Step 0, the last eight powers of two and the last step: ten, because a stock TensorBoard keeps ten images."""
    powers = [2**power for power in range(max_steps.bit_length()) if 2**power < max_steps]
    return frozenset({0, *powers[-8:], max_steps})
