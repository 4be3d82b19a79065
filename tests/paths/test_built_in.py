"""Options of the built-in paths: every combination that means something is described, the rest refused."""

from __future__ import annotations

import itertools

import pytest

from harness.composition import Composer
from paths.api import Description, EngineConfig, ModelSource, Platform, Unsupported, UserError
from paths.built_in import BuiltInOptions, BuiltInPath
from paths.graphs.config import GraphMode
from tests.harness.cells import make_cells

CPU = Platform(device="cpu", compiler=True, python_headers=True)
H100 = Platform(device="cuda", capability=(9, 0), compiler=True, python_headers=True)
GOOD = {"model": "dsa", "compiled": False, "runner": "V2", "graphs": "full_and_piecewise"}


def config(options, name="mine"):
    source = ModelSource(name="m", hf_config={}, checkpoint="dummy")
    return EngineConfig(path=name, impl="paths.built_in:BuiltInPath", model=source, options=options)


def describe(options, platform=CPU):
    return BuiltInPath().describe(platform, config(options))


def contradictory(model, compiled, runner, graphs, defer_output):
    return (
        (model == "dsa" and compiled)
        or (model == "generic" and not compiled and "piecewise" in graphs)
        or (runner == "V1" and defer_output)
    )


@pytest.mark.parametrize("platform", [CPU, H100], ids=lambda platform: platform.device)
def test_every_combination_is_described_or_refused(platform):
    graphs = ("none", "full", "piecewise", "full_and_piecewise")
    described = 0
    for values in itertools.product(("generic", "dsa"), (True, False), ("V1", "V2"), graphs, (True, False)):
        options = dict(zip(("model", "compiled", "runner", "graphs", "defer_output"), values, strict=True))
        if contradictory(*values):
            with pytest.raises(UserError, match=r"^path\.options\.\w+=\w+: .*mine"):
                describe(options, platform)
            continue
        found = describe(options, platform)
        assert isinstance(found, Description)
        described += 1
        assert (found.runner, found.graph_mode) == (options["runner"], options["graphs"].upper())
        assert found.compile_mode == ("inductor-piecewise" if options["compiled"] else "none")
        assert ("fused_q" in found.kernels) == (options["model"] == "dsa")
        assert ("prepare_positions" in found.kernels) == (options["runner"] == "V2")
        assert "rejection" not in found.kernels, "without draft tokens nothing calls it"
        if options["runner"] == "V1":
            assert found.kernels["sample"].impl == "torch"
    assert described == (4 + 2 + 4) * 3, "compiled, eager and fused; V1, V2 and V2 with deferred output"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"graph": "full"}, "path.options.graph: unknown; path mine takes model, compiled, runner, graphs"),
        ({"graphs": "some"}, "path.options.graphs=some: not allowed; allowed: none, full, piecewise"),
        ({"model": None}, "path.options.model=null: not allowed; allowed: generic, dsa"),
        ({"compiled": "yes"}, "path.options.compiled=yes: not allowed; allowed: true or false"),
        ({"compiled": True}, "path.options.compiled=true: the fused model of path mine is never compiled"),
        ({"runner": "V3"}, "path.options.runner=V3: not allowed; allowed: V1, V2"),
        ({"model": "generic"}, "path.options.graphs=full_and_piecewise: pieces come from"),
        ({"runner": "V1", "defer_output": True}, "path.options.defer_output=true: runner V1"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ask", ["describe", "start"])
def test_a_mistake_is_one_line_with_what_is_allowed(change, words, ask):
    path, options = BuiltInPath(), config({**GOOD, **change})
    with pytest.raises(UserError) as caught:
        path.describe(CPU, options) if ask == "describe" else path.start(options)
    assert str(caught.value).startswith(words) and "\n" not in str(caught.value)


def test_every_option_can_be_set_on_the_command_line():
    """A key that a path's YAML does not name is refused as unknown."""
    arms = [name for name in Composer().groups["path"] if name.startswith(("dsa_", "generic_"))]
    assert len(arms) == 8
    for arm in arms:
        options = make_cells(f"+path={arm}")[0].config.path.options
        assert options.keys() == BuiltInOptions.model_fields.keys(), arm
    deferred = make_cells("+path=dsa_mrv2", "path.options.defer_output=true")[0]
    assert deferred.config.path.options["defer_output"] is True


@pytest.mark.parametrize("name", ["model", "runner", "graphs"])
def test_what_makes_a_path_must_be_said(name):
    options = {key: value for key, value in GOOD.items() if key != name}
    with pytest.raises(UserError, match=rf"path.options.{name}: missing in path mine; allowed: "):
        describe(options)


@pytest.mark.parametrize(
    ("graphs", "decode", "mixed"),
    [
        ("none", GraphMode.NONE, GraphMode.NONE),
        ("full", GraphMode.FULL, GraphMode.NONE),
        ("piecewise", GraphMode.PIECEWISE, GraphMode.PIECEWISE),
        ("full_and_piecewise", GraphMode.FULL, GraphMode.PIECEWISE),
    ],
)
@pytest.mark.parametrize("debug", [True, False])
def test_graph_modes_of_the_option(graphs, decode, mixed, debug):
    found = BuiltInOptions.parse({**GOOD, "graphs": graphs}, path="mine")
    found = found.graph_config(device="cpu", debug=debug)
    assert (found.decode, found.mixed, found.debug) == (decode, mixed, debug)
    assert found.captures == (graphs != "none")


def test_a_gpu_captures_up_to_the_default_number_of_requests():
    found = BuiltInOptions.parse(GOOD, path="mine").graph_config(device="cuda", debug=False)
    assert found.full_sizes[-1] == found.piecewise_sizes[-1] == EngineConfig.max_num_seqs
    assert found.full_sizes[:4] == (1, 2, 4, 8)


@pytest.mark.parametrize("kind", ["full_sizes", "piecewise_sizes"])
def test_a_gpu_captures_few_sizes_and_pads_to_less_than_twice_the_rows(kind):
    sizes = getattr(BuiltInOptions.parse(GOOD, path="mine").graph_config(device="cuda", debug=False), kind)
    assert len(sizes) <= 17
    for live in range(5, sizes[-1] + 1):
        assert next(size for size in sizes if size >= live) < 2 * live


@pytest.mark.parametrize(
    ("missing", "words"), [("compiler", "a C++ compiler"), ("python_headers", "Python.h")]
)
def test_compilation_needs_its_tools_and_nothing_else_does(missing, words):
    bare = Platform(device="cpu", **({"compiler": True, "python_headers": True} | {missing: False}))
    compiled = describe({**GOOD, "model": "generic", "compiled": True}, bare)
    assert isinstance(compiled, Unsupported) and words in compiled.reason
    assert isinstance(describe(GOOD, bare), Description)
    assert isinstance(describe({**GOOD, "model": "generic", "graphs": "none"}, bare), Description)


def test_shared_ops_are_listed_where_a_fused_one_is_composed_of_them():
    """Without a C++ compiler everything is composed; on a GPU only products of matrices are."""
    bare = describe(GOOD, Platform(device="cpu"))
    assert (
        bare.kernels["fused_q"].impl == "composed"
        and {"rope", "rms_norm", "moe_route"} <= bare.kernels.keys()
    )
    gpu = describe(GOOD, H100)
    assert gpu.kernels["fused_q"].impl == "triton" and gpu.kernels["linear"].impl == "composed"
    assert not {"rope", "rms_norm", "moe_route"} & gpu.kernels.keys()
