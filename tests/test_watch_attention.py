"""scripts/watch_attention.py and gpt/attention_maps/watch.py."""

import resource
import shutil
from pathlib import Path

import pytest
import torch

from gpt.attention_maps.ablation import ablate_heads
from gpt.attention_maps.capture import attention_maps
from gpt.checkpoint import load_model, read_checkpoint
from gpt.generation.generate import Request, generate
from gpt.generation.sampling import Sampling
from scripts import convert, prepare_data, watch_attention
from tests.attention_events import read_captures, unpack_layer


def _only_folder(logdir: Path) -> Path:
    (folder,) = logdir.iterdir()
    return folder


def _replace(path: Path, content: dict) -> None:
    torch.save(content, path.with_suffix(".new"))  # the content is memory-mapped from the file
    path.with_suffix(".new").replace(path)


def test_prompts_are_captured(tiny_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = [str(tiny_run), "--prompt", "two bottles", "wall", "--logdir", str(tmp_path), "--device", "cpu"]
    assert watch_attention.main(arguments) == 0
    assert "tiny-step30" in capfd.readouterr().err
    captures = read_captures(_only_folder(tmp_path))
    assert sorted(written[0].series["probe"] for written in captures.values()) == ["prompt", "prompt", "random"]
    model, tokenizer = load_model(tiny_run)
    maps = attention_maps(model, torch.tensor([[tokenizer.eot_id, *b"two bottles"]]))[:, 0]
    # The random sequence is that of training, so that the scores compare.
    (training,) = (tag for tag in read_captures(tiny_run) if "random" in tag)
    assert training in captures
    (written,) = (w for (w,) in captures.values() if w.series["labels"][1:4] == ["t", "w", "o"])
    assert written.step == 30
    assert written.scores["mean_ablation"] == pytest.approx(
        ablate_heads(model, [tokenizer.eot_id, *b"two bottles"]), abs=1e-4
    )
    assert written.predictions is not None
    assert len(written.predictions["losses"]) == 11
    assert written.roles == read_captures(tiny_run)[training][-1].roles  # on the same windows of the validation split
    assert abs(unpack_layer(written.layers[1], 2) - maps[1].numpy()).max() < 0.004


def test_generated_tokens_are_captured(tiny_run: Path, tmp_path: Path) -> None:
    arguments = [str(tiny_run / "last.ckpt"), "--prompt", "one", "--generate", "9", "--temperature", "0"]
    assert watch_attention.main([*arguments, "--logdir", str(tmp_path), "--device", "cpu"]) == 0
    captures = read_captures(_only_folder(tmp_path))
    (written,) = (w for (w,) in captures.values() if w.series["probe"] == "generated")
    model, tokenizer = load_model(tiny_run / "last.ckpt")
    (continuation,) = generate(model, tokenizer, [list(b"one")], Request(9, Sampling(temperature=0)), [0])
    assert written.series["generated_from"] == 4
    assert "".join(written.series["labels"][4:]).replace("·", " ") == continuation.text


def test_a_hugging_face_folder_is_captured(tiny_run: Path, tmp_path: Path) -> None:
    assert convert.main(["to-hf", str(tiny_run), str(tmp_path / "exported")]) == 0
    arguments = [str(tmp_path / "exported"), "--prompt", "wall", "--logdir", str(tmp_path / "logs")]
    assert watch_attention.main(arguments) == 0
    assert all(written.step == 0 for (written,) in read_captures(_only_folder(tmp_path / "logs")).values())


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--prompt", ""], "are empty"),
        (["--prompt", "x" * 32], "33 tokens"),
        (["--prompt", "x", "--generate", "31"], "33 tokens"),
        (["--prompt", "x", "--generate", "-1"], "--generate is -1"),
        (["--prompt", "x", "--generate", "1", "--temperature", "-1"], "temperature"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    arguments: list[str], message: str, tiny_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert watch_attention.main([str(tiny_run), *arguments, "--logdir", str(tmp_path / "logs")]) == 2
    errors = capfd.readouterr().err.strip().splitlines()
    assert message in errors[-1]
    assert errors[-1].startswith("error: ")
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    "config",
    [
        *(None, b"", b"a: [", b"- 1", b"null", b"\xff\xfe", b"data: 1", b"data: {}", b"data: {path: 7}"),
        *(b"[" * 2000, b"{a: " * 2000, b'data: {path: "a\\0b"}', b"data: {path: /}", b"model: {num_layers: 2}"),
        *(b"\xef\xbb\xbfdata: {path: nowhere}", b"!!python/object:os.system {}", b"data: {path: gpt2_data}"),
    ],
)
def test_without_training_data_the_random_sequence_is_of_the_whole_vocabulary(
    config: bytes | None, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "song.txt").write_text("wall " * 100)
    assert config is None or prepare_data.main(["song.txt", "--output", "gpt2_data"]) == 0
    (tmp_path / "alone").mkdir()
    shutil.copy(tiny_run / "last.ckpt", tmp_path / "alone" / "x.ckpt")
    if config is not None:
        (tmp_path / "alone" / "config.yaml").write_bytes(config)
    assert watch_attention.main(["alone/x.ckpt", "--prompt", "wall", "--logdir", "logs", "--device", "cpu"]) == 0
    captures = read_captures(_only_folder(tmp_path / "logs"))
    assert [w.series["probe"] for (w,) in captures.values()].count("random") == 1
    assert captures.keys().isdisjoint(read_captures(tiny_run))


def test_two_models_never_share_a_folder(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("out1/run", "out2/run", "out3/run"):
        shutil.copytree(tiny_run, folder)
    (tmp_path / "link").symlink_to("out1/run")
    for folder, changes in ("out2/run", {"global_step": 29}), ("out3/run", {}):
        content = read_checkpoint(folder)
        if not changes:
            content["state_dict"]["model.transformer.final_norm.bias"][0] += 1e-6
        _replace(Path(folder) / "best.ckpt", content | changes)

    def watched(checkpoint: str) -> set[str]:
        assert watch_attention.main([checkpoint, "--prompt", "a", "--logdir", "logs", "--device", "cpu"]) == 0
        return {path.name for path in Path("logs").iterdir()}

    first = watched("out1/run")
    assert watched(str(tmp_path / "out1" / "run")) == watched("out1/run/best.ckpt") == watched("link") == first
    assert len(watched("out2/run")) == 2
    assert len(watched("out3/run")) == 3


def test_attention_that_is_not_finite_is_refused(
    tiny_copy: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    content = read_checkpoint(tiny_copy)
    content["state_dict"]["model.transformer.blocks.1.attention.qkv.weight"] *= 1e30
    _replace(tiny_copy / "best.ckpt", content)
    assert watch_attention.main([str(tiny_copy), "--prompt", "a", "--logdir", str(tmp_path / "logs")]) == 2
    assert "is not finite" in capfd.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "logs").exists()


def test_a_full_disk_is_one_line_with_the_path(
    tiny_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))  # EFBIG instead of ENOSPC
        assert watch_attention.main([str(tiny_run), "--prompt", "a" * 20, "--logdir", str(tmp_path / "logs")]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"error: {tmp_path / 'logs'}/tiny-step30" in capfd.readouterr().err.splitlines()[-1]
    assert not list((tmp_path / "logs").iterdir())


def test_a_missing_checkpoint_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert watch_attention.main([str(tmp_path / "nothing"), "--prompt", "x", "--logdir", str(tmp_path / "logs")]) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: ")
    assert str(tmp_path / "nothing") in error
