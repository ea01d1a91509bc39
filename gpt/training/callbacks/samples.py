"""A sample text at each validation, for TensorBoard's Text tab."""

import logging

import lightning as L

from gpt.generation.generate import Request, generate
from gpt.generation.sampling import Sampling
from gpt.tokenizer import Tokenizer
from gpt.training.module import GPTModule

log = logging.getLogger(__name__)

_SAMPLING = Sampling(temperature=0.8, top_k=50)


class SampleTexts(L.Callback):
    """Lets the model write from the start of a text, with the same seed each time, so that samples compare.

    Args:
        max_new_tokens: length of a sample; 0 writes none.
    """

    def __init__(self, tokenizer: Tokenizer, max_new_tokens: int) -> None:
        self.tokenizer = tokenizer
        self.max_new_tokens = max_new_tokens
        self.text = ""

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Generate and log."""
        assert isinstance(pl_module, GPTModule)
        if not trainer.is_global_zero or self.max_new_tokens == 0:
            return
        try:
            request = Request(self.max_new_tokens, _SAMPLING)
            (continuation,) = generate(pl_module.model, self.tokenizer, [[]], request, seeds=[0])
        except ValueError as error:  # a diverged model: no reason to stop before it is saved
            log.warning("no sample: %s", error)
            return
        self.text = continuation.text
        # Indented by four spaces it is a code block to the tab's Markdown: line ends and symbols stay as they are.
        markdown = "\n".join(f"    {line}" for line in self.text.splitlines())
        trainer.logger.experiment.add_text("sample", markdown, trainer.global_step)  # type: ignore[union-attr]
