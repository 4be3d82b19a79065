"""Numbers of other tools: aliases, arms, mistakes."""

from __future__ import annotations

import json

import pytest

from paths.api import UserError
from reports.compare.cells import NOT_A_NUMBER
from reports.compare.metric_table import METRICS
from reports.interchange.aliases import AIPERF_METRICS, CSV_METRICS, VLLM_METRICS
from reports.interchange.csv_file import read_csv
from reports.interchange.imported import cell_label, without_copies
from reports.interchange.json_files import read_json
from reports.interchange.records import metrics_in, records_of

PUBLISHED = """\
model,weights,gpus,mtp,concurrency,baseline_output_tok_s,candidate_output_tok_s,delta_pct,\
baseline_mean_tpot_ms,candidate_mean_tpot_ms
GLM,dummy,4,0,1,111.63,129.96,16.42,8.65,7.41
GLM,real,4,3,1,262.84,309.54,17.77,,2.94
"""


def csv(tmp_path, text, name="a.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def records(imported, arm, **more):
    fixed = {"run_id": "r", "file_name": "f", "command": "c", "started_at": "2026-01-01T00:00:00+00:00"}
    return records_of(imported, arm=arm, **(fixed | more))


def test_every_alias_is_a_metric_of_the_table():
    names = {*CSV_METRICS.values(), *VLLM_METRICS.values(), *AIPERF_METRICS.values()}
    assert len(names) > 15 and names <= METRICS.keys()


def test_two_arms_of_a_csv_file(tmp_path):
    found = read_csv(csv(tmp_path, PUBLISHED))
    assert found.two_arms and len(found.rows) == 4
    base, cand = records(found, "baseline"), records(found, "candidate")
    assert [one.cell_id for one in base] == [one.cell_id for one in cand] and len(
        {one.cell_id for one in base}
    ) == 2
    assert base[0].metrics["out_tps"].value == 111.63 and cand[0].metrics["tpot_mean_ms"].value == 7.41
    assert base[1].metrics["tpot_mean_ms"].reason == "empty in the file"
    assert base[0].label == "GLM gpus=4 mtp=0 weights=dummy c1" and "delta_pct" not in base[0].requested
    assert metrics_in([*base, *cand]) == ["out_tps", "tpot_mean_ms"]


def test_columns_in_another_order_are_the_same_cells(tmp_path):
    rows = [line.split(",") for line in PUBLISHED.splitlines()]
    turned = "\n".join(",".join(reversed(row)) for row in rows)
    ids = [
        [one.cell_id for one in records(read_csv(csv(tmp_path, text)), "candidate")]
        for text in (PUBLISHED, turned)
    ]
    assert ids[0] == ids[1]


def test_rows_of_one_cell_are_its_launches(tmp_path):
    found = records(read_csv(csv(tmp_path, "concurrency,output_tok_s\n1,10\n1,11\n2,30\n\n")), "candidate")
    assert [(one.label, one.pair, one.metrics["out_tps"].value) for one in found] == [
        ("c1", 0, 10.0),
        ("c1", 1, 11.0),
        ("c2", 0, 30.0),
    ]


def test_only_what_agrees_in_everything_is_a_copy(tmp_path):
    text = "concurrency,output_tok_s,mean_ttft_ms\n1,10,5\n1,10,6\n1,10.0,5\n2,10,5\n1,10,nan\n1,,\n1,,\n"
    found, lines = without_copies(read_csv(csv(tmp_path, text)))
    assert [row.values for row in found.rows] == [
        {"out_tps": 10.0, "ttft_mean_ms": 5.0},
        {"out_tps": 10.0, "ttft_mean_ms": 6.0},
        {"out_tps": 10.0, "ttft_mean_ms": 5.0},
        {"out_tps": 10.0},
        {},
        {},
    ]
    assert lines == ["c1: 1 copy of a launch left out: same numbers, same launch"]


def test_nan_is_kept_as_what_it_is(tmp_path):
    row = read_csv(csv(tmp_path, "concurrency,output_tok_s,mean_ttft_ms\n1,nan,inf\n")).rows[0]
    assert row.values == {} and set(row.absent.values()) == {NOT_A_NUMBER}
    assert metrics_in(records(read_csv(csv(tmp_path, "c,output_tok_s\n1,nan\n")), "candidate")) == ["out_tps"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no rows"),
        ("concurrency,output_tok_s\n", "has no rows"),
        ("concurrency,weights\n1,real\n", "no column is a metric"),
        ("concurrency;output_tok_s\n1;4,5\n", "not separated by commas"),
        (
            "concurrency,baseline_outptu_tok_s\n1,2\n",
            "unknown metric outptu_tok_s; did you mean output_tok_s",
        ),
        ("concurrency,output_tok_s\n1,fast\n", "line 2, column output_tok_s: 'fast' is not a number"),
        ("concurrency,output_tok_s\n1\n", "line 2: 1 fields, the header has 2"),
        ("concurrency,output_tok_s,output_tok_s\n1,2,3\n", "one that another column has too"),
        (
            "concurrency,output_tok_s,out_tps\n1,2,3\n",
            "column out_tps is out_tps, which another column is too",
        ),
        ("c,output_tok_s,baseline_mean_tpot_ms\n1,2,3\n", "some metrics have an arm"),
        ('c,output_tok_s\n"1,2\n', "cannot be read as CSV"),
    ],
)
def test_a_mistake_in_a_csv_file_names_its_place(tmp_path, text, said):
    with pytest.raises(UserError) as error:
        read_csv(csv(tmp_path, text))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_vllm_bench_serve(tmp_path):
    document = {
        "model_id": "m", "max_concurrency": 16, "request_rate": "inf", "completed": 64,
        "output_throughput": 900.5, "request_throughput": 3.5, "mean_ttft_ms": 20.0, "median_tpot_ms": 7.0,
        "p99_itl_ms": 40.0, "median_e2el_ms": None, "mean_itl_ms": 9.0,
    }  # fmt: skip
    found = read_json(csv(tmp_path, json.dumps(document), "v.json"))
    row = found.rows[0]
    assert found.tool == "vllm_bench" and row.requests == 64
    assert row.values == {
        "out_tps_full": 900.5, "req_per_s": 3.5, "ttft_mean_ms": 20.0, "tpot_p50_ms": 7.0, "icl_p99_ms": 40.0
    }  # fmt: skip
    assert row.absent == {"e2e_p50_ms": "empty in the file"}
    assert row.identity == {"model": "m", "concurrency": 16, "request_rate": "inf"}
    lines = read_json(csv(tmp_path, f"{json.dumps(document)}\n{json.dumps(document)}\n", "v.jsonl"))
    assert len(lines.rows) == 2


