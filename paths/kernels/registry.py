"""The kernel ops of one engine: picks an implementation per op and counts what ran.

reference is the definition, torch runs anywhere, cpp is the CPU kernel built at first use, triton the GPU
kernel. The choice belongs to the `Kernels` object; nothing is selected module-wide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor

from paths.api import UserError
from paths.engine.batch import ForwardBatch, LayerCache
from paths.kernels.describe import IMPLEMENTATIONS, OPS, choose, has_cpp_source, has_triton_source
from paths.kernels.devices import platform_of, triton_interprets
from paths.kernels.gates import Formats, triton_refusal
from paths.kernels.guards import checked

PREFERENCES = ("auto", *IMPLEMENTATIONS)
MODULES = {"triton": "triton_impl", "torch": "torch_impl", "reference": "reference"}


class KernelRecorder(Protocol):
    """Stands between an op and its implementation while a graph is captured."""

    def kernel(
        self,
        op: str,
        implementation: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """What `function(*args, **kwargs)` returns."""


class Kernels:
    """One method per op. `calls[op][implementation]` counts, `notes` lists fallbacks in words.

    prefer: `auto` is what `describe_kernels` says, cpp or triton where they can be had, else torch with a
    note; any other name is asked of every op (cpp: of those that have a C++ source). overrides: op →
    implementation, stronger than `prefer`. formats: what the caches hold, which some GPUs cannot serve.
    checks: indices are looked at before every call, see `checked`. Raises UserError for an unknown name, and
    for cpp or triton asked for by name that cannot be had; triton runs on the CPU in Triton's interpreter
    only.
    """

    def __init__(
        self,
        device: torch.device,
        prefer: str = "auto",
        overrides: Mapping[str, str] | None = None,
        *,
        formats: Formats | None = None,
        checks: bool = False,
    ) -> None:
        self.device = device
        self.formats = formats or Formats()
        self.platform = platform_of(device)
        self.notes: list[str] = []
        self._cpp: Any = None
        self._cpp_missing: str | None = None
        wanted = {op: _preference(op, prefer) for op in OPS} | dict(overrides or {})
        _check_names(wanted)
        chosen = {op: self._load(op, name) for op, name in wanted.items()}
        self._functions = {
            op: checked("paths.kernels", OPS[op], op, function) if checks else function
            for op, (_, function) in chosen.items()
        }
        self.checks = checks
        self.implementations = {op: name for op, (name, _) in chosen.items()}
        self.calls = {op: {name: 0} for op, name in self.implementations.items()}
        self._counters = {op: (self.calls[op], name) for op, name in self.implementations.items()}
        self.recorder: KernelRecorder | None = None

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x `[T, D]`, weight float32 `[D]` → `[T, D]`."""
        return self.run("rms_norm", x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """x, residual `[T, D]` → (normed, new residual)."""
        return self.run("add_rms_norm", x, residual, weight, eps)

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, interleaved: bool) -> Tensor:
        """x `[T, H, R]`, tables float32 `[P, R / 2]`, positions int64 `[T]` → `[T, H, R]`."""
        return self.run("rope", x, cos, sin, positions, interleaved=interleaved)

    def mla_cache_write(self, c: Tensor, k_pe: Tensor, slot_mapping: Tensor, cache: LayerCache) -> None:
        """c `[T, C]`, k_pe `[T, R]` rotated, slot_mapping int64 `[T]`; negative slots write nothing."""
        self.run("mla_cache_write", c, k_pe, slot_mapping, cache)

    def index_k_write(self, k: Tensor, slot_mapping: Tensor, cache: LayerCache, *, hadamard: bool) -> None:
        """k `[T, dI]` normed and rotated, slot_mapping int64 `[T]`; negative slots write nothing."""
        self.run("index_k_write", k, slot_mapping, cache, hadamard=hadamard)

    def index_q_prepare(
        self, q: Tensor, w: Tensor, *, index_dtype: str, hadamard: bool
    ) -> tuple[Tensor, Tensor]:
        """q `[T, nI, dI]` rotated, w `[T, nI]` → q' in the index dtype and W float32 `[T, nI]`."""
        return self.run("index_q_prepare", q, w, index_dtype=index_dtype, hadamard=hadamard)

    def index_topk(self, q: Tensor, weights: Tensor, cache: LayerCache, batch: ForwardBatch, k: int) -> None:
        """q', W from index_q_prepare; fills `batch.topk_indices[:T, :k]`."""
        self.run("index_topk", q, weights, cache, batch, k)

    def sparse_mla(
        self, q: Tensor, cache: LayerCache, batch: ForwardBatch, k: int, *, latent: int, scale: float
    ) -> tuple[Tensor, Tensor]:
        """q `[T, H, C + R]`, C = latent → out `[T, H, C]` and lse float32 `[T, H]`."""
        return self.run("sparse_mla", q, cache, batch, k, latent=latent, scale=scale)

    def moe_route(
        self,
        x: Tensor,
        gate: Tensor,
        bias: Tensor,
        *,
        n_group: int,
        topk_group: int,
        top_k: int,
        norm: bool,
        scaling: float,
    ) -> tuple[Tensor, Tensor]:
        """x `[T, D]`, gate float32 `[E, D]`, bias float32 `[E]` → weights, ids int32 `[T, top_k]`."""
        return self.run(
            "moe_route",
            x,
            gate,
            bias,
            n_group=n_group,
            topk_group=topk_group,
            top_k=top_k,
            norm=norm,
            scaling=scaling,
        )

    def moe_experts(self, x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
        """x `[T, D]`, ids and weights `[T, K]`, w13 `[E, 2I, D]`, w2 `[E, D, I]` → `[T, D]`."""
        return self.run("moe_experts", x, ids, weights, w13, w2)

    def sample(
        self,
        logits: Tensor,
        *,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        seeds: Tensor,
        positions: Tensor,
        all_greedy: bool,
        rows: Tensor | None = None,
    ) -> Tensor:
        """logits float32 `[N, V]` → token ids int64 `[N]`; row n takes its parameters from rows[n]."""
        return self.run(
            "sample",
            logits,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seeds=seeds,
            positions=positions,
            all_greedy=all_greedy,
            rows=rows,
        )

    def rejection(
        self, logits: Tensor, draft_ids: Tensor, draft_probs: Tensor | None, **inputs: Any
    ) -> tuple[Tensor, Tensor]:
        """logits float32 `[L, V]`, draft_ids int64 `[L]` → tokens int64 `[R, K + 1]`, counts int32 `[R]`.

        `inputs` are the keywords of `paths.kernels.rejection.reference.rejection`.
        """
        return self.run("rejection", logits, draft_ids, draft_probs, **inputs)

    def prepare_positions(self, slots: Tensor, query_start: Tensor, computed: Tensor, **out: Tensor) -> None:
        """Fills positions, req_rows and lengths `[T]` and seq_lens `[R]`; this and the ops below are defined
        in `paths.kernels.prepare_inputs.reference`.
        """
        self.run("prepare_positions", slots, query_start, computed, **out)

    def combine_tokens(
        self,
        slots: Tensor,
        query_start: Tensor,
        logits_start: Tensor,
        positions: Tensor,
        token_ids: Tensor,
        total_len: Tensor,
        draft_tokens: Tensor,
        **out: Tensor,
    ) -> None:
        """Fills input_ids `[T]`, and of the wanted logits rows, slots, next positions and drafts `[N]`."""
        self.run(
            "combine_tokens",
            slots,
            query_start,
            logits_start,
            positions,
            token_ids,
            total_len,
            draft_tokens,
            **out,
        )

    def gather_block_table(self, slots: Tensor, block_table: Tensor, *, out: Tensor) -> None:
        """block_table int32 `[S, B]` → out int32 `[R, B]`, null blocks for slot −1."""
        self.run("gather_block_table", slots, block_table, out=out)

    def slot_mapping(
        self, positions: Tensor, req_rows: Tensor, lengths: Tensor, block_table: Tensor, *, out: Tensor
    ) -> None:
        """out int64 `[T]`, −1 where the length is 0."""
        self.run("slot_mapping", positions, req_rows, lengths, block_table, out=out)

    def gather_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        """x `[T, D]`, rows int64 `[N]` → `[N, D]`."""
        return self.run("gather_rows", x, rows)

    def post_update(
        self,
        slots: Tensor,
        query_start: Tensor,
        logits_start: Tensor,
        sampled: Tensor,
        counts: Tensor,
        **state: Tensor,
    ) -> None:
        """Appends sampled int64 `[R, W]` to computed, total_len and token_ids of each slot."""
        self.run("post_update", slots, query_start, logits_start, sampled, counts, **state)

    def shift_tokens(
        self,
        slots: Tensor,
        query_start: Tensor,
        logits_start: Tensor,
        counts: Tensor,
        positions: Tensor,
        token_ids: Tensor,
        **buffers: Tensor,
    ) -> None:
        """Makes a step's buffers those of draft 0; this and the next op are defined in
        `paths.kernels.prepare_drafts.reference`.
        """
        self.run("shift_tokens", slots, query_start, logits_start, counts, positions, token_ids, **buffers)

    def advance_drafts(
        self,
        tokens: Tensor,
        draft_slots: Tensor,
        last_positions: Tensor,
        limits: Tensor,
        block_table: Tensor,
        *,
        step: int,
        **buffers: Tensor,
    ) -> None:
        """Keeps draft `step`, tokens int64 `[B]`, and fills the inputs of the next one."""
        self.run(
            "advance_drafts",
            tokens,
            draft_slots,
            last_positions,
            limits,
            block_table,
            step=step,
            **buffers,
        )

    def select_all(self, lengths: Tensor, *, out: Tensor) -> None:
        """lengths int32 `[T]`, at most k → out int32 `[T, k]`: 0 … length − 1, then −1."""
        self.run("select_all", lengths, out=out)

    def count_nan_rows(self, logits: Tensor, *, total: Tensor) -> None:
        """Adds the number of rows of logits `[N, V]` that hold a NaN to total int64 `[1]`."""
        self.run("count_nan_rows", logits, total=total)

    def mask_tokens(self, logits: Tensor, rows: Tensor, tokens: Tensor) -> None:
        """logits float32 `[N, V]`, rows and tokens int32 `[M]`: these logits become −inf; −1 is padding."""
        self.run("mask_tokens", logits, rows, tokens)

    def apply_writes(self, state: Tensor, writes: Tensor, values: Tensor, *, longest: int) -> None:
        """state int32 `[N]`, writes int32 `[M, 3]` as (to, first, count), values int32 `[W]`."""
        self.run("apply_writes", state, writes, values, longest=longest)

    def index_to_slot(self, indices: Tensor, req_rows: Tensor, block_table: Tensor) -> Tensor:
        """indices int32 `[T, k]`, req_rows int32 `[T]` → slots int64 `[T, k]`, −1 where there is none."""
        return self.run("index_to_slot", indices, req_rows, block_table)

    def dense_mha(
        self, q: Tensor, k: Tensor, v: Tensor, query_starts: Tensor, key_starts: Tensor, **options: Any
    ) -> tuple[Tensor, Tensor]:
        """q `[T, H, Dk]`, k `[S, H, Dk]`, v `[S, H, Dv]` → out `[T, H, Dv]` and lse float32 `[T, H]`.

        `options` are scale and max_queries of `paths.kernels.dense_mha.reference.dense_mha`.
        """
        return self.run("dense_mha", q, k, v, query_starts, key_starts, **options)

    def run(self, op: str, *args: Any, **kwargs: Any) -> Any:
        """Any op of `OPS` by name, counted."""
        counts, name = self._counters[op]
        counts[name] += 1
        if self.recorder is not None:
            return self.recorder.kernel(op, name, self._functions[op], args, kwargs)
        return self._functions[op](*args, **kwargs)

    def _load(self, op: str, name: str) -> tuple[str, Callable[..., Any]]:
        if name == "auto":
            name = self._automatic(op)
        elif name == "cpp" and self._cpp_function(op) is None:
            raise UserError(f"kernel {op}=cpp cannot be had ({self._cpp_reason()}): use auto or torch")
        elif name == "triton":
            self._require_triton(op)
        if name == "cpp":
            return name, self._cpp_function(op)  # type: ignore[return-value]  # asked for just above
        return name, getattr(import_module(f"paths.kernels.{OPS[op]}.{MODULES[name]}"), op)

    def _automatic(self, op: str) -> str:
        """What the device is meant to run; torch, with a note, where that cannot be had."""
        if self.device.type == "cpu":
            if self._cpp_function(op) is not None:
                return "cpp"
            if has_cpp_source(op):  # where there is none, torch is what the op is meant to run
                self._note(f"{op}: torch instead of cpp, {self._cpp_reason()}")
            return "torch"
        choice = choose(op, self.platform, self.formats)
        if choice.impl != "triton":
            self._note(f"{op}: {choice.impl} instead of triton, {choice.why.removeprefix('fallback: ')}")
        return choice.impl

    def _require_triton(self, op: str) -> None:
        if not has_triton_source(op):
            raise UserError(f"kernel {op}=triton cannot be had (no Triton source): use auto or torch")
        if self.device.type == "cpu":
            if not triton_interprets():
                raise UserError(
                    f"kernel {op}=triton cannot be had (on a CPU Triton only interprets): "
                    "set TRITON_INTERPRET=1, or use auto"
                )
            return
        refusal = triton_refusal(op, self.platform, self.formats)
        if refusal is not None:
            raise UserError(f"kernel {op}=triton cannot be had ({refusal}): use auto or torch")

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _cpp_function(self, op: str) -> Callable[..., Any] | None:
        """The op's C++ function, or None; the library is built once per engine."""
        if self.device.type != "cpu":
            return None
        if self._cpp is None and self._cpp_missing is None:
            from paths.kernels.cpp import CppUnavailable, load  # here: a torch-only engine compiles nothing

            try:
                self._cpp = load()
            except CppUnavailable as error:
                self._cpp_missing = str(error)
        return getattr(self._cpp, op, None)

    def _cpp_reason(self) -> str:
        if self.device.type != "cpu":
            return f"which runs on the CPU only and the device is {self.device.type}"
        return self._cpp_missing or "which has no C++ source for this op"


def _preference(op: str, prefer: str) -> str:
    """`cpp` means every op that has a C++ source; the others gain nothing from one and run torch."""
    return "torch" if prefer == "cpp" and not has_cpp_source(op) else prefer


def _check_names(wanted: Mapping[str, str]) -> None:
    for op, name in wanted.items():
        if op not in OPS:
            raise UserError(f"unknown kernel op {op!r}: allowed are {', '.join(OPS)}")
        if name not in PREFERENCES:
            raise UserError(f"unknown kernel implementation {name!r}: allowed are {', '.join(PREFERENCES)}")
