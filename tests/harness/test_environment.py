"""What engines inherit, and what a run says about its machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import harness.environment
from harness.environment import LAUNCH_MARK, blocked_variables, engine_environment, fingerprint

REPOSITORY = Path(__file__).parent.parent.parent

FOREIGN = {
    "VLLM_USE_V2_MODEL_RUNNER": "1", "TORCH_COMPILE_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1",
    "NCCL_DEBUG": "INFO",
    "CUDA_LAUNCH_BLOCKING": "1", "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "9", "KMP_BLOCKTIME": "0",
    "PYTHONHASHSEED": "1", "LD_PRELOAD": "/lib/x.so", "PYTORCH_CUDA_ALLOC_CONF": "x", "MKL_NUM_THREADS": "9",
}  # fmt: skip
INHERITED = {
    "PATH": "/bin",
    "HOME": "/home/x",
    "LANG": "C",
    "LC_ALL": "C.UTF-8",
    "TMPDIR": "/tmp",
    "CUDA_VISIBLE_DEVICES": "1",
}


def engine(parent, **settings):
    return engine_environment(parent, threads=3, cache_dir=Path("/run/cache"), launch_mark="mark", **settings)


def test_engine_gets_the_allow_list_and_what_the_harness_sets():
    seen = engine({**FOREIGN, **INHERITED, "SECRET": "s"})
    assert {name: seen[name] for name in INHERITED} == INHERITED
    assert not (FOREIGN.keys() - {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}) & seen.keys()
    assert "SECRET" not in seen
    assert (seen["OMP_NUM_THREADS"], seen["MKL_NUM_THREADS"]) == ("3", "3")
    assert seen["TORCHINDUCTOR_CACHE_DIR"].startswith("/run/cache/")
    assert seen[LAUNCH_MARK] == "mark"


def test_blocked_variables_are_recorded_by_name():
    assert blocked_variables({**FOREIGN, **INHERITED, "SECRET": "s"}) == sorted(FOREIGN)


def test_nothing_is_set_for_the_harness_itself():
    before = dict(os.environ)
    engine(FOREIGN)
    fingerprint([])
    assert dict(os.environ) == before


def test_no_code_of_the_product_writes_the_environment():
    for file in [
        *REPOSITORY.glob("harness/**/*.py"),
        *REPOSITORY.glob("paths/**/*.py"),
        *REPOSITORY.glob("reports/**/*.py"),
    ]:
        text = file.read_text(encoding="utf-8")
        for write in ("os.environ[", "os.putenv", "environ.setdefault", "environ.update", "environ.pop"):
            assert write not in text, f"{file}: {write}"


def test_engine_finds_the_same_code_as_the_harness(tmp_path):
    code = "import json, paths; print(json.dumps(list(paths.__path__)))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=engine(dict(os.environ)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert Path(json.loads(done.stdout)[0]) == REPOSITORY / "paths"


def test_fingerprint_is_json_without_infinities():
    found = fingerprint(["VLLM_X"])
    text = json.dumps(found, allow_nan=False)
    assert "VLLM_X" in text
    assert found["cores"] >= 1 and found["memory_bytes"] > 0 and found["python"].startswith("3.")
    assert (found["packages"]["pydantic"] and found["packages"]["vllm"] is None) or "vllm" in sys.modules
    assert found["revision"]


def test_revision_without_git_is_the_version(monkeypatch):
    harness.environment.code_revision.cache_clear()
    monkeypatch.setattr(harness.environment, "_git", lambda *a: None)
    assert harness.environment.code_revision().startswith("v")
    harness.environment.code_revision.cache_clear()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository of its own that the harness believes to run from; returns its root and the revision."""
    for folder in ("harness", "paths", "docs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text("one\n")
    (tmp_path / ".gitignore").write_text("__pycache__/\n")
    for words in (
        ["init", "-q"], ["add", "."],
        ["-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-q", "-m", "first"],
    ):  # fmt: skip
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    monkeypatch.setattr(harness.environment, "__file__", str(tmp_path / "harness" / "environment.py"))

    def revision():
        harness.environment.code_revision.cache_clear()
        return harness.environment.code_revision()

    yield tmp_path, revision
    harness.environment.code_revision.cache_clear()


def test_each_state_of_the_product_is_a_revision(checkout):
    root, revision = checkout
    clean = revision()
    assert len(clean) == 40
    (root / "docs" / "a.py").write_text("two\n")
    (root / "harness" / "__pycache__").mkdir()
    (root / "harness" / "__pycache__" / "a.pyc").write_bytes(b"\xff")
    assert revision() == clean
    seen = [clean]
    for file, content in (
        ("harness/a.py", b"two\n"), ("harness/a.py", b"three\n"), ("harness/a.py", b"\xff\xfe\n"),
        ("paths/new.py", b"one\n"), ("paths/new.py", b"\xff\xfe"), ("paths/newer.py", b"\xff\xfe"),
    ):  # fmt: skip
        (root / file).write_bytes(content)
        seen.append(revision())
        assert seen[-1].startswith(f"{clean}+dirty.") and revision() == seen[-1]
    assert len(set(seen)) == len(seen)
