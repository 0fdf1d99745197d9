"""Sizes that are padded to a power of two: few shapes, so few compilations."""


def padded_size(size: int) -> int:
    """The least power of two that holds `size`.

    >>> padded_size(1), padded_size(5), padded_size(8)
    (1, 8, 8)
    """
    return 1 << max(0, size - 1).bit_length()
