"""The page: parsed, not searched. Every value that a record has is there, and nothing else gets in."""

import base64
import hashlib
import re
import time

import pytest

from harness.records import Check, Metric
from reports.html import write_report

HOSTILE = [
    "<script>alert(1)</script>",
    "</SCRIPT><b>x</b>",
    "\"quotes\" & 'apostrophes' | pipes \\ back",
    "{{ rows }} {% for x in y %} __BODY__",
    "$x_1$ ${HOME} %s %(a)s",
    "_leading <!-- --> ]]>",
    "é漢字🙂" + "n" * 300,
    "line\nbreak\ttab",
]


@pytest.fixture
def page(run_folder, parse):
    def build(records, **changes):
        path = write_report(run_folder(records, **changes))
        assert path.name == "report.html"
        return parse(path.read_text(encoding="utf-8"))

    return build


def rows_of(section):
    return [[cell.text for cell in row.all("td")] for row in section.all("tr") if row.all("td")]


def test_headline_says_what_ran(page, record, failed):
    root = page(
        [record(0), record(1, requested={"path": "generic_mrv1"}), failed(2)],
        exit_code=5,
        command="harness x=1",
    )
    lead = root.all("p")[0].text
    assert "dsa_mrv2, generic_mrv1 on tiny_v32: 2 of 3 cells have numbers (2 OK, 1 FAILED)" in lead
    assert "took 3 min 24 s" in lead
    said, third = root.all("header")[0].text, failed(2)
    assert "exit code 5 (infrastructure" in said
    assert f": {third.launch_id}, {third.label}: FAILED: {third.reason})" in said
    assert root.all("header")[0].all("pre")[0].text == "harness x=1"


def test_machine_environment_and_blocked_variables(page, record):
    root = page([record(0)])
    assert "Example CPU 3000 · 2 cores · 24.0 GiB · exit code 0" in root.all("header")[0].text
    environment = root.by_id("environment")
    assert "Variables kept from the engines: VLLM_USE_X" in environment.text
    rows = {row.all("th")[0].text: row.all("td")[0].text for row in environment.all("tr")}
    assert rows["packages.torch"] == "2.13.0" and rows["packages.vllm"] == "null"
    bare = page([], environment={})
    assert "machine not recorded" in bare.all("header")[0].text


def test_result_row_has_numbers_units_n_and_arrows(page, record):
    results = page([record(0, requested={"concurrency": 64})]).by_id("results")
    headers = [one.text for one in results.all("th")]
    assert headers[3:8] == [
        "Output throughput ↑ tok/s", "TPOT ↓ ms", "TTFT p50 ↓ ms", "E2E p50 ↓ ms", "Success ↑ fraction",
    ]  # fmt: skip
    (row,) = rows_of(results)
    assert row[2].startswith("✓ OK")
    # tpot = 2 × 1.64 ms, out_tps = 64000 / 3.28
    assert row[3] == "19,500 n = 128" and row[4] == "3.28 n = 128, 2 excluded" and row[5] == "790 n = 128"
    assert row[-1] == "64 of 64 ok"


def test_missing_is_a_dash_with_its_reason(page, record):
    metrics = {
        "out_tps": Metric(value=0.0, unit="tok/s", better="up", n=5),
        "tpot_pooled_ms": Metric(
            value=None, unit="ms", better="down", n=0, excluded=5, reason="every answer has one token"
        ),
    }
    (row,) = rows_of(page([record(0, metrics=metrics)]).by_id("results"))
    assert row[3] == "0 n = 5"
    assert row[4] == "— every answer has one token (n = 0, 5 excluded)"
    assert row[5] == "— not recorded"


def test_failures_come_first_with_reason_and_log(page, record, failed):
    root = page(
        [record(0), failed(1, "OOM", "engine ran out of memory"), failed(2, "PATH_MISMATCH", "ran V1")]
    )
    sections = [one.attributes.get("id") for one in root.all("section")]
    assert sections.index("problems") < sections.index("results")
    assert rows_of(root.by_id("problems")) == [
        ["≠ PATH_MISMATCH", "dsa_mrv2", "ran V1", "tiny_v32 c=1 64 of 64 ok", "cells/2/worker.log"],
        ["▣ OOM", "dsa_mrv2", "engine ran out of memory", "tiny_v32 c=1 64 of 64 ok", "cells/1/worker.log"],
    ]
    cell, log = root.by_id("problems").all("tr")[2].all("a")
    assert cell.attributes["href"] == "#cell-1" and log.attributes["href"] == "cells/1/worker.log"
    results = rows_of(root.by_id("results"))
    assert results[1][3] == "— no numbers: engine ran out of memory"


