"""Numbers and rows as text."""

import pytest

from harness.records import CellState, Metric
from reports import tables


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (1.0, "1.00"), (12345.6, "12,300"), (999.6, "1,000"), (0.012345, "0.0123"),
        (17.25, "17.2"), (-3.14159, "-3.14"), (0.99962, "0.9996"), (0.9951, "0.995"), (1e-9, "1.00e-09"),
        (1.5e13, "1.50e+13"), (9.996, "10.0"),
    ],
)  # fmt: skip
def test_three_significant_digits(value, text):
    assert tables.number(value) == text


def test_a_share_below_one_never_reads_one():
    assert float(tables.number(1023 / 1024)) < 1
    assert float(tables.number(1 - 1e-7)) < 1


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (1023, "1,020 B"), (1536, "1.50 KiB"), (3 * 2**40, "3.00 TiB")]
)
def test_bytes(value, text):
    assert tables.bytes_text(value) == text


def test_figure_keeps_n_exclusions_and_reason():
    metric = Metric(value=2.5, unit="ms", better="down", n=62, excluded=2)
    assert tables.figure(metric, unit_in_header="ms") == tables.Figure("2.50", "n = 62, 2 excluded", "2.5")
    assert tables.figure(metric, unit_in_header="s").text == "2.50 ms"
    missing = Metric(value=None, unit="ms", better="down", n=0, excluded=64, reason="one-token answers")
    assert tables.figure(missing) == tables.Figure("—", "one-token answers (n = 0, 64 excluded)")
    assert tables.figure(None) == tables.Figure("—", "not recorded")


def test_zero_is_not_missing():
    assert tables.figure(Metric(value=0.0, unit="", better="none", n=1)).text == "0"


def test_every_state_has_a_symbol_of_its_own():
    assert len(set(tables.STATE_SYMBOLS.values())) == len(CellState)
    assert set(tables.STATE_SYMBOLS) == set(CellState)


@pytest.mark.parametrize(
    ("statuses", "text"),
    [
        ({}, "no request was sent"),
        ({"ok": 64}, "64 of 64 ok"),
        ({"ok": 1000, "timeout": 24, "empty": 0}, "1,000 of 1,024 ok, 24 timeout"),
        ({"disconnect": 3}, "0 of 3 ok, 3 disconnect"),
    ],
)
def test_status_text_counts_every_attempt(statuses, text):
    assert tables.status_text(statuses) == text


@pytest.mark.parametrize(
    ("start", "end", "text"),
    [
        ("2026-01-01T12:00:00+00:00", "2026-01-01T12:00:41+00:00", "41 s"),
        ("2026-01-01T12:00:00+00:00", "2026-01-01T14:03:30+01:00", "1 h 3 min"),
        ("2026-01-01T12:00:00+00:00", None, None),
        ("2026-01-01T12:00:00+00:00", "2026-01-01T11:59:00+00:00", None),
        ("yesterday", "2026-01-01T11:59:00+00:00", None),
        ("2026-01-01T12:00:00", "2026-01-01T12:59:00+00:00", None),
    ],
)
def test_duration(start, end, text):
    assert tables.duration(start, end) == text


def test_settings_are_marked(record):
    one = record(requested={"dtype": "float32", "threads": 1})
    marks = {setting.name: setting.mark for setting in tables.compare_settings(one)}
    assert marks["dtype"] == "≠" and marks["kv_dtype"] == "→" and marks["threads"] == "="
    assert marks["runner"] == "" and "kernels" not in marks and "notes" not in marks


def test_a_path_taken_by_rule_was_asked_for_as_auto(record):
    chosen = {"requested": "auto", "chosen": "dsa_mrv2", "reason": "the rule"}
    (path,) = [one for one in tables.compare_settings(record(chosen=chosen)) if one.name == "path"]
    assert (path.requested, path.effective, path.mark) == ("auto", "dsa_mrv2", "→")


def test_success_keeps_its_digits_in_a_row(record):
    metrics = {"success_rate": Metric(value=0.9999, unit="fraction", better="up", n=10000)}
    headers = tables.columns([record(metrics=metrics)])
    row = tables.result_rows([record(metrics=metrics)], headers)[0]
    texts = {column.name: figure.text for column, figure in zip(headers, row.figures, strict=True)}
    assert texts["success_rate"] == "0.9999" and texts["out_tps"] == "—"


def test_label_does_not_repeat_the_path(record):
    assert tables.cell_label(record(label="dsa_mrv2 tiny_v32 c1")) == "tiny_v32 c1"
    assert tables.cell_label(record(label="dsa_mrv2")) == "dsa_mrv2"
    assert tables.cell_label(record(label="dsa_mrv2 ")) == "dsa_mrv2 "
