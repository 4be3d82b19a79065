"""The report in a real browser: nothing leaves it, nothing fails in it, and it needs no script to be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.html import write_report
from tests.reports.browser.chromium import Chromium, find_chromium
from tests.reports.conftest import make_failed, make_record, write_run
from tests.reports.verdict_page.judged import compared_folder
from tests.reports.verdict_page.test_size import write_requests

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="no chromium here (Debian: apt-get install chromium)"),
]
LOADS = (1, 4, 16, 64, 256)
HOSTILE = "</SCRIPT><script>document.title = 'taken'</script><img src=http://example.org/x>"
# text of the first cells of all rows of the matrix that are shown
SHOWN = """[...document.querySelectorAll('#matrix-table tbody tr')].filter(row => row.offsetParent !== null)
           .map(row => row.cells[0].textContent)"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = find_chromium()
    assert program is not None
    with Chromium(program, tmp_path_factory.mktemp("profile")) as found:
        yield found


def compared(folder: Path, *, also: str = "") -> str:
    """A comparison with a regression, an improvement and a missing cell; `also` ends the name of one."""
    kept = []

    def change(record):
        load = record.requested["concurrency"]
        kept.append(record)
        if load == 256 and record.requested["path"] == "dsa_mrv2":
            update = {"state": "OOM", "reason": "no room for 256 requests", "metrics": {}, "checks": {}}
            return record.model_validate(record.model_dump() | update)
        return record.model_copy(update={"label": f"{record.label}{also}"}) if load == 4 else record

    times = {16: 1.06, 64: 0.9}
    compared_folder(folder, loads=LOADS, factor=lambda load: times.get(load, 1.0), change=change)
    write_requests(folder, kept)
    return write_report(folder).as_uri()


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    return compared(tmp_path_factory.mktemp("page") / "run-1", also=f" {HOSTILE}")


@pytest.fixture(scope="module")
def run_page(tmp_path_factory) -> str:
    """A run without a comparison."""
    records = [make_record(order, requested={"concurrency": load}) for order, load in enumerate(LOADS)]
    folder = tmp_path_factory.mktemp("run") / "run-1"
    return write_report(write_run(folder, [*records, make_failed(5)])).as_uri()


@pytest.fixture
def plain(browser):
    """A browser as a reader has it; whatever a test emulates ends with it."""
    yield browser
    browser.call("Emulation.setScriptExecutionDisabled", value=False)
    browser.call("Emulation.setEmulatedMedia", media="", features=[])
    browser.call("Emulation.clearDeviceMetricsOverride")


def test_the_browser_tells_of_requests_and_errors(plain, tmp_path):
    """The two tests below prove nothing unless this one passes."""
    bad = tmp_path / "bad.html"
    bad.write_text("<img src='http://127.0.0.1:9/x.png'><script>nothing.here()</script>")
    plain.open(bad.as_uri())
    assert "http://127.0.0.1:9/x.png" in plain.requests()
    assert len(plain.complaints()) >= 2


@pytest.mark.parametrize("which", ["page", "run_page"])
def test_no_request_leaves_the_page_and_no_error_is_logged(plain, which, request):
    address = request.getfixturevalue(which)
    plain.open(address)
    assert plain.requests() == [address]
    assert plain.complaints() == []
    assert plain.run("document.title").startswith(("FAIL", "ERROR", "INCOMPLETE", "Run run-1"))


def test_sorting_by_loss_puts_the_worst_first_on_the_second_click(plain, page):
    plain.open(page)
    assert plain.run(SHOWN) == ["1", "2", "3", "4", "5"]
    header = "document.querySelectorAll('#matrix-table thead th')[3]"
    plain.run(f"{header}.click()")
    assert plain.run(SHOWN)[0] == "4" and plain.run(SHOWN)[-1] == "5"  # improved first, without a number last
    assert plain.run(f"{header}.getAttribute('aria-sort')") == "ascending"
    plain.run(f"{header}.dispatchEvent(new KeyboardEvent('keydown', {{key: 'Enter'}}))")
    assert plain.run(SHOWN)[0] == "3" and plain.run(SHOWN)[-1] == "5"
    plain.run("document.querySelectorAll('#matrix-table thead th')[0].click()")
    assert plain.run(SHOWN) == ["1", "2", "3", "4", "5"]


