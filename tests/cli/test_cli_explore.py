"""The command line as a user meets it: help, list, demo, rollout, exit codes and one-line errors."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import factformer
from commands import run
from factformer import Field, Grid, Problem, build_surrogate, catalog
from factformer.bundle import save_bundle
from factformer.cli._answers import print_table
from factformer.errors import UserError
from factformer.prediction import predict_file
from factformer.report.tables import Column, Table, format_value
from killing import exit_code_when_killed

COMMANDS = [
    "list",
    "demo",
    "generate",
    "convert",
    "plan",
    "train",
    "evaluate",
    "rollout",
    "inspect",
    "benchmark",
    "report",
    "serve",
    "reproduce",
]


@pytest.fixture
def bundle(tmp_path):
    problem = Problem("box", Grid((6, 5), 1.0, True), (Field("p"), Field("u", 2)), num_context_frames=3, horizon=4)
    surrogate = build_surrogate(problem, dim=16, depth=1, heads=2, head_dim=8, kernel_dim=8, marching_steps=2)
    return save_bundle(surrogate, tmp_path / "bundle")


def test_help_lists_every_command(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(f"  {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(capsys, command):
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert f"factformer {command}" in " ".join(out.split()).partition("Example")[2]


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"{factformer.__version__}\n", "")


def test_list_for_people_and_machines(capsys):
    code, out, _ = run(capsys, "list")
    assert code == 0
    assert "kolmogorov_flow" in out
    code, out, _ = run(capsys, "list", "--json")
    contents = json.loads(out)
    assert {"factformer", "fno", "ffno"} <= set(contents["models"])
    assert {"kolmogorov", "turbulence", "smoke", "darcy", "demo"} <= set(contents["recipes"])


def test_demo_answers_a_machine_in_json_alone(capsys, monkeypatch, tmp_path):
    def demo(out, updates, overwrite, say):
        say("1/5  simulate")
        return out / "report" / "report.html"

    monkeypatch.setattr("factformer.demo.run_demo", demo)
    code, out, error = run(capsys, "demo", "--out", tmp_path / "demo", "--json")
    assert code == 0 and "1/5" in error
    assert json.loads(out)["page"] == str(tmp_path / "demo" / "report" / "report.html")


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_rollout_reads_frames_and_writes_what_the_library_predicts(capsys, bundle, tmp_path, suffix):
    frames = torch.randn(2, 3, 6, 5, 3)
    np.save(tmp_path / "in.npy", frames.numpy())
    out, gif = tmp_path / f"out.{suffix}", tmp_path / "a.gif"
    code, text, error = run(
        capsys, "rollout", bundle, "--input", tmp_path / "in.npy", "--frames", 5, "--out", out, "--animate", gif
    )
    assert code == 0
    assert "rolling out: 5/5 frames" in error
    assert "(2, 5, 6, 5, 3)" in text
    written = np.load(out) if suffix == "npy" else np.load(out)["frames"]
    with torch.no_grad():
        expected = torch.stack(list(factformer.rollout(factformer.load(bundle), frames, 5)), 1).numpy()
    assert np.array_equal(written, expected)
    assert gif.read_bytes()[:6] == b"GIF89a"


def test_rollout_says_when_the_grid_is_not_the_trained_one(capsys, bundle, tmp_path):
    home = factformer.load(bundle).problem.grid.shape
    for shape in (home, tuple(2 * size for size in home)):
        np.save(tmp_path / "in.npy", np.random.default_rng(0).normal(size=(1, 3, *shape, 3)).astype(np.float32))
        words = ["rollout", bundle, "--input", tmp_path / "in.npy", "--frames", 2, "--out", tmp_path / "out.npy"]
        code, text, _ = run(capsys, *words, "--overwrite")
        assert (code, "trained on" in text) == (0, shape != home)
        code, text, _ = run(capsys, *words, "--overwrite", "--json")
        answer = json.loads(text)
        assert answer["shape"] == [1, 2, *shape, 3]
        assert bool(answer["other_grid"]) == (shape != home)


def test_rollout_in_bfloat16_is_near_and_is_not_the_same(capsys, bundle, tmp_path):
    np.save(tmp_path / "in.npy", np.random.default_rng(0).normal(size=(1, 3, 6, 5, 3)).astype(np.float32))
    words = ["rollout", bundle, "--input", tmp_path / "in.npy", "--frames", 3, "--out"]
    for precision in ("32-true", "bf16-mixed"):
        assert run(capsys, *words, tmp_path / f"{precision}.npy", "--precision", precision)[0] == 0
    exact, rounded = (np.load(tmp_path / f"{precision}.npy") for precision in ("32-true", "bf16-mixed"))
    assert rounded.dtype == np.float32
    assert 0 < np.linalg.norm(rounded - exact) < 0.05 * np.linalg.norm(exact)
    for precision, said in (("16", "float16"), ("half", "choose one of 32-true, bf16-mixed")):
        code, _, error = run(capsys, *words, tmp_path / "half.npy", "--precision", precision)
        assert (code, said in error) == (2, True)
    assert not (tmp_path / "half.npy").exists()


def test_rollout_takes_one_sample_and_the_last_frames(capsys, bundle, tmp_path):
    frames = np.random.default_rng(0).normal(size=(7, 6, 5, 3)).astype(np.float32)
    for name, part in (("long", frames), ("short", frames[None, -3:])):
        np.save(tmp_path / f"{name}.npy", part)
        files = ["--input", tmp_path / f"{name}.npy", "--out", tmp_path / f"{name}-out.npy"]
        assert run(capsys, "rollout", bundle, "--frames", 2, *files)[0] == 0
    assert np.array_equal(np.load(tmp_path / "long-out.npy"), np.load(tmp_path / "short-out.npy"))


def test_rollout_takes_scalars_without_an_axis_of_channels(capsys, bundle, tmp_path):
    frames = np.random.default_rng(0).normal(size=(2, 3, 6, 5, 3)).astype(np.float32)
    np.savez(tmp_path / "bare.npz", p=frames[..., 0], u=frames[..., 1:])
    np.savez(tmp_path / "whole.npz", p=frames[..., :1], u=frames[..., 1:])
    for name in ("bare", "whole"):
        files = ["--input", tmp_path / f"{name}.npz", "--out", tmp_path / f"{name}.npy"]
        assert run(capsys, "rollout", bundle, "--frames", 2, *files)[0] == 0
    assert np.array_equal(np.load(tmp_path / "bare.npy"), np.load(tmp_path / "whole.npy"))


def convert_fields(capsys, folder):
    """``fields.npz`` of the problem ``box.yaml`` as ``test.hdf5``."""
    files = ["convert", folder / "fields.npz", "--problem", folder / "box.yaml", "--out", folder / "test.hdf5"]
    assert run(capsys, *files)[0] == 0


def test_rollout_says_which_frames_it_continues_and_starts_where_asked(capsys, bundle, tmp_path):
    frames = np.random.default_rng(0).normal(size=(2, 7, 6, 5, 3)).astype(np.float32)
    np.save(tmp_path / "array.npy", frames)
    problem = factformer.load(bundle).problem
    np.savez(tmp_path / "fields.npz", p=frames[..., 0], u=frames[..., 1:])
    (tmp_path / "box.yaml").write_text(
        "{name: box, num_axes: 2, state: {p: 1, u: 2}, extent: 1.0, periodic: true, num_context_frames: 2}"
    )
    convert_fields(capsys, tmp_path)
    for file, options, first in (
        ("array.npy", (), 4),
        ("array.npy", ("--start", 1), 1),
        ("test.hdf5", (), 0),
        ("test.hdf5", ("--start", 3), 3),
    ):
        files = ["--input", tmp_path / file, "--out", tmp_path / "out.npy", "--overwrite"]
        code, text, _ = run(capsys, "rollout", bundle, "--frames", 2, *files, *options)
        assert code == 0
        assert f", {problem.frame_dt:g} apart, continued after frames {first} to {first + 2} of 7" in text
        context = torch.from_numpy(frames[:, first : first + problem.num_context_frames])
        with torch.no_grad():
            expected = torch.stack(list(factformer.rollout(factformer.load(bundle), context, 2)), 1).numpy()
        np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"frame_dt": 5.0}, "advances 1 per frame and the dataset 5"),
        ({"periodic": "false"}, "periodic axes (True, True) and the dataset's (False, False)"),
        ({"extent": 99.0}, "grid extent (1.0, 1.0) expected, (99.0, 99.0) found"),
    ],
)
def test_rollout_refuses_a_dataset_of_another_setting(capsys, bundle, tmp_path, change, words):
    frames = np.zeros((1, 5, 6, 5, 3), np.float32)
    np.savez(tmp_path / "fields.npz", p=frames[..., 0], u=frames[..., 1:])
    said = {"name": "box", "num_axes": 2, "state": "{p: 1, u: 2}", "extent": 1.0, "periodic": "true", **change}
    (tmp_path / "box.yaml").write_text("".join(f"{key}: {value}\n" for key, value in said.items()))
    convert_fields(capsys, tmp_path)
    files = ["--input", tmp_path / "test.hdf5", "--out", tmp_path / "out.npy"]
    code, _, error = run(capsys, "rollout", bundle, "--frames", 2, *files)
    assert (code, words in error) == (2, True), error
    assert not (tmp_path / "out.npy").exists()


def test_rollout_reads_arrays_as_convert_does(capsys, bundle, tmp_path):
    frames = np.random.default_rng(0).normal(size=(2, 3, 6, 5, 3)).astype(np.float32)
    p, u, v = np.moveaxis(frames, -1, 0)
    np.save(tmp_path / "whole.npy", frames)
    np.savez(tmp_path / "parts.npz", p=p, vx=u, vy=v, time=np.array(0.5))
    np.save(tmp_path / "turned.npy", frames.transpose(0, 2, 3, 1, 4))
    for name, options in (
        ("whole.npy", ()),
        ("parts.npz", ("--field", "u=vx,vy")),
        ("turned.npy", ("--layout", "nxytc")),
    ):
        files = ["--input", tmp_path / name, "--out", tmp_path / f"out-{name[:5]}.npy"]
        assert run(capsys, "rollout", bundle, "--frames", 2, *files, *options)[0] == 0
    expected = np.load(tmp_path / "out-whole.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "out-parts.npy"), expected)
    np.testing.assert_array_equal(np.load(tmp_path / "out-turne.npy"), expected)


@pytest.mark.parametrize("shape", [(6, 5), (12, 10)])
def test_rollout_of_a_scalar_needs_no_axis_of_channels_nor_of_trajectories(capsys, tmp_path, shape):
    """On the bundle's grid and on a finer one, where the shape alone has to tell the axes."""
    problem = Problem("box", Grid((6, 5), 1.0, True), (Field("p"),), num_context_frames=3, horizon=4)
    sizes = {"dim": 8, "depth": 1, "heads": 1, "head_dim": 8, "kernel_dim": 8}
    bundle = save_bundle(build_surrogate(problem, marching_steps=1, **sizes), tmp_path / "bundle")
    frames = np.random.default_rng(0).normal(size=(2, 4, *shape, 1)).astype(np.float32)
    written = {}
    for name, part in (("full", frames), ("scalar", frames[..., 0]), ("one", frames[0]), ("bare", frames[0, ..., 0])):
        np.save(tmp_path / f"{name}.npy", part)
        files = ["--input", tmp_path / f"{name}.npy", "--out", tmp_path / f"{name}-out.npy"]
        code, text, error = run(capsys, "rollout", bundle, "--frames", 2, *files)
        assert code == 0, error
        assert "after frames 1 to 3 of 4" in text
        written[name] = np.load(tmp_path / f"{name}-out.npy")
    np.testing.assert_array_equal(written["scalar"], written["full"])
    np.testing.assert_allclose(written["one"], written["full"][:1], atol=1e-5)
    np.testing.assert_array_equal(written["bare"], written["one"])


