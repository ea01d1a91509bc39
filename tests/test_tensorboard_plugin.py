"""Server side of the Attention tab, with both of TensorBoard's data servers."""

import gzip
import json
import subprocess
import sys
import time
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from gpt.attention_maps.tensorboard_plugin import AttentionLoader
from tests.attention_events import read_captures, unpack_layer
from tests.runs import scalars
from tests.serving import (
    get,
    get_captures,
    tensorboard,
    wait_for_captures,
    wait_for_runs,
    write_run,
    write_series,
    write_test_runs,
)

Served = tuple[str, Path]
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module", params=["true", "false"], ids=["fast", "python"])
def served(
    request: pytest.FixtureRequest, tiny_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """URL and folder of a TensorBoard over valid and damaged runs."""
    folder = tmp_path_factory.mktemp("served") / "runs"
    folder.mkdir()
    write_test_runs(tiny_run, folder)
    with tensorboard(folder, "--load_fast", request.param) as address:
        wait_for_runs(address, {"real", "half", "other_shape", "long"})
        yield address, folder


def test_the_server_returns_what_was_written(served: Served) -> None:
    address, folder = served
    written = read_captures(folder / "real")
    listed = wait_for_runs(address, {"real"})["real"]
    assert listed.keys() == written.keys()
    for tag, captures in written.items():
        got = wait_for_captures(address, "real", tag, len(captures))
        assert {**captures[0].series, "last_wall_time": got[-1]["wall_time"]} == listed[tag]
        assert [capture["step"] for capture in got] == [capture.step for capture in captures]
        for capture, expected in zip(got, captures, strict=True):
            assert capture["scores"] == expected.scores
            assert capture["has_maps"] == bool(expected.layers)
            for layer, blob in enumerate(expected.layers):
                where = {"run": "real", "tag": tag, "step": capture["step"], "wall_time": capture["wall_time"]}
                status, body = get(address, "maps", layer=layer, **where)
                assert status == 200
                # TensorBoard decompresses for a client that does not accept gzip.
                packed = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
                assert packed == gzip.decompress(blob)


def test_the_server_returns_predictions_and_losses(served: Served) -> None:
    address, folder = served
    (tag,) = (tag for tag in read_captures(folder / "real") if "text" in tag)
    for capture in wait_for_captures(address, "real", tag, 4):
        tokens = len(wait_for_runs(address, {"real"})["real"][tag]["labels"])
        assert len(capture["predictions"]["losses"]) == tokens - 1
        assert [len(row) for row in capture["predictions"]["likeliest"]] == [5] * tokens
        assert all(1 >= a >= b > 0 for a, b, *_ in capture["predictions"]["probabilities"])
    status, body = get(address, "losses", run="real")
    assert status == 200
    losses = json.loads(body)
    validations = losses["by_position"]
    assert [validation["step"] for validation in validations] == [12, 24, 30]
    for validation in validations:
        assert len(validation["losses"]) == len(validation["positions"])
        assert validation["positions"][0] == 0
        assert all(1 < loss < 7 for loss in validation["losses"])  # ln(257) is 5.5
    names = {"train": "loss/train_nats", "val": "loss/val_nats"}
    names |= {f"{copy}_copy": f"scores/{copy}_copy_loss_nats" for copy in ("first", "second")}
    for name, tag in names.items():
        assert losses[name] == [list(point) for point in scalars(folder / "real", tag).items()], name
    empty = {"by_position": [], "train": [], "val": [], "first_copy": [], "second_copy": []}
    status, body = get(address, "losses", run="long")
    assert (status, json.loads(body)) == (200, empty)


def test_losses_of_earlier_event_files_are_read(tmp_path: Path) -> None:
    write_run(tmp_path / "old", [0])
    with SummaryWriter(str(tmp_path / "old")) as writer:
        writer.add_scalar("train/loss_nats", 3.5, 1)
        writer.add_scalar("val/loss_nats", float("nan"), 1)
    with tensorboard(tmp_path) as address:
        wait_for_runs(address, {"old"})
        losses = json.loads(get(address, "losses", run="old")[1])
    assert losses["train"] == [[1, 3.5]]
    assert losses["val"] == []  # NaN is not JSON


def test_newer_than_limits_the_scores_to_newer_captures(served: Served) -> None:
    address, folder = served
    (tag,) = (tag for tag in read_captures(folder / "real") if "text" in tag)
    every = wait_for_captures(address, "real", tag, 4)
    newer = get_captures(address, "real", tag, newer_than=every[1]["wall_time"])
    assert [capture["step"] for capture in newer] == [capture["step"] for capture in every]
    assert ["scores" in capture for capture in newer] == [c["wall_time"] > every[1]["wall_time"] for c in every]


def test_all_of_500_captures_are_kept(served: Served) -> None:
    address, _ = served
    (tag,) = wait_for_runs(address, {"long"})["long"]
    assert [capture["step"] for capture in wait_for_captures(address, "long", tag, 500)] == list(range(500))


def test_a_truncated_file_is_read_up_to_its_end(served: Served) -> None:
    address, _ = served
    for tag in wait_for_runs(address, {"half"})["half"]:
        steps = [capture["step"] for capture in wait_for_captures(address, "half", tag, 1)]
        assert steps == [0, 2, 8, 30][: len(steps)]


def test_a_token_of_markup_is_served_as_data(served: Served) -> None:
    address, _ = served
    ((tag, facts),) = wait_for_runs(address, {"other_shape"})["other_shape"].items()
    assert facts["labels"] == ["<start>", "<script>alert(1)</script>", "·c"]
    first = wait_for_captures(address, "other_shape", tag, 2)[0]
    where = {"run": "other_shape", "tag": tag, "step": 0, "wall_time": first["wall_time"], "layer": 2}
    body = get(address, "maps", **where)[1]
    assert unpack_layer(body if body[:2] == b"\x1f\x8b" else gzip.compress(body), 5).shape == (5, 3, 3)


@pytest.mark.parametrize(
    "route,parameters,status",
    [
        ("nothing.js", {}, 404),
        ("../plugin.py", {}, 404),
        ("captures", {}, 400),
        ("captures", {"run": "real"}, 400),
        ("captures", {"run": "nowhere", "tag": "x"}, 404),
        ("captures", {"run": "real", "tag": "x"}, 404),
        ("captures", {"run": "real", "tag": "TAG", "newer_than": "soon"}, 400),
        ("maps", {"run": "real", "tag": "TAG", "layer": 0}, 400),
        ("maps", {"run": "real", "tag": "TAG", "step": 30, "wall_time": 1, "layer": 0}, 404),
        ("maps", {"run": "real", "tag": "TAG", "step": 30, "wall_time": "TIME", "layer": 2}, 404),
        ("maps", {"run": "real", "tag": "TAG", "step": 30, "wall_time": "TIME", "layer": -1}, 404),
        ("maps", {"run": "real", "tag": "TAG", "step": "last", "wall_time": "TIME", "layer": 0}, 400),
        ("maps", {"run": "real", "tag": "TAG", "step": 30, "wall_time": "TIME", "layer": 1}, 200),
    ],
)
def test_invalid_requests_get_an_error_status(route: str, parameters: dict, status: int, served: Served) -> None:
    address, folder = served
    (tag,) = (tag for tag in read_captures(folder / "real") if "text" in tag)
    known = {"TAG": tag, "TIME": wait_for_captures(address, "real", tag, 4)[-1]["wall_time"]}
    got, body = get(address, route, **{name: known.get(value, value) for name, value in parameters.items()})
    assert got == status, body
    assert get(address, "series")[0] == 200


def test_the_static_files_are_served(served: Served) -> None:
    static = ROOT / "gpt" / "attention_maps" / "tensorboard_plugin" / "static"
    assert len(list(static.iterdir())) >= 5
    for path in static.iterdir():
        status, body = get(served[0], path.name)
        assert (status, body) == (200, path.read_bytes())


@pytest.mark.parametrize("fast", ["true", "false"])
def test_damaged_series_hide_no_others(fast: str, tmp_path: Path) -> None:
    folder, scores = tmp_path / "runs", gzip.compress(b'{"sink": [[0.5, NaN]]}')
    layer = gzip.compress(bytes(2 * 10))  # 2 heads, 4 tokens
    write_run(folder / "valid", [0])
    write_series(folder / "nan", [[scores, layer]])
    write_series(folder / "one_step", [[scores, layer], [scores[:-1], layer]])
    write_series(folder / "bomb", [[scores, gzip.compress(bytes(10**8))], [scores, layer + b"x"], [scores, b"junk"]])
    write_series(folder / "layers", [[scores, layer, layer]])
    write_series(folder / "nested", [[scores]], b"[" * 100_000)
    write_series(folder / "scores", [[b"junk"]])
    write_series(folder / "time", [[scores]], wall_time=float("nan"))
    write_series(folder / "two", [[scores]])
    write_series(folder / "two", [[b"junk"]], tag="other")
    with tensorboard(folder, "--load_fast", fast) as address:
        runs = wait_for_runs(address, {"valid", "nan", "one_step", "bomb", "two"})
        assert set(runs) == {"valid", "nan", "one_step", "bomb", "two"}
        assert set(runs["two"]) == {"t"}
        (capture,) = get_captures(address, "nan", "t")
        assert capture["scores"] == {"sink": [[0.5, None]]}
        assert [capture["step"] for capture in get_captures(address, "one_step", "t")] == [0]
        for capture in wait_for_captures(address, "bomb", "t", 3):
            where = {"step": capture["step"], "wall_time": capture["wall_time"], "layer": 0}
            status, body = get(address, "maps", run="bomb", tag="t", **where)
            assert status == 404
            assert b"damaged" in body


@pytest.mark.parametrize("fast", ["true", "false"])
def test_a_step_that_a_resumed_run_wrote_twice_is_served_once(fast: str, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    write_run(folder / "run", [0, 1, 2])
    time.sleep(1.1)  # event file names have a resolution of one second
    write_run(folder / "run", [2, 3])
    with tensorboard(folder, "--load_fast", fast) as address:
        (tag,) = wait_for_runs(address, {"run"})["run"]
        captures = wait_for_captures(address, "run", tag, 4)
    assert [capture["step"] for capture in captures] == [0, 1, 2, 3]
    if fast == "true":  # the Python reader keeps the earlier one
        assert captures[2]["wall_time"] > captures[1]["wall_time"] + 1


def test_a_folder_without_runs_is_served(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with tensorboard(tmp_path / "runs") as address:
        assert get(address, "series") == (200, b"{}")


def test_importing_the_plugin_does_not_import_torch() -> None:
    code = (
        "import sys, gpt.attention_maps.tensorboard_plugin.plugin;"
        "sys.exit(' '.join({'torch', 'lightning', 'datasets', 'tiktoken'} & set(sys.modules)) or 0)"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


def test_a_plugin_that_fails_to_load_does_not_stop_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gpt.attention_maps.tensorboard_plugin.plugin", None)  # its import fails
    assert AttentionLoader().load(types.SimpleNamespace(data_provider=None)) is None


@pytest.mark.parametrize(
    "before,after",
    [({}, {"attention": 1000}), ({"attention": 5, "images": 3}, {"attention": 5, "images": 3}), (None, None)],
)
def test_flags_of_the_user_take_precedence(before: dict | None, after: dict | None) -> None:
    flags = types.SimpleNamespace(samples_per_plugin=before)
    AttentionLoader().fix_flags(flags)
    assert flags.samples_per_plugin == after
    AttentionLoader().fix_flags(types.SimpleNamespace())


def test_the_wheel_contains_the_tab(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    # Built from a clean checkout, so that it neither uses nor leaves untracked files.
    source = tmp_path / "source"
    subprocess.run(["git", "-C", str(ROOT), "checkout-index", "--all", f"--prefix={source}/"], check=True)
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
        assert "[tensorboard_plugins]" in content.read(entry_points).decode()
    for name in ("index.js", "style.css", "data.js"):
        assert f"gpt/attention_maps/tensorboard_plugin/static/{name}" in names
    assert "gpt/gpt2.tiktoken" in names
