"""Exported surrogates give the same numbers without factformer, and nothing is left where they do not."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch

import factformer
from factformer import Field, Grid, Problem, build_surrogate, catalog, rollout
from factformer.batch import Batch
from factformer.bundle import load, save_bundle
from factformer.cli import main
from factformer.errors import UserError
from factformer.evaluation.cost import random_batch
from factformer.export import program
from factformer.export.exporting import export, fresh_batch, read_helper, relative_difference
from factformer.export.program import require_loadable
from small_models import channel_on, small_sizes
from small_zoo import SMALL, save_small_bundle

GRID = Grid((8, 6), 2 * math.pi, True)
LINE = Problem("line", Grid(8, 1.0, True), (Field("u"),), num_context_frames=2, horizon=4)
FLOW = Problem("flow", GRID, (Field("u", 2),), num_context_frames=2, horizon=4)
STEADY = Problem("still", Grid((6, 5), 1.0, False), (Field("p"),), (Field("k"),), num_context_frames=0, boundary="zero")
EVERYTHING = channel_on(GRID)
ENDINGS = {"torch": ".pt2", "onnx": ".onnx"}
COMPLEX = {"fno", "ffno", "linear_attention"}
"""Models that ONNX cannot hold."""


@pytest.fixture(autouse=True, scope="module")
def shapes_are_not_compared():
    """The checks of shapes in tests compare the open number of samples with sizes; a trace would keep that."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def surrogate(problem, model="factformer_plus", **options):
    sizes = small_sizes(model, **SMALL, modes=2, num_halvings=1)
    return build_surrogate(problem, model, marching_steps=1 if problem.steady else 2, **sizes, **options).eval()


