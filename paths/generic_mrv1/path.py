"""`generic_mrv1`: one operation after the other, torch.compile, model runner V1."""

from __future__ import annotations

from paths.api import (
    Description,
    Engine,
    EngineConfig,
    KernelChoice,
    Platform,
    Unsupported,
    refuse_options,
)
from paths.kernels.describe import describe_kernels
from paths.kernels.gates import Formats

# what the model calls as kernels; norms, RoPE and routing are left to the compiler
OPAQUE_OPS = (
    "mla_cache_write",
    "index_k_write",
    "index_q_prepare",
    "index_topk",
    "sparse_mla",
    "moe_experts",
)
SAMPLING = KernelChoice(impl="torch", why="runner V1 samples with torch and keeps its books on the host")


class GenericMrv1Path:
    """The `ExecutionPath` of this package."""

    name = "generic_mrv1"

    def describe(self, platform: Platform, config: EngineConfig) -> Description | Unsupported:
        refuse_options(config)
        if not platform.compiler:
            return Unsupported(
                reason="torch.compile needs a C++ compiler on the PATH; install g++ or take dsa_mrv2"
            )
        if not platform.python_headers:
            return Unsupported(reason="torch.compile needs Python.h; install python3-dev or take dsa_mrv2")
        shared = describe_kernels(platform, Formats.of(config))
        return Description(
            summary="unfused model, compiled piece by piece between cache writes, indexer and attention",
            model="paths.generic_mrv1.model:GenericModel",
            runner="V1",
            compile_mode="inductor-piecewise",
            graph_mode="NONE",
            kernels={op: shared[op] for op in OPAQUE_OPS} | {"sample": SAMPLING},
        )

    def start(self, config: EngineConfig) -> Engine:
        from paths.engine.build import Recipe, build_engine  # here: `describe` must not import torch
        from paths.generic_mrv1.model import GenericModel
        from paths.generic_mrv1.runner import RunnerV1

        return build_engine(
            config,
            Recipe(
                path=self.name,
                make_model=lambda *args, **kwargs: GenericModel(*args, compiled=True, **kwargs),
                make_runner=RunnerV1,
                overrides={"sample": SAMPLING.impl},
            ),
        )
