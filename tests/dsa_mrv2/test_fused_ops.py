"""Fused operations in C++ against their composition from the reference ops."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch

from paths.dsa_mrv2.kernels.absorb_output.composed import absorb_output
from paths.dsa_mrv2.kernels.arguments import LatentNorms, MoeBlock, Rotary
from paths.dsa_mrv2.kernels.cpp import load
from paths.dsa_mrv2.kernels.embed_norm.composed import embed_norm
from paths.dsa_mrv2.kernels.fused_norm_rope.composed import fused_norm_rope
from paths.dsa_mrv2.kernels.fused_q.composed import fused_q
from paths.dsa_mrv2.kernels.linear.composed import linear
from paths.dsa_mrv2.kernels.moe_block.composed import gated_mlp, moe_block
from paths.kernels.registry import Kernels
from tests.kernels.cpp_cases import (
    DTYPES,
    INDEX_DTYPES,
    KV_DTYPES,
    SIZES,
    VARIANTS,
    close,
    empty_cache,
    near,
    paged_batch,
    random,
    strided,
)

Q_RANK, LATENT, ROPE, INDEX_DIM, INDEX_HEADS = 48, 128, 16, 32, 16
REFERENCE = Kernels(torch.device("cpu"), "reference")


@functools.cache
def fused_kernels(variant: str):
    return load(VARIANTS[variant])


@pytest.fixture(params=VARIANTS)
def cpp(request):
    torch.manual_seed(0)
    return fused_kernels(request.param)


def rotary(*, interleaved=True, index_interleaved=False) -> Rotary:
    angles = random(256, ROPE // 2, seed=11)
    return Rotary(
        cos=angles.cos(), sin=angles.sin(), interleaved=interleaved, index_interleaved=index_interleaved
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", SIZES)
def test_embed_norm(cpp, rows, dtype):
    ids, table = torch.randint(0, 50, (rows,)), random(50, 100, dtype=dtype)
    weight = random(100, seed=1)
    hidden, normed = cpp.embed_norm(ids, table, weight, 1e-5)
    expected_hidden, expected = embed_norm(REFERENCE, ids, table, weight, 1e-5)
    assert torch.equal(hidden, expected_hidden)
    close(normed, expected, dtype)


@pytest.mark.parametrize("token", [-1, 50])
def test_embed_norm_refuses_a_token_outside_the_vocabulary(cpp, token):
    with pytest.raises(RuntimeError, match=f"token {token} outside the vocabulary of 50"):
        cpp.embed_norm(torch.tensor([token]), torch.zeros(50, 8), torch.ones(8), 1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [*SIZES, 15, 16, 17, 64, 65])
@pytest.mark.parametrize(("width", "columns"), [(20, 7), (100, 63), (256, 111), (544, 9)])
def test_linear(cpp, rows, width, columns, dtype):
    x, w = random(rows, width, dtype=dtype), random(columns, width, seed=1, dtype=dtype, scale=0.1)
    close(cpp.linear(strided(x), w), linear(REFERENCE, x.float(), w.float()), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("width", "columns"), [(256, 63), (128, 36), (96, 3), (100, 44)])
def test_linear_rows_do_not_depend_on_their_number(cpp, width, columns, dtype):
    """Every split of the rows into tiles, and columns beside whole tiles."""
    x, w = random(16, width, dtype=dtype), random(columns, width, seed=1, dtype=dtype, scale=0.1)
    whole = cpp.linear(x, w)
    close(whole, linear(REFERENCE, x.float(), w.float()), dtype)
    for rows in range(1, 16):
        assert torch.equal(cpp.linear(x[:rows], w), whole[:rows]), rows


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [*SIZES, 64, 65])
@pytest.mark.parametrize(("latent", "value"), [(128, 64), (100, 20)])
def test_absorb_output(cpp, rows, latent, value, dtype):
    o, w_uv = random(rows, 3, latent, dtype=dtype), random(3, value, latent, seed=1, dtype=dtype, scale=0.1)
    mine, expected = torch.full((rows, 3 * value), torch.nan, dtype=dtype), torch.zeros(rows, 3 * value)
    cpp.absorb_output(o, w_uv, mine)
    absorb_output(REFERENCE, o.float(), w_uv.float(), expected)
    close(mine, expected, dtype)


def block(dtype, *, shared: int, **changes) -> MoeBlock:
    made = MoeBlock(
        gate=random(8, 100, seed=1, scale=0.1),
        bias=random(8, seed=2),
        w13=random(8 + shared, 96, 100, seed=3, dtype=dtype, scale=0.1),
        w2=random(8 + shared, 100, 48, seed=4, dtype=dtype, scale=0.1),
        n_group=2,
        topk_group=1,
        top_k=2,
        norm=True,
        scaling=2.5,
    )
    return replace(made, **changes)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("shared", [0, 1, 2])
def test_moe_block(cpp, rows, shared, dtype):
    x, made = random(rows, 100, dtype=dtype), block(dtype, shared=shared)
    near(cpp.moe_block(x, made), moe_block(REFERENCE, x, made), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [*SIZES, 32, 33])
def test_gated_mlp(cpp, rows, dtype):
    x, w13 = random(rows, 100, dtype=dtype), random(96, 100, seed=1, dtype=dtype, scale=0.1)
    w2 = random(100, 48, seed=2, dtype=dtype, scale=0.1)
    near(cpp.gated_mlp(x, w13, w2), gated_mlp(REFERENCE, x, w13, w2), dtype)


def norms(*, indexer: bool) -> LatentNorms:
    return LatentNorms(
        q=1 + 0.3 * random(Q_RANK),
        kv=1 + 0.3 * random(LATENT, seed=1),
        eps=1e-5,
        index_weight=1 + 0.3 * random(INDEX_DIM, seed=2) if indexer else None,
        index_bias=random(INDEX_DIM, seed=3) if indexer else None,
    )


def write_rows(
    cpp, rows, *, dtype, kv_dtype="bf16", index_dtype="bf16", indexer=True, hadamard=False, turn=None
):
    """Run both on the same rows, every seventh of them padding; (mine, expected) results and caches."""
    lengths = [(0, 0 if t % 7 == 3 else t + 1) for t in range(rows)]
    batch = paged_batch(lengths, requests=1, k=8, max_len=192)
    width = Q_RANK + LATENT + ROPE + INDEX_DIM + INDEX_HEADS
    projected = random(rows, width, seed=5, dtype=dtype)
    results = []
    for run in (cpp.fused_norm_rope, functools.partial(fused_norm_rope, REFERENCE)):
        cache = empty_cache(
            blocks=4,
            latent=LATENT,
            rope=ROPE,
            index_dim=INDEX_DIM,
            kv_dtype=kv_dtype,
            index_dtype=index_dtype,
        )
        if not indexer:
            cache = replace(cache, index=None)
        q = run(projected, norms(indexer=indexer), turn or rotary(), batch, cache, hadamard=hadamard)
        results.append((q, cache))
    return results


def agree(mine: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal bytes but for roundings turned by another order of float32 sums; the same bytes untouched."""
    a, b = mine.view(torch.uint8), expected.view(torch.uint8)
    assert torch.equal(a == 0xFF, b == 0xFF)
    touched = b != 0xFF
    if touched.any():
        assert (a == b)[touched].float().mean() > 0.98


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_norm_rope_writes_the_main_cache(cpp, kv_dtype, rows, dtype):
    (q, cache), (expected_q, expected) = write_rows(cpp, rows, dtype=dtype, kv_dtype=kv_dtype)
    close(q, expected_q, dtype)
    if kv_dtype == "float32":
        close(cache.kv, expected.kv, dtype)
    else:
        agree(cache.kv, expected.kv)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize("index_interleaved", [False, True])
