"""The typed configuration of one cell: its keys, their types and limits, and what is allowed in words."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.accuracy.spec import MOST_SHOTS, TASKS, Task

Device = Literal["cpu", "cuda", "rocm", "xpu"]

MOST_DRAFTS = 32  # of one verification
_DAY_S = 86_400


class _Section(BaseModel):
    # strict: 1.5, true and "8" are not integers
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


def _count(description: str, **extra: Any) -> Any:
    return Field(ge=1, description=description, **extra)


class Expectation(_Section):
    """What a path must prove that it ran; unset fields are not checked."""

    model_class: str | None = Field(None, description="a class name")
    model_module: str | None = Field(None, description="the module of that class")
    runner: str | None = Field(None, description="a runner name, as Effective names it")
    compile_mode: str | None = Field(None, description="a compile mode, as Effective names it")
    graph_modes: list[Literal["FULL", "PIECEWISE", "NONE"]] | None = Field(
        None, description="a list of FULL, PIECEWISE, NONE: the modes that steps may have"
    )
    min_replay_frac: float | None = Field(
        None,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="a number from 0 to 1: replayed steps by those that a captured graph could have run",
    )
    graphs_min: int | None = Field(None, ge=0, description="an integer from 0: fewest captured graphs")
    graphs_max: int | None = Field(None, ge=0, description="an integer from 0: most captured graphs")
    breaks_per_layer: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="a number from 0: breaks of a piecewise graph by layers"
    )
    kernels: dict[str, list[str]] = Field(
        default_factory=dict, description="op: [allowed implementations]; the op must have been called"
    )
    kv_dtype: str | None = Field(None, description="a cache dtype, as Effective names it")
    kv_bytes_per_token: Literal["computed"] | None = Field(
        None, description="computed: the bytes that follow from the model's configuration and the dtypes"
    )


class PathSection(_Section):
    """conf/path: which execution path, its switches and what it must prove."""

    name: str = Field(description="a name")
    impl: str = Field(description="module:Class of the ExecutionPath")
    options: dict[str, Any] = Field(default_factory=dict, description="the path's own switches")
    expect: dict[Literal["any", "cpu", "cuda", "rocm", "xpu"], Expectation] = Field(
        default_factory=dict, description="any, cpu, cuda, rocm, xpu: what the path must prove there"
    )


class ModelSection(_Section):
    """conf/model: HF configuration and tokenizer."""

    name: str = Field(description="a name")
    tokenizer: str | None = Field(
        None, description="a tokenizer.json, relative to the paths package, or null"
    )
    hf_config: dict[str, Any] = Field(description="the model's config.json")


class WorkloadSection(_Section):
    """conf/workload: where prompts come from."""

    name: str = Field(description="a name")
    kind: Literal["random", "dataset", "arith"] = Field(description="random, dataset, arith")
    file: str | None = Field(None, description="a JSONL file, for kind dataset")


class EngineSection(_Section):
    """Capacities; None is the platform's default."""

    max_num_seqs: int | None = _count("an integer from 1, or null for the default")
    max_num_batched_tokens: int | None = _count("an integer from 1, or null for the default")
    max_model_len: int | None = Field(ge=2, description="an integer from 2 to the model's limit, or null")
    kv_pages: int | None = _count("an integer from 1 (pages of 64 tokens), or null for the default")
    hadamard: bool | None = Field(description="true, false or null")


class Gsm8kSection(_Section):
    """Where the questions of accuracy=gsm8k lie; null: on the hub."""

    test_file: str | None = Field(
        default=None, min_length=1, description="a JSONL file of questions, or null"
    )
    train_file: str | None = Field(
        default=None, min_length=1, description="a JSONL file of worked examples, or null"
    )


class DebugSection(_Section):
    checks: bool = Field(description="true or false")
    step_delay_pct: float = Field(
        0.0, ge=0, le=1000, allow_inf_nan=False, description="a number from 0 to 1000"
    )


