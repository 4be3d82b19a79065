"""The built-in paths: a model, a runner and a graph mode, each chosen by an option of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paths.api import (
    Description,
    Engine,
    EngineConfig,
    KernelChoice,
    Platform,
    Unsupported,
    UserError,
)
from paths.dsa_mrv2.kernels.describe import describe_fused_kernels
from paths.graphs.config import (
    CPU_FULL_SIZES,
    CPU_PIECEWISE_SIZES,
    GPU_FULL_SIZES,
    GPU_PIECEWISE_SIZES,
    GraphConfig,
    GraphMode,
)
from paths.kernels.describe import describe_kernels
from paths.kernels.gates import Formats

if TYPE_CHECKING:
    from paths.engine.build import Recipe
    from paths.engine.runner import Runner

Graphs = Literal["none", "full", "piecewise", "full_and_piecewise"]

# what the generic model calls as kernels; norms, RoPE and routing are left to the compiler
GENERIC_OPS = (
    "mla_cache_write",
    "index_k_write",
    "index_q_prepare",
    "index_topk",
    "select_all",
    "sparse_mla",
    "moe_experts",
)
# shared ops that the fused model calls itself
FUSED_MODEL_OPS = ("add_rms_norm", "index_topk", "select_all", "sparse_mla")
FUSED_MTP_OPS = ("rms_norm",)  # and what its MTP layer calls besides
# shared ops that a fused operation calls where it has no kernel of its own
COMPOSED_OF = {
    "embed_norm": ("rms_norm",),
    "fused_norm_rope": ("rms_norm", "mla_cache_write", "rope", "index_k_write"),
    "fused_q": ("rope", "index_q_prepare"),
    "moe_block": ("moe_route", "moe_experts"),
    "gated_mlp": ("moe_experts",),
}
V2_OPS = (
    "prepare_positions",
    "combine_tokens",
    "gather_block_table",
    "slot_mapping",
    "gather_rows",
    "count_nan_rows",
    "mask_tokens",
    "sample",
    "post_update",
    "apply_writes",
)
V2_DRAFT_OPS = ("rejection", "shift_tokens", "advance_drafts")
V1_OPS = ("count_nan_rows",)
V1_DRAFT_OPS = ("rejection",)
V1_SAMPLING = KernelChoice(impl="torch", why="runner V1 samples with torch and keeps its books on the host")

_MODELS = {
    "generic": ("paths.generic_mrv1.model:GenericModel", "unfused model"),
    "dsa": ("paths.dsa_mrv2.model:DsaModel", "fused model"),
}
_RUNNERS = {
    "V1": "dense batch condensed each step",
    "V2": "stable request slots, inputs prepared from persistent state",
}
_GRAPHS: dict[str, tuple[GraphMode, GraphMode]] = {  # of uniform decode batches, of all others
    "none": (GraphMode.NONE, GraphMode.NONE),
    "full": (GraphMode.FULL, GraphMode.NONE),
    "piecewise": (GraphMode.PIECEWISE, GraphMode.PIECEWISE),
    "full_and_piecewise": (GraphMode.FULL, GraphMode.PIECEWISE),
}


class BuiltInOptions(BaseModel):
    """Validated options of a built-in path; `parse` raises UserError."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())
    model: Literal["generic", "dsa"] = Field(description="generic, dsa")
    compiled: bool = Field(False, description="true or false; true for model generic only")
    runner: Literal["V1", "V2"] = Field(description="V1, V2")
    graphs: Graphs = Field(description="none, full, piecewise, full_and_piecewise")
    defer_output: bool = Field(False, description="true or false; true for runner V2 only")

    @classmethod
    def parse(cls, options: dict[str, Any], *, path: str) -> BuiltInOptions:
        try:
            chosen = cls.model_validate(options)
        except ValidationError as error:
            raise UserError(_explain(error, path)) from error
        if chosen.model == "dsa" and chosen.compiled:
            raise UserError(
                f"path.options.compiled=true: the fused model of path {path} is never compiled;"
                " set path.options.compiled=false or path.options.model=generic"
            )
        if chosen.runner == "V1" and chosen.defer_output:
            raise UserError(
                f"path.options.defer_output=true: runner V1 of path {path} reads every step's tokens at once;"
                " set path.options.defer_output=false or path.options.runner=V2"
            )
        if "piecewise" in chosen.graphs and chosen.model == "generic" and not chosen.compiled:
            raise UserError(
                f"path.options.graphs={chosen.graphs}: pieces come from compilation or from breaks, and the"
                f" model of path {path} has neither; allowed: none, full, or path.options.compiled=true"
            )
        return chosen

    @property
    def compile_mode(self) -> str:
        """As `Effective` names it."""
        return "inductor-piecewise" if self.compiled else "none"

    def graph_config(self, *, device: str, debug: bool) -> GraphConfig:
        decode, mixed = _GRAPHS[self.graphs]
        cpu = device == "cpu"
        return GraphConfig(
            decode=decode,
            mixed=mixed,
            full_sizes=CPU_FULL_SIZES if cpu else GPU_FULL_SIZES,
            piecewise_sizes=CPU_PIECEWISE_SIZES if cpu else GPU_PIECEWISE_SIZES,
            debug=debug,
        )


