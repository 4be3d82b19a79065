"""What every test gets: uninitialised memory is NaN, so that a kernel which forgets a row fails at once.

Torch computes with one thread: threads that wait for each other on cores which other tests also use make
small operations a hundred times slower.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def poisoned_memory(request, monkeypatch):
    """torch.empty and its relatives return NaN; integers get a value that no index or count has."""
    if request.node.get_closest_marker("no_poison"):
        return

    def poisoning(make):
        def poisoned(*args, **kwargs):
            tensor = make(*args, **kwargs)
            if isinstance(tensor, torch._subclasses.fake_tensor.FakeTensor) or tensor.device.type == "meta":
                return tensor
            if tensor.dtype.is_floating_point:
                # fp8 has no fill; all ones are NaN in every floating point format used here
                tensor.view(-1).view(torch.uint8).fill_(0xFF) if tensor.is_contiguous() else tensor.fill_(
                    float("nan")
                )
            elif tensor.dtype in (torch.int32, torch.int64):
                tensor.fill_(-(2**30))
            elif tensor.dtype is torch.uint8:
                tensor.fill_(0xFF)
            return tensor

        return poisoned

    monkeypatch.setattr(torch, "empty", poisoning(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poisoning(torch.empty_like))
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoning(torch.Tensor.new_empty))


def pytest_configure(config):
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start, too
    torch.set_num_threads(1)
    config.addinivalue_line("markers", "no_poison: leaves torch.empty alone (for tests that compile)")


def pytest_addoption(parser):
    parser.addoption(
        "--data-dir", type=Path, help="a folder with gsm8k/test.jsonl, gsm8k/train_first200.jsonl"
    )


@pytest.fixture
def gsm8k_folder(request):
    """GSM8K's own files, which are not part of the repository."""
    folder = request.config.getoption("--data-dir")
    if folder is None:
        pytest.skip("needs GSM8K's files: pytest --data-dir FOLDER, with FOLDER/gsm8k/test.jsonl")
    return folder.resolve() / "gsm8k"
