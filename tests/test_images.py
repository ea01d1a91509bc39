import numpy as np
import pytest

from gpt.attention_maps.images import grid_picture, head_picture, token_label

GREY, DARK, BRIGHT = (208, 208, 208), (0, 34, 78), (254, 232, 56)


def _previous_token_map(length: int) -> np.ndarray:
    weights = np.diag(np.ones(length - 1, dtype=np.float32), -1)
    weights[0, 0] = 1
    return weights


def _cell(picture: np.ndarray, row: int, column: int, scale: int, left: int, top: int) -> tuple[int, ...]:
    return tuple(picture[top + row * scale + scale // 2, left + column * scale + scale // 2].tolist())


def test_a_head_is_drawn_query_down_and_key_across() -> None:
    labels = ["<start>", "a", "b", "c"]
    picture = head_picture(_previous_token_map(4), labels, "title")
    assert picture.dtype == np.uint8
    # Find the map: its first cell is the only bright one in its row.
    top, left = np.argwhere((picture == BRIGHT).all(-1))[0]
    cells = [[_cell(picture, row, column, 14, left, top) for column in range(4)] for row in range(4)]
    assert cells == [
        [BRIGHT, GREY, GREY, GREY],
        [BRIGHT, DARK, GREY, GREY],
        [DARK, BRIGHT, DARK, GREY],
        [DARK, DARK, BRIGHT, DARK],
    ]


def test_key_labels_stand_over_their_columns() -> None:
    plain = head_picture(_previous_token_map(4), ["W", "W", "W", "W"], "t")
    changed = head_picture(_previous_token_map(4), ["W", "W", "W", "i"], "t")
    top, left = np.argwhere((plain == BRIGHT).all(-1))[0]
    columns = np.argwhere((plain[30:top] != changed[30:top]).any(-1))[:, 1]
    assert columns.min() >= left + 3 * 14
    rows = np.argwhere((plain[top:, :left] != changed[top:, :left]).any(-1))[:, 0]
    assert rows.min() >= 3 * 14


def test_brightness_is_the_square_root_of_the_weight() -> None:
    weights = np.array([[1, 0], [0.75, 0.25]], dtype=np.float32)
    picture = head_picture(weights, ["a", "b"], "t")
    top, left = np.argwhere((picture == BRIGHT).all(-1))[0]
    assert _cell(picture, 1, 1, 14, left, top) == (112, 113, 115)  # cividis at sqrt(0.25) = 1/2


def test_a_grid_has_a_map_per_head() -> None:
    maps = np.broadcast_to(_previous_token_map(8), (2, 3, 8, 8)).copy()
    picture = grid_picture(maps, "title")
    bright = (picture == BRIGHT).all(-1)
    scale = 768 // (3 * 8)
    assert bright.sum() == 2 * 3 * 8 * scale**2
    maps[1, 2] = np.eye(8)
    changed = np.argwhere((grid_picture(maps, "title") != picture).any(-1))
    assert changed.min(0)[0] > picture.shape[0] / 2
    assert changed.min(0)[1] > picture.shape[1] / 2


@pytest.mark.parametrize(
    "token,label",
    [
        (b" the", "·the"),
        (b"\n\n", "\\n\\n"),
        (b"\t", "\\t"),
        ("é".encode(), "é"),
        (b"\xf0\x9f", "‹F0›‹9F›"),
        ("深".encode(), "U+6DF1"),
        (b"\x00", "U+0000"),
        (b"<script>", "<script>"),
    ],
)
def test_labels_can_be_read(token: bytes, label: str) -> None:
    assert token_label(token) == label
