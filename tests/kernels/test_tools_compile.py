"""`compile`: what is compiled, how it fails, and the committed table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from paths.api import UserError

pytest.importorskip("triton")
from paths.kernels.__main__ import main
from paths.kernels.compile_specs import META, CompileSpec
from paths.kernels.launching import Target, recording
from paths.kernels.tools import binary, compilation
from paths.kernels.tools.catalog import find_ops
from paths.kernels.tools.tables import BEGIN, END, write_document

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "kernels.md"


def test_recorded_launches_have_the_keys_of_the_compile_list():
    from paths.kernels.rope.triton_impl import compile_specs, rope

    table, positions = torch.empty(9, 32, device=META), torch.empty(5, dtype=torch.int64, device=META)
    with compilation.tracing(Target("cuda", 90)) as launches:
        rope(
            torch.empty(5, 128, 64, dtype=torch.bfloat16, device=META),
            table,
            table,
            positions,
            interleaved=True,
        )
        rope(torch.empty(0, 128, 64, device=META), table, table, positions[:0], interleaved=True)
    assert len(launches) == 1, "no rows, no launch"
    keys = {spec.launch.key for spec in compile_specs()}
    assert launches[0].key in keys
    assert replace(launches[0], num_warps=8).key not in keys
    assert replace(launches[0], constexprs={**launches[0].constexprs, "BLOCK_H": 64}).key not in keys
    with recording() as none:
        pass
    assert none == []


def test_instructions_are_read_from_assembly():
    ptx = """
    wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {%f1}, %r, %r;
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1}, {%r1}, {%r2}, {%f3};
    tcgen05.mma.cta_group::1.kind::f8f6f4 [%r1], %rd, %rd, %r2, %p;
    tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd, %rd, %r2, %p;
    add.f32 %f1, %f2, %f3;
    """
    assert binary.cuda_matrix(ptx) == ("mma.sync bf16", "tcgen05 f16", "tcgen05 f8f6f4", "wgmma e4m3")
    amdgcn = """
    v_mfma_f32_32x32x8_bf16 a[0:15], v[0:1], v[2:3], a[0:15]
    v_mfma_f32_32x32x8_bf16_1k a[0:15], v[0:1], v[2:3], a[0:15]
    v_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], a[0:3]
    v_mfma_f32_16x16x32_fp8_fp8 a[0:3], v[0:1], v[2:3], a[0:3]
    v_mfma_f32_16x16x4_f32 a[0:3], v[0:1], v[2:3], a[0:3]
    """
    assert binary.hip_matrix(amdgcn) == ("mfma bf16", "mfma f16", "mfma f32", "mfma fp8")
    metadata = ".vgpr_count: 96\n.sgpr_count: 30\n.vgpr_spill_count: 3\n.sgpr_spill_count: 2\n"
    found = binary.inspect_hip(metadata, 64)
    assert (found.registers, found.spilled) == ("96 v, 30 s (+2 s in lanes)", 12)
    with pytest.raises(RuntimeError, match="sgpr_spill_count"):
        binary.inspect_hip(".vgpr_count: 96\n.sgpr_count: 30\n", 0)


def _spec(**changes):
    from paths.kernels.rms_norm.triton_impl import compile_specs

    return replace(compile_specs()[0], **changes)


@pytest.mark.parametrize("target", compilation.DEFAULT_TARGETS)
def test_faulty_specs_fail_to_compile_or_to_satisfy(target, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for spec, fault in (
        (_spec(), ""),
        (_spec(matrix=True), "no matrix instruction"),
        (_spec(spills=8), "accepts spills and does not say why"),
        (_spec(constexprs={"BLOCK": 100}), "does not compile: "),
        (_spec(constexprs={}), "the spec says nothing about BLOCK"),
    ):
        row = compilation._row(spec, compilation.parse_target(target), target)
        assert fault in row.fault and bool(row.fault) == bool(fault)


def test_spills_beyond_what_is_accepted_fail():
    spilling = binary.Binary("255", 64, 0, ())
    production = _spec(of_check=False)
    assert list(compilation._faults(production, spilling)) == ["spills 64 bytes, accepted are 0"]
    assert list(compilation._faults(_spec(of_check=True), spilling)) == [], "checks need no speed"
    assert list(compilation._faults(_spec(spills=64, notes="two accumulators"), spilling)) == []


def test_equal_entries_are_compiled_once_under_both_labels():
    class Two:
        def compile_specs(self):
            check, production = _spec(label="case", of_check=True), _spec(label="V3.2", of_check=False)
            return [check, production, replace(production, label="GLM-5.2")]

    found = compilation.specs_of(Two(), Target("cuda", 90))
    assert [spec.label for spec in found] == ["V3.2; GLM-5.2"]
    assert isinstance(found[0], CompileSpec) and not found[0].of_check


def test_the_document_is_written_between_its_markers(tmp_path):
    document = tmp_path / "kernels.md"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    fields = ("op", "shape", "op_kernel", "cuda:90", "BLOCK=4 w1 s1", "20")
    row = compilation.CompiledRow(*fields, matrix="wgmma bf16")
    write_document(document, [row, replace(row, label="case", of_check=True)])
    text = document.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| shape | op BLOCK=4 w1 s1 | cuda:90 | 20 | 0 | 0 | wgmma bf16 |" in text
    assert "| case |" not in text and "1 more" in text
    document.write_text("nothing")
    with pytest.raises(UserError, match="has no lines"):
        write_document(document, [row])


@pytest.mark.parametrize(
    "targets",
    [compilation.DEFAULT_TARGETS[:1], pytest.param(compilation.DEFAULT_TARGETS[1:], marks=pytest.mark.slow)],
    ids=",".join,
)
def test_the_committed_table_has_every_kernel_and_no_fault(targets, capsys):
    """A fast subset is compiled; its rows are in docs/kernels.md."""
    words = [word for target in targets for word in ("--target", target)]
    assert main(["compile", "--fast", *words]) == 0, capsys.readouterr().out
    out = capsys.readouterr().out
    document = DOCUMENT.read_text(encoding="utf-8")
    for target in targets:
        assert f"| {target} |" in document and target in out
    for op in find_ops():
        if "triton" in op.implementations:
            assert f"### {op.name}\n" in document
            kernels = {spec.kernel.fn.__name__ for spec in op.compile_specs() if not spec.of_check}
            missing = [name for name in kernels if f"| {name.removesuffix('_kernel')} " not in document]
            assert not missing, f"{op.name}: {missing} are not in docs/kernels.md: compile --write-docs"