def mistakes(bundle, tmp_path):
    np.save(tmp_path / "in.npy", np.zeros((1, 3, 6, 5, 3), np.float32))
    np.save(tmp_path / "nan.npy", np.full((1, 3, 6, 5, 3), np.nan, np.float32))
    np.save(tmp_path / "few.npy", np.zeros((1, 2, 6, 5, 3), np.float32))
    np.save(tmp_path / "wide.npy", np.zeros((20, 7, 6, 5, 2), np.float32))
    np.save(tmp_path / "flat.npy", np.zeros((6, 5), np.float32))
    np.savez(tmp_path / "two.npz", a=np.zeros(3), b=np.zeros(3))
    np.savez(tmp_path / "apart.npz", p=np.zeros((1, 3, 6, 5)), u=np.zeros((1, 3, 6, 4, 2)))
    (tmp_path / "taken.npy").write_text("mine")
    good = {"--input": tmp_path / "in.npy", "--frames": 2, "--out": tmp_path / "out.npy"}
    return [
        ("no bundle at", tmp_path / "nowhere", good),
        ("holds 2 frames, too few for 3", bundle, {**good, "--input": tmp_path / "few.npy"}),
        ("holds 3 frames, too few for 3 context frames from frame 1 on", bundle, {**good, "--start": 1}),
        ("shape (20, 7, 6, 5, 2) has 2 channels, needs 3", bundle, {**good, "--input": tmp_path / "wide.npy"}),
        ("array flat of shape (6, 5)", bundle, {**good, "--input": tmp_path / "flat.npy"}),
        ("p (1, 3, 6, 5), u (1, 3, 6, 4, 2)", bundle, {**good, "--input": tmp_path / "apart.npz"}),
        ("unknown field 'v'", bundle, {**good, "--field": "v=a"}),
        ("NaN", bundle, {**good, "--input": tmp_path / "nan.npy"}),
        ("no file", bundle, {**good, "--input": tmp_path / "absent.npy"}),
        ("no array 'p' for field 'p'", bundle, {**good, "--input": tmp_path / "two.npz"}),
        ("exists", bundle, {**good, "--out": tmp_path / "taken.npy"}),
        (".npy or .npz", bundle, {**good, "--out": tmp_path / "out.txt"}),
        ("'--frames'", bundle, {**good, "--frames": 0}),
        ("cuda", bundle, {**good, "--device": "cuda"}),
    ]


