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
RUNNER_OPS = (
    "prepare_positions",
    "combine_tokens",
    "gather_block_table",
    "slot_mapping",
    "gather_rows",
    "sample",
    "post_update",
)
DRAFT_OPS = ("rejection",)  # without draft tokens nothing calls them


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
        """The fused operations, and the shared ones that model, runner or a composed operation call."""
        fused = describe_fused_kernels(platform, formats)
        composed = any(choice.impl == "composed" for choice in fused.values())
        shared = describe_kernels(platform, formats)
        called = [op for op in shared if op not in DRAFT_OPS] if composed else [*DIRECT_OPS, *RUNNER_OPS]
        return fused | {op: shared[op] for op in called}

    def start(self, config: EngineConfig) -> Engine:
        from paths.dsa_mrv2.model import DsaModel  # here: `describe` must not import torch
        from paths.dsa_mrv2.runner import RunnerV2
        from paths.engine.build import Recipe, build_engine

        return build_engine(config, Recipe(path=self.name, make_model=DsaModel, make_runner=RunnerV2))
