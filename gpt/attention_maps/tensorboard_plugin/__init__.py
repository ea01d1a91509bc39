"""The Attention tab of TensorBoard, which finds it through the entry point in pyproject.toml.

TensorBoard imports this in every environment that mini-gpt is installed in, also for runs that have nothing to do
with it: so nothing here may fail, and neither torch nor lightning is imported.
"""

import logging
from typing import Any

from tensorboard.plugins.base_plugin import TBContext, TBLoader, TBPlugin

log = logging.getLogger(__name__)


class AttentionLoader(TBLoader):  # type: ignore[misc]
    """What the entry point names."""

    def fix_flags(self, flags: Any) -> None:
        """Keep every capture of a run: by default TensorBoard keeps ten of an unknown plugin's steps, at random."""
        if isinstance(getattr(flags, "samples_per_plugin", None), dict):
            flags.samples_per_plugin.setdefault("attention", 1000)

    def load(self, context: TBContext) -> TBPlugin | None:
        """The plugin, or None, with a line in the log, if this TensorBoard is too different."""
        try:
            from gpt.attention_maps.tensorboard_plugin.plugin import AttentionPlugin

            return AttentionPlugin(context)
        except Exception:
            log.exception("the Attention tab could not be loaded; the rest of TensorBoard is unaffected")
            return None