class CellConfig(_Section):
    """One cell as requested. None means the platform's default, see `harness.platform_defaults`."""

    cmd: Literal["run", "list", "doctor", "aa", "compare", "import", "report", "export"] = Field(
        description="run, list, doctor, aa, compare, import, report, export"
    )
    path: PathSection
    model: ModelSection
    checkpoint: str = Field(
        min_length=1, description="auto, dummy, or a folder with config.json and safetensors"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(description="auto, cpu, cuda")
    gpus: int = Field(ge=1, le=1, description="only 1 is supported so far")
    dtype: Literal["bf16", "float32"] = Field(description="bf16, float32")
    kv_dtype: Literal["auto", "float32", "bf16", "fp8", "fp8_ds_mla"] = Field(
        description="auto, float32, bf16, fp8, fp8_ds_mla"
    )
    index_dtype: Literal["auto", "float32", "bf16", "fp8"] = Field(description="auto, float32, bf16, fp8")
    mtp: int = Field(ge=0, le=MOST_DRAFTS, description=f"an integer from 0 (off) to {MOST_DRAFTS}")
    mtp_mode: Literal["real", "forced"] = Field(description="real, forced")
    mtp_forced_al: float | None = Field(
        ge=1,
        le=MOST_DRAFTS + 1,
        allow_inf_nan=False,
        description="a number from 1 to mtp + 1 with mtp_mode=forced, else null",
    )
    threads: Literal["auto"] | int = Field(description="auto (cores - 1), or an integer from 1 to the cores")
    engine: EngineSection
    concurrency: int | None = _count(
        "an integer from 1 to 65536, a sweep such as 1,1024, or null (1; with request_rate no cap)", le=65536
    )
    request_rate: float | None = Field(
        ge=1e-3,
        le=1e6,
        allow_inf_nan=False,
        description="a number from 0.001 to 1000000 in requests per second, or null for closed loop",
    )
    burstiness: float = Field(gt=0, description="a number above 0: 1 Poisson, inf constant")
    workload: WorkloadSection
    isl: int | None = _count("an integer from 1, or null for the default")
    osl: int | None = _count("an integer from 1, or null for the default")
    num_prompts: int | None = _count(
        "an integer from 1 to 10000000, or null (from measure_s and concurrency)", le=10**7
    )
    seed: int = Field(ge=0, le=2**32 - 1, description="an integer from 0 to 2^32 - 1")
    equivalence: bool = Field(description="true or false")
    equivalence_prompts: int = _count("an integer from 1 to 10000", le=10_000)
    measure_s: float | None = Field(
        ge=0, le=_DAY_S, allow_inf_nan=False, description="seconds from 0 to 86400, or null for the default"
    )
    warmup_s: float | None = Field(
        ge=0, le=_DAY_S, allow_inf_nan=False, description="seconds from 0 to 86400, or null for the default"
    )
    timeout_s: float | None = Field(
        gt=0, le=7 * _DAY_S, allow_inf_nan=False, description="seconds above 0, up to 604800, or null"
    )
    request_timeout_s: float | None = Field(
        gt=0,
        le=7 * _DAY_S,
        allow_inf_nan=False,
        description="seconds above 0, up to 604800, or null for no limit",
    )
    accuracy: Task | list[Task] | None = Field(
        None, description=f"{', '.join(TASKS)}, a list of them such as [{','.join(TASKS)}], or null"
    )
    shots: int = Field(5, ge=0, le=MOST_SHOTS, description=f"an integer from 0 to {MOST_SHOTS}")
    limit: int | None = _count("an integer from 1, or null for all questions", default=None)
    gsm8k: Gsm8kSection = Gsm8kSection()
    dry_run: bool = Field(description="true or false")
    out_dir: str = Field(min_length=1, description="a folder that can be created and written")
    debug: DebugSection
    # of cmd=compare and cmd=import, which have no cell
    run: None = Field(None, description="null; a folder goes with cmd=compare")
    baseline_run: None = Field(None, description="null; a run folder goes with cmd=compare")
    candidate_run: None = Field(None, description="null; a run folder goes with cmd=compare")
    file: None = Field(None, description="null; a file goes with cmd=import")
    baseline_file: None = Field(None, description="null; a file goes with cmd=import")
    format: None = Field(None, description="null; vllm, pytorch_v3 or csv goes with cmd=export")
    # of a comparison, see harness.arms; its cells do not know of it
    baseline: None = Field(None, description="null in a cell")
    baseline_set: dict[str, Any] = Field(default_factory=dict, max_length=0, description="empty in a cell")
    baseline_rev: None = Field(None, description="null in a cell")
    baseline_python: None = Field(None, description="null in a cell")
    pairs: None = Field(None, description="null in a cell")
    resume: None = Field(None, description="null in a cell")
