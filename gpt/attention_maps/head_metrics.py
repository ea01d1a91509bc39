"""What a head does, as a number.

Shape letters: L layers, H heads, T length; A[i, j] is how much query i looks at key j.
"""

from torch import Tensor


def previous_token(maps: Tensor) -> Tensor:
    """Mean weight on the token just before: mean over i >= 1 of A[i, i-1]; 1 is a perfect previous-token head.

    Args:
        maps: (..., T, T), T at least 2.

    Returns:
        (...), in 0..1; a head that spreads evenly over what it may see has mean of 1/(i+1).

    Source: TransformerLens, head detectors.
    """
    return maps.diagonal(offset=-1, dim1=-2, dim2=-1).mean(dim=-1)
