"""Launchers of scores, selection and attention refuse what their kernels cannot serve, before any launch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from paths.kernels.compile_specs import META
from paths.kernels.dense_mha import cases as dense_cases
from paths.kernels.dense_mha.triton_impl import dense_mha
from paths.kernels.index_to_slot.triton_impl import index_to_slot
from paths.kernels.index_topk import cases as index_topk_cases
from paths.kernels.index_topk.checks import check_indices as check_index_topk
from paths.kernels.index_topk.triton_impl import index_topk
from paths.kernels.launching import tracing
from paths.kernels.mqa_logits import cases as logits_cases
from paths.kernels.mqa_logits.triton_impl import mqa_logits, paged_mqa_logits
from paths.kernels.sparse_mla import cases as mla_cases
from paths.kernels.sparse_mla.checks import check_indices as check_sparse_mla
from paths.kernels.sparse_mla.triton_impl import sparse_mla
from paths.kernels.topk.triton_impl import topk
from tests.kernels.inputs import make_batch, poisoned_cache


def refused(match, function, *args, **kwargs):
    with tracing() as launches, pytest.raises(ValueError, match=match):
        function(*args, **kwargs)
    assert not launches


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device=META)


def mla(**changes):
    arguments = mla_cases.production_call("fp8_ds_mla", heads=128, tokens=4, device=META)
    return arguments | {name: change(arguments) for name, change in changes.items()}


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        ("sparse_mla: q has dtype torch.float16", {"q": lambda a: a["q"].half()}),
        ("q has 129 heads, allowed are 1 to 128", {"q": lambda a: empty(4, 129, 576, dtype=torch.bfloat16)}),
        ("q has strides", {"q": lambda a: empty(4, 576, 128, dtype=torch.bfloat16).transpose(1, 2)}),
        ("cache.kv has shape", {"cache": lambda a: replace(a["cache"], kv=a["cache"].kv[:, :32])}),
        ("cache.kv has dtype", {"cache": lambda a: replace(a["cache"], kv=a["cache"].kv.view(torch.int8))}),
        ("kv_dtype of cache is 'fp4'", {"cache": lambda a: replace(a["cache"], kv_dtype="fp4")}),
        ("latent is 500, allowed are multiples of 128", {"latent": lambda a: 500}),
        ("batch.topk_indices has shape", {"k": lambda a: 2049}),
        (
            "batch.block_table has dtype",
            {"batch": lambda a: replace(a["batch"], block_table=a["batch"].block_table.long())},
        ),
    ],
)
def test_sparse_mla(match, changes):
    refused(match, sparse_mla, **mla(**changes))


def test_topk():
    lengths = empty(4, dtype=torch.int32)
    refused("topk: scores has dtype", topk, empty(4, 9).half(), lengths, 2)
    refused("topk: lengths has shape", topk, empty(3, 9), lengths, 2)
    refused("topk: k is 0, allowed is 1 to", topk, empty(4, 9), lengths, 0)
    refused("topk: out has shape", topk, empty(4, 9), lengths, 2, out=empty(4, 3, dtype=torch.int32))


def test_mqa_logits():
    paged = logits_cases.production_paged("fp8", heads=64, rows=1, device=META)
    cache = paged["cache"]
    wide = paged | {"q": empty(8, 64, 512, dtype=paged["q"].dtype)}
    refused("q has heads of 512 values, allowed are up to 256", paged_mqa_logits, **wide)
    refused("q has dtype torch.bfloat16", paged_mqa_logits, **paged | {"q": paged["q"].to(torch.bfloat16)})
    refused("no index tensor", paged_mqa_logits, **paged | {"cache": replace(cache, index=None)})
    pages_of_32 = replace(cache, index=cache.index[:, : 32 * 132])
    refused("cache.index has shape", paged_mqa_logits, **paged | {"cache": pages_of_32})
    ragged = logits_cases.production_ragged("fp8", heads=64, device=META)
    refused("only e4m3 keys have scales", mqa_logits, **ragged | {"scales": None})
    refused("keys has dtype", mqa_logits, **ragged | {"keys": ragged["keys"].to(torch.bfloat16)})
    refused("starts has dtype", mqa_logits, **ragged | {"starts": ragged["starts"].long()})


def test_index_topk_and_index_to_slot():
    call = index_topk_cases.production_call("fp8", heads=32, rows=1, device=META)
    refused("index_topk: batch.topk_indices has shape", index_topk, **call | {"k": 4096})
    rows, table = empty(4, dtype=torch.int32), empty(2, 9, dtype=torch.int32)
    indices = empty(4, 8, dtype=torch.int32)
    refused("index_to_slot: indices has dtype", index_to_slot, indices.long(), rows, table)
    refused("index_to_slot: req_rows has shape", index_to_slot, indices, rows[:3], table)


def test_dense_mha():
    call = dense_cases.production_call(heads=4, dk=192, dv=128, device=META)
    refused("dense_mha: k has dtype", dense_mha, **call | {"k": call["k"].float()})
    refused("dense_mha: v has shape", dense_mha, **call | {"v": call["v"][:, :3]})
    wide = {name: empty(8, 4, 1024, dtype=torch.bfloat16) for name in ("q", "k", "v")}
    refused("heads have 1024 and 1024 values", dense_mha, **call | wide)
    refused("key_starts has shape", dense_mha, **call | {"key_starts": call["key_starts"][:3]})


def test_indices_out_of_range_are_refused_on_the_host():
    batch, blocks = make_batch([(0, 65)], k=4)
    batch.topk_indices.fill_(-1)
    cache, q = poisoned_cache(blocks), torch.zeros(65, 2, 576)
    check_sparse_mla(q, cache, batch, 4, latent=512, scale=1.0)
    batch.topk_indices[3, 1] = 3 * 64
    with pytest.raises(ValueError, match=r"topk_indices\[3, 1\] is 192"):
        check_sparse_mla(q, cache, batch, 4, latent=512, scale=1.0)
    batch.topk_indices[3, 1] = 2 * 64  # a page behind the request's last: its entry is no block
    with pytest.raises(ValueError, match="block_table"):
        check_sparse_mla(q, cache, batch, 4, latent=512, scale=1.0)
    check_index_topk(torch.zeros(65, 16, 128), torch.zeros(65, 16), cache, batch, 4)
    batch.lengths[5] = 64 * 3 + 1
    with pytest.raises(ValueError, match="lengths"):
        check_index_topk(torch.zeros(65, 16, 128), torch.zeros(65, 16), cache, batch, 4)
