"""The wheel and the editable install do the job from anywhere, also beside foreign conf/ and harness.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SMALL = ["concurrency=2", "num_prompts=3", "measure_s=0", "warmup_s=0", "isl=11", "osl=3"]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of the tree, so that building leaves nothing in the checkout and finds no stale build folder."""
    target = tmp_path_factory.mktemp("source") / "tree"
    target.mkdir()
    for name in ("harness", "paths", "reports", "conf", "tests", "benchmarks", "docs"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target / name)
    return target


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _run([sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, source], cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def _run(command: list[object], *, cwd: Path, expect: int = 0) -> str:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))
    }
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        text=True,
        capture_output=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == expect, f"{command} in {cwd}:\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def _environment(folder: Path, what: list[object]) -> Path:
    """A fresh environment with our package alone; everything else is seen in the environment of the tests."""
    _run([sys.executable, "-m", "venv", "--without-pip", folder], cwd=folder.parent)
    python = folder / "bin" / "python"
    purelib = _run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], cwd=folder
    ).strip()
    others = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (Path(purelib) / "others.pth").write_text("\n".join(sorted(others)) + "\n")
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
    ]
    _run([*install, "--ignore-installed", "--no-build-isolation", *what], cwd=folder)
    return folder


@pytest.fixture(scope="module", params=["wheel", "editable"])
def installed(request, tmp_path_factory) -> Path:
    """An environment with the package installed one way or the other."""
    what = (
        [request.getfixturevalue("wheel")]
        if request.param == "wheel"
        else ["-e", request.getfixturevalue("source")]
    )
    return _environment(tmp_path_factory.mktemp(request.param) / "env", what)


@pytest.fixture
def foreign(tmp_path) -> Path:
    """A folder whose files have our packages' names and break whoever reads them."""
    for name in ("harness.py", "paths.py", "reports.py", "torch.py"):
        (tmp_path / name).write_text("raise SystemExit('a foreign module was imported')\n")
    (tmp_path / "conf" / "path").mkdir(parents=True)
    (tmp_path / "conf" / "__init__.py").write_text("raise SystemExit('a foreign package was imported')\n")
    (tmp_path / "conf" / "config.yaml").write_text("foreign: true\n")
    (tmp_path / "conf" / "path" / "foreign.yaml").write_text("name: foreign\n")
    return tmp_path


def test_wheel_has_what_a_run_needs_and_no_more(wheel, source):
    names = zipfile.ZipFile(wheel).namelist()
    inside = set(names)
    assert len(inside) == len(names)
    wanted = [
        *source.glob("conf/**/*.yaml"),
        *source.glob("paths/**/*.cpp"),
        *source.glob("paths/**/*.h"),
        *source.glob("paths/models/checkpoints/*/*"),
        *source.glob("reports/templates/*"),
        *(file for top in ("harness", "paths", "reports") for file in source.glob(f"{top}/**/*.py")),
    ]
    missing = [
        str(file.relative_to(source)) for file in wanted if str(file.relative_to(source)) not in inside
    ]
    assert not missing
    for pattern in ("conf/path/*.yaml", "conf/model/*.yaml", "paths/**/*.cpp", "paths/**/*.safetensors"):
        assert list(source.glob(pattern)), f"nothing matches {pattern}: the check above checks nothing"
    tops = {name.split("/")[0] for name in inside}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"conf", "harness", "paths", "reports"}


def test_commands_from_a_foreign_folder(installed, foreign):
    harness = installed / "bin" / "harness"
    listing = _run([harness, "cmd=list"], cwd=foreign)
    for name in ("generic_mrv1", "dsa_mrv2", "scripted"):
        assert name in listing
    assert "foreign" not in listing.replace(str(foreign), "")
    assert "dsa_mrv2" in _run([harness], cwd=foreign, expect=2)
    assert "foreign" not in _run([harness, "--cfg", "job", "+path=scripted"], cwd=foreign).replace(
        str(foreign), ""
    )


@pytest.mark.parametrize("path", ["scripted", "dsa_mrv2"])
def test_a_real_job_from_a_foreign_folder(installed, foreign, path):
    before = {entry.name for entry in foreign.iterdir()}
    _run([installed / "bin" / "harness", f"+path={path}", *SMALL], cwd=foreign)
    assert {entry.name for entry in foreign.iterdir()} - before == {"results"}
    (run,) = (foreign / "results").iterdir()
    assert (run / "report.html").stat().st_size > 10_000
    (record,) = map(json.loads, (run / "records.jsonl").read_text().splitlines())
    assert record["state"] == "OK", record["reason"]
    assert record["effective"]["path"] == path and record["statuses"]["ok"] == 3