def test_what_did_not_run_as_labelled_is_said_in_the_headline(page, record, failed):
    (header,) = page([record(0), failed(1, "OOM", "no room"), failed(2, "PATH_MISMATCH", "ran V1")]).all(
        "header"
    )
    boxes = [one.text for one in header.all("div") if "bad" in one.attributes.get("class", "")]
    assert boxes == [
        "≠ PATH_MISMATCH dsa_mrv2 did not run what its label says; its numbers count for nothing: ran V1"
    ]
    (header,) = page([record(0), failed(1, "OOM", "no room")]).all("header")
    assert "did not run" not in header.text


def test_a_path_taken_by_rule_says_why_beside_its_numbers(page, record):
    chosen = {
        "requested": "auto",
        "chosen": "dsa_mrv2",
        "reason": "the rule",
        "warnings": ["sm_90 is untested"],
    }
    root = page([record(0, chosen=chosen)])
    (row,) = rows_of(root.by_id("results"))
    assert "path auto took dsa_mrv2: the rule" in row[2] and "warning: sm_90 is untested" in row[2]


def test_graphs_copies_and_waits_are_part_of_the_proof(page, record):
    effective = {"graphs": 26, "breaks_per_layer": 1.0, "copies_per_step": 2.0, "waits_per_step": 0.0}
    startup = {"capture_s": 0.42, "graphs": 26, "graph_memory_bytes": 2**21, "kernel_build_s": 31.0}
    counters = {"steps": {"FULL": 8}, "graph_misses": {"FULL: too large": 3}, "ratios": {"replay_frac": 0.5}}
    root = page([record(0, effective=effective, startup=startup, counters=counters)])
    text = root.text
    for words in ("graphs 26 · breaks per layer 1 · copies per step 2 · waits per step 0",
                  "2.00 MiB", "31.0 s", "graph_misses.FULL: too large", "ratios.replay_frac"):  # fmt: skip
        assert words in text, words


def test_cells_with_one_cause_share_a_row(page, failed):
    reason = "at start-up: " + "g++ said no; " * 40
    root = page([failed(i, reason=reason, log="cells/L0/worker.log") for i in range(11)])
    (row,) = rows_of(root.by_id("problems"))
    assert row[2] == reason.strip() and row[3].endswith("and 3 more") and row[4] == "cells/L0/worker.log"
    assert all(len(one[3]) < 150 and one[3].endswith("…") for one in rows_of(root.by_id("results")))


def test_no_problem_section_without_problems(page, record):
    assert "problems" not in [one.attributes.get("id") for one in page([record(0)]).all("section")]


def test_fallback_is_visible_with_numbers(page, record):
    said = {"fallbacks": ["rms_norm fell back from cpp to torch: no compiler"], "notes": ["a quiet remark"]}
    root = page([record(0, state="FALLBACK", reason="rms_norm ran in torch", effective=said)])
    assert rows_of(root.by_id("problems"))[0][0] == "◐ FALLBACK"
    row = rows_of(root.by_id("results"))[0]
    assert "rms_norm ran in torch" in row[2] and row[3].startswith("495")
    boxes = [one for one in root.by_id("proof").all("div") if "box" in (one.attributes.get("class") or "")]
    assert [one.text for one in boxes] == [f"◐ Fallback: {said['fallbacks'][0]}", said["notes"][0]]


def test_failed_checks_are_flagged_and_explained(page, record):
    checks = {
        "window": Check(ok=False, detail="covers 41 %, needs 60 %"),
        "little": Check(ok=None, detail="open loop"),
        "lag": Check(ok=True, detail="0.2 ms"),
    }
    root = page([record(0, checks=checks), record(1)])
    assert "check window failed: covers 41 %, needs 60 %" in root.by_id("problems").text
    assert "⚠ 1 check failed: window" in rows_of(root.by_id("results"))[0][2]
    first, second = rows_of(root.by_id("checks"))
    assert first[2:] == ["✗ covers 41 %, needs 60 %", "? open loop", "✓"]
    assert second[2:] == ["✓", "✓", "— not run"]


