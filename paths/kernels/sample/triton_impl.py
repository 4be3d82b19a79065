"""sample in Triton: no sort; the kept set is a threshold, found by bisection on ordered keys.

Same in every implementation, bit for bit: the generator, the division by the temperature (rounded to
nearest), the order of logits (as integer keys), the sum of probability masses (fixed point) and with it top-k
and the ties. Close: exp of the masses and log of the noise, within an ulp of float32. So the token is the
same unless two candidates, or a cumulative probability and top_p, agree to within an ulp.

Bytes: the draw reads every logit once, 4 V bytes a row, and writes 8 bytes per part of a row. A row with
top-k or top-p is read about 20 times more for each of the two, from L2, by one program. Noise is not stored.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paths.kernels.launching import TileConfig, launch
from paths.kernels.tensors import check_tensor

KEY_MIN = tl.constexpr(-(2**31))
MASS_ONE = tl.constexpr(2.0**40)


@triton.jit
def mix(x):
    """splitmix64's finaliser; x uint64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def noise_key(seed, position):
    """The row's word uint64; seed and position int64."""
    stepped = position.to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15
    return mix(mix(seed.to(tl.uint64, bitcast=True)) + stepped)


@triton.jit
def gumbel(key, tokens):
    """Standard Gumbel noise float32 of token ids int32."""
    bits = mix(key + tokens.to(tl.uint64) * 0xD1B54A32D192ED03)
    # 52 bits and half a step: exact in double, never 0 or 1
    uniform = (bits >> 12).to(tl.int64).to(tl.float64) * 2.220446049250313e-16 + 1.1102230246251565e-16
    return (-tl.log(-tl.log(uniform))).to(tl.float32)


