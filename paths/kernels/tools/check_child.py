"""The process that checks ops: one JSON request per line on stdin, the rows as one JSON line on stdout.

Triton decides between interpreting and compiling when it is imported, so the mode comes with the process.
"""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import asdict

import torch

from paths.kernels.tools.catalog import find_ops
from paths.kernels.tools.check import Row, check_op


def main() -> None:
    torch.set_num_threads(1)
    answers, sys.stdout = sys.stdout, sys.stderr  # what a kernel prints must not look like an answer
    for line in sys.stdin:
        rows = _check(json.loads(line))
        print(json.dumps([asdict(row) for row in rows]), file=answers, flush=True)


def _check(request: dict) -> list[Row]:
    name = request["op"]
    try:
        return check_op(
            find_ops([name])[0],
            device=torch.device(request["device"]),
            seed=request["seed"],
            implementations=request["implementations"],
            slow=request["slow"],
        )
    except Exception as error:  # noqa: BLE001  # a broken cases.py fails its op, not the others
        traceback.print_exc()
        note = f"{type(error).__name__}: {error}"[:300]
        return [Row(name, "-", "", state="fail", note=note)]


if __name__ == "__main__":
    main()