def test_filtering_by_verdict_and_by_text(plain, page):
    plain.open(page)
    choose = "(word => {{ const box = document.querySelector('{0}'); box.value = word;" \
             " box.dispatchEvent(new Event('input', {{bubbles: true}})); }})"  # fmt: skip
    by_word, by_text = choose.format("[data-filter=word]"), choose.format("[data-filter=text]")
    plain.run(f"{by_word}('FAIL')")
    assert plain.run(SHOWN) == ["3"]
    plain.run(f"{by_word}(''); {by_text}('C=256')")
    assert plain.run(SHOWN) == ["5"]
    assert plain.run("document.querySelector('[data-count]').textContent") == "1 of 5 rows"
    plain.run(f"{by_text}('')")
    assert len(plain.run(SHOWN)) == 5


def test_a_link_to_a_cell_opens_its_section(plain, page):
    plain.open(page)
    opened = "document.getElementById('cell-3').open"
    assert plain.run(opened) is False
    plain.run("document.querySelector('a[href=\"#cell-3\"]').click()")
    plain.run("new Promise(done => setTimeout(done, 100))")
    assert plain.run(opened) is True


@pytest.mark.parametrize("which", ["page", "run_page"])
def test_it_reads_without_a_script(plain, which, request):
    address = request.getfixturevalue(which)
    plain.open(address)
    complete = plain.run("document.querySelector('main, body').textContent.length")
    plain.call("Emulation.setScriptExecutionDisabled", value=True)
    plain.open(address)
    assert plain.complaints() == []
    assert plain.run("document.querySelectorAll('tr[hidden]').length") == 0
    assert abs(plain.run("document.body.textContent.length") - complete) < 100  # the counts of rows
    if which == "page":
        assert plain.run("document.querySelector('.tools').offsetParent") is None  # no dead controls
        assert plain.run(SHOWN) == ["1", "2", "3", "4", "5"]
        plain.run("document.getElementById('cell-3').open = true")
        assert plain.run("document.querySelector('#cell-3 table').offsetHeight") > 0


# elements with text whose contrast with what is behind them is below the 4.5 of WCAG AA
CONTRAST = """
(() => {
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const linear = v => v <= 0.03928 * 255 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const back = numbers(getComputedStyle(node).backgroundColor);
      if (back.length < 4 || back[3] > 0) return back;
    }
    return [255, 255, 255];
  };
  const contrast = node => {
    const both = [light(numbers(getComputedStyle(node).color)), light(behind(node))];
    return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
  };
  const all = document.querySelectorAll('p, td, th, a, h1, h2, .lights span, summary, .note, .state, .mark');
  return [...all].filter(node => node.textContent.trim() && node.offsetParent !== null)
    .filter(node => contrast(node) < 4.5).map(node => node.outerHTML.slice(0, 80));
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible_in_light_and_dark(plain, page, scheme):
    plain.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    plain.open(page)
    back = plain.run("getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(255, 255, 255)") == (scheme == "light")
    assert plain.run(CONTRAST) == []  # WCAG AA


def test_paper_shows_everything_and_no_controls(plain, page):
    plain.call("Emulation.setEmulatedMedia", media="print")
    plain.open(page)
    assert plain.run("getComputedStyle(document.querySelector('.tools')).display") == "none"
    assert plain.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert plain.run("document.querySelector('#cell-3 table').getBoundingClientRect().height") > 0


@pytest.mark.parametrize("which", ["page", "run_page"])
def test_a_phone_scrolls_tables_and_not_the_page(plain, which, request):
    plain.resize(width=390, height=800, mobile=True)
    plain.open(request.getfixturevalue(which))
    assert plain.run("document.documentElement.scrollWidth") <= 390


def test_pictures_for_the_documentation(plain, tmp_path, request):
    page = compared(tmp_path / "run-1")
    kept = request.config.getoption("--screenshots", default=None)
    folder = Path(kept) if kept else tmp_path
    for scheme in ("light", "dark"):
        plain.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        plain.open(page)
        picture = folder / f"comparison_{scheme}.png"
        plain.screenshot(picture, width=1280, height=1150)
        assert picture.read_bytes().startswith(b"\x89PNG") and 20_000 < picture.stat().st_size < 300_000
