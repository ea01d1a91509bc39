"""Captures during training: what is written at which steps, and that training is not affected."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from gpt.attention_maps.capture import Capture, attention_maps
from gpt.attention_maps.head_metrics import head_metrics
from gpt.attention_maps.probes import Probe
from gpt.checkpoint import load_model
from gpt.training.attention_capture import capture_steps, image_steps
from tests.attention_events import read_captures, unpack_layer
from tests.runs import TrainTiny, at_step, events, same_weights, scalars

STEPS = [0, 2, 8, 30]  # the tiny config has 4 captures in 30 steps


@pytest.mark.parametrize(
    "max_steps,captures,expected",
    [
        (30, 4, [0, 2, 8, 30]),
        (1, 200, [0, 1]),
        (5, 200, [0, 1, 2, 3, 4, 5]),
        (500, 2, [0, 500]),
        (16, 8, [0, 1, 2, 4, 5, 8, 11, 16]),
    ],
)
def test_capture_steps(max_steps: int, captures: int, expected: list[int]) -> None:
    assert sorted(capture_steps(max_steps, captures)) == expected


@pytest.mark.parametrize("max_steps", [720, 2000, 19_000, 600_000])
def test_captures_are_dense_at_first_and_then_evenly_spaced(max_steps: int) -> None:
    steps = sorted(capture_steps(max_steps, 200))
    assert {0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, max_steps} <= set(steps)
    assert 195 <= len(steps) <= 200
    gaps = np.diff(steps)
    assert gaps.max() <= max_steps / 170 + 1
    assert len(image_steps(max_steps)) <= 10
    assert image_steps(max_steps) <= set(steps)


def test_both_probes_are_scored_at_every_capture(tiny_run: Path) -> None:
    captures = read_captures(tiny_run)
    by_probe = {written[0].series["probe"]: written for written in captures.values()}
    assert set(by_probe) == {"text", "random"}
    for written in by_probe.values():
        assert [capture.step for capture in written] == STEPS
        assert all(np.shape(values) == (2, 2) for capture in written for values in capture.scores.values())
    assert [len(capture.layers) for capture in by_probe["text"]] == [2, 2, 2, 2]
    assert [len(capture.layers) for capture in by_probe["random"]] == [2, 0, 0, 2]  # at every eighth capture, and last
    assert ["mean_ablation" in capture.scores for capture in by_probe["text"]] == [True, False, False, True]
    assert by_probe["text"][0].series["labels"][:4] == ["<start>", "t", "h", "e"]
    assert len(by_probe["random"][0].series["labels"]) == 31  # 1 + 2 * ((32 - 1) // 2)


def test_the_last_capture_is_of_the_final_weights(tiny_run: Path) -> None:
    model, tokenizer = load_model(tiny_run / "last.ckpt")
    for written in read_captures(tiny_run).values():
        last = written[-1]
        if last.series["probe"] == "text":
            ids = [tokenizer.eot_id, *tokenizer.encode("the cat sat on the mat")]
        else:
            shown = {"·": " ", "⏎": "\n"}
            ids = [tokenizer.eot_id, *(ord(shown.get(label, label)) for label in last.series["labels"][1:])]
        maps = attention_maps(model, torch.tensor([ids]))[:, 0]
        for layer, blob in enumerate(last.layers):
            assert np.abs(unpack_layer(blob, 2) - maps[layer].numpy()).max() < 0.004
        is_random = last.series["probe"] == "random"
        probe = Probe("", tuple(ids), ("",) * len(ids), ("",) * len(ids), is_repeated_random=is_random)
        for name, values in head_metrics(Capture(probe, maps, torch.zeros(2, 2))).items():
            if name != "max_logit":
                np.testing.assert_allclose(last.scores[name], values.numpy(), atol=6e-5, err_msg=name)


def test_summaries_over_heads_follow_from_the_scores(tiny_run: Path) -> None:
    run = events(tiny_run)
    tags = [tag for tag in run.Tags()["scalars"] if tag.startswith("scores/")]
    assert 8 <= len(tags) <= 16
    captures = read_captures(tiny_run)
    (random,) = (written for written in captures.values() if written[0].series["probe"] == "random")
    induction = scalars(tiny_run, "scores/induction_max")
    assert list(induction) == STEPS
    for capture in random:
        assert induction[capture.step] == pytest.approx(np.max(capture.scores["induction"]), abs=6e-5)


def test_a_tensorboard_without_the_tab_shows_images(tiny_run: Path) -> None:
    images = events(tiny_run).Images("thumbnails/all_heads")
    assert [image.step for image in images] == STEPS
    assert images[0].encoded_image_string != images[-1].encoded_image_string


@pytest.mark.parametrize(
    "flags",
    [["--attention_maps.probe_text", "a dog ran"], ["--attention_maps.captures", "3"]],
    ids=["text", "captures"],
)
def test_options_of_the_captures_do_not_affect_training(
    flags: list[str], train_tiny: TrainTiny, tiny_run: Path, tmp_path: Path
) -> None:
    assert train_tiny(tmp_path, *flags) == 0
    assert same_weights(tmp_path / "tiny", tiny_run)
    assert scalars(tmp_path / "tiny", "loss/train_nats") == scalars(tiny_run, "loss/train_nats")
    first, second = (
        {tag: [capture.step for capture in written] for tag, written in read_captures(run).items()}
        for run in (tiny_run, tmp_path / "tiny")
    )
    assert first != second


def test_a_run_that_ends_early_is_captured_at_its_end_and_continues_on_resume(
    train_tiny: TrainTiny, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train_tiny(tmp_path, "--trainer.max_time", "00:00:00") == 0
    stopped = read_captures(tmp_path / "tiny")
    ends = {written[-1].step for written in stopped.values()}
    assert len(ends) == 1
    assert all(written[-1].layers for written in stopped.values())
    assert train_tiny(tmp_path, "--resume", "--trainer.max_time", "null") == 0
    resumed = read_captures(tmp_path / "tiny")
    assert resumed.keys() == stopped.keys() == read_captures(tiny_run).keys()
    for written in resumed.values():
        assert {capture.step for capture in written} == {*STEPS, *ends}


@pytest.mark.parametrize("step", [7, 8])  # step 8 is due for a capture anyway
def test_a_terminated_run_is_captured_at_its_end(
    step: int, train_tiny: TrainTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_step(step, lambda: os.kill(os.getpid(), signal.SIGTERM), monkeypatch)
    with pytest.raises(SystemExit) as ended:
        train_tiny(tmp_path)
    assert ended.value.code == 143
    for written in read_captures(tmp_path / "tiny").values():
        assert [capture.step for capture in written] == [0, 2, step]


def test_a_resumed_run_may_have_another_probe_text(train_tiny: TrainTiny, tmp_path: Path) -> None:
    assert train_tiny(tmp_path, "--trainer.max_steps", "10", "--optim.schedule", "constant") == 0
    flags = ["--resume", "--trainer.max_steps", "20", "--attention_maps.probe_text", "a dog"]
    assert train_tiny(tmp_path, *flags) == 0
    texts = [w for w in read_captures(tmp_path / "tiny").values() if w[0].series["probe"] == "text"]
    assert sorted("".join(w[0].series["labels"][1:]) for w in texts) == ["a·dog", "the·cat·sat·on·the·mat"]


def test_a_context_too_short_for_a_random_sequence_has_the_text_only(train_tiny: TrainTiny, tmp_path: Path) -> None:
    flags = ["--model.context_length", "4", "--trainer.sample_tokens", "0"]
    assert train_tiny(tmp_path, *flags) == 0
    (written,) = read_captures(tmp_path / "tiny").values()
    assert written[0].series["labels"] == ["<start>", "t", "h", "e"]