def test_requested_and_effective_side_by_side(page, record):
    kernels = {"rms_norm": {"torch": 3, "cpp": 797}, "rope": {"cpp": 0}, "moe_route": {}}
    effective = {
        "kv_dtype": "fp8", "dtype": "float32", "k_scale_origin": "default-1.0", "kernels": kernels,
    }  # fmt: skip
    proof = page([record(0, requested={"kv_dtype": "fp8"}, effective=effective)]).by_id("proof")
    rows = {row[0]: row[1:] for row in rows_of(proof)}
    assert rows["kv_dtype"] == ["fp8", "=", "fp8"]
    assert rows["dtype"] == ["bf16", "≠", "float32"]
    assert rows["index_dtype"] == ["auto", "→", "bf16"]
    assert rows["runner"] == ["—", "", "V2"]
    assert rows["rms_norm"] == ["torch 3, cpp 797"]
    assert rows["rope"] == rows["moe_route"] == ["not called"]
    assert "default scale of 1.0" in proof.text and "5,632 bytes per token" in proof.text


def test_cells_of_one_launch_have_sections_of_their_own(page, record):
    records = [record(7, cell_id=f"{i:016x}", requested={"concurrency": 2**i}) for i in range(3)]
    root = page(records)
    links = [row.all("a")[0].attributes["href"] for row in root.by_id("results").all("tr")[1:]]
    assert links == ["#cell-0", "#cell-1", "#cell-2"]
    assert "concurrency=4" in root.by_id("cell-2").all("pre")[0].text


def test_a_launch_is_shown_once(page, record, failed):
    records = [record(i, launch_id="L0", requested={"concurrency": 2**i}) for i in range(3)]
    dead = failed(3).model_copy(update={"effective": None, "startup": None})
    root = page([*records, dead])
    headings = [one.text for one in root.by_id("proof").all("h3")]
    assert headings == ["dsa_mrv2 launch L0, 3 cells", "dsa_mrv2 launch L003, 1 cell"]
    assert "did not live long enough" in root.by_id("proof").text
    startup = rows_of(root.by_id("startup"))
    assert startup[0][2:] == ["0.512 s", "0 s", "0.250 s", "7", "3.00 MiB", "2.00 MiB", "131,072"]
    assert startup[1][2] == "— start-up did not finish"


def test_calls_of_a_launch_are_the_sum_of_its_cells(page, record):
    ran = [{"kernels": {"rope": {"cpp": n, "torch": 0}}, "graph_modes": {"FULL": n}} for n in (3, 40)]
    root = page([record(i, launch_id="L0", cell_id=f"{i}", effective=one) for i, one in enumerate(ran)])
    assert ["rope", "cpp 43"] in rows_of(root.by_id("proof"))
    assert "FULL: 43" in root.by_id("proof").text


def test_cell_section_reproduces_the_cell(page, record):
    cell = page([record(0)]).by_id("cell-0")
    assert cell.all("pre")[0].text == "python -m harness path=dsa_mrv2 concurrency=1"
    assert ["tpot_pooled_ms ↓", "2.02 ms", "n = 32, 2 excluded"] in rows_of(cell)
    assert "— ttft_p99_ms: p99 needs 1000 samples, has 32 (n = 32)" in [one.text for one in cell.all("p")]
    assert "memory_high_water 1.00 GiB" in cell.text and "request_rate=null" in cell.text


def test_curves_for_each_arm_and_dtype(page, record):
    records = [
        record(i, requested={"path": path, "kv_dtype": kv, "concurrency": load})
        for i, (path, kv, load) in enumerate(
            (p, k, c) for p in ("generic_mrv1", "dsa_mrv2") for k in ("auto", "fp8") for c in (1, 16, 1024)
        )
    ]
    curves = page(records).by_id("curves")
    assert [one.text for one in curves.all("figcaption")] == [
        "Output throughput against concurrency",
        "TPOT, pooled against concurrency",
        "TTFT, median against concurrency",
        "Output throughput against interactivity, labelled with the load",
    ]
    assert [one.text for one in curves.all("figure")[0].all("li")] == [
        "● A generic_mrv1 · kv_dtype=auto", "■ B generic_mrv1 · kv_dtype=fp8",
        "▲ C dsa_mrv2 · kv_dtype=auto", "◆ D dsa_mrv2 · kv_dtype=fp8",
    ]  # fmt: skip
    drawn = [one.text for one in curves.all("figure")[0].all("text")]
    assert {"1", "16", "1024", "A", "D"} <= set(drawn) and "Output throughput (tok/s) ↑" in drawn


def test_other_settings_get_drawings_of_their_own(page, record):
    records = [record(i, requested={"model": m}) for i, m in enumerate(("tiny_v32", "tiny_glm"))]
    curves = page(records).by_id("curves")
    assert [one.text for one in curves.all("h3")] == ["model=tiny_v32", "model=tiny_glm"]
    open_loop = page([record(0, requested={"concurrency": None, "request_rate": 2.5})]).by_id("curves")
    assert "against request rate" in open_loop.text


