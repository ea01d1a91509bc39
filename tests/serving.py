"""Helpers for tests of the Attention tab: valid and damaged run folders, and a TensorBoard that serves them."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_BLOB_SEQUENCE, Summary, SummaryMetadata
from tensorboard.util.tensor_util import make_tensor_proto
from torch.utils.tensorboard import SummaryWriter

from gpt.attention_maps.capture import Capture
from gpt.attention_maps.event_format import pack_series
from gpt.attention_maps.probes import Probe
from gpt.attention_maps.writer import write_captures


def synthetic_capture(probe: Probe, layers: int, heads: int, seed: int) -> Capture:
    """Random causal attention."""
    length = len(probe.token_ids)
    logits = torch.randn(layers, heads, length, length, generator=torch.Generator().manual_seed(seed)) * 2
    logits = logits.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
    return Capture(probe, logits.softmax(-1), logits.amax((-2, -1)))


def write_run(
    run_dir: Path, steps: Sequence[int], layers: int = 2, heads: int = 2, labels: Sequence[str] = "abcd"
) -> None:
    """Write a run with synthetic captures of one text probe."""
    length = len(labels)
    probe = Probe("text", tuple(range(length)), tuple(labels), ("",) * length)
    with SummaryWriter(str(run_dir)) as writer:
        for step in steps:
            write_captures(writer, step, [synthetic_capture(probe, layers, heads, seed=step)])


def write_test_runs(tiny_run: Path, folder: Path) -> None:
    """Fill a folder with a real run, damaged runs, a run of another shape and a long run."""
    shutil.copytree(tiny_run, folder / "real")
    (folder / "empty").mkdir()
    shutil.copytree(tiny_run, folder / "half")
    (file,) = (folder / "half").glob("events.*")
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * 0.7)])  # as after a killed writer
    (folder / "garbage").mkdir()
    (folder / "garbage" / "events.out.tfevents.1.x").write_bytes(os.urandom(1000))
    write_run(folder / "other_shape", [0, 5], layers=3, heads=5, labels=["<start>", "<script>alert(1)</script>", "·c"])
    write_run(folder / "long", range(500), layers=1, heads=1)


def write_series(
    run_dir: Path,
    steps: Sequence[Sequence[bytes]],
    content: bytes | None = None,
    tag: str = "t",
    wall_time: float | None = None,
) -> None:
    """Write a series of any content: the blobs of its steps, and its metadata, by default those of 4 tokens."""
    if content is None:
        content = pack_series(Probe("text", (0, 1, 2, 3), tuple("abcd"), ("",) * 4))
    plugin = SummaryMetadata.PluginData(plugin_name="attention", content=content)
    metadata = SummaryMetadata(plugin_data=plugin, data_class=DATA_CLASS_BLOB_SEQUENCE)
    with SummaryWriter(str(run_dir)) as writer:
        for step, blobs in enumerate(steps):
            value = Summary.Value(tag=tag, metadata=metadata, tensor=make_tensor_proto(list(blobs)))
            writer._get_file_writer().add_event(Event(summary=Summary(value=[value])), step, wall_time)


@contextmanager
def tensorboard(logdir: Path, *flags: str) -> Iterator[str]:
    """Serve a folder with TensorBoard and yield its URL, without a trailing slash."""
    command = [
        str(Path(sys.executable).with_name("tensorboard")),
        "--logdir",
        str(logdir),
        "--port",
        "0",
        "--reload_interval",
        "1",
        *flags,
    ]
    with tempfile.NamedTemporaryFile("w") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            log, deadline = Path(file.name), time.monotonic() + 60
            while not (found := re.search(r"(http://\S+?)/? \(Press", log.read_text())):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield found[1]
        finally:
            process.terminate()


def get(address: str, route: str, **parameters: Any) -> tuple[int, bytes]:
    """Request a route of the tab: status and body."""
    url = f"{address}/data/plugin/attention/{route}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def wait_for_runs(address: str, names: set[str]) -> dict[str, Any]:
    """Wait until the server lists these runs, and return its list."""
    deadline = time.monotonic() + 60
    while True:
        runs = json.loads(get(address, "series")[1])
        if names <= runs.keys():
            return runs
        assert time.monotonic() < deadline, runs.keys()
        time.sleep(0.3)


def get_captures(address: str, run: str, tag: str, **parameters: float) -> list[dict[str, Any]]:
    """Request the captures of a series."""
    status, body = get(address, "captures", run=run, tag=tag, **parameters)
    assert status == 200
    return json.loads(body)


def wait_for_captures(address: str, run: str, tag: str, count: int) -> list[dict[str, Any]]:
    """Wait until the server has read that many captures of a series, and return them."""
    deadline = time.monotonic() + 60
    while len(found := get_captures(address, run, tag)) < count:
        assert time.monotonic() < deadline, len(found)
        time.sleep(0.3)
    return found
