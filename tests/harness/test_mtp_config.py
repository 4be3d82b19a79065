"""mtp as a key: identities, labels, and values that mean nothing."""

import re

import pytest

from harness.memory import cache_bytes
from harness.plan import build_plan
from paths.api import UserError
from tests.harness.cells import make_cell, make_cells


def test_mtp_makes_engines_and_cells_of_its_own():
    cells = make_cells("+path=scripted", "mtp=0,1,2,3", "concurrency=1,4")
    assert [cell.engine.mtp for cell in cells] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len({cell.engine.identity() for cell in cells}) == 4
    assert len({cell.cell_id for cell in cells}) == 8
    assert len({cell.arm_id for cell in cells}) == 1  # mtp is part of what is compared, not of the arm
    launches, _ = build_plan(cells)
    assert [len(launch.cells) for launch in launches] == [2, 2, 2, 2]


def test_paths_of_one_mtp_are_a_pair():
    launches, _ = build_plan(make_cells("+path=generic_mrv1,dsa_mrv2", "mtp=0,3"))
    found = [(launch.pair, launch.cells[0].engine.path, launch.cells[0].engine.mtp) for launch in launches]
    assert found == [(0, "generic_mrv1", 0), (0, "dsa_mrv2", 0), (1, "dsa_mrv2", 3), (1, "generic_mrv1", 3)]


def test_the_label_says_mtp_where_there_is_one():
    assert make_cell().label == "scripted tiny_v32 kv=auto 32/16 c1"
    assert make_cell("mtp=3").label == "scripted tiny_v32 kv=auto mtp=3 32/16 c1"
    forced = make_cell("mtp=3", "mtp_mode=forced", "mtp_forced_al=2.5")
    assert forced.label == "scripted tiny_v32 kv=auto mtp=3 forced al=2.5 32/16 c1"
    assert "forced" in forced.folder
    assert forced.cell_id != make_cell("mtp=3").cell_id
    asked = [forced.requested[name] for name in ("mtp", "mtp_mode", "mtp_forced_al")]
    assert asked == [3, "forced", 2.5]


@pytest.mark.parametrize("length", ["1", "4", "2.25"])
def test_lengths_that_can_be_forced(length):
    cell = make_cell("mtp=3", "mtp_mode=forced", f"mtp_forced_al={length}")
    assert cell.engine.mtp_forced_al == float(length)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mtp=-1"], "mtp=-1: not allowed; allowed: an integer from 0 (off) to 32"),
        (["mtp=33"], "mtp=33: not allowed; allowed: an integer from 0 (off) to 32"),
        (["mtp=1.5"], "mtp=1.5: not allowed; allowed: an integer from 0"),
        (["mtp=1", "mtp_mode=fake"], "mtp_mode=fake: not allowed; allowed: real, forced"),
        (["mtp_mode=forced", "mtp_forced_al=1"], "mtp_mode=forced: mtp=0 drafts nothing; set mtp to 1"),
        (["mtp=3", "mtp_mode=forced"], "mtp_forced_al=null: mtp_mode=forced with mtp=3 needs a number"),
        (["mtp=3", "mtp_mode=forced", "mtp_forced_al=4.1"], "mtp_forced_al=4.1: mtp_mode=forced with mtp=3"),
        (["mtp=3", "mtp_mode=forced", "mtp_forced_al=0.5"], "mtp_forced_al=0.5: not allowed; allowed: a"),
        (["mtp=3", "mtp_forced_al=2"], "mtp_forced_al=2: mtp_mode=real forces nothing; set mtp_mode=forced"),
        (["mtp=2", "model.hf_config.num_nextn_predict_layers=0"], "mtp=2: model tiny_v32 has no MTP layer"),
    ],
)  # fmt: skip
def test_what_means_nothing_is_one_line(words, said):
    with pytest.raises(UserError, match=f"^{re.escape(said)}") as refused:
        make_cell(*words)
    assert "\n" not in str(refused.value)


def test_the_cache_of_the_mtp_layer_needs_memory():
    assert cache_bytes(make_cell("mtp=3")) * 4 == cache_bytes(make_cell()) * 5  # one layer more than four
