"""`dsa_mrv2`: fused operations, no compilation, model runner V2."""

from __future__ import annotations

from paths.api import Description, Engine, EngineConfig, Platform, Unsupported, refuse_options
from paths.kernels.describe import describe_kernels


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
            kernels=describe_kernels(platform),
        )

    def start(self, config: EngineConfig) -> Engine:
        from paths.dsa_mrv2.model import DsaModel  # here: `describe` must not import torch
        from paths.dsa_mrv2.runner import RunnerV2
        from paths.engine.build import Recipe, build_engine

        return build_engine(config, Recipe(path=self.name, make_model=DsaModel, make_runner=RunnerV2))
