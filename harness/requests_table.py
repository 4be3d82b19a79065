"""Per-request rows of a run as Parquet: one part per cell while the run goes on, one file when it ends.

requests/000.parquet, 001.parquet, …   written as each cell ends; a crash costs at most the cell in flight
requests.parquet                       all of them, written atomically by `finish`, which removes the parts
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from harness.atomic import written_atomically
from harness.errors import one_line
from harness.measurement import Measurement, Phase
from harness.records import REQUEST_COLUMNS, RecordError
from harness.request_times import derive
from harness.statuses import STATUSES
from harness.verifications import verifications
from harness.window import steady_window
from paths.api import FinishReason

FILE_NAME = "requests.parquet"
PARTS_NAME = "requests"

_TEXT, _INT, _NS, _MS = pa.string(), pa.int32(), pa.int64(), pa.float64()
_TYPES = {
    "run_id": _TEXT, "launch_id": _TEXT, "cell_id": _TEXT, "arm_id": _TEXT, "phase": _TEXT,
    "request_id": pa.int64(), "prompt_hash": _TEXT, "prompt_tokens": _INT, "requested_tokens": _INT,
    "output_tokens": _INT, "first_event_tokens": _INT, "events": _INT, "scheduled_ns": _NS, "sent_ns": _NS,
    "first_ns": _NS, "last_ns": _NS, "ttft_ms": _MS, "tpot_ms": _MS, "e2e_ms": _MS, "status": _TEXT,
    "finish_reason": _TEXT, "error": _TEXT, "verifications": _INT, "drafted": _INT, "accepted": _INT,
}  # fmt: skip
SCHEMA = pa.schema([(name, _TYPES[name]) for name in REQUEST_COLUMNS])


def request_rows(
    measurement: Measurement, *, run_id: str, launch_id: str, cell_id: str, arm_id: str, origin_ns: int
) -> pa.Table:
    """One row per request of every phase. Times are relative to `origin_ns`; what does not exist is null.

    phase is warmup, measured, or drain for measured requests that ended after the steady window. TTFT, TPOT
    and E2E are given for whatever arrived, also of requests that failed; `status` says which.
    """
    requests = measurement.requests
    times, _ = derive(measurement)
    content, has_tpot = times.has_content, times.has_tpot
    every = np.ones(len(requests), dtype=bool)
    columns = {
        "run_id": [run_id] * len(requests),
        "launch_id": [launch_id] * len(requests),
        "cell_id": [cell_id] * len(requests),
        "arm_id": [arm_id] * len(requests),
        "phase": _phases(measurement),
        "request_id": measurement.spec.first_request_id + np.arange(len(requests)),
        "prompt_hash": list(requests.prompt_hash),
        "prompt_tokens": requests.prompt_tokens,
        "requested_tokens": requests.requested_tokens,
        "output_tokens": times.output_tokens,
        "first_event_tokens": _spread(times.first_event_tokens[content], content),
        "events": times.events,
        "scheduled_ns": requests.scheduled_ns - origin_ns,
        "sent_ns": requests.sent_ns - origin_ns,
        "first_ns": _spread(times.first_ns[content] - origin_ns, content),
        "last_ns": _spread(times.last_ns[content] - origin_ns, content),
        "ttft_ms": _spread(times.ttft_ms(every), content),
        "tpot_ms": _spread(times.tpot_ms(every), has_tpot),
        "e2e_ms": _spread(times.e2e_ms(every), content),
        "status": [str(STATUSES[code]) for code in times.status.tolist()],
        "finish_reason": [FinishReason(code).word for code in requests.finish.tolist()],
        "error": [requests.errors.get(row) for row in range(len(requests))],
        **_drafts(measurement),
    }
    arrays = [pa.array(columns[name], type=SCHEMA.field(name).type) for name in REQUEST_COLUMNS]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _drafts(measurement: Measurement) -> dict[str, npt.NDArray[np.int64] | pa.Array]:
    """Verifications, drafts verified and drafts accepted of each request, [R] each."""
    found, requests = verifications(measurement), len(measurement.requests)
    if found is None:
        return {name: pa.nulls(requests) for name in ("verifications", "drafted", "accepted")}
    return {
        "verifications": found.per_request(np.ones_like(found.drafted)),
        "drafted": found.per_request(found.drafted),
        "accepted": found.per_request(found.accepted),
    }


def _phases(measurement: Measurement) -> list[str]:
    window, _ = steady_window(measurement)
    requests = measurement.requests
    words = np.where(requests.phase == Phase.MEASURED, "measured", "warmup").astype(object)
    if window is not None:
        words[(requests.phase == Phase.MEASURED) & (requests.ended_ns > window.end_ns)] = "drain"
    return [str(word) for word in words]


def _spread(values: npt.NDArray[np.generic], rows: npt.NDArray[np.bool_]) -> pa.Array:
    """[R] with `values` where `rows` is true, in order, and null elsewhere."""
    full = np.zeros(len(rows), dtype=values.dtype)
    full[rows] = values
    return pa.array(full, mask=~rows)


class RequestsWriter:
    """Collects the rows of one run's cells in its folder."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._parts = len(_parts(run_dir))
        self._origins: dict[str, int] = {}  # launch → its first send

    def add(
        self, measurement: Measurement, *, run_id: str, launch_id: str, cell_id: str, arm_id: str
    ) -> None:
        """Write the rows of one cell; of a partial measurement as well. A load without requests has none."""
        if len(measurement.requests) == 0:
            return
        origin = self._origins.setdefault(launch_id, int(measurement.requests.sent_ns.min()))
        table = request_rows(
            measurement, run_id=run_id, launch_id=launch_id, cell_id=cell_id, arm_id=arm_id, origin_ns=origin
        )
        folder = self._run_dir / PARTS_NAME
        folder.mkdir(exist_ok=True)
        write_table_atomically(table, folder / f"{self._parts:03d}.parquet")
        self._parts += 1

    def finish(self) -> Path:
        """Join the parts, in the order of the cells, into one file, also when there are none.

        Raises FileExistsError rather than overwrite the rows of another writer.
        """
        target = self._run_dir / FILE_NAME
        if target.exists():
            raise FileExistsError(f"{target} exists already")
        table = read_requests(self._run_dir)
        write_table_atomically(table, target)
        shutil.rmtree(self._run_dir / PARTS_NAME, ignore_errors=True)
        return target


def read_requests(run_dir: Path) -> pa.Table:
    """All rows of a run: its file, or the parts of an interrupted one; an empty table without either.

    Raises RecordError for a damaged one.
    """
    target = run_dir / FILE_NAME
    if target.is_file():
        return read_table(target, SCHEMA)
    parts = [read_table(path, SCHEMA) for path in _parts(run_dir)]
    return pa.concat_tables([SCHEMA.empty_table(), *parts])


def _parts(run_dir: Path) -> list[Path]:
    return sorted((run_dir / PARTS_NAME).glob("*.parquet"), key=lambda path: int(path.stem))


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """Raises RecordError for a file that is damaged or has other columns, OSError where it cannot be read."""
    try:
        return pq.read_table(path, schema=schema)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's fault, not the file's
        raise RecordError(f"{path}: cannot be read ({one_line(error)})") from error


def write_table_atomically(table: pa.Table, path: Path) -> None:
    """A reader sees the old file or the new one, never half of one."""
    with written_atomically(path) as file:
        pq.write_table(table, file, compression="zstd")
