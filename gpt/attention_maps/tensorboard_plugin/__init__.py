"""TensorBoard's Attention tab, which TensorBoard loads through the entry point in pyproject.toml.

TensorBoard imports it for every log directory, in every environment where mini-gpt is installed. So nothing here may
fail, and torch is not imported.
"""

import logging
from typing import Any

from tensorboard.plugins.base_plugin import TBContext, TBLoader, TBPlugin

log = logging.getLogger(__name__)


class AttentionLoader(TBLoader):  # type: ignore[misc]
    """Loads the plugin; named by the entry point."""

    def fix_flags(self, flags: Any) -> None:
        """Keep up to 1000 captures of a run; by default TensorBoard samples ten steps of a plugin at random."""
        if isinstance(getattr(flags, "samples_per_plugin", None), dict):
            flags.samples_per_plugin.setdefault("attention", 1000)

    def load(self, context: TBContext) -> TBPlugin | None:
        """Load the plugin; if it fails, log the error and return None, because TensorBoard would stop."""
        try:
            from gpt.attention_maps.tensorboard_plugin.plugin import AttentionPlugin

            return AttentionPlugin(context)
        except Exception:
            log.exception("the Attention tab could not be loaded; the rest of TensorBoard is unaffected")
            return None
