"""The cast helpers round under the interpreter as torch does, which the interpreter's own casts do not."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")
from tests.kernels.triton_child import assert_passes


@pytest.mark.parametrize("check", ["check_casts", "check_dots", "check_amax"])
def test_helpers_match_torch(check):
    assert_passes(f"from tests.kernels.casting_kernels import {check}; {check}()")


def test_the_interpreters_own_casts_are_wrong():
    """Why the helpers exist; when this fails, Triton has been repaired and they can become plain casts."""
    assert_passes(
        "import numpy as np, triton.language as tl\n"
        "from triton.runtime.interpreter import _convert_float\n"
        "x = np.array([0x3F80C000], dtype=np.uint32).view(np.float32)\n"
        "raw = _convert_float(x.view(np.uint32), tl.float32, tl.bfloat16, None)\n"
        "assert raw[0] == 0x3F80, hex(raw[0])  # truncated; to nearest it is 0x3F81"
    )
