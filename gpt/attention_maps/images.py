"""Attention maps as pictures, for a stock TensorBoard.

Brightness is the square root of the weight, on the cividis colours (readable without colour vision), with 0..1
fixed, so that pictures of different steps compare. The future, which no token may see, is flat grey.
"""

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
_GRID_PIXELS = 768
_FUTURE = (208, 208, 208)
_INK = (30, 30, 30)
_PAPER = (255, 255, 255)

Picture = NDArray[np.uint8]


def grid_picture(maps: NDArray[np.float32], title: str) -> Picture:
    """All heads of all layers: a row per layer, a column per head.

    Args:
        maps: (L, H, T, T), rows sum to 1.
        title: drawn above.

    Returns:
        (height, width, 3) uint8.
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
    return np.asarray(image)


def head_picture(weights: NDArray[np.float32], labels: list[str], title: str) -> Picture:
    """One head, large, with its tokens: the row is the token that reads, bright is where it looks.

    Args:
        weights: (T, T), rows sum to 1.
        labels: T of them, as ``token_label`` makes them.
        title: drawn above.

    Returns:
        (height, width, 3) uint8.
    """
    scale, font = 14, ImageFont.load_default(11)
    side = len(labels) * scale
    margin = 10 + round(max(font.getlength(label) for label in labels))
    top = margin + 38
    width = margin + max(side + 8, round(font.getlength(title)))
    image = Image.new("RGB", (width, top + side + 8), _PAPER)
    draw = ImageDraw.Draw(image)
    draw.text((6, 4), f"{title}\nrow: the token that reads; bright: where it looks", fill=_INK, font=font)
    key_labels = Image.new("RGB", (margin - 4, side), _PAPER)  # drawn level, then turned upright
    for row, label in enumerate(labels):
        middle = row * scale + scale / 2
        draw.text((margin - 4, top + middle), label, _INK, font, anchor="rm")
        ImageDraw.Draw(key_labels).text((2, middle), label, _INK, font, anchor="lm")
    image.paste(key_labels.transpose(Image.Transpose.ROTATE_90), (margin, top - key_labels.width))
    image.paste(_map_image(weights, scale), (margin, top))
    return np.asarray(image)


def token_label(token: bytes) -> str:
    """A token as a label that can be read: white space made visible, what is not whole UTF-8 as hexadecimal."""
    try:
        text = token.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(f"‹{byte:02X}›" for byte in token)
    visible = {" ": "·", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    # Pillow's built-in font has Latin letters; any other character is named instead.
    return "".join(visible.get(c, c if c.isprintable() and ord(c) < 0x180 else f"U+{ord(c):04X}") for c in text)


def _map_image(weights: NDArray[np.float32], scale: int) -> Image.Image:
    position = np.sqrt(weights) * (len(_CIVIDIS) - 1)
    colours = np.stack([np.interp(position, range(len(_CIVIDIS)), channel) for channel in _CIVIDIS.T], axis=-1)
    colours = np.nan_to_num(colours, nan=0.0)  # a diverged model's map is drawn black
    colours[np.triu_indices(len(weights), k=1)] = _FUTURE
    pixels = colours.round().astype(np.uint8).repeat(scale, axis=0).repeat(scale, axis=1)
    return Image.fromarray(pixels)
