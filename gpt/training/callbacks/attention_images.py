"""Attention maps of a probe text, as images in TensorBoard."""

from typing import Any

import lightning as L
import torch

from gpt.attention_maps.capture import attention_maps
from gpt.attention_maps.head_metrics import previous_token
from gpt.attention_maps.images import grid_picture, head_picture, token_label
from gpt.tokenizer import Tokenizer
from gpt.training.config import AttentionMapsConfig
from gpt.training.module import GPTModule

MAX_PROBE_TOKENS = 64


class AttentionImages(L.Callback):
    """Two pictures at each capture: all heads, and the head that most looks at the token before.

    Args:
        config: the probe text and the number of captures.
        tokenizer: the run's.
        max_steps: optimizer steps in the run.
        context_length: of the model.
    """

    def __init__(self, config: AttentionMapsConfig, tokenizer: Tokenizer, max_steps: int, context_length: int) -> None:
        probe = [tokenizer.eot_id, *tokenizer.encode(config.probe_text)][: min(MAX_PROBE_TOKENS, context_length)]
        if len(probe) < 2:
            raise ValueError(
                "attention maps need a probe of two tokens: attention_maps.probe_text is empty, or the context holds "
                "one token; give some text, or set attention_maps.enabled false"
            )
        self.token_ids = torch.tensor([probe])
        self.labels = ["<start>", *(token_label(tokenizer.decode_bytes([token])) for token in probe[1:])]
        self._due = capture_steps(max_steps, config.captures)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Capture the model as it starts."""
        assert isinstance(pl_module, GPTModule)
        if pl_module.steps_done == 0:
            self._capture(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Capture after the steps that are due."""
        assert isinstance(pl_module, GPTModule)
        if pl_module.ends_step(batch) and pl_module.steps_done in self._due:
            self._capture(trainer, pl_module)

    def _capture(self, trainer: L.Trainer, module: GPTModule) -> None:
        if not trainer.is_global_zero:
            return
        step = module.steps_done
        maps = attention_maps(module.model, self.token_ids)[:, 0]  # (L, H, T, T)
        scores = previous_token(maps)  # (L, H)
        layer, head = divmod(int(scores.argmax()), scores.shape[1])
        board = trainer.logger.experiment  # type: ignore[union-attr]
        grid = grid_picture(maps.numpy(), f"attention of all heads, step {step}")
        board.add_image("attention/all_heads", grid, step, dataformats="HWC")
        title = f"layer {layer}, head {head}, step {step}: {scores.max():.2f} of its weight on the token before"
        picture = head_picture(maps[layer, head].numpy(), self.labels, title)
        board.add_image("attention/best_previous_token_head", picture, step, dataformats="HWC")


def capture_steps(max_steps: int, captures: int) -> frozenset[int]:
    """Step 0, the last step, and between them steps in equal proportion, from a hundredth of the run on.

    A stock TensorBoard keeps ten images of a tag, so the default of ten captures is all to be seen.
    """
    first = max(1.0, max_steps / 100)
    between = captures - 2
    steps = (round(first * (max_steps / first) ** (number / between)) for number in range(between))
    return frozenset({0, *steps, max_steps})
