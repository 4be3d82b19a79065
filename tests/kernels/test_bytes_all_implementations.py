"""Bytes of hand-made vectors in the packed caches, written by every implementation of every writer."""

from __future__ import annotations

import pytest

from tests.kernels import byte_maps
from tests.kernels.byte_maps import VECTORS, WRITERS, assert_bytes
from tests.kernels.inputs import kernels
from tests.kernels.triton_child import assert_passes


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("impl", ["reference", "torch", "cpp"])
def test_bytes(impl, writer, vector):
    assert_bytes(writer, kernels(impl), vector)


def test_bytes_of_triton():
    pytest.importorskip("triton")
    assert_passes("from tests.kernels.byte_maps import assert_all_bytes\nassert_all_bytes('triton')\n")


@pytest.mark.parametrize("writer", WRITERS)
def test_a_wrong_byte_would_be_noticed(writer, monkeypatch):
    true = byte_maps.tiles()
    wrong = bytearray(true.row)
    wrong[515] ^= 1  # of the first scale
    monkeypatch.setitem(
        VECTORS,
        "tiles",
        lambda: byte_maps.HandMade(true.c, true.k_pe, true.index_k, bytes(wrong), true.key, true.scale),
    )
    with pytest.raises(AssertionError, match="byte"):
        assert_bytes(writer, kernels("torch"), "tiles")
