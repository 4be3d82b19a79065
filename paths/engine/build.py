"""Assembles a built-in engine from a model class and a runner class."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from paths.api import EngineConfig, UserError
from paths.engine.admission import AdmissionRules
from paths.engine.batch import torch_dtype
from paths.engine.core import EngineCore
from paths.engine.effective import EffectiveReporter
from paths.engine.heap import keep_freed_memory
from paths.engine.kv_cache import BlockPool
from paths.engine.parallel import ParallelGroup
from paths.engine.requests import RequestTable
from paths.engine.runner import Model, Runner
from paths.engine.scheduler import Scheduler
from paths.engine.speculation import Speculation
from paths.engine.startup import Startup
from paths.engine.static_inputs import DraftInputs, StaticInputs
from paths.engine.tally import Tally
from paths.engine.warm_up import WarmUp
from paths.graphs.config import GraphConfig
from paths.graphs.drafts import GraphedDrafts
from paths.graphs.forward import GraphedForward
from paths.kernels.cpp.build import build_seconds
from paths.kernels.gates import Formats
from paths.kernels.layouts import allocate_caches, resolve_index_dtype, resolve_kv_dtype
from paths.kernels.registry import Kernels
from paths.models.config import ModelConfig
from paths.models.weights import load_weights
from paths.tokenizer import load_tokenizer


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What makes a path that path."""

    path: str
    make_model: Callable[..., Model]
    make_runner: Callable[..., Runner]
    kernels: str = "auto"
    overrides: Mapping[str, str] = field(default_factory=dict)  # op → implementation, instead of `kernels`
    graphs: GraphConfig = field(default_factory=GraphConfig)
    defer_output: bool = False  # read a step's tokens after the next launch, also where nothing overlaps
    warm_up_sizes: Sequence[int] = (64, 2, 1)


def build_engine(config: EngineConfig, recipe: Recipe) -> EngineCore:
    """Load and wire everything; `warm_up` of the result compiles. Raises UserError."""
    started, built_before = time.perf_counter(), build_seconds()
    _check_capacities(config)
    speculation = Speculation(mtp=config.mtp, forced_al=config.mtp_forced_al)
    speculation.check()
    torch.set_num_threads(config.threads)
    device = torch.device(config.device)
    if device.type == "cpu":
        keep_freed_memory()
    model_config = ModelConfig.from_hf(config.model.hf_config)
    kv_dtype = resolve_kv_dtype(config.kv_dtype, config.dtype)
    index_dtype = resolve_index_dtype(config.index_dtype, kv_dtype=kv_dtype, dtype=config.dtype)
    hadamard = index_dtype == "fp8" if config.hadamard is None else config.hadamard
    dtype = torch_dtype(config.dtype)
    kernels = Kernels(
        device,
        prefer=recipe.kernels,
        overrides=recipe.overrides,
        formats=Formats(kv_dtype=kv_dtype, index_dtype=index_dtype),
        checks=bool(config.debug.get("checks")),
    )
    weights = load_weights(
        config.model, model_config, dtype=dtype, device=device, seed=config.seed, mtp=config.mtp
    )
    model = recipe.make_model(
        model_config,
        weights,
        kernels,
        dtype=dtype,
        group=ParallelGroup(),
        hadamard=hadamard,
        max_model_len=config.max_model_len,
    )
    caches = allocate_caches(
        model_config,
        num_blocks=config.kv_pages + 1,  # and the null block
        kv_dtype=kv_dtype,
        index_dtype=index_dtype,
        device=device,
        mtp_layers=len(weights.mtp),
    )
    table = RequestTable(
        max_num_seqs=config.max_num_seqs, max_model_len=config.max_model_len, seed=config.seed
    )
    inputs = StaticInputs(
        max_tokens=config.max_num_batched_tokens,
        max_reqs=config.max_num_seqs,
        max_blocks=table.block_table.shape[1],
        index_topk=model_config.index_topk,
        device=device,
    )
    graphs = recipe.graphs.with_drafts(config.mtp)
    forward = GraphedForward(model=model, caches=caches, inputs=inputs, config=graphs)
    drafts = None
    if config.mtp:
        drafts = GraphedDrafts(
            model=model,
            model_config=model_config,
            mtp=config.mtp,
            caches=caches,
            inputs=DraftInputs(inputs, hidden_size=model_config.hidden_size, dtype=dtype),
            config=recipe.graphs,
        )
    runner = recipe.make_runner(
        model=model,
        forward=forward,
        inputs=inputs,
        kernels=kernels,
        table=table,
        eos_token_ids=model_config.eos_token_ids,
        device=device,
        speculation=speculation,
        drafts=drafts,
    )
    tokenizer = load_tokenizer(Path(config.model.tokenizer)) if config.model.tokenizer else None
    warm_up = WarmUp(config, runner, index_topk=model_config.index_topk)
    kernel_build_s = build_seconds() - built_before
    startup = Startup(
        config,
        model=model,
        forward=forward,
        drafts=drafts,
        sizes=recipe.warm_up_sizes,
        index_topk=model_config.index_topk,
        caches=caches,
        weights=weights,
        warm_up=warm_up,
        load_s=time.perf_counter() - started - kernel_build_s,
        kernel_build_s=kernel_build_s,
    )
    scheduler = Scheduler(
        table=table,
        pool=BlockPool(config.kv_pages + 1),
        max_num_batched_tokens=config.max_num_batched_tokens,
        mtp=config.mtp,
    )
    reporter = EffectiveReporter(
        path=recipe.path,
        model=model,
        weight_dtype=weights.embed_tokens.dtype,
        runner=runner,
        forward=forward,
        drafts=drafts,
        warm_up=warm_up,
        kernels=kernels,
        caches=caches,
        num_layers=model_config.num_hidden_layers,
    )
    return EngineCore(
        scheduler=scheduler,
        runner=runner,
        rules=AdmissionRules(
            vocab_size=model_config.vocab_size,
            max_model_len=config.max_model_len,
            kv_pages=config.kv_pages,
            has_tokenizer=tokenizer is not None,
        ),
        eos_token_ids=model_config.eos_token_ids,
        tokenizer=tokenizer,
        tally=Tally(
            scheduler=scheduler,
            runner=runner,
            graph_counts=forward.counts,
            recompiles=startup.recompiles,
            index_topk=model_config.index_topk,
            mtp=config.mtp,
        ),
        warm_up=startup.run,
        describe_effective=reporter.describe,
        defer_output=recipe.defer_output,
    )


def _check_capacities(config: EngineConfig) -> None:
    if config.gpus != 1:
        raise UserError(f"gpus={config.gpus}: only 1 is supported so far")
    for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "kv_pages", "threads"):
        value = getattr(config, name)
        if value < 1:
            raise UserError(f"{name}={value}: must be at least 1")