def test_fault_059_cells_without_a_key_are_drawn_beside_those_that_have_it(page, record):
    """mtp in {3, null, not there}: three cells in three groups, and none is lost."""
    records = [record(0, requested={"mtp": 3}), record(1), record(2, requested={"mtp": None})]
    curves = page(records).by_id("curves")
    assert [one.text for one in curves.all("h3")] == ["mtp=3", "mtp=not set", "mtp=null"]


def test_open_loops_headline_the_latency_from_the_schedule(page, record):
    """Known fault 019: a queue in the client must not vanish from the latency."""
    open_, closed = {"concurrency": None, "request_rate": 2.5}, {"concurrency": 1}
    root = page([record(0, requested=open_)])
    headers = [one.text for one in root.by_id("results").all("th")]
    assert "TTFT from schedule p50 ↓ ms" in headers and "TTFT p50 ↓ ms" not in headers
    assert "20.5 n = 32" in rows_of(root.by_id("results"))[0]
    captions = [one.text for one in root.by_id("curves").all("figcaption")]
    assert "TTFT from schedule, median against request rate" in captions
    assert not [text for text in captions if text.startswith("TTFT, median")]
    both = [
        one.text
        for one in page([record(0, requested=open_), record(1, requested=closed)]).by_id("results").all("th")
    ]
    assert "TTFT from schedule p50 ↓ ms" in both and "TTFT p50 ↓ ms" in both


def test_the_steps_of_a_launch_are_summed_wherever_they_stand(page, record):
    """Two cells on one launch: the settings table must not show those of the last one alone."""
    ran = [
        record(i, effective={"graph_modes": {"FULL": 1000 + i, "NONE": 0}}, launch_id="L000") for i in (0, 1)
    ]
    text = page(ran).by_id("proof").text
    assert "2,001" in text and "1,001" not in text and "1001" not in text


def test_a_run_that_did_not_exercise_sparsity_says_so(page, record):
    def with_share(order, share, **changes):
        metric = Metric(value=share, unit="fraction", better="none", n=99)
        return record(order, metrics={"dsa_active_token_frac": metric}, **changes)

    root = page(
        [with_share(0, 0.03), with_share(1, 0.5), with_share(2, 0.0, effective={"index_dtype": "none"})]
    )
    states = [row[2] for row in rows_of(root.by_id("results"))]
    assert "sparsity not exercised: 3% of the decode tokens" in states[0]
    assert ["sparsity" in state for state in states] == [True, False, False]
    assert "sparsity not exercised" in root.by_id("cell-0").text


def test_the_percentile_method_is_that_of_the_run(page, record):
    assert "Method linear" in page([record(0)]).by_id("method").text
    assert "Method hazen" in page([record(0)], percentile_method="hazen").by_id("method").text


def test_ids_are_unique_and_references_resolve(page, record):
    root = page([record(i, requested={"concurrency": 2**i}) for i in range(5)])
    ids = [one.attributes["id"] for one in root.walk() if one.attributes.get("id")]
    assert len(ids) == len(set(ids))
    for one in root.walk():
        for name in ("href", "xlink:href", "clip-path"):
            target = re.search(r"#([^)]+)", one.attributes.get(name) or "")
            assert target is None or target[1] in ids


def test_self_contained(page, record, run_folder):
    root = page([record(0)])
    assert not [one for one in root.walk() if one.tag in ("link", "img", "iframe", "object")]
    (script,) = root.all("script")
    digest = base64.b64encode(hashlib.sha256("".join(script.texts).encode()).digest()).decode()
    policy = next(one.attributes["content"] for one in root.all("meta") if "http-equiv" in one.attributes)
    assert policy.endswith(f"script-src 'sha256-{digest}'") and script.attributes == {}
    assert not [one for one in root.walk() if one.attributes.get("src")]
    text = (run_folder([], finished_at=None) / "report.html").read_text()
    assert not re.search(r"https?://|@import|url\((?!#)", text)
    assert "prefers-color-scheme: dark" in text


def test_results_can_be_sorted_and_filtered(page, record, failed):
    """By the script of the comparison's page; without it the filter is hidden and the table complete."""
    section = page([record(0), record(1), failed(2)]).by_id("results")
    (table,), (tools,) = (
        section.all("table"),
        [one for one in section.all("div") if "data-table" in one.attributes],
    )
    assert table.attributes["id"] == tools.attributes["data-table"] and "hidden" in tools.attributes
    assert "sortable" in table.attributes["class"].split()
    rows = [row for row in table.all("tr") if row.all("td")]
    assert [row.attributes["data-words"] for row in rows] == ["OK", "OK", "FAILED"]
    assert [one.attributes["value"] for one in tools.all("option")] == ["", "OK", "FAILED"]
    figures = [one.attributes["data-sort"] for one in rows[0].all("td")[3:-1]]
    assert figures and all(text == "" or float(text) >= 0 for text in figures) and any(figures)
    assert rows[2].all("td")[3].attributes["data-sort"] == ""


