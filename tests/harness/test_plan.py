"""Cells → launches: grouping, order, duplicates; and requested against effective."""

import dataclasses

import pytest

from harness.config import Expectation
from harness.errors import ExitCode, most_severe, one_line
from harness.expectation import mismatches
from harness.plan import build_plan
from paths.scripted import ScriptedPath
from tests.harness.cells import make_cell, make_cells


def shape(launches):
    return [(launch.cells[0].engine.path, launch.pair, launch.slot, len(launch.cells)) for launch in launches]


def test_loads_share_an_engine_in_the_order_asked_for():
    (launch,), duplicates = build_plan(make_cells("+path=scripted", "concurrency=16,1,1024", "isl=8,4"))
    asked = [(16, 8), (16, 4), (1, 8), (1, 4), (1024, 8), (1024, 4)]
    assert [(cell.config.concurrency, cell.isl) for cell in launch.cells] == asked
    assert duplicates == 0 and launch.launch_id == "L000"


def test_paths_alternate_who_runs_first():
    """Known fault 047: a fixed order charges one arm with the slot effect."""
    launches, _ = build_plan(
        make_cells("+path=generic_mrv1,dsa_mrv2", "kv_dtype=auto,fp8,float32", "concurrency=1,2")
    )
    assert shape(launches) == [
        ("generic_mrv1", 0, 0, 2), ("dsa_mrv2", 0, 1, 2),
        ("dsa_mrv2", 1, 0, 2), ("generic_mrv1", 1, 1, 2),
        ("generic_mrv1", 2, 0, 2), ("dsa_mrv2", 2, 1, 2),
    ]  # fmt: skip
    assert [launch.order for launch in launches] == list(range(6))
    assert len({launch.engine_id for launch in launches}) == 6


def test_options_of_a_path_make_arms_of_one_pair():
    launches, _ = build_plan(make_cells("+path=scripted", "path.options.gap_ms=1,2"))
    assert shape(launches) == [("scripted", 0, 0, 1), ("scripted", 0, 1, 1)]
    assert launches[0].cells[0].cell_id == launches[1].cells[0].cell_id


def test_duplicates_run_once_and_are_counted():
    (launch,), duplicates = build_plan(make_cells("+path=scripted", "concurrency=2,1,2,2"))
    assert [cell.config.concurrency for cell in launch.cells] == [2, 1] and duplicates == 2


def test_capacities_do_not_follow_the_sweep():
    alone = make_cell("concurrency=1024")
    swept = make_cells("+path=scripted", "concurrency=1,1024")
    assert {cell.engine.identity() for cell in swept} == {alone.engine.identity()}
    assert swept[1].cell_id == alone.cell_id


def test_plan_is_the_same_every_time():
    words = ("+path=generic_mrv1,dsa_mrv2", "kv_dtype=auto,fp8")
    first, second = (build_plan(make_cells(*words))[0] for _ in range(2))
    assert [launch.describe() for launch in first] == [launch.describe() for launch in second]


# --- exit codes ---


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([], 0), ([0, 0], 0), ([3, 7], 7), ([7, 5], 5), ([5, 1], 1), ([1, 4], 4), ([4, 6], 6), ([6, 2], 2),
        ([2, 130], 130), ([0, 3], 3),
    ],
)  # fmt: skip
def test_precedence_of_exit_codes(codes, expected):
    assert most_severe(ExitCode(code) for code in codes) == expected


def test_messages_are_one_line():
    assert one_line("a\n  b\t c ") == "a b c"


# --- requested against effective ---


def effective_of(cell, **changes):
    engine = ScriptedPath().start(cell.engine)
    return dataclasses.replace(engine.effective(), **changes)


def check(cell, expected=None, *, measured=True, **changes):
    expect = {"any": Expectation.model_validate(expected)} if expected else {}
    path = cell.config.path.model_copy(update={"expect": expect})
    return mismatches(path, cell.engine, effective_of(cell, **changes), measured=measured)