@pytest.mark.parametrize("model", catalog.names("models"))
def test_every_model_is_exported_or_refused_in_one_line(model, tmp_path):
    ours = surrogate(LINE, model)
    assert export(ours, tmp_path / "line.pt2").error <= 1e-6
    if model not in COMPLEX:
        assert export(ours, tmp_path / "line.onnx").error <= 1e-4
        return
    with pytest.raises(UserError, match=f"'{model}' cannot be written as ONNX: it computes with complex") as refused:
        export(ours, tmp_path / "line.onnx")
    assert "\n" not in str(refused.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["line.pt2", "line_pt2_rollout.py"]


@pytest.fixture(scope="module")
def channel():
    return surrogate(EVERYTHING)


@pytest.fixture(scope="module")
def exported(channel, tmp_path_factory):
    """A surrogate with every part of a batch, in both formats."""
    folder = tmp_path_factory.mktemp("exported")
    return {format: export(channel, folder / f"channel{ending}") for format, ending in ENDINGS.items()}


@pytest.mark.parametrize("format", ENDINGS)
def test_the_written_roll_out_gives_the_frames_of_ours(channel, exported, format):
    assert_same_frames(channel, exported[format], 5)  # the last of three calls is cut
    assert_same_frames(channel, exported[format], 2)


@pytest.mark.parametrize("format", ENDINGS)
def test_the_written_roll_out_invents_no_forcing(channel, exported, format):
    helper, batch = read_helper(exported[format].helper), fresh_batch(channel, 3, 2, seed=0)
    forcing = batch.forcing if format == "torch" else batch.forcing.numpy()
    with pytest.raises(ValueError, match="forcing must cover"):
        helper.rollout(None, 3, context=batch.context, forcing=forcing)


def test_steady_problems(tmp_path):
    ours = surrogate(STEADY)
    assert_same_frames(ours, export(ours, tmp_path / "still.pt2"), 1)


def assert_same_frames(ours, done, num_frames):
    batch = fresh_batch(ours, 3, num_frames, seed=0)
    with torch.no_grad():
        expected = torch.stack(list(rollout(ours, batch, num_frames)), dim=1)
    helper = read_helper(done.helper)
    parts = {name: part for name, part in batch._asdict().items() if part is not None}
    given = {name: part.numpy() if done.format == "onnx" else part for name, part in parts.items()}
    found = torch.as_tensor(helper.rollout(helper.load(done.path), num_frames, **given))
    assert found.shape == expected.shape
    assert relative_difference(found, expected) < 1e-4
    assert list(done.inputs) == list(batch.names)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return save_small_bundle(tmp_path_factory.mktemp("bundles") / "bundle")


def test_the_command(bundle, tmp_path, capsys):
    out = tmp_path / "flow.onnx"
    with pytest.raises(SystemExit) as stopped:
        main(["export", str(bundle), "--out", str(out), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert stopped.value.code == 0
    assert told["inputs"] == {"context": ["batch", 2, 32, 32, 1]} and told["output"] == ["batch", 4, 32, 32, 1]
    assert told["format"] == "onnx" and told["opset"] == 20 and told["error"] < 1e-4
    assert told["num_bytes"] == out.stat().st_size
    helper = Path(told["helper"])
    assert len(helper.read_text(encoding="utf-8").splitlines()) < 50
    assert_runs_alone(bundle, out, helper, "onnx")


def test_the_written_files_need_no_factformer(bundle, tmp_path):
    done = export(bundle, tmp_path / "flow.pt2")
    assert_runs_alone(bundle, done.path, done.helper, "torch")


def assert_runs_alone(bundle, path, helper, format):
    """In a process of its own, the roll-out imports neither factformer nor, for ONNX, torch."""
    ours, folder = load(bundle), path.parent
    context = fresh_batch(ours, 2, 1, seed=0).context
    np.save(folder / "context.npy", context.numpy())
    with torch.no_grad():
        expected = torch.stack(list(rollout(ours, context, 6)), dim=1)
    lines = [
        "import sys, numpy as np",
        f"sys.path.insert(0, {str(folder)!r})",
        f"from {helper.stem} import load, rollout",
        f"context = np.load({str(folder / 'context.npy')!r})",
        *(["import torch; context = torch.from_numpy(context)"] if format == "torch" else []),
        f"frames = rollout(load({str(path)!r}), 6, context=context)",
        f"np.save({str(folder / 'frames.npy')!r}, np.asarray(frames))",
        "print('factformer' in sys.modules, 'torch' in sys.modules)",
    ]
    code = [sys.executable, "-I", "-c", "\n".join(lines)]
    run = subprocess.run(code, capture_output=True, text=True, encoding="utf-8", check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["False", str(format == "torch")]
    assert relative_difference(torch.from_numpy(np.load(folder / "frames.npy")), expected) < 1e-4


def test_the_files_say_what_they_are(exported):
    import onnx

    model = onnx.load(exported["onnx"].path)
    assert [item.version for item in model.opset_import if not item.domain] == [program.OPSET]
    told = json.loads({item.key: item.value for item in model.metadata_props}[program.INFORMATION])
    assert Problem.from_dict(told["problem"]) == EVERYTHING
    assert told["output"] == ["batch", 2, 8, 6, 3]
    shapes = [value.type.tensor_type.shape.dim for value in (*model.graph.input, *model.graph.output)]
    assert {axis.dim_param for shape in shapes for axis in shape} == {"batch", ""}
    files = {program.INFORMATION: ""}
    torch.export.load(exported["torch"].path, extra_files=files)
    assert json.loads(files[program.INFORMATION])["inputs"]["forcing"] == ["batch", 4, 8, 6, 2]


def test_a_program_that_differs_is_not_kept(tmp_path, monkeypatch):
    ours = surrogate(FLOW)

    def plain_call(given, num_steps):
        call = real(given, num_steps)
        with torch.no_grad():
            next(call.surrogate.decoder.parameters()).mul_(1.01)
        return call

    real = program.plain_call
    monkeypatch.setattr(program, "plain_call", plain_call)
    with pytest.raises(UserError, match=r"differs from the surrogate by \S+, more than 1e-04, and is not kept"):
        export(ours, tmp_path / "flow.pt2")
    assert list(tmp_path.iterdir()) == []


def test_a_surrogate_is_as_it_was_after_its_export(tmp_path):
    ours = surrogate(FLOW).double()
    batch = random_batch(ours, 2, 2, torch.Generator().manual_seed(0)).to(torch.float64)
    with torch.no_grad():
        before = ours(batch)
        assert export(ours, tmp_path / "flow.pt2").error < 1e-5
        assert torch.equal(ours(batch), before)
    fresh = surrogate(FLOW)  # no table of a grid was made before the trace
    export(fresh, tmp_path / "flow.pt2", overwrite=True)
    with torch.no_grad():
        assert fresh(batch.to(torch.float32)).isfinite().all()


def own_model(called, apply):
    """A model of one's own with one linear map."""

    class Config(factformer.models.ModelConfig):
        name: str = called

    class Own(factformer.models.Backbone):
        config_class = Config

        def __init__(self, config, problem):
            super().__init__(config, problem)
            self.map = torch.nn.Linear(config.dim, config.dim)

        def forward(self, z, grid):
            return apply(self.map, z)

    return Own


def test_models_that_torch_cannot_follow_are_named(tmp_path):
    forgetful = own_model("forgetful", lambda map, z: map(z) if bool((z > 0).any()) else z)
    ours = build_surrogate(FLOW, forgetful, dim=8, depth=1)
    with pytest.raises(UserError, match=r"torch\.export cannot follow the model 'forgetful'") as refused:
        export(ours, tmp_path / "flow.pt2")
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_missing_packages_are_named_with_their_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(program, "ONNX_PACKAGES", ("onnx", "onnx_that_nobody_has"))
    with pytest.raises(UserError, match=r"needs onnx_that_nobody_has: pip install 'factformer\[onnx\]'"):
        export(surrogate(FLOW), tmp_path / "flow.onnx")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "onnx", "--out", "flow.pt2"], "is written as .onnx, got 'flow.pt2'"),
        (["--out", "flow.bin"], "is written as .pt2, got 'flow.bin'"),
        (["--out", "flow.onnx", "--device", "cuda"], "an ONNX file runs wherever its runtime does"),
        (["--out", "flow.pt2", "--device", "nowhere"], "nowhere"),
        (["--out", "flow.pt2", "--steps", "9"], "predicts 1 to 4 frames, got 9"),
        (["--out", "bundle/model.pt2/flow.pt2"], "a part of this path is a file"),
        (["--out", "there.pt2"], "there.pt2 exists; add --overwrite"),
    ],
)
def test_wrong_use_is_one_line(words, message, bundle, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(bundle, "bundle")
    Path("there.pt2").write_text("mine", encoding="utf-8")
    Path("bundle/model.pt2").write_text("", encoding="utf-8")
    before = sorted(path.as_posix() for path in tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as stopped:
        main(["export", "bundle", *words])
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and message in error and error.count("\n") == 1
    assert sorted(path.as_posix() for path in tmp_path.rglob("*")) == before


def test_a_difference_counts_per_channel():
    expected = torch.ones(1, 2, 4, 2)
    expected[..., 1] = 1e-6
    found = expected.clone()
    found[..., 1] *= 1.5
    assert relative_difference(found, expected) == pytest.approx(0.5, rel=1e-3)
    assert relative_difference(found[:, :1], expected) == math.inf
    assert relative_difference(found * math.nan, expected) == math.inf


def test_programs_are_given_contiguous_tensors(tmp_path):
    """Machine code of AOTInductor reads memory without a look at strides."""
    ours = surrogate(FLOW)
    helper = read_helper(export(ours, tmp_path / "flow.pt2").helper)
    seen = []

    def program(context):
        seen.append(context.is_contiguous())
        return context

    helper.rollout(program, 6, context=torch.randn(3, 5, 8, 6, 2)[:, -2:])
    assert len(seen) > 1 and all(seen)


@pytest.mark.slow
def test_machine_code_by_aotinductor(tmp_path):
    ours = surrogate(FLOW)
    done = export(ours, tmp_path / "flow.pt2", "aoti")
    assert done.error < 1e-4
    helper = read_helper(done.helper)
    batch = Batch(torch.randn(5, 2, 8, 6, 2))
    with torch.no_grad():
        expected = torch.stack(list(rollout(ours, batch, 3)), dim=1)
    assert relative_difference(helper.rollout(helper.load(done.path), 3, context=batch.context), expected) < 1e-4


@pytest.mark.gpu
@pytest.mark.parametrize("format", ["torch", "aoti"])
def test_programs_for_a_gpu(format, tmp_path):
    ours = surrogate(FLOW)
    try:
        done = export(ours, tmp_path / "flow.pt2", format, device="cuda")
    except UserError as error:
        if format != "aoti" or "cannot load" not in str(error):
            raise
        pytest.skip(str(error))  # AOTInductor of torch 2.11 ends a process that loads even one linear layer on an H200
    assert done.error < 1e-4 and next(ours.parameters()).device.type == "cpu"
    helper = read_helper(done.helper)
    context = torch.randn(5, 2, 8, 6, 2)
    with torch.no_grad():
        expected = torch.stack(list(rollout(ours, context, 3)), dim=1)
    found = helper.rollout(helper.load(done.path), 3, context=context.cuda())
    assert found.is_cuda and relative_difference(found.cpu(), expected) < 1e-4


def test_a_missing_compiler_is_one_line(tmp_path, monkeypatch):
    import torch._inductor
    from torch._inductor.exc import InvalidCxxCompiler

    def fail(*args, **options):
        raise InvalidCxxCompiler

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", fail)
    with pytest.raises(UserError, match=r"AOTInductor needs a C\+\+ compiler, such as g\+\+"):
        export(surrogate(FLOW), tmp_path / "flow.pt2", "aoti")
    assert list(tmp_path.iterdir()) == []


def test_machine_code_that_ends_the_process_that_loads_it_is_one_line(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nkill -SEGV $$\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with pytest.raises(UserError, match=r"cannot load what its AOTInductor compiled \(signal 11\).*--format torch"):
        require_loadable(tmp_path / "flow.pt2")


def test_a_file_that_is_no_machine_code_is_one_line(tmp_path):
    (tmp_path / "flow.pt2").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"cannot load what its AOTInductor compiled \(\w+Error"):
        require_loadable(tmp_path / "flow.pt2")


def test_saved_surrogates_of_ones_own_are_exported_with_their_class(tmp_path):
    own_map = own_model("own_map", lambda map, z: z + map(z))
    save_bundle(build_surrogate(FLOW, own_map, dim=8, depth=1), tmp_path / "bundle")
    assert export(tmp_path / "bundle", tmp_path / "flow.pt2", models=[own_map]).error < 1e-5


def test_nothing_is_left_of_new_folders_where_an_export_is_refused(tmp_path):
    surrogate = build_surrogate(FLOW, "fno", **small_sizes("fno"))
    with pytest.raises(UserError, match="cannot be written as ONNX"):
        export(surrogate, tmp_path / "new" / "below" / "f.onnx")
    assert not list(tmp_path.iterdir())
    assert export(surrogate, tmp_path / "new" / "below" / "f.pt2").path.is_file()


def test_torch_says_nothing_of_its_own_to_users(tmp_path, recwarn):
    export(build_surrogate(EVERYTHING, "factformer_plus", **small_sizes("factformer_plus")), tmp_path / "f.pt2")
    assert not [str(warning.message) for warning in recwarn]
