"""embed_norm as a composition of the shared ops."""

from __future__ import annotations

from torch import Tensor

from paths.kernels.registry import Kernels


def embed_norm(
    kernels: Kernels, ids: Tensor, table: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """ids int64 `[T]`, table `[V, Dm]`, weight float32 `[Dm]` → (embedding, normed embedding), `[T, Dm]`."""
    hidden = table[ids]
    return hidden, kernels.rms_norm(hidden, weight, eps)
