"""Which figures stand first for a record, and what a reader must be told beside them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from harness.accuracy.words import SPARSE_ENOUGH, score_notes
from harness.records import Record


def open_loop(record: Record) -> bool:
    """Requests had a schedule: their latency counts from it, or waiting in the client would be forgotten."""
    return record.requested.get("request_rate") is not None


def latency_metrics(records: Sequence[Record], stems: Sequence[str]) -> list[str]:
    """`<stem>_p50_ms` for closed loops, `<stem>_sched_p50_ms` for open ones; both when there are both."""
    kinds = {open_loop(record) for record in records} or {False}
    return [f"{stem}{'_sched' if kind else ''}_p50_ms" for kind in sorted(kinds) for stem in stems]


def notes(record: Record) -> list[str]:
    """What a reader of the numbers must know, in sentences; not a fault of the measurement."""
    own = [*_choice(record), *_forced(record), *_sparsity(record), *_graphs(record)]
    return own + score_notes(record.accuracy, selects=_has_indexer(record))


def _choice(record: Record) -> list[str]:
    """Why `+path=auto` took this path, and what it warned of."""
    chosen = record.chosen
    if chosen is None:
        return []
    said = [f"path {chosen.requested} took {chosen.chosen}: {chosen.reason}"]
    return said + [f"warning: {warning}" for warning in chosen.warnings]


def _forced(record: Record) -> list[str]:
    """Forced acceptance accepts wrong drafts: the speed is that of its length, the answers are noise."""
    asked = record.requested.get("mtp_forced_al")
    if asked is None:
        return []
    known = record.effective is not None
    ran = (record.effective or {}).get("mtp_forced_al")
    said = "acknowledged by the engine" if ran == asked else "NOT acknowledged by the engine"
    return [
        f"forced acceptance: drafts are accepted by chance up to a mean length of {asked:g}, whatever they"
        f" are ({said if known else 'the engine did not answer'}); the answers mean nothing"
    ]


def _sparsity(record: Record) -> list[str]:
    share = record.metrics.get("dsa_active_token_frac")
    if not _has_indexer(record) or share is None or share.value is None or share.value >= SPARSE_ENOUGH:
        return []
    return [
        f"sparsity not exercised: {share.value:.0%} of the decode tokens had a context longer than"
        " index_topk; raise isl or osl to measure sparse attention"
    ]


def _has_indexer(record: Record) -> bool:
    return (record.effective or {}).get("index_dtype") not in (None, "none")


def _graphs(record: Record) -> list[str]:
    """A load whose steps mostly fit no captured graph measures the path without its graphs."""
    counters = record.counters or {}
    steps: dict[str, int] = counters.get("steps") or {}
    eager, total = steps.get("NONE", 0), sum(steps.values())
    if not (record.effective or {}).get("graphs") or eager <= total / 2:
        return []
    misses: dict[str, int] = counters.get("graph_misses") or {}
    why = max(misses, key=misses.__getitem__) if misses else "not configured for such batches"
    return [f"graphs not exercised: {eager} of {total} steps ran without one ({why})"]
