"""What of rejection is compiled ahead of time: production vocabularies, and every check case."""

from __future__ import annotations

from functools import partial

import torch

from paths.kernels.compile_specs import CompileSpec, of_cases, traced
from paths.kernels.rejection.cases import check_cases
from paths.kernels.rejection.triton_impl import rejection
from paths.kernels.sample.compile import ENTRIES, ROWS, VOCABULARIES, meta, meta_parameters

DRAFTS = {"V3.2": 3, "GLM-5.2": 5}


def compile_specs() -> list[CompileSpec]:
    specs = []
    for model, vocab in VOCABULARIES.items():
        for kind in ("one-hot", "drawn", "greedy"):
            run = partial(
                rejection,
                meta(ROWS, vocab),
                meta(ROWS, dtype=torch.int64),
                meta(ENTRIES, DRAFTS[model], vocab) if kind == "drawn" else None,
                **meta_parameters(),
                row_starts=meta(17, dtype=torch.int32),
                rows=meta(ROWS, dtype=torch.int32),
                positions=meta(ROWS, dtype=torch.int64),
                max_drafts=DRAFTS[model],
                all_greedy=kind == "greedy",
            )
            specs += traced("rejection", f"{model}, {kind}", run)
    return [*specs, *of_cases("rejection", rejection, check_cases())]
