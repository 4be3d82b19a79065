"""The group of ranks that a layer's tensors are split over."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from paths.api import UserError


@dataclass(frozen=True, kw_only=True)
class ParallelGroup:
    """Tensor-parallel ranks. Layers call its collectives always; with one rank they hand the tensor back."""

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.world_size != 1 or self.rank != 0:
            raise UserError(f"gpus={self.world_size} is not supported: allowed is 1; drop the key")

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum over the ranks."""
        return tensor
