"""Tiles of kernels that hold one row in registers: a table by the row's width."""

from __future__ import annotations

from paths.kernels.launching import TileConfig

# widest row → warps: about 32 values a thread, and never more threads than pay
_WARPS = ((512, 1), (1024, 2), (2048, 4), (8192, 8), (32768, 16))


def row_tiles(width: int) -> TileConfig:
    """BLOCK is the power of two that holds `width` values. Raises ValueError beyond 32768."""
    block = 1 << max(width - 1, 0).bit_length()
    for widest, warps in _WARPS:
        if block <= widest:
            return TileConfig(num_warps=warps, num_stages=1, tiles={"BLOCK": block})
    raise ValueError(f"a row of {width} values does not fit into registers, allowed are up to 32768")
