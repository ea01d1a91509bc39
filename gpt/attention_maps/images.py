"""Attention maps and head scores as pictures, for a TensorBoard without the Attention tab.

Brightness is the square root of the weight, on the cividis colours (readable without colour vision), with 0..1
fixed, so that pictures of different steps compare. The future, which no token may see, is flat grey.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

# Cividis at 0, 1/8, ..., 1 (Nuñez et al. 2018); between them, straight lines are within 1 of 255.
_CIVIDIS = np.array(
    [
        (0, 34, 78),
        (18, 53, 112),
        (59, 73, 108),
        (87, 93, 109),
        (112, 113, 115),
        (138, 134, 120),
        (165, 156, 116),
        (195, 179, 105),
        (254, 232, 56),
    ],
    dtype=np.float64,
)
_GRID_PIXELS = 512
_SHARES = ("previous_token", "sink", "induction", "duplicate_token", "normalised_entropy")
_FUTURE = (208, 208, 208)
_INK = (30, 30, 30)
_PAPER = (255, 255, 255)


def grid_picture(maps: NDArray[np.float32], title: str) -> Image.Image:
    """All heads of all layers: a row per layer, a column per head.

    Args:
        maps: (L, H, T, T), rows sum to 1.
        title: drawn above.

    Returns:
        An RGB image.
    """
    num_layers, num_heads, T, _ = maps.shape
    scale = max(1, _GRID_PIXELS // (max(num_layers, num_heads) * T))
    size, gap, left, top = T * scale, 6, 58, 40
    image = Image.new("RGB", (left + num_heads * (size + gap), top + num_layers * (size + gap)), _PAPER)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(12)
    draw.text((6, 4), title, fill=_INK, font=font)
    for head in range(num_heads):
        draw.text((left + head * (size + gap) + size / 2, top - 4), f"head {head}", _INK, font, anchor="ms")
    for layer in range(num_layers):
        y = top + layer * (size + gap)
        draw.text((left - 6, y + size / 2), f"layer {layer}", _INK, font, anchor="rm")
        for head in range(num_heads):
            image.paste(_map_image(maps[layer, head], scale), (left + head * (size + gap), y))
    return image


def scores_picture(scores: Mapping[str, NDArray[np.float32]], title: str) -> Image.Image:
    """What every head does: for each score that lies in 0..1 a table, a row per layer, a column per head.

    Args:
        scores: name to (L, H).
        title: drawn above.

    Returns:
        An RGB image.
    """
    shown = {name: scores[name] for name in _SHARES if name in scores}
    num_layers, num_heads = next(iter(shown.values())).shape
    cell_width, cell_height, left, top = 30, 18, 58, 40
    width, height = left + num_heads * cell_width + 12, 24 + num_layers * cell_height
    image = Image.new("RGB", (max(width * len(shown), 300), top + height), _PAPER)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(11)
    draw.text((6, 4), title, fill=_INK, font=font)
    for number, (name, values) in enumerate(shown.items()):
        x0, y0 = number * width + left, top + 20
        draw.text((x0, y0 - 6), name.replace("_", " "), _INK, font, anchor="ls")
        for layer, row in enumerate(np.nan_to_num(values).clip(0, 1)):
            y = y0 + layer * cell_height
            draw.text((x0 - 6, y + cell_height / 2), f"layer {layer}", _INK, font, anchor="rm")
            for head, value in enumerate(row):
                x = x0 + head * cell_width
                colour = tuple(int(c) for c in _colours(value).round())
                draw.rectangle((x, y, x + cell_width - 2, y + cell_height - 2), fill=colour)
                ink = _PAPER if value < 0.5 else _INK
                draw.text((x + cell_width / 2 - 1, y + cell_height / 2 - 1), f"{value:.2f}", ink, font, anchor="mm")
    return image


def _colours(share: NDArray[np.float32]) -> NDArray[np.float64]:
    """0..1 (...) to red, green and blue, 0..255 (..., 3)."""
    position = share * (len(_CIVIDIS) - 1)
    return np.stack([np.interp(position, range(len(_CIVIDIS)), channel) for channel in _CIVIDIS.T], axis=-1)


def _map_image(weights: NDArray[np.float32], scale: int) -> Image.Image:
    colours = np.nan_to_num(_colours(np.sqrt(weights)), nan=0.0)  # a diverged model's map is drawn black
    colours[np.triu_indices(len(weights), k=1)] = _FUTURE
    pixels = colours.round().astype(np.uint8).repeat(scale, axis=0).repeat(scale, axis=1)
    return Image.fromarray(pixels)