def test_norm_rope_writes_the_index_cache(cpp, index_interleaved, hadamard, index_dtype, dtype):
    (_, cache), (_, expected) = write_rows(
        cpp,
        111,
        dtype=dtype,
        index_dtype=index_dtype,
        hadamard=hadamard,
        turn=rotary(index_interleaved=index_interleaved),
    )
    if index_dtype == "float32":
        close(cache.index, expected.index, dtype)
    else:
        agree(cache.index, expected.index)


def test_norm_rope_without_an_indexer(cpp):
    (q, cache), (expected_q, expected) = write_rows(
        cpp, 63, dtype=torch.float32, kv_dtype="float32", indexer=False
    )
    close(q, expected_q, torch.float32)
    close(cache.kv, expected.kv, torch.float32)


def test_norm_rope_layernorm_has_its_own_eps(cpp):
    """A constant index key becomes the bias, and a tiny one is normed with 1e-6, not with rms_norm_eps."""
    batch = paged_batch([(0, 1), (0, 2)], requests=1, k=8, max_len=64)
    projected = torch.zeros(2, Q_RANK + LATENT + ROPE + INDEX_DIM)
    projected[0, -INDEX_DIM:] = 3.0
    projected[1, -INDEX_DIM:] = torch.tensor([1e-3, -1e-3]).repeat(INDEX_DIM // 2)
    cache = empty_cache(
        blocks=2, latent=LATENT, rope=ROPE, index_dim=INDEX_DIM, kv_dtype="float32", index_dtype="float32"
    )
    identity = Rotary(
        cos=torch.ones(64, ROPE // 2),
        sin=torch.zeros(64, ROPE // 2),
        interleaved=True,
        index_interleaved=False,
    )
    made = replace(norms(indexer=True), eps=1e-2)
    cpp.fused_norm_rope(projected, made, identity, batch, cache, hadamard=False)
    block = int(batch.block_table[0, 0])
    torch.testing.assert_close(cache.index[block, 0], made.index_bias)
    expected = projected[1, -INDEX_DIM:] / (1e-6 + 1e-6) ** 0.5 * made.index_weight + made.index_bias
    torch.testing.assert_close(cache.index[block, 1], expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [*SIZES, 64, 65])
@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize("hadamard", [False, True])
def test_fused_q(cpp, hadamard, index_dtype, rows, dtype):
    heads, nope = 3, 24
    projected = random(rows, heads * (nope + ROPE) + INDEX_HEADS * INDEX_DIM, seed=1, dtype=dtype)
    w_uk = random(heads, nope, LATENT, seed=2, dtype=dtype, scale=0.2)
    weights, positions = random(rows, INDEX_HEADS, seed=3, dtype=dtype), torch.randint(0, 256, (rows,))
    options = {"index_dim": INDEX_DIM, "index_dtype": index_dtype, "hadamard": hadamard}
    args = (rotary(), positions)
    q, index_q, index_w = cpp.fused_q(strided(projected), w_uk, *args, strided(weights), **options)
    expected = fused_q(REFERENCE, projected, w_uk, *args, weights, **options)
    near(q, expected[0], dtype)
    assert index_q.dtype is expected[1].dtype
    exact = dtype is torch.float32 and index_dtype == "float32"
    near(index_q.float(), expected[1].float(), torch.float32 if exact else torch.bfloat16)
    if hadamard:
        assert index_w.shape == expected[2].shape
    else:
        close(index_w, expected[2], torch.float32)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("index_interleaved", [True, False])
def test_fused_q_layouts(cpp, interleaved, index_interleaved):
    turn = rotary(interleaved=interleaved, index_interleaved=index_interleaved)
    projected = random(5, 2 * (8 + ROPE) + INDEX_HEADS * INDEX_DIM, seed=1)
    args = (random(2, 8, LATENT, seed=2), turn, torch.arange(5), random(5, INDEX_HEADS, seed=3))
    options = {"index_dim": INDEX_DIM, "index_dtype": "float32", "hadamard": False}
    for mine, expected in zip(
        cpp.fused_q(projected, *args, **options), fused_q(REFERENCE, projected, *args, **options), strict=True
    ):
        close(mine, expected, torch.float32)


def test_fused_q_without_an_indexer(cpp):
    args = (random(5, 2 * (8 + ROPE)), random(2, 8, LATENT, seed=2), rotary(), torch.arange(5), None)
    q, index_q, index_w = cpp.fused_q(*args, index_dim=INDEX_DIM, index_dtype="fp8", hadamard=True)
    expected = fused_q(REFERENCE, *args, index_dim=INDEX_DIM, index_dtype="fp8", hadamard=True)[0]
    close(q, expected, torch.float32)
    assert index_q.shape[0] == index_w.shape[0] == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("nope", "latent"), [(1, 31), (23, 100), (24, 192), (7, 240), (39, 128)])
def test_fused_q_rows_do_not_depend_on_their_number(cpp, nope, latent, dtype):
    """Odd sizes: an inner dimension without a partner, and columns beside whole vectors."""
    heads = 3
    projected = random(15, heads * (nope + ROPE), seed=1, dtype=dtype)
    w_uk = random(heads, nope, latent, seed=2, dtype=dtype, scale=0.2)
    options = {"index_dim": INDEX_DIM, "index_dtype": "bf16", "hadamard": False}
    whole, *_ = cpp.fused_q(projected, w_uk, rotary(), torch.arange(15), None, **options)
    expected, *_ = fused_q(REFERENCE, projected, w_uk, rotary(), torch.arange(15), None, **options)
    near(whole, expected, dtype)
    for rows in (1, 2, 3, 4, 6, 8):
        part, *_ = cpp.fused_q(projected[:rows], w_uk, rotary(), torch.arange(rows), None, **options)
        assert torch.equal(part, whole[:rows]), rows
