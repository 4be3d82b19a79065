"""`dsa_mrv2`: fused operations, no compilation, model runner V2."""

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
from paths.dsa_mrv2.kernels.describe import describe_fused_kernels
from paths.kernels.describe import describe_kernels
from paths.kernels.gates import Formats

DIRECT_OPS = ("add_rms_norm", "index_topk", "sparse_mla")  # shared ops that the model calls itself


class DsaMrv2Path:
    """The `ExecutionPath` of this package."""

    name = "dsa_mrv2"

    def describe(self, platform: Platform, config: EngineConfig) -> Description | Unsupported:
        refuse_options(config)
        return Description(
            summary="fused model, stable request slots, inputs prepared from persistent state",
            model="paths.dsa_mrv2.model:DsaModel",
            runner="V2",
            compile_mode="none",
            graph_mode="NONE",
            kernels=self._kernels(platform, Formats.of(config)),
        )

    def _kernels(self, platform: Platform, formats: Formats) -> dict[str, KernelChoice]:
        """The fused operations, and the shared ones that the model or a composed operation calls."""
        fused = describe_fused_kernels(platform, formats)
        composed = any(choice.impl == "composed" for choice in fused.values())
        shared = describe_kernels(platform, formats)
        return fused | {op: shared[op] for op in shared if composed or op in DIRECT_OPS}

    def start(self, config: EngineConfig) -> Engine:
        from paths.dsa_mrv2.model import DsaModel  # here: `describe` must not import torch
        from paths.dsa_mrv2.runner import RunnerV2
        from paths.engine.build import Recipe, build_engine

        return build_engine(config, Recipe(path=self.name, make_model=DsaModel, make_runner=RunnerV2))
