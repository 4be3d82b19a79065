"""What of sample is compiled ahead of time: the vocabularies of V3.2 and GLM-5.2, and every check case."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.sample.cases import check_cases
from paths.kernels.sample.triton_impl import sample

VOCABULARIES = {"V3.2": 129280, "GLM-5.2": 154880}
ROWS, ENTRIES = 64, 256


def compile_specs() -> list[CompileSpec]:
    specs = []
    for model, vocab in VOCABULARIES.items():
        for greedy in (False, True):
            run = partial(
                sample,
                meta(ROWS, vocab),
                **meta_parameters(),
                positions=meta(ROWS, dtype=torch.int64),
                rows=meta(ROWS, dtype=torch.int32),
                all_greedy=greedy,
            )
            specs += traced("sample", f"{model}, {'greedy' if greedy else 'random'}", run)
    return [*specs, *of_cases("sample", sample, check_cases())]


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def meta_parameters() -> dict[str, Tensor]:
    return {
        "temperature": meta(ENTRIES),
        "top_k": meta(ENTRIES, dtype=torch.int32),
        "top_p": meta(ENTRIES),
        "seeds": meta(ENTRIES, dtype=torch.int64),
    }
