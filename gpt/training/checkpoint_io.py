"""Writing checkpoints so that a kill, a full disk or a power cut leaves the previous one."""

from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from gpt.files import atomic_write


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's files, written beside their final name, synced and renamed.

    Lightning's own writing goes through $TMPDIR, which may be another filesystem: then its last move is a copy
    that can be torn.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Save ``checkpoint`` at ``path``."""
        try:
            with atomic_write(Path(path)) as file:
                torch.save(checkpoint, file)
        except (OSError, RuntimeError) as error:
            # torch wraps what the system said, "no space left on device" for instance, into an error of its own.
            cause = error if isinstance(error, OSError) else error.__context__
            if not isinstance(cause, OSError):
                raise
            reason = f"cannot save {path}: {cause.strerror}; the checkpoint before it is as it was"
            raise OSError(cause.errno, reason) from error

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Load only tensors and plain values, whatever the environment says."""
        content: dict[str, Any] = torch.load(Path(path), map_location=map_location or "cpu", weights_only=True)
        return content