def test_same_records_same_bytes(run_folder, record):
    folder = run_folder([record(0), record(1)])
    assert write_report(folder).read_bytes() == write_report(folder).read_bytes()


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_appear_verbatim(page, record, failed, text):
    """Faults 057 and 061: names and messages are text, whatever they contain."""
    bad = {"path": text, "model": text, "kv_dtype": text}
    notes = {"notes": [text], "fallbacks": [text], "runner": text, "kernels": {text: {text: 1}}}
    records = [
        record(0, label=text, requested=bad, effective=notes, checks={text: Check(ok=False, detail=text)}),
        failed(1, reason=text, label=text, requested=bad, log=text, command=text),
    ]
    root = page(records, command=text, environment={text: text, "blocked_variables": [text]})
    plain = " ".join(text.split())
    assert not [one for one in root.walk() if one.tag in ("script", "b") and one.text in ("alert(1)", "x")]
    for section in ("problems", "results", "curves", "proof", "checks", "cells", "environment"):
        assert plain in root.by_id(section).text, section
    assert root.all("pre")[0].text == plain
    assert not [one for one in root.walk() if any(name.startswith("on") for name in one.attributes)]


def test_a_log_path_is_never_a_script(page, failed):
    root = page([failed(0, log="javascript:alert(1)")])
    assert [one.attributes["href"] for one in root.all("a") if "alert" in one.text] == [
        "javascript%3Aalert%281%29"
    ] * 2


def test_no_records_at_all(page):
    root = page([], exit_code=None, finished_at=None)
    assert "No cell was measured" in root.all("p")[0].text and "did not end" in root.all("p")[0].text
    assert "ended before its first cell" in root.by_id("results").text
    assert not root.all("figure")


def test_everything_failed(page, failed):
    states = ("FAILED", "TIMEOUT", "OOM", "UNSUPPORTED", "SKIPPED", "INVALID", "PATH_MISMATCH")
    root = page([failed(i, state, f"because {state}") for i, state in enumerate(states)])
    assert len(rows_of(root.by_id("problems"))) == len(states) == len(rows_of(root.by_id("results")))
    assert "0 of 7 cells have numbers" in root.all("p")[0].text
    assert "Nothing to draw" in root.by_id("curves").text


def test_missing_values_leave_gaps_not_zeros(page, record):
    metrics = {"out_tps": Metric(value=None, unit="tok/s", better="up", n=0, reason="window too short")}
    root = page([record(0, metrics=metrics)])
    assert not root.all("figure")


def test_warnings_of_the_loader_are_shown(run_folder, record, parse):
    folder = run_folder([record(0)])
    with (folder / "records.jsonl").open("a") as file:
        file.write("{")
    assert "last line is truncated" in parse(write_report(folder).read_text()).all("header")[0].text


@pytest.mark.slow
def test_five_hundred_cells(run_folder, record, parse):
    loads = (1, 4, 16, 64, 256)
    many = {f"metric_{i}_p99_ms": Metric(value=1.5 * i, unit="ms", better="down", n=i) for i in range(25)}
    for i in range(15):
        reason = "closed loop: requests have no schedule"
        many[f"sched_{i}_ms"] = Metric(value=None, unit="ms", better="down", n=0, reason=reason)
    checks = {
        f"check_{i}": Check(ok=i % 4 != 0, detail=f"{i} % of 60 %, all is well enough") for i in range(12)
    }
    records = [
        record(
            i,
            requested={"concurrency": loads[i % 5], "seed": i // 5, "path": f"path{i % 2}"},
            effective={"kernels": {f"operation_{op}": {"cpp": 400, "torch": 1} for op in range(12)}},
            metrics=record(i).metrics | many,
            checks=checks,
        )
        for i in range(500)
    ]
    start = time.perf_counter()
    path = write_report(run_folder(records))
    print(f"500 cells: {time.perf_counter() - start:.1f} s")
    assert path.stat().st_size < 5_000_000
    root = parse(path.read_text())
    assert len(rows_of(root.by_id("results"))) == 500
    assert "first 8 of 100 groups" in root.by_id("curves").text