def test_mistakes_are_one_line_with_exit_code_two(capsys, bundle, tmp_path):
    for words, path, options in mistakes(bundle, tmp_path):
        if words == "cuda" and torch.cuda.is_available():
            continue
        flat = [part for option in options.items() for part in option]
        code, _, error = run(capsys, "rollout", path, *flat)
        assert code == 2, (words, error)
        assert words in error
        assert len(error.strip().splitlines()) == 1
        assert "Traceback" not in error
    assert (tmp_path / "taken.npy").read_text() == "mine"
    assert not (tmp_path / "out.npy").exists()


def test_wrong_use_and_debug(capsys, tmp_path):
    code, _, error = run(capsys, "lsit")
    assert code == 2
    assert len(error.strip().splitlines()) == 1
    code, _, error = run(capsys, "rollout", tmp_path / "x", "--input", "a", "--frames", 1, "--out", "b.npy", "--debug")
    assert code == 2
    assert "Traceback" in error


def test_demo_refuses_a_folder_that_is_not_its_own(capsys, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    code, _, error = run(capsys, "demo", "--out", tmp_path, "--overwrite")
    assert code == 2
    assert "other files" in error
    assert (tmp_path / "thesis.tex").exists()


def test_import_stays_light():
    """`import factformer` and the help page load neither plotting, nor HDF5, nor torch; the library no CLI."""
    code = (
        "import sys, factformer\n"
        "assert not {'matplotlib', 'typer', 'h5py', 'torch'} & set(sys.modules)\n"
        "from factformer import Grid, build_surrogate, rollout, simulate\n"
        "assert not {'matplotlib', 'typer', 'h5py'} & set(sys.modules)\n"
        "print('light')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "light", done.stderr
    code = (
        "import sys\nfrom factformer.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_a_steady_problem_answers_every_sample(capsys, tmp_path):
    grid = factformer.Grid((6, 5), 1.0, False)
    problem = factformer.Problem(
        "map", grid, (factformer.Field("y"),), (factformer.Field("x"),), num_context_frames=0, boundary="zero"
    )
    sizes = {"dim": 8, "depth": 1, "heads": 1, "head_dim": 8, "kernel_dim": 8}
    path = save_bundle(factformer.build_surrogate(problem, marching_steps=1, **sizes), tmp_path / "map")
    samples = np.random.default_rng(0).normal(size=(20, 6, 5, 1)).astype(np.float32)
    for name, part in (("flat", samples), ("framed", samples[:, None]), ("bare", samples[..., 0])):
        np.save(tmp_path / f"{name}.npy", part)
        files = ["--input", tmp_path / f"{name}.npy", "--out", tmp_path / f"{name}-out.npy"]
        code, text, _ = run(capsys, "rollout", path, "--frames", 1, *files)
        assert code == 0
        assert "continued" not in text
    assert np.load(tmp_path / "flat-out.npy").shape == (20, 1, 6, 5, 1)
    for name in ("framed", "bare"):
        assert np.array_equal(np.load(tmp_path / "flat-out.npy"), np.load(tmp_path / f"{name}-out.npy"))
    np.save(tmp_path / "long.npy", np.zeros((4, 3, 6, 5, 1), np.float32))
    wrong = {"--input": tmp_path / "long.npy"}, {"--input": tmp_path / "flat.npy", "--start": 0}
    for options, words in zip(wrong, ("holds 3 frames a sample", "leave out --start"), strict=True):
        flat = [part for option in options.items() for part in option]
        code, _, error = run(capsys, "rollout", path, "--frames", 1, "--out", tmp_path / "x.npy", *flat)
        assert (code, words in error) == (2, True), error


@pytest.mark.parametrize("killed_at", [1, 2, 3])
def test_a_rollout_that_was_killed_can_be_repeated(bundle, tmp_path, killed_at):
    folder = tmp_path / "here"
    folder.mkdir()
    np.save(tmp_path / "in.npy", np.random.default_rng(0).normal(size=(1, 3, 6, 5, 3)).astype(np.float32))
    files = {"out": folder / "out.npy", "animation": folder / "a.gif"}

    def predict():
        predict_file(bundle, tmp_path / "in.npy", 2, **files)

    assert exit_code_when_killed(predict, killed_at) == 9
    predict()
    assert sorted(path.name for path in folder.iterdir()) == ["a.gif", "out.npy"]
    with pytest.raises(UserError, match="--overwrite"):
        predict()


def test_a_rollout_too_large_for_memory_is_one_line(capsys, bundle, tmp_path, monkeypatch):
    np.save(tmp_path / "in.npy", np.random.default_rng(0).normal(size=(1, 3, 6, 5, 3)).astype(np.float32))
    words = ["rollout", bundle, "--input", tmp_path / "in.npy", "--out", tmp_path / "out.npy"]
    assert run(capsys, *words, "--frames", 10**12)[0] == 2
    with monkeypatch.context() as patch:
        patch.setattr("factformer._support.limits.available_memory", lambda: 10**6)
        code, _, error = run(capsys, *words, "--frames", 10**5)
    assert (code, "of memory" in error, "fewer --frames" in error) == (2, True, True)

    def fail(*_, **__):
        raise MemoryError

    monkeypatch.setattr("factformer.prediction.rollout", fail)
    code, _, error = run(capsys, *words, "--frames", 2)
    assert (code, "not enough memory" in error) == (2, True)
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize("width", [60, 80])
def test_answers_fit_the_columns_and_lose_nothing(capsys, monkeypatch, tmp_path, width):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = run(capsys, "list")
    assert code == 0
    assert [line for line in out.splitlines() if len(line) > width and "/" not in line] == []
    (summary,) = (text for name, text in catalog.summaries("recipes").items() if name == "kolmogorov_reynolds")
    assert summary in " ".join(out.split())


def test_tables_fit_the_columns_and_no_cell_is_cut(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    columns = [Column("name", "Name"), *(Column(f"c{k}", f"Heading number {k}", "number") for k in range(12))]
    print_table(Table("A table", columns, [{"name": "flow", **{f"c{k}": 1000.0 + k for k in range(12)}}]))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 60
    assert all(format_value(1000.0 + k, "number") in out for k in range(12))
    words = "w" * 90
    print_table(Table("", columns[:2], [{"name": words, "c0": 1.0}]))
    assert words in capsys.readouterr().out
