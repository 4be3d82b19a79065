"""The A/A file: what it is named after, what it keeps, and when it is of no use."""

from datetime import date, timedelta

import pytest

from harness.noise_floor import aa_losses, fingerprint, floor_path, keep_floor, what_is_seen
from harness.records import CellState, Metric, Record
from harness.tier import Pairs, Tier
from reports.gate.plan_file import FloorFile
from tests.harness.cells import make_cell

TODAY = date(2026, 6, 15)
HERE = {
    "cpu": "x", "cores": 2, "gpu": None, "kernel": "6", "governor": None, "python": "3.11",
    "packages": {"torch": "2.11", "rich": "13"}, "host": "a", "boot_id": "b", "load_average": [1, 2, 3],
}  # fmt: skip


def record(cell_id, arm, pair, value, state=CellState.OK):
    slot = pair % 2 if arm == "baseline" else 1 - pair % 2
    return Record(
        run_id="run",
        launch_id=f"L{2 * pair + slot}",
        engine_id="e",
        cell_id=cell_id,
        arm_id=arm,
        pair=pair,
        slot=slot,
        order=2 * pair + slot,
        arm=arm,
        label=f"scripted {cell_id}",
        state=state,
        reason=None if state is CellState.OK else "why",
        requested={"path": "scripted"},
        metrics={"out_tps": Metric(value=value, unit="tok/s", better="up", n=1)} if state.has_numbers else {},
        started_at="",
        command="",
    )


def aa_run(cell_id, values):
    return [
        record(cell_id, arm, i, v) for i, pair in enumerate(values) for arm, v in zip(ARMS, pair, strict=True)
    ]


ARMS = ("baseline", "candidate")
PAIRS = [(100.0, 101.0), (100.0, 99.0), (100.0, 100.0)]


def keep(path, records, today=TODAY):
    return keep_floor(path, fingerprint="f", run_id="run", records=records, today=today, keep_days=14)


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"cpu": "y"}, False),
        ({"python": "3.12"}, False),
        ({"packages": {"torch": "2.12", "rich": "13"}}, False),
        ({"packages": {"torch": "2.11", "rich": "14"}}, True),
        ({"host": "b", "boot_id": "c", "load_average": [9, 9, 9]}, True),
    ],
)
def test_fingerprint_of_the_machine(changed, same):
    cells = [make_cell("threads=1")]
    assert (fingerprint(HERE, cells) == fingerprint(HERE | changed, cells)) is same


def test_fingerprint_of_the_baseline():
    cells = [make_cell("threads=1", f"concurrency={load}") for load in (1, 4)]
    here = fingerprint(HERE, cells)
    assert fingerprint(HERE, cells[:1]) == here  # the load is the cell's
    assert fingerprint(HERE, [make_cell("threads=1", revision="r2")]) == here
    assert fingerprint(HERE, [make_cell("threads=1", "path.options.gap_ms=3")]) != here
    assert len(here) == 16


def test_losses_are_those_of_the_pairs():
    losses, short = aa_losses(aa_run("c1", PAIRS))
    assert short == []
    assert losses["c1", "out_tps"] == pytest.approx([-0.00995, 0.01005, 0.0], abs=1e-5)


def test_a_cell_with_too_few_pairs_has_no_floor():
    records = aa_run("c1", PAIRS[:2]) + [record("c1", arm, 2, None, CellState.INVALID) for arm in ARMS]
    losses, short = aa_losses(records)
    assert losses == {} and short == ["c1: 2 usable pairs, 3 are needed"]


def test_a_new_run_replaces_its_cells_and_keeps_the_others_while_they_last(tmp_path):
    path = floor_path(tmp_path, "f")
    assert path == tmp_path / "aa" / "f.json"
    keep(path, aa_run("c1", PAIRS) + aa_run("c4", PAIRS), today=TODAY - timedelta(days=10))
    floor, _ = keep(path, aa_run("c1", [(100.0, 110.0)] * 3))
    assert [entry.cell_id for entry in floor.entries] == ["c1", "c4"]
    assert floor.entries[0].losses == pytest.approx([-0.0953] * 3, abs=1e-4)
    assert floor.measured_on == TODAY - timedelta(days=10)  # the age of what is kept
    later, _ = keep(path, aa_run("c1", PAIRS), today=TODAY + timedelta(days=5))
    assert [entry.cell_id for entry in later.entries] == ["c1"]
    assert later.measured_on == TODAY + timedelta(days=5)
    assert FloorFile.model_validate_json(path.read_text()) == later


def test_an_earlier_run_of_another_machine_is_not_kept(tmp_path):
    path = tmp_path / "aa.json"
    keep(path, aa_run("c1", PAIRS))
    path.write_text(path.read_text().replace('"fingerprint": "f"', '"fingerprint": "g"'))
    floor, _ = keep(path, aa_run("c2", PAIRS))
    assert {one.cell_id for one in floor.entries} == {"c2"}


def test_the_file_and_a_sentence_say_what_the_tier_can_see(tmp_path):
    path = tmp_path / "aa.json"
    tier = Tier(name="small", pairs=Pairs(min=3, max=4, step=1), gated=["out_tps"])
    records = aa_run("c1", PAIRS)
    floor, _ = keep_floor(
        path, fingerprint="f", run_id="run", records=records, today=TODAY, tier=tier, keep_days=14
    )
    (entry,) = floor.entries
    assert (entry.tier, entry.pairs) == ("small", 4) and entry.detectable_pct > 2.0
    assert FloorFile.model_validate_json(path.read_text()) == floor
    (line,) = what_is_seen(floor, tier, {"c1": "tiny c1", "c2": "tiny c2"})
    assert line.startswith("tiny c1: at tier small (4 pairs") and f"{entry.detectable_pct:.1f} %" in line
