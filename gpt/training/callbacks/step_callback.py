"""What most callbacks do: something after an optimizer step."""

from abc import ABC, abstractmethod
from typing import Any

import lightning as L

from gpt.training.module import GPTModule


class StepCallback(L.Callback, ABC):
    """Is called after each optimizer step, where Lightning calls after each micro-batch of an accumulation."""

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Call ``after_step``, if the micro-batch was a step's last."""
        assert isinstance(pl_module, GPTModule)
        if pl_module.ends_step(batch):
            self.after_step(trainer, pl_module)

    @abstractmethod
    def after_step(self, trainer: L.Trainer, module: GPTModule) -> None:
        """What there is to do; ``trainer.global_step`` counts the step as taken."""
