import numpy as np

from gpt.attention_maps.images import grid_picture, scores_picture

GREY, DARK, BRIGHT = (208, 208, 208), (0, 34, 78), (254, 232, 56)


def _previous_token_map(length: int) -> np.ndarray:
    weights = np.diag(np.ones(length - 1, dtype=np.float32), -1)
    weights[0, 0] = 1
    return weights


def _cell(picture: np.ndarray, row: int, column: int, scale: int, left: int, top: int) -> tuple[int, ...]:
    return tuple(picture[top + row * scale + scale // 2, left + column * scale + scale // 2].tolist())


def _grid(maps: np.ndarray) -> np.ndarray:
    return np.asarray(grid_picture(maps, "title"))


def test_a_head_is_drawn_query_down_and_key_across() -> None:
    picture = _grid(_previous_token_map(4)[None, None])
    top, left = np.argwhere((picture == BRIGHT).all(-1))[0]
    cells = [[_cell(picture, row, column, 512 // 4, left, top) for column in range(4)] for row in range(4)]
    assert cells == [
        [BRIGHT, GREY, GREY, GREY],
        [BRIGHT, DARK, GREY, GREY],
        [DARK, BRIGHT, DARK, GREY],
        [DARK, DARK, BRIGHT, DARK],
    ]


def test_brightness_is_the_square_root_of_the_weight() -> None:
    weights = np.array([[1, 0], [0.75, 0.25]], dtype=np.float32)
    picture = _grid(weights[None, None])
    top, left = np.argwhere((picture == BRIGHT).all(-1))[0]
    assert _cell(picture, 1, 1, 512 // 2, left, top) == (112, 113, 115)  # cividis at sqrt(0.25) = 1/2


def test_scores_stand_in_tables_by_layer_and_head() -> None:
    scores = {"previous_token": np.zeros((2, 3), np.float32), "entropy": np.full((2, 3), 9, np.float32)}
    plain = np.asarray(scores_picture(scores, "title"))
    assert not (plain == BRIGHT).all(-1).any()  # entropy is no share, and is not drawn
    scores["previous_token"][1, 2] = 1
    changed = np.asarray(scores_picture(scores, "title"))
    rows, columns = np.argwhere((changed == BRIGHT).all(-1)).T
    rest = (plain[:, : columns.min()] == changed[:, : columns.min()]).all()
    assert rest
    assert rows.min() > 60 + 18 - 1  # the second layer
    assert columns.min() >= 58 + 2 * 30  # the third head


def test_scores_that_are_no_numbers_are_drawn_all_the_same() -> None:
    nothing, zero = (
        np.asarray(scores_picture({"sink": np.full((1, 1), value, np.float32)}, "title")) for value in (np.nan, 0)
    )
    assert np.array_equal(nothing, zero)


def test_a_grid_has_a_map_per_head() -> None:
    maps = np.broadcast_to(_previous_token_map(8), (2, 3, 8, 8)).copy()
    picture = _grid(maps)
    bright = (picture == BRIGHT).all(-1)
    scale = 512 // (3 * 8)
    assert bright.sum() == 2 * 3 * 8 * scale**2
    maps[1, 2] = np.eye(8)
    changed = np.argwhere((_grid(maps) != picture).any(-1))
    assert changed.min(0)[0] > picture.shape[0] / 2
    assert changed.min(0)[1] > picture.shape[1] / 2
