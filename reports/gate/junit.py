"""junit.xml: one test case per gated verdict."""

from __future__ import annotations

from pathlib import Path

from junitparser import Error, Failure, JUnitXml, Properties, Property, Skipped, TestCase, TestSuite

from harness.records import write_text_atomically
from reports.compare.words import Verdict
from reports.gate.verdict import GateEntry, VerdictFile

SHOWN = (
    "baseline",
    "candidate",
    "change_pct",
    "loss_pct",
    "ci_pct",
    "margin_pct",
    "floor_pct",
    "n_pairs",
    "p_holm",
)


def write_junit(verdict: VerdictFile, path: Path, *, blocking: bool) -> None:
    """`blocking`: whether INCONCLUSIVE is a failure; else it is skipped, with its reason."""
    suite = TestSuite("harness")
    for entry in verdict.gates:
        suite.append(_case(entry, blocking))  # add_testcase would count all cases anew each time
    suite.append(_whole(verdict, blocking))
    suite.update_statistics()
    document = JUnitXml("harness")
    document.add_testsuite(suite)
    document.update_statistics()
    write_text_atomically(path, xml_text(document.tostring().decode("utf-8")))


def _case(entry: GateEntry, blocking: bool) -> TestCase:
    case = TestCase(xml_text(f"{entry.cell} {entry.metric or 'cell'}"), classname=f"{entry.gate}")
    properties = Properties()
    for name in SHOWN:
        value = getattr(entry, name)
        if value is not None:
            properties.add_property(Property(name, str(value)))
    case.append(properties)
    result = _result(entry.verdict, blocking)
    if result is not None:
        message = xml_text(f"{entry.verdict}: {entry.reason or summary_of(entry)}")
        case.result = [result(message, str(entry.verdict))]
    return case


def _whole(verdict: VerdictFile, blocking: bool) -> TestCase:
    """The run as a case of its own: a gate that examined nothing must not look green."""
    case = TestCase("run", classname="verdict")
    if verdict.exit_code in (5, 6, 7):
        case.result = [Error(xml_text(verdict.reason), str(verdict.verdict))]
    elif verdict.exit_code == 3 and not blocking:
        case.result = [Skipped(xml_text(verdict.reason), str(verdict.verdict))]
    elif verdict.exit_code:
        case.result = [Failure(xml_text(verdict.reason), str(verdict.verdict))]
    return case


def _result(verdict: Verdict, blocking: bool) -> type[Error] | type[Failure] | type[Skipped] | None:
    if verdict in (Verdict.PASS, Verdict.IMPROVED, Verdict.NEW):
        return None
    if verdict is Verdict.FAIL:
        return Failure
    if verdict in (Verdict.INVALID, Verdict.MISSING):
        return Error
    return Failure if blocking else Skipped


def summary_of(entry: GateEntry) -> str:
    """The numbers of an entry in a line."""
    if entry.loss_pct is None or entry.ci_pct is None:
        return "no interval"
    low, high = entry.ci_pct
    unit, margin = entry.loss_unit, entry.margin_pct
    return f"loss {entry.loss_pct:+.2f} {unit} [{low:+.2f}, {high:+.2f}], margin {margin:.2f} {unit}"


def xml_text(text: str) -> str:
    """Without the control characters that XML 1.0 cannot hold."""
    return "".join(
        c for c in text if c in "\t\n\r" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff"
    )