@triton.jit
def accept_uniform(key):
    """Uniform float64 in [0, 1): the noise of token −1."""
    bits = mix(key - 0xD1B54A32D192ED03)
    return (bits >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def load_logits(logits, ids, inside, temperature):
    """logits / temperature, correctly rounded; −inf outside and for NaN, 0 for −0."""
    x = tl.load(logits + ids, mask=inside, other=float("-inf"))
    x = tl.where(x == x, x, float("-inf"))
    x = tl.div_rn(x, temperature)
    return tl.where(x == 0.0, 0.0, x)


@triton.jit
def ordered_key(x):
    """float32 without NaN and −0 → int32 in the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of_key(key):
    """Inverse of `ordered_key`."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def relative_weight(x, largest):
    """exp(x − largest) float32; 1 at the largest, be it infinite."""
    return tl.where(x == largest, 1.0, tl.exp(x - largest))


@triton.jit
def fixed_mass(x, largest):
    """The relative weight in steps of 2^-40, int64."""
    return (relative_weight(x, largest) * MASS_ONE).to(tl.int64)


@triton.jit
def is_kept(x, ids, threshold, last_tie):
    """Above the threshold key, or at it with an id of at most last_tie."""
    key = ordered_key(x)
    return (key > threshold) | ((key == threshold) & (ids <= last_tie))


@triton.jit
def _keys_and_masses(logits, start, vocab, temperature, largest, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Of a block's tokens; past the end the lowest key, above nothing. COUNT: every token weighs 1."""
    ids = start + tl.arange(0, BLOCK)
    x = load_logits(logits, ids, ids < vocab, temperature)
    key = tl.where(ids < vocab, ordered_key(x), KEY_MIN)
    if COUNT:
        return key, tl.full((BLOCK,), 1, tl.int64)
    else:
        return key, fixed_mass(x, largest)


@triton.jit
def _search(
    logits,
    vocab,
    temperature,
    largest,
    limit,
    lowest,
    highest,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Smallest key in [lowest, highest] with less than `limit` above it, and how much that is.

    `limit` counts tokens or, without COUNT, fixed-point mass. Three pivots a pass: two bits of the key.
    """
    low, high = lowest, highest
    above_high = tl.zeros((), tl.int64)
    while low < high:
        width = high - low
        first, second, third = low + width // 4, low + width // 2, low + width // 4 * 3
        above_1, above_2, above_3 = above_high * 0, above_high * 0, above_high * 0
        for start in range(0, vocab, BLOCK):
            key, mass = _keys_and_masses(logits, start, vocab, temperature, largest, COUNT, BLOCK)
            above_1 += tl.sum(tl.where(key > first.to(tl.int32), mass, 0), axis=0)
            above_2 += tl.sum(tl.where(key > second.to(tl.int32), mass, 0), axis=0)
            above_3 += tl.sum(tl.where(key > third.to(tl.int32), mass, 0), axis=0)
        if above_1 < limit:
            high, above_high = first, above_1
        elif above_2 < limit:
            low, high, above_high = first + 1, second, above_2
        elif above_3 < limit:
            low, high, above_high = second + 1, third, above_3
        else:
            low = third + 1
    return high, above_high


@triton.jit
def sample_threshold_kernel(
    logits,
    temperature,
    top_k,
    top_p,
    rows,
    thresholds,
    last_ties,
    stride,
    vocab,
    HAS_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per row: the key and the last tied id that top-k and top-p keep."""
    row = tl.program_id(0).to(tl.int64)
    entry = row
    if HAS_ROWS:
        entry = tl.load(rows + row).to(tl.int64)
    heat, k, p = tl.load(temperature + entry), tl.load(top_k + entry), tl.load(top_p + entry)
    logits += row * stride
    limited = (k > 0) & (k < vocab)
    threshold = tl.full((), KEY_MIN, tl.int64)
    kept_ties = tl.full((), 0, tl.int64)
    last_tie = vocab
    if (heat != 0.0) & (limited | (p < 1.0)):
        largest = tl.full((), float("-inf"), tl.float32)
        for start in range(0, vocab, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            x = load_logits(logits, ids, ids < vocab, heat)
            largest = tl.maximum(largest, tl.max(x, axis=0))
        highest = ordered_key(largest).to(tl.int64)
        if limited:
            threshold, above = _search(
                logits, vocab, heat, largest, k.to(tl.int64), threshold, highest, True, BLOCK
            )
            kept_ties = k.to(tl.int64) - above
        if p < 1.0:
            total = tl.zeros((), tl.int64)
            for start in range(0, vocab, BLOCK):
                key, mass = _keys_and_masses(logits, start, vocab, heat, largest, False, BLOCK)
                total += tl.sum(tl.where(key > threshold.to(tl.int32), mass, 0), axis=0)
            if limited:
                total += kept_ties * fixed_mass(value_of_key(threshold.to(tl.int32)), largest)
            limit = tl.maximum(tl.ceil(total.to(tl.float64) * p.to(tl.float64)).to(tl.int64), 1)
            nucleus, above = _search(logits, vocab, heat, largest, limit, threshold, highest, False, BLOCK)
            tied_mass = fixed_mass(value_of_key(nucleus.to(tl.int32)), largest)
            needed = (limit - above + tied_mass - 1) // tl.maximum(tied_mass, 1)
            # without mass at the threshold every tie is as good as the first
            needed = tl.where(tied_mass > 0, needed, vocab)
            if limited & (nucleus == threshold):
                needed = tl.minimum(needed, kept_ties)
            threshold, kept_ties = nucleus, needed
        seen = tl.zeros((), tl.int64)
        for start in range(0, vocab, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            x = load_logits(logits, ids, ids < vocab, heat)
            tied = ((ordered_key(x) == threshold) & (ids < vocab)).to(tl.int64)
            last = (tied != 0) & (seen + tl.cumsum(tied, axis=0) == kept_ties)
            last_tie = tl.minimum(last_tie, tl.min(tl.where(last, ids, vocab), axis=0))
            seen += tl.sum(tied, axis=0)
    tl.store(thresholds + row, threshold.to(tl.int32))
    tl.store(last_ties + row, last_tie)


@triton.jit
def first_of_largest(value, ids, best, best_id):
    """Fold a block into (best, best_id), the lowest id of the largest value; ids come in rising order."""
    block_best, at = tl.max(value, axis=0, return_indices=True, return_indices_tie_break_left=True)
    better = block_best > best
    return tl.where(better, block_best, best), tl.where(better, tl.min(ids, axis=0) + at, best_id)


@triton.jit
def sample_part_kernel(
    logits,
    temperature,
    seeds,
    positions,
    rows,
    thresholds,
    last_ties,
    part_values,
    part_ids,
    stride,
    vocab,
    per_part,
    HAS_ROWS: tl.constexpr,
    ALL_GREEDY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (rows, parts): the winner among `per_part` tokens of a row."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    first = part * per_part
    logits += row * stride
    draws = False
    heat = tl.full((), 1.0, tl.float32)
    threshold = tl.full((), KEY_MIN, tl.int32)
    last_tie = vocab
    key = tl.full((), 0, tl.uint64)
    if not ALL_GREEDY:
        entry = row
        if HAS_ROWS:
            entry = tl.load(rows + row).to(tl.int64)
        heat = tl.load(temperature + entry)
        draws = heat != 0.0
        heat = tl.where(draws, heat, 1.0)
        key = noise_key(tl.load(seeds + entry), tl.load(positions + row))
        threshold, last_tie = tl.load(thresholds + row), tl.load(last_ties + row)
    best, best_id = tl.full((), float("-inf"), tl.float32), first
    for start in range(first, tl.minimum(first + per_part, vocab), BLOCK):
        ids = start + tl.arange(0, BLOCK)
        value = load_logits(logits, ids, ids < vocab, heat)
        if draws:
            kept = is_kept(value, ids, threshold, last_tie)
            value = tl.where(kept, value + gumbel(key, ids), float("-inf"))
        best, best_id = first_of_largest(value, ids, best, best_id)
    at = row * tl.num_programs(1) + part
    tl.store(part_values + at, best)
    tl.store(part_ids + at, best_id)


@triton.jit
def sample_merge_kernel(part_values, part_ids, tokens, parts, PARTS: tl.constexpr):
    """One program per row: the lowest id among the parts' winners of the largest value."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    value = tl.load(part_values + row * parts + part, mask=part < parts, other=float("-inf"))
    ids = tl.load(part_ids + row * parts + part, mask=part < parts, other=2**31 - 1)
    winner = tl.min(tl.where(value == tl.max(value, axis=0), ids, 2**31 - 1), axis=0)
    tl.store(tokens + row, winner.to(tl.int64))


THRESHOLD_TILES = TileConfig(num_warps=16, num_stages=2, tiles={"BLOCK": 4096})
PART_TILES = TileConfig(num_warps=4, num_stages=2, tiles={"BLOCK": 1024})
TOKENS_PER_PART = 4096  # of a row, for one program


def sample(
    logits: Tensor,
    *,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    all_greedy: bool,
    rows: Tensor | None = None,
) -> Tensor:
    """See the reference. Raises ValueError for a wrong shape, dtype or stride."""
    check_arguments(
        "sample",
        logits,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seeds=seeds,
        rows=rows,
    )
    check_tensor("sample", "positions", positions, dtype=torch.int64, shape=(len(logits),))
    count, vocab = logits.shape
    tokens = torch.empty(count, dtype=torch.int64, device=logits.device)
    thresholds = last_ties = None
    if not all_greedy:
        thresholds, last_ties = threshold_rows(
            logits, temperature=temperature, top_k=top_k, top_p=top_p, rows=rows
        )
    parts = triton.cdiv(vocab, TOKENS_PER_PART)
    part_values = torch.empty(count, parts, dtype=torch.float32, device=logits.device)
    part_ids = torch.empty(count, parts, dtype=torch.int32, device=logits.device)
    launch(
        sample_part_kernel,
        (count, parts),
        logits,
        None if all_greedy else temperature,
        None if all_greedy else seeds,
        None if all_greedy else positions,
        None if all_greedy else rows,
        thresholds,
        last_ties,
        part_values,
        part_ids,
        logits.stride(0),
        vocab,
        TOKENS_PER_PART,
        config=PART_TILES,
        HAS_ROWS=rows is not None,
        ALL_GREEDY=all_greedy,
    )
    launch(
        sample_merge_kernel,
        (count,),
        part_values,
        part_ids,
        tokens,
        parts,
        config=TileConfig(num_warps=1, num_stages=1),
        PARTS=triton.next_power_of_2(parts),
    )
    return tokens


def threshold_rows(
    logits: Tensor, *, temperature: Tensor, top_k: Tensor, top_p: Tensor, rows: Tensor | None
) -> tuple[Tensor, Tensor]:
    """What top-k and top-p keep of each row: keys above `thresholds`, and at it ids up to `last_ties`."""
    count, vocab = logits.shape
    thresholds = torch.empty(count, dtype=torch.int32, device=logits.device)
    last_ties = torch.empty(count, dtype=torch.int32, device=logits.device)
    launch(
        sample_threshold_kernel,
        (count,),
        logits,
        temperature,
        top_k,
        top_p,
        rows,
        thresholds,
        last_ties,
        logits.stride(0),
        vocab,
        config=THRESHOLD_TILES,
        HAS_ROWS=rows is not None,
    )
    return thresholds, last_ties


def check_arguments(
    op: str,
    logits: Tensor,
    *,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seeds: Tensor,
    rows: Tensor | None,
) -> None:
    """Raises ValueError unless the logits and the sampling parameters have their dtypes and shapes."""
    check_tensor(op, "logits", logits, dtype=torch.float32, shape=(None, None))
    if logits.shape[1] == 0:
        raise ValueError(
            f"{op}: logits has shape {tuple(logits.shape)}, allowed is a vocabulary of at least 1"
        )
    entries = logits.shape[0] if rows is None else temperature.shape[0]
    for name, tensor, dtype in (
        ("temperature", temperature, torch.float32),
        ("top_k", top_k, torch.int32),
        ("top_p", top_p, torch.float32),
        ("seeds", seeds, torch.int64),
    ):
        check_tensor(op, name, tensor, dtype=dtype, shape=(entries,))
    if rows is not None:
        check_tensor(op, "rows", rows, dtype=torch.int32, shape=(logits.shape[0],))
