"""Mapped pages of a file, given back when what they hold has been copied."""

from __future__ import annotations

import mmap


def give_back(mapping: mmap.mmap, first: int, last: int) -> None:
    """Let the pages of some bytes go; they stay in the page cache.

    Where the system knows no such advice (Windows), they go when the mapping does.

    Args:
        mapping: private to this process and never written.
        first, last: from byte to byte.
    """
    start = first // mmap.PAGESIZE * mmap.PAGESIZE
    size = (last - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if size and hasattr(mapping, "madvise"):
        mapping.madvise(mmap.MADV_DONTNEED, start, size)
