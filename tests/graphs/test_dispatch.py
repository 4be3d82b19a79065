"""Which graph runs which batch, and that no step runs below the configured mode without a reason."""

from __future__ import annotations

import pytest

from paths.api import UserError
from paths.graphs.config import GraphConfig, GraphMode
from paths.graphs.dispatch import Dispatcher, uniform_tokens
from paths.graphs.shape import BatchShape

FULL, PIECEWISE, NONE = GraphMode.FULL, GraphMode.PIECEWISE, GraphMode.NONE


def dispatcher(decode=FULL, mixed=PIECEWISE, **changes):
    limits = {"max_num_tokens": 64, "max_num_reqs": 16, "index_topk": 64, "max_model_len": 192}
    limits |= {name: changes.pop(name) for name in list(changes) if name in limits}
    sizes = {"full_sizes": (1, 2, 4, 8), "piecewise_sizes": (8, 16, 32)} | changes
    return Dispatcher(GraphConfig(decode=decode, mixed=mixed, **sizes), **limits)


def shape(num_tokens, num_reqs=None, *, query_len=None, max_length=10):
    reqs = num_reqs if num_reqs is not None else num_tokens // (query_len or 1)
    return BatchShape(num_tokens=num_tokens, num_reqs=reqs, query_len=query_len, max_length=max_length)


@pytest.mark.parametrize(
    ("batch", "mode", "num_tokens", "reason"),
    [
        (shape(1, query_len=1), FULL, 1, None),
        (shape(3, query_len=1), FULL, 4, None),
        (shape(8, query_len=1), FULL, 8, None),
        (shape(9, query_len=1), PIECEWISE, 16, "FULL: num_reqs above the largest size 8"),
        (shape(4, query_len=2), PIECEWISE, 8, "FULL: query_len 2 was not captured"),
        (shape(3, 2, query_len=1), PIECEWISE, 8, "FULL: num_tokens is not num_reqs × query_len"),
        (shape(1, 1), PIECEWISE, 8, None),
        (shape(32, 3), PIECEWISE, 32, None),
        (shape(33, 3), NONE, 33, "PIECEWISE: num_tokens above the largest size 32"),
        (shape(0, 0), NONE, 0, "PIECEWISE: no rows"),
        (shape(0, 0, query_len=1), NONE, 0, "FULL: no rows; PIECEWISE: no rows"),
    ],
)
def test_the_smallest_fitting_size_of_the_best_mode(batch, mode, num_tokens, reason):
    descriptor, why = dispatcher().dispatch(batch)
    assert (descriptor.mode, descriptor.num_tokens, why) == (mode, num_tokens, reason)


@pytest.mark.parametrize(
    ("batch", "mode", "num_reqs", "reason"),
    [
        (shape(7, 1), PIECEWISE, 2, None),
        (shape(7, 2), PIECEWISE, 2, None),
        (shape(7, 3), NONE, 3, "PIECEWISE: num_reqs above 2"),
        (
            shape(9, query_len=1),
            NONE,
            9,
            "FULL: num_reqs above the largest size 8; PIECEWISE: num_reqs above 2",
        ),
        (shape(8, query_len=1), FULL, 8, None),
    ],
)
def test_piecewise_graphs_for_few_requests(batch, mode, num_reqs, reason):
    descriptor, why = dispatcher(piecewise_reqs=2).dispatch(batch)
    assert (descriptor.mode, descriptor.num_reqs, why) == (mode, num_reqs, reason)
    assert mode is NONE or descriptor in dispatcher(piecewise_reqs=2).descriptors


@pytest.mark.parametrize(
    ("decode", "mixed", "batch", "mode", "reason"),
    [
        (FULL, NONE, shape(5, 2), NONE, None),  # as configured
        (FULL, NONE, shape(9, query_len=1), NONE, "above the largest size 8; PIECEWISE: not configured"),
        (NONE, PIECEWISE, shape(3, query_len=1), NONE, None),
        (PIECEWISE, NONE, shape(3, query_len=1), PIECEWISE, None),
        (PIECEWISE, NONE, shape(3, 2), NONE, None),
        (NONE, NONE, shape(3, 2), NONE, None),
    ],
)
def test_other_configurations(decode, mixed, batch, mode, reason):
    descriptor, why = dispatcher(decode, mixed).dispatch(batch)
    assert descriptor.mode is mode
    assert why is None if reason is None else why.endswith(reason)


def test_every_dispatch_is_a_captured_graph_or_eager_for_a_reason():
    for decode, mixed in ((FULL, PIECEWISE), (FULL, NONE), (PIECEWISE, PIECEWISE), (NONE, PIECEWISE)):
        table = dispatcher(decode, mixed, query_lens=(1, 3))
        for num_reqs in range(20):
            for query_len in (None, 1, 2, 3):
                for max_length in (1, 64, 65, 192):
                    tokens = uniform_tokens(num_reqs, query_len or 2)
                    batch = shape(tokens, num_reqs, query_len=query_len, max_length=max_length)
                    descriptor, reason = table.dispatch(batch)
                    wanted = mixed if query_len is None else decode
                    assert (reason is None) == (descriptor.mode is wanted)
                    assert descriptor.mode is NONE or descriptor in table.descriptors
                    assert descriptor.num_tokens >= tokens
                    assert descriptor.sparse is (max_length > 64)


def test_sizes_count_requests_and_become_token_rows_in_one_place():
    """Five requests of 1 + 3 tokens are 20 rows: not five, and not padded to 64."""
    table = dispatcher(query_lens=(4,), mixed=NONE)
    assert [d.num_tokens for d in table.descriptors if d.sparse] == [32, 16, 8, 4]
    assert [d.num_reqs for d in table.descriptors if d.sparse] == [8, 4, 2, 1]
    descriptor, reason = table.dispatch(shape(20, 5, query_len=4))
    assert (descriptor.num_tokens, descriptor.num_reqs, reason) == (32, 8, None)


def test_largest_first_and_piecewise_before_full():
    table = dispatcher(query_lens=(1, 2))
    sizes = {mode: [d.num_tokens for d in table.descriptors if d.mode is mode] for mode in (FULL, PIECEWISE)}
    assert all(list(s) == sorted(s, reverse=True) for s in sizes.values())
    modes = [d.mode for d in table.descriptors]
    assert modes == sorted(modes, key=[PIECEWISE, FULL].index)
    assert len(set(table.descriptors)) == len(table.descriptors)


def test_sizes_end_at_the_capacity():
    """The largest possible batch fits a graph that is no larger than it."""
    table = dispatcher(max_num_reqs=6, max_num_tokens=20)
    assert [d.num_tokens for d in table.descriptors if d.sparse] == [20, 16, 8, 6, 4, 2, 1]


def test_no_graph_for_ranking_where_no_context_is_that_long():
    assert not any(d.sparse for d in dispatcher(max_model_len=64).descriptors)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixed": FULL}, "graphs.mixed=FULL: allowed are NONE and PIECEWISE"),
        ({"full_sizes": (4, 2)}, r"graphs.full_sizes=\[4, 2\]: must be ascending"),
        ({"piecewise_sizes": (0, 2)}, r"graphs.piecewise_sizes=\[0, 2\]: must be ascending"),
        ({"query_lens": (1, 1)}, r"graphs.query_lens=\[1, 1\]: must be ascending"),
    ],
)
def test_a_senseless_configuration_is_one_line(changes, message):
    with pytest.raises(UserError, match=message):
        dispatcher(**changes)