def test_aiperf(tmp_path):
    document = {
        "time_to_first_token": {"unit": "ms", "avg": 30.0, "p50": 28.0, "p99": 90.0},
        "inter_token_latency": {"unit": "s", "avg": 0.008},
        "inter_chunk_latency": {"unit": "ms", "p50": 16.0},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 1234.5},
        "request_count": {"unit": "requests", "avg": 128.0},
        "input_config": {"endpoint": {"model_names": ["m"]}, "loadgen": {"concurrency": 16}},
    }
    found = read_json(csv(tmp_path, json.dumps(document), "a.json"))
    assert found.tool == "aiperf" and found.rows[0].requests == 128
    assert found.rows[0].values == {
        "ttft_mean_ms": 30.0, "ttft_p50_ms": 28.0, "ttft_p99_ms": 90.0, "tpot_mean_ms": 8.0,
        "icl_p50_ms": 16.0, "out_tps_full": 1234.5,
    }  # fmt: skip
    assert found.rows[0].identity == {"model": "m", "concurrency": 16}
    document["time_to_first_token"]["unit"] = "furlongs"
    with pytest.raises(UserError, match="unit furlongs"):
        read_json(csv(tmp_path, json.dumps(document), "a.json"))


def test_guidellm(tmp_path):
    def distribution(mean, p99):
        return {"successful": {"mean": mean, "median": mean, "percentiles": {"p90": mean, "p99": p99}}}

    document = {
        "benchmarks": [
            {
                "args": {"strategy": {"type_": "concurrent", "streams": streams}},
                "metrics": {
                    "time_to_first_token_ms": distribution(30.0, 90.0),
                    "request_latency": distribution(1.5, 2.0),
                    "time_per_output_token_ms": distribution(99.0, 99.0),
                    "output_tokens_per_second": distribution(1000.0, 1.0),
                },
            }
            for streams in (1, 16)
        ]
    }
    found = read_json(csv(tmp_path, json.dumps(document), "g.json"))
    assert found.tool == "guidellm" and [row.identity["concurrency"] for row in found.rows] == [1, 16]
    values = found.rows[0].values
    assert (
        values["e2e_mean_ms"] == 1500.0 and values["ttft_p99_ms"] == 90.0 and values["out_tps_full"] == 1000.0
    )
    assert not [name for name in values if name.startswith("tpot")]  # theirs includes the first token


@pytest.mark.parametrize(
    ("text", "said"), [("{}", "neither of vllm"), ("{", "line 1: not valid JSON"), ("[]", "no JSON object")]
)
def test_a_json_file_of_nobody(tmp_path, text, said):
    with pytest.raises(UserError) as error:
        read_json(csv(tmp_path, text, "x.json"))
    assert said in str(error.value)


def test_other_tools_measure_other_things(tmp_path):
    one = records(read_csv(csv(tmp_path, "concurrency,output_throughput\n1,2\n")), "baseline")[0]
    path = csv(tmp_path, json.dumps({"output_throughput": 2, "max_concurrency": 1}), "v.json")
    other = records(read_json(path), "candidate")[0]
    assert one.metric_def_version != other.metric_def_version and one.cell_id != other.cell_id


def test_a_cell_needs_no_identity():
    assert cell_label({"name": "a\x1b[31m\n\tb", "concurrency": 1}) == "name=a [31m b c1"
    assert cell_label({}) == "cell" and cell_label({"model": None, "b": 1, "a": 2}) == "a=2 b=1"
