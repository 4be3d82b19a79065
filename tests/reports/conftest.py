"""Run folders as the harness writes them: a factory for records, one for folders, and a parsed page."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.records import Check, Metric, Record, RunInfo, append_record, write_text_atomically

gc.freeze()  # Holm's adjustment in statsmodels collects garbage at each call: 0.1 s with all of the heap
VOID = {"meta", "br", "img", "link", "input", "hr"}


def metrics_at(concurrency: int, factor: float = 1.0) -> dict[str, Metric]:
    tpot = 2.0 * factor * (1 + concurrency / 100)
    n = max(32, 2 * concurrency)
    return {
        "out_tps": Metric(value=1000 * concurrency / tpot, unit="tok/s", better="up", n=n),
        "tpot_pooled_ms": Metric(value=tpot, unit="ms", better="down", n=n, excluded=2),
        "interactivity": Metric(value=1000 / tpot, unit="tok/s/user", better="up", n=n),
        "ttft_sched_p50_ms": Metric(value=20.5 * concurrency, unit="ms", better="down", n=n),
        "ttft_p50_ms": Metric(value=12.3456 * concurrency, unit="ms", better="down", n=n),
        "ttft_p99_ms": Metric(
            value=None, unit="ms", better="down", n=n, reason=f"p99 needs 1000 samples, has {n}"
        ),
        "e2e_p50_ms": Metric(value=16 * tpot, unit="ms", better="down", n=n),
        "success_rate": Metric(value=1.0, unit="fraction", better="up", n=n),
    }


def make_record(order: int = 0, **changes) -> Record:
    """A plausible OK record; `requested`, `effective` and any field can be changed."""
    requested = {
        "path": "dsa_mrv2", "model": "tiny_v32", "checkpoint": "dummy", "dtype": "bf16", "kv_dtype": "auto",
        "index_dtype": "auto", "gpus": 1, "workload": "random", "isl": 32, "osl": 16, "concurrency": 1,
        "request_rate": None, "seed": 0, "threads": 1,
    } | changes.pop("requested", {})  # fmt: skip
    effective = {
        "path": requested["path"], "model_class": "DsaModel", "model_module": "paths.dsa_mrv2.model",
        "runner": "V2", "compile_mode": "none", "graph_modes": {"FULL": 90, "PIECEWISE": 0, "NONE": 10},
        "kernels": {"sparse_mla": {"cpp": 400}, "rms_norm": {"torch": 3, "cpp": 797}}, "dtype": "bf16",
        "kv_dtype": "bf16", "index_dtype": "bf16", "hadamard": False, "kv_bytes_per_token": 5632,
        "k_scale_origin": "none", "device": "cpu", "threads": 1, "pid": 4321, "fallbacks": [],
            "notes": [],
    } | changes.pop("effective", {})  # fmt: skip
    concurrency = requested["concurrency"]
    fields = {
        "run_id": "run-1", "launch_id": f"L{order:03d}", "engine_id": "e" * 16, "cell_id": f"{order:016x}",
        "arm_id": "a" * 16, "pair": 0, "slot": 1, "order": order,
        "label": f"tiny_v32 c={concurrency}", "state": "OK", "requested": requested, "effective": effective,
        "metrics": metrics_at(concurrency if isinstance(concurrency, int) else 1),
        "checks": {"window": Check(ok=True, detail="covers 91 %"), "little": Check(ok=True, detail="1.2 %")},
        "statuses": {"ok": 64},
        "startup": {"load_s": 0.51234, "compile_s": 0.0, "capture_s": 0.25, "graphs": 7,
                    "kv_cache_bytes": 3 * 2**20, "weight_bytes": 2**21, "kv_tokens": 131072},
        "counters": {"steps": {"FULL": 80, "NONE": 2}, "recompiles": 0, "memory_high_water": 2**30},
        "started_at": "2026-01-01T12:00:00+00:00",
        "command": f"python -m harness path={requested['path']} concurrency={concurrency}",
        "log": f"cells/{order}/worker.log",
    } | changes  # fmt: skip
    return Record.model_validate(fields)


def make_failed(
    order: int, state: str = "FAILED", reason: str = "engine died: exit code 9", **changes
) -> Record:
    return make_record(order, **({"state": state, "reason": reason, "metrics": {}, "checks": {}} | changes))


def write_run(folder: Path, records: list[Record], **changes) -> Path:
    fields = {
        "run_id": "run-1", "command": "python -m harness +path=dsa_mrv2 concurrency=1,1024",
        "started_at": "2026-01-01T12:00:00+00:00", "finished_at": "2026-01-01T12:03:24+00:00", "exit_code": 0,
        "harness_version": "0.1.0",
        "environment": {"cpu": "Example CPU 3000", "cores": 2, "memory_bytes": 24 * 2**30, "gpu": None,
                        "packages": {"torch": "2.13.0", "vllm": None}, "blocked_variables": ["VLLM_USE_X"]},
        "plan": [],
    } | changes  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_text_atomically(folder / "run.json", RunInfo.model_validate(fields).model_dump_json())
    (folder / "records.jsonl").unlink(missing_ok=True)
    for record in records:
        append_record(folder / "records.jsonl", record)
    return folder


@dataclass
class Element:
    """One element of a parsed page."""

    tag: str
    attributes: dict[str, str | None]
    children: list[Element] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text inside, in document order, white space collapsed."""
        return " ".join("".join(self.texts).split())

    def all(self, tag: str) -> list[Element]:
        found = [self] if self.tag == tag else []
        for child in self.children:
            found += child.all(tag)
        return found

    def by_id(self, name: str) -> Element:
        return next(one for one in self.walk() if one.attributes.get("id") == name)

    def walk(self) -> list[Element]:
        return [self] + [one for child in self.children for one in child.walk()]


class _Parser(HTMLParser):
    """Builds the tree and refuses markup whose tags do not match."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("document", {})
        self.open = [self.root]

    def handle_starttag(self, tag, attrs):
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)
        elif tag == "br":
            self.handle_data(" ")

    def handle_startendtag(self, tag, attrs):
        self.open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data):
        for element in self.open:
            element.texts.append(data)


def parse_page(text: str) -> Element:
    parser = _Parser()
    parser.feed(text)
    parser.close()
    assert parser.open == [parser.root], f"unclosed: {[one.tag for one in parser.open]}"
    return parser.root


@pytest.fixture
def record():
    return make_record


@pytest.fixture
def failed():
    return make_failed


@pytest.fixture
def run_folder(tmp_path):
    return lambda records, **changes: write_run(tmp_path / "run-1", records, **changes)


@pytest.fixture
def parse():
    return parse_page
