"""Proof of what one cell ran: differences of reports that count since start-up."""

import dataclasses

from harness.config import Expectation
from harness.effective import effective_of_cell, without_counts
from harness.expectation import mismatches
from paths.scripted import ScriptedPath
from tests.harness.cells import make_cell


def report(kernels, steps, **changes):
    effective = ScriptedPath().start(make_cell().engine).effective()
    return dataclasses.replace(effective, kernels=kernels, graph_modes=steps, **changes)


BEFORE = report(
    {"sparse_mla": {"cpp": 40}, "rope": {"cpp": 7}},
    {"FULL": 0, "NONE": 5},
    draft_modes={"FULL": 2, "NONE": 1},
)


def test_only_what_happened_in_between_counts():
    after = report(
        {"sparse_mla": {"cpp": 40, "torch": 3}, "rope": {"cpp": 9}, "rms_norm": {"cpp": 1}},
        {"FULL": 4, "NONE": 5},
        draft_modes={"FULL": 8, "NONE": 1},
        notes=("said later",),
    )
    cell = effective_of_cell(BEFORE, after)
    assert cell.kernels == {
        "sparse_mla": {"cpp": 0, "torch": 3}, "rope": {"cpp": 2}, "rms_norm": {"cpp": 1}
    }  # fmt: skip
    assert cell.graph_modes == {"FULL": 4, "NONE": 0}
    assert cell.draft_modes == {"FULL": 6, "NONE": 0}
    assert cell.notes == ("said later",)
    assert BEFORE.kernels["rope"] == {"cpp": 7}


def test_calls_of_the_warm_up_prove_nothing_about_a_cell():
    cell = make_cell()
    path = cell.config.path.model_copy(
        update={"expect": {"any": Expectation(kernels={"sparse_mla": ["cpp"], "rope": ["cpp"]})}}
    )
    after = report({"sparse_mla": {"cpp": 40}, "rope": {"cpp": 8}}, {"NONE": 6})
    assert mismatches(path, cell.engine, after, measured=True) == []
    found = mismatches(path, cell.engine, effective_of_cell(BEFORE, after), measured=True)
    assert found == ["kernel sparse_mla was never called"]


def test_a_cell_that_did_not_end_claims_no_calls():
    bare = without_counts(BEFORE)
    assert (bare.kernels, bare.graph_modes, bare.draft_modes) == ({}, {}, {})
    assert bare.runner == BEFORE.runner
