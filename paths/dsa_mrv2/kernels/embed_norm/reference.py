"""The definition of embed_norm, row by row."""

from __future__ import annotations

from torch import Tensor

from paths.kernels.rms_norm.reference import rms_norm


def embed_norm(ids: Tensor, table: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """ids int64 `[T]`, table `[V, Dm]`, weight float32 `[Dm]` → (embedding, normed embedding), `[T, Dm]`."""
    hidden = table.new_zeros(ids.shape[0], table.shape[1])
    for t, token in enumerate(ids.tolist()):
        hidden[t] = table[token]
    return hidden, rms_norm(hidden, weight, eps)
