from pathlib import Path

import numpy as np
import torch
from torch.utils.tensorboard import SummaryWriter

from gpt.attention_maps.capture import Capture
from gpt.attention_maps.probes import Probe
from gpt.attention_maps.writer import attention_image, write_captures
from tests.attention_events import read_captures

BRIGHT = 255


def _previous_token_map(length: int) -> np.ndarray:
    weights = np.diag(np.ones(length - 1, dtype=np.float32), -1)
    weights[0, 0] = 1
    return weights


def _cells(maps: np.ndarray, scale: int) -> np.ndarray:
    """The brightness at the centre of each weight of the first head."""
    T = maps.shape[-1]
    image = np.asarray(attention_image(maps))
    return image[3 : 3 + T * scale, 3 : 3 + T * scale][scale // 2 :: scale, scale // 2 :: scale]


def test_rows_are_queries_and_columns_are_keys() -> None:
    maps = _previous_token_map(4)[None, None]
    assert np.array_equal(_cells(maps, 512 // 4), maps[0, 0] * BRIGHT)


def test_brightness_is_the_square_root_of_the_weight() -> None:
    weights = np.array([[1, 0], [0.75, 0.25]], dtype=np.float32)
    assert _cells(weights[None, None], 512 // 2).tolist() == [[255, 0], [221, 128]]


def test_the_image_has_a_row_per_layer_and_a_column_per_head() -> None:
    maps = np.broadcast_to(np.tril(np.full((8, 8), 0.5, np.float32)), (2, 3, 8, 8)).copy()
    scale = 512 // (3 * 8)
    image = np.asarray(attention_image(maps))
    assert image.shape == (2 * (8 * scale + 6), 3 * (8 * scale + 6))
    assert (image == 180).sum() == 2 * 3 * 36 * scale**2
    maps[1, 2] = np.eye(8)
    changed = np.argwhere(np.asarray(attention_image(maps)) != image)
    assert changed.min(0).tolist() == [8 * scale + 6 + 3, 2 * (8 * scale + 6) + 3]


def test_nan_weights_are_drawn_as_zero() -> None:
    nan, zero = (np.asarray(attention_image(np.full((1, 1, 3, 3), value, np.float32))) for value in (np.nan, 0))
    assert np.array_equal(nan, zero)


def test_captures_of_a_diverged_model_are_written(tmp_path: Path) -> None:
    probe = Probe("text", (0, 1, 2), ("a", "b", "c"), ("", "", ""))
    capture = Capture(probe, torch.full((1, 1, 3, 3), torch.nan), torch.full((1, 1), torch.nan))
    with SummaryWriter(str(tmp_path)) as writer:
        write_captures(writer, 1, [capture], image=True)
    ((written,),) = read_captures(tmp_path).values()
    assert written.scores["sink"] == [[None]]