def test_what_ran_as_asked_has_no_mismatch():
    assert check(make_cell()) == []
    cell = make_cell("kv_dtype=fp8", "dtype=float32", "threads=1")
    assert check(cell, kv_dtype="fp8", dtype="float32", threads=1) == []
    assert check(make_cell(), {"runner": "script", "model_class": "none", "compile_mode": "none"}) == []
    assert check(make_cell(), device="cpu:0") == []


@pytest.mark.parametrize(
    ("words", "changes", "text"),
    [
        (["kv_dtype=fp8"], {"kv_dtype": "bf16"}, "kv_dtype 'bf16', requested 'fp8'"),
        (["index_dtype=bf16"], {"index_dtype": "fp8"}, "index_dtype 'fp8', requested 'bf16'"),
        (["threads=1"], {"dtype": "float32"}, "dtype 'float32', requested 'bf16'"),
        ([], {"path": "other"}, "path 'other', requested 'scripted'"),
        ([], {"device": "cuda:0"}, "device 'cuda', requested 'cpu'"),
    ],
)
def test_a_setting_that_was_not_applied(words, changes, text):
    assert check(make_cell(*words), **changes) == [text]


@pytest.mark.parametrize(
    ("words", "right", "wrong", "text"),
    [
        ([], {"kv_dtype": "bf16"}, {"kv_dtype": "fp8"}, "kv_dtype 'fp8', requested 'auto' (meaning 'bf16')"),
        (
            ["dtype=float32"], {"kv_dtype": "float32"}, {"kv_dtype": "bf16"},
            "kv_dtype 'bf16', requested 'auto' (meaning 'float32')",
        ),
        (
            ["kv_dtype=fp8"], {"index_dtype": "fp8", "hadamard": True},
            {"index_dtype": "bf16", "hadamard": True},
            "index_dtype 'bf16', requested 'auto' (meaning 'fp8')",
        ),
        (
            ["kv_dtype=fp8_ds_mla"], {"index_dtype": "fp8", "hadamard": True},
            {"index_dtype": "fp8", "hadamard": False}, "hadamard False, requested 'null' (meaning True)",
        ),
        (
            ["engine.hadamard=true"], {"index_dtype": "bf16", "hadamard": True},
            {"index_dtype": "bf16", "hadamard": False}, "hadamard False, requested True",
        ),
        (
            ["threads=1"], {"dtype": "bf16", "threads": 1}, {"dtype": "bf16", "threads": 2},
            "threads 2, requested 1",
        ),
    ],
)  # fmt: skip
def test_auto_means_one_thing(words, right, wrong, text):
    """An engine that resolves `auto` otherwise ran something else than its label says."""
    assert check(make_cell(*words), **right) == []
    assert check(make_cell(*words), **wrong) == [text]


def test_an_engine_without_a_model_has_no_threads_and_no_rotation():
    cell = make_cell("engine.hadamard=true")
    assert check(cell, threads=cell.engine.threads + 1, hadamard=False) == []


@pytest.mark.parametrize("field", ["model_class", "runner", "compile_mode"])
def test_expected_identity(field):
    assert check(make_cell(), {field: "V2"}, **{field: "V1"}) == [f"{field} 'V1', expected 'V2'"]


def test_expected_kernels():
    expected = {"kernels": {"sparse_mla": ["cpp", "torch"]}}
    assert check(make_cell(), expected, kernels={"sparse_mla": {"cpp": 3, "reference": 0}}) == []
    assert check(make_cell(), expected, kernels={"sparse_mla": {"reference": 1}}) == [
        "kernel sparse_mla ran 'reference', expected cpp or torch"
    ]
    assert check(make_cell(), expected, kernels={"sparse_mla": {"cpp": 0}}) == [
        "kernel sparse_mla was never called"
    ]
    assert check(make_cell(), expected, kernels={}, measured=False) == []


def test_expectations_of_another_platform_do_not_apply():
    cell = make_cell()
    path = cell.config.path.model_copy(update={"expect": {"cuda": Expectation(runner="V2")}})
    assert mismatches(path, cell.engine, effective_of(cell), measured=True) == []
