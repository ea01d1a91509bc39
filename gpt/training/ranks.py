"""Data-parallel ranks: waiting for them without being deaf to signals, and refusing ranks that differ."""

import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any

import torch.distributed
from lightning.pytorch.strategies import DDPStrategy

from gpt.errors import UserError
from gpt.training.checkpoints import Interruption
from gpt.training.config import RunConfig
from gpt.training.config_parser import flat

log = logging.getLogger(__name__)

_MAY_DIFFER = ("run_name", "checkpoints_dir", "data.path", "data.num_workers")
_FIRST_REMINDER, _REMINDER = 5.0, 60.0  # seconds


def rank_identity(config: RunConfig, manifest_sha256: str, first_step: int) -> dict[str, Any]:
    """What must be equal on all ranks."""
    keys = {key: value for key, value in flat(asdict(config)).items() if key not in _MAY_DIFFER}
    return {**keys, "the hash of the data": manifest_sha256[:16], "the step to continue from": first_step}


class ComparedDDP(DDPStrategy):
    """DDP that says whom it waits for, obeys signals meanwhile, and refuses ranks that differ in ``identity``."""

    def __init__(self, identity: Mapping[str, Any], interruption: Interruption) -> None:
        super().__init__()
        self._identity, self._interruption = dict(identity), interruption

    def setup_distributed(self) -> None:
        """Connect the ranks, on a thread: torch waits in C++, where no Python signal handler runs."""
        connected: Future[None] = Future()

        def connect() -> None:
            try:
                connected.set_result(super(ComparedDDP, self).setup_distributed())
            except BaseException as error:
                connected.set_exception(error)

        processes = self._interruption.watch_ranks(self.launcher)
        thread = threading.Thread(target=connect, daemon=True)
        thread.start()
        reminder = time.monotonic() + _FIRST_REMINDER
        while thread.is_alive():
            self._interruption.exit_before_start()
            if ended := [rank for rank, process in enumerate(processes, start=1) if process.poll() is not None]:
                raise UserError(f"rank {ended[0]} ended before the first step; start the run again")
            if time.monotonic() > reminder:
                reminder += _REMINDER
                environment = self.cluster_environment
                assert environment is not None
                log.info(
                    "rank %d waits for all %d processes at %s:%d; start the same command on every machine, with its "
                    "NODE_RANK and this MASTER_ADDR and MASTER_PORT in the environment",
                    *(self.global_rank, self.world_size, environment.main_address, environment.main_port),
                )
            thread.join(0.1)
        try:
            connected.result()
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"rank {self.global_rank} could not connect to the other processes: {reason}") from None
        self._compare()

    def _compare(self) -> None:
        identities: list[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(identities, self._identity)
        for rank, identity in enumerate(identities):
            for key in (key for key, value in identities[0].items() if identity.get(key) != value):
                if self.global_rank > 0:
                    raise SystemExit(0)  # the first process reports; a launcher would kill it if another one failed
                raise UserError(
                    f"{key} is {identities[0][key]} on rank 0 and {identity.get(key)} on rank {rank}; "
                    "start all processes with the same config, flags and data"
                )