def _explain(error: ValidationError, path: str) -> str:
    """The first mistake, with what is allowed."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return f"path.options.{name}: unknown; path {path} takes {', '.join(BuiltInOptions.model_fields)}"
    allowed = BuiltInOptions.model_fields[name].description
    if first["type"] == "missing":
        return f"path.options.{name}: missing in path {path}; allowed: {allowed}"
    given = first["input"]
    shown = "null" if given is None else str(given).lower() if isinstance(given, bool) else given
    return f"path.options.{name}={shown}: not allowed; allowed: {allowed}"


class BuiltInPath:
    """The `ExecutionPath` of every built-in arm; what it runs is in its options."""

    name = "built_in"

    def describe(self, platform: Platform, config: EngineConfig) -> Description | Unsupported:
        options = BuiltInOptions.parse(config.options, path=config.path)
        if options.compiled and not platform.compiler:
            return Unsupported(
                reason="torch.compile needs a C++ compiler on the PATH; install g++ or take dsa_mrv2"
            )
        if options.compiled and not platform.python_headers:
            return Unsupported(reason="torch.compile needs Python.h; install python3-dev or take dsa_mrv2")
        model, words = _MODELS[options.model]
        drafts = f"; each step verifies {config.mtp} drafts per request" if config.mtp else ""
        pieces = ", compiled piece by piece between cache writes, indexer and attention"
        return Description(
            summary=f"{words}{pieces if options.compiled else ''}; {_RUNNERS[options.runner]}{drafts}",
            model=model,
            runner=options.runner,
            compile_mode=options.compile_mode,
            graph_mode=options.graphs.upper(),
            kernels=_kernels(options, platform, Formats.of(config), mtp=config.mtp),
        )

    def start(self, config: EngineConfig) -> Engine:
        from paths.engine.build import build_engine  # here: `describe` must not import torch

        return build_engine(config, self.recipe(config))

    def recipe(self, config: EngineConfig) -> Recipe:
        """The parts that the options name. Raises UserError."""
        from paths.dsa_mrv2.model import DsaModel
        from paths.dsa_mrv2.runner import RunnerV2
        from paths.engine.build import Recipe
        from paths.generic_mrv1.model import GenericModel
        from paths.generic_mrv1.runner import RunnerV1

        options = BuiltInOptions.parse(config.options, path=config.path)
        generic = partial(GenericModel, compiled=options.compiled)
        runners: dict[str, Callable[..., Runner]] = {"V1": RunnerV1, "V2": RunnerV2}
        return Recipe(
            path=config.path,
            make_model=generic if options.model == "generic" else DsaModel,
            make_runner=runners[options.runner],
            overrides={"sample": V1_SAMPLING.impl} if options.runner == "V1" else {},
            graphs=options.graph_config(device=config.device, debug=bool(config.debug.get("checks"))),
            defer_output=options.defer_output,
        )


def _kernels(
    options: BuiltInOptions, platform: Platform, formats: Formats, *, mtp: int
) -> dict[str, KernelChoice]:
    """What model and runner call, each with the implementation that would run."""
    shared = describe_kernels(platform, formats)
    fused = describe_fused_kernels(platform, formats) if options.model == "dsa" else {}
    drafts = FUSED_MTP_OPS if mtp else ()
    called = list(GENERIC_OPS if options.model == "generic" else FUSED_MODEL_OPS + drafts)
    composed = [op for op, choice in fused.items() if choice.impl == "composed"]
    called += [op for operation in composed for op in COMPOSED_OF.get(operation, ())]
    always, drafting = (V1_OPS, V1_DRAFT_OPS) if options.runner == "V1" else (V2_OPS, V2_DRAFT_OPS)
    runner = {op: shared[op] for op in (*always, *(drafting if mtp else ()))}
    if options.runner == "V1":
        runner["sample"] = V1_SAMPLING
    return fused | {op: shared[op] for op in called} | runner
