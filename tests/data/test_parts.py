"""Static fields, forcing, parameters and masks from one's own arrays and files to a roll-out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner
from well_files import write_well_file

import factformer
from factformer import Grid
from factformer.bundle import save_bundle
from factformer.cli import build_app
from factformer.data import convert, import_dataset, open_dataset
from factformer.data.formats.importers import ImportedDataset
from factformer.data.formats.parts import Parts
from factformer.errors import UserError
from factformer.prediction.context import read_context

GRID = Grid((6, 5), 1.0, True)
COUNT, FRAMES = 4, 9
FLOW = {"name": "channel", "num_axes": 2, "state": {"u": 2}, "num_context_frames": 2, "horizon": 3, "periodic": True}
TINY = {"model.dim": 8, "model.depth": 1, "model.heads": 2, "model.head_dim": 4, "model.kernel_dim": 4}
ALL = Parts(static={"depth": "depth"}, forcing={"inflow": "inflow"}, parameters={"reynolds": "reynolds"}, mask="inside")


def arrays() -> dict[str, np.ndarray]:
    """One file's arrays: frames, and all that may be known beside them."""
    random = np.random.default_rng(3)
    inside = random.random((6, 5)) > 0.2  # fields are zero outside of the domain
    return {
        "u": random.normal(size=(COUNT, FRAMES, 6, 5, 2)).astype("f4") * inside[..., None],
        "depth": random.normal(size=(COUNT, 6, 5)).astype("f4") * inside,
        "inflow": random.normal(size=(COUNT, FRAMES, 6, 5, 1)).astype("f4") * inside[..., None],
        "reynolds": np.linspace(100, 400, COUNT),
        "inside": inside,
    }


@pytest.fixture
def source(tmp_path: Path) -> Path:
    np.savez(tmp_path / "flow.npz", **arrays())
    return tmp_path / "flow.npz"


def assert_all_there(data) -> None:
    given = arrays()
    mask = given["inside"]
    assert data.problem.parts == ("static", "forcing", "parameters", "mask")
    assert [(field.name, field.num_channels) for field in data.problem.forcing] == [("inflow", 1)]
    assert np.array_equal(data.read([2, 0], slice(1, 4)), given["u"][[2, 0], 1:4])
    assert np.array_equal(data.read([3], part="static"), given["depth"][[3], ..., None])
    assert np.array_equal(data.read([1], slice(2, 5), "forcing"), given["inflow"][[1], 2:5])
    assert np.allclose(data.read(slice(None), part="parameters")[:, 0], given["reynolds"])
    assert np.array_equal(data.read([0, 3], part="mask"), np.stack([mask, mask]))


def test_convert_takes_parts_from_the_file(source: Path, tmp_path: Path) -> None:
    assert_all_there(import_dataset(source, FLOW, parts=ALL))
    stored = open_dataset(convert(source, tmp_path / "train.hdf5", FLOW, parts=ALL))
    assert_all_there(stored)
    assert stored.problem.masked and "left_out" not in stored.provenance


def test_convert_takes_parts_from_files_of_their_own(tmp_path: Path) -> None:
    given = arrays()
    np.save(tmp_path / "u.npy", given["u"])
    np.save(tmp_path / "inside.npy", given["inside"])
    np.savez(tmp_path / "more.npz", **{name: given[name] for name in ("depth", "inflow")})
    parts = Parts(
        static={"depth": f"{tmp_path / 'more.npz'}:depth"},
        forcing={"inflow": f"{tmp_path / 'more.npz'}:inflow"},
        parameters={"reynolds": "250"},
        mask=str(tmp_path / "inside.npy"),
    )
    data = import_dataset(tmp_path / "u.npy", FLOW, parts=parts)
    assert isinstance(data, ImportedDataset) and len(data.sources) == 4
    assert np.array_equal(data.read([3], part="static"), given["depth"][[3], ..., None])
    assert data.read(slice(None), part="parameters").tolist() == [[250.0]] * COUNT


def test_a_problem_file_may_declare_parts(source: Path) -> None:
    declared = {**FLOW, "static": {"depth": 1}, "forcing": {"inflow": 1}, "parameters": ["reynolds"], "masked": True}
    assert_all_there(import_dataset(source, declared, parts=Parts(mask="inside")))


def test_parts_follow_the_order_of_axes_and_thinning(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).normal(size=(8, 8, 6, 3)).astype("f4")  # x y t n
    depth = np.random.default_rng(1).normal(size=(8, 8, 3)).astype("f4")
    np.savez(tmp_path / "flow.npz", u=frames, depth=depth)
    problem = {**FLOW, "state": {"u": 1}}
    data = import_dataset(
        tmp_path / "flow.npz", problem, parts=Parts(static={"depth": "depth"}), layout="xytn", resolution=4
    )
    assert np.array_equal(data.read([2], part="static")[0, ..., 0], depth[::2, ::2, 2])
    assert np.array_equal(data.read([2])[0, ..., 0], frames[::2, ::2, :, 2].transpose(2, 0, 1))


def other(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    return {**arrays(), name: values}


@pytest.mark.parametrize(
    ("contents", "parts", "words"),
    [
        (
            arrays(),
            Parts(static={"depth": "height"}),
            r"has no array 'height' for static 'depth': say .*--static",
        ),
        (arrays(), Parts(forcing={"inflow": "wind"}), "--forcing inflow=ARRAY"),
        (arrays(), Parts(parameters={"reynolds": "re"}), "has no array 're' for parameters 'reynolds'.*--parameter"),
        (arrays(), Parts(mask="wall"), "has no array 'wall' for mask 'mask'.*--mask ARRAY"),
        (arrays(), Parts(static={"depth": "no.npy"}), "no file no.npy"),
        (
            other("depth", np.ones((COUNT, 6, 4))),
            ALL,
            r"depth of shape \(4, 6, 4\), does not fit .*x 6",
        ),
        (other("depth", np.ones((3, 6, 5))), ALL, "does not fit the state"),
        (other("inflow", np.ones((COUNT, 8, 6, 5))), ALL, r"does not fit the state: it needs .*frame 9"),
        (other("reynolds", np.ones(3)), ALL, "one number for each of 4 trajectories; .* shape \\(3,\\)"),
        (other("reynolds", np.array([1, 2, np.nan, 4])), ALL, "parameter 'reynolds' is nan for trajectory 2"),
        (other("inside", np.full((6, 5), 0.5)), ALL, "a mask holds 1 inside the domain and 0 outside"),
        (other("inside", np.full((6, 5), np.nan)), ALL, "a mask holds 1 inside the domain and 0 outside"),
        (
            other("depth", np.full((COUNT, 6, 5), np.nan)),
            ALL,
            "trajectory 0 holds NaN .* in its static",
        ),
        (other("inflow", np.full((COUNT, FRAMES, 6, 5), np.inf)), ALL, "NaN or infinite values"),
        (other("depth", np.ones((COUNT, 6, 5), dtype=complex)), ALL, "complex numbers"),
        (arrays(), Parts(static={"u": "depth"}), "uses the name 'u' twice"),
        (arrays(), Parts(parameters={"Re number": "reynolds"}), "needs a name such as 'reynolds'"),
    ],
)
def test_wrong_parts_are_one_line_and_nothing_is_written(contents, parts, words, tmp_path: Path) -> None:
    np.savez(tmp_path / "flow.npz", **contents)
    with pytest.raises(UserError, match=words) as error:
        convert(tmp_path / "flow.npz", tmp_path / "out", FLOW, parts=parts)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("out/*"))


def test_axes_that_fit_twice_are_asked_for(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    np.savez(tmp_path / "flow.npz", u=random.normal(size=(5, 6, 5, 5, 2)), depth=random.normal(size=(5, 5, 5)))
    with pytest.raises(UserError, match="may be read as nxy or as xyc"):
        import_dataset(tmp_path / "flow.npz", FLOW, parts=Parts(static={"depth": "depth"}))
    data = import_dataset(tmp_path / "flow.npz", {**FLOW, "static": {"depth": 1}})
    assert data.read([1], part="static").shape == (1, 5, 5, 1)


def test_values_outside_of_the_domain_may_be_anything(tmp_path: Path) -> None:
    contents = arrays()
    contents["u"][:, :, ~contents["inside"]] = np.nan
    np.savez(tmp_path / "flow.npz", **contents)
    stored = open_dataset(convert(tmp_path / "flow.npz", tmp_path / "train.hdf5", FLOW, parts=ALL))
    assert torch.isfinite(stored.read(slice(None))).all()
    contents["u"][1, 2, contents["inside"]] = np.nan
    np.savez(tmp_path / "flow.npz", **contents)
    with pytest.raises(UserError, match="trajectory 1 holds NaN or infinite values in frame 2, inside the mask; mend"):
        convert(tmp_path / "flow.npz", tmp_path / "other.hdf5", FLOW, parts=ALL)


def test_points_that_are_never_finite_make_one_think_of_a_mask(tmp_path: Path) -> None:
    advice = "; if these points, the same in all frames, lie outside the domain, give "
    contents, u = arrays(), arrays()["u"]
    u[:, :, 2, 3] = np.nan
    np.savez(tmp_path / "flow.npz", u=u)
    with pytest.raises(UserError, match=f"0 holds NaN or infinite values in frame 0{advice}--mask .*; mend or leave"):
        convert(tmp_path / "flow.npz", tmp_path / "train.hdf5", FLOW)
    with pytest.raises(UserError, match=f"in trajectory 0{advice}mask=$"):
        factformer.fit(u, grid=GRID, fields={"u": 2}, num_context_frames=2, horizon=3)
    u[:, :, contents["inside"]] = np.nan
    with pytest.raises(UserError, match=r"in trajectory 0, inside the mask$"):
        fitted(u)
    once = arrays()["u"]
    once[1, 3, 2, 3] = np.inf
    np.savez(tmp_path / "flow.npz", u=once)
    with pytest.raises(UserError, match="infinite values in frame 3; mend"):
        convert(tmp_path / "flow.npz", tmp_path / "train.hdf5", FLOW)


def fitted(frames: np.ndarray, held_out: dict | None = None, **changes) -> factformer.Surrogate:
    given = arrays()
    known = {
        "static": {"depth": given["depth"]},
        "forcing": {"inflow": given["inflow"]},
        "parameters": {"reynolds": given["reynolds"]},
        "mask": given["inside"],
    }
    options = {"grid": GRID, "fields": {"u": 2}, "num_context_frames": 2, "horizon": 3, "name": "channel"}
    return factformer.fit(
        frames,
        valid={"frames": frames, **known, **(held_out or {})},
        **options,
        **{**known, **changes},
        updates=2,
        settings=TINY,
        progress=False,
    )


@pytest.mark.parametrize(
    ("part", "values", "words"),
    [
        (
            "static",
            {"depth": np.full((COUNT, 6, 5), np.nan)},
            "NaN or infinite values in trajectory 0, in static 'depth'",
        ),
        ("static", {"depth": np.ones((3, 6, 5))}, r"'depth' must have shape \(4, 6, 5\), for \(trajectory, \*grid\)"),
        ("static", {"depth": np.ones((COUNT, 4, 5))}, r"'depth' must have shape \(4, 6, 5\), .* got \(4, 4, 5\)"),
        ("static", np.ones((COUNT, 6, 5)), "static= takes arrays by name"),
        ("static", {"u": np.ones((COUNT, 6, 5))}, "uses the name 'u' twice"),
        (
            "forcing",
            {"inflow": np.ones((COUNT, 5, 6, 5))},
            r"'inflow' must have shape \(4, 9, 6, 5\), .* got \(4, 5, 6, 5\)",
        ),
        ("forcing", {"inflow": np.full((COUNT, FRAMES, 6, 5), np.inf)}, "forcing hold NaN .* 0, in forcing 'inflow'"),
        ("parameters", {"reynolds": np.ones(3)}, "'reynolds' must hold one number per sample, 4"),
        ("parameters", {"reynolds": np.full(COUNT, np.nan)}, "parameters hold NaN .* 0, in parameter 'reynolds'"),
        ("parameters", {"reynolds": "high"}, "'reynolds' must be an array of numbers, got 'high'; load"),
        ("parameters", np.ones(COUNT), "parameters= takes arrays by name"),
        ("parameters", {"Re number": np.ones(COUNT)}, "needs a name such as 'reynolds'"),
        ("mask", np.ones((3, 5)), "mask must have shape"),
        ("mask", np.full((6, 5), 0.5), "a mask holds 1 inside the domain and 0 outside"),
    ],
)
def test_fit_names_a_part_that_is_wrong(part: str, values: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        fitted(arrays()["u"], **{part: values})


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"static": {"height": arrays()["depth"]}}, "static must be given for depth; got height"),
        ({"static": None}, r"needs static fields depth \(1\) beside the frames"),
        ({"parameters": None}, "needs parameters reynolds beside the frames"),
        ({"mask": None}, "needs a mask of the points inside its domain"),
    ],
)
def test_held_out_data_bring_the_same_parts(change: dict, words: str, mapped: bool, tmp_path: Path) -> None:
    frames = arrays()["u"]
    if mapped:
        np.save(tmp_path / "u.npy", frames)
        frames = np.load(tmp_path / "u.npy", mmap_mode="r")
    with pytest.raises(UserError, match=words):
        fitted(frames, held_out=change)


def test_from_arrays_to_a_roll_out_by_name(source: Path, tmp_path: Path) -> None:
    given = arrays()
    bundle = save_bundle(fitted(given["u"]), tmp_path / "bundle")
    loaded = factformer.load(bundle)
    with torch.no_grad():
        frames = torch.stack(
            list(
                factformer.rollout(
                    loaded,
                    given["u"][:, 1:3],
                    4,
                    static={"depth": given["depth"]},
                    forcing={"inflow": given["inflow"][:, 1:7]},
                    parameters={"reynolds": given["reynolds"]},
                    mask=given["inside"],
                )
            ),
            dim=1,
        ).numpy()
    words = ["rollout", bundle, "--input", source, "--start", 1, "--frames", 4, "--mask", "inside", "--device", "cpu"]
    run(*words, "--out", tmp_path / "from-arrays.npy")
    assert np.allclose(np.load(tmp_path / "from-arrays.npy"), frames, atol=1e-5)
    run(*words, "--set", "parameters.reynolds=350", "--out", tmp_path / "faster.npy")
    batch = read_context(source, loaded.problem, 4, start=1, parts=Parts(mask="inside")).batch
    with torch.no_grad():
        faster = list(factformer.rollout(loaded, batch._replace(parameters=torch.full((COUNT, 1), 350.0)), 4))
    assert np.allclose(np.load(tmp_path / "faster.npy"), torch.stack(faster, dim=1), atol=1e-5)
    with pytest.raises(UserError, match="unknown setting of a roll-out 'horizon'"):
        run(*words, "--set", "horizon=3", "--out", tmp_path / "none.npy")
    convert(source, tmp_path / "data" / "test.hdf5", FLOW, parts=ALL)
    stored = ["rollout", bundle, "--input", tmp_path / "data" / "test.hdf5", "--start", 1, "--frames", 4]
    run(*stored, "--device", "cpu", "--out", tmp_path / "from-a-file.npy")
    assert np.allclose(np.load(tmp_path / "from-a-file.npy"), frames, atol=1e-5)


def run(*words: object) -> str:
    result = CliRunner().invoke(build_app(), [str(word) for word in words])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_train_and_evaluate_with_parts_on_the_command_line(source: Path, tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(json.dumps(FLOW), encoding="utf-8")
    parts = ["--static", "depth=depth", "--forcing", "inflow=inflow", "--parameter", "reynolds=reynolds"]
    for split in ("train", "valid", "test"):
        words = ["convert", source, "--problem", tmp_path / "flow.yaml", *parts, "--mask", "inside"]
        told = run(*words, "--out", tmp_path / "data" / f"{split}.hdf5", "--json")
        entry = json.loads(told)["files"][0]
        assert (entry["static"], entry["parameters"], entry["masked"]) == (["depth"], ["reynolds"], True)
    experiment = {
        "problem": "channel",
        "model": {"name": "factformer", **{key.removeprefix("model."): value for key, value in TINY.items()}},
        "protocol": {"name": "latent_marching", "marching_steps": 2, "pushforward": 0},
        "training": {"updates": 2, "batch_size": 2},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(experiment), encoding="utf-8")
    run("train", tmp_path / "run.yaml", "--data", tmp_path / "data", "--out", tmp_path / "run", "--device", "cpu")
    evaluation = json.loads(run("evaluate", tmp_path / "run", "--frames", 3, "--device", "cpu", "--json"))
    found = evaluation["trajectories"]
    assert found["parameters"]["reynolds"] == pytest.approx([100, 200, 300, 400])
    assert len(found["relative_l2"]["u"]) == COUNT and found["shown"] == [0, 1, 2, 3]
    assert np.mean(found["relative_l2"]["u"]) == pytest.approx(evaluation["fields"]["u"]["relative_l2"])
    assert (tmp_path / "run" / "figures" / "parameter-reynolds.png").is_file()
    page = Path(run("report", tmp_path / "run", "--out", tmp_path / "report").split()[-1])
    text = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert page.name and ">1: reynolds 100</option>" in text and "Error over reynolds" in text


def test_a_parameter_may_be_set_for_a_roll_out(source: Path, tmp_path: Path) -> None:
    problem = import_dataset(source, FLOW, parts=ALL).problem
    stored = convert(source, tmp_path / "test.hdf5", FLOW, parts=ALL)
    for path, parts in ((source, ALL), (stored, Parts())):
        asked = {"parts": parts, "parameters": {"reynolds": 800}}
        context = read_context(path, problem, 2, start=0, **asked)
        assert context.batch.parameters.tolist() == [[800.0]] * COUNT
        with pytest.raises(UserError, match="unknown parameter of 'channel' 'renolds'; did you mean 'reynolds'"):
            read_context(path, problem, 2, start=0, parts=parts, parameters={"renolds": 800})
        with pytest.raises(UserError, match="parameter 'reynolds' takes one finite number, got 'fast'"):
            read_context(path, problem, 2, start=0, parts=parts, parameters={"reynolds": "fast"})
    with pytest.raises(UserError, match="forcing for 9 frames, too few for 2 context frames from frame 7 on"):
        read_context(source, problem, 2, parts=ALL)
    with pytest.raises(UserError, match="unknown static of 'channel' 'height'"):
        read_context(source, problem, 2, start=0, parts=Parts(static={"height": "depth"}))


def test_mapped_arrays_stay_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = arrays()
    for name in ("u", "inflow"):
        np.save(tmp_path / f"{name}.npy", given[name])
    mapped = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("u", "inflow")}
    seen = []

    def remember(self, *args, **options):
        original(self, *args, **options)
        seen.append(self)

    original = ImportedDataset.__init__
    monkeypatch.setattr(ImportedDataset, "__init__", remember)
    plain, lazy = fitted(given["u"]), fitted(mapped["u"], forcing={"inflow": mapped["inflow"]})
    assert len(seen) == 2
    assert all(np.shares_memory(data._columns["state"][0].array, mapped["u"]) for data in seen)
    for name, weight in plain.state_dict().items():
        torch.testing.assert_close(weight, lazy.state_dict()[name])
    with pytest.raises(UserError, match=r"forcing 'inflow' must have shape \(4, 9, 6, 5\), .* got \(3, 9, 6, 5, 1\)"):
        fitted(mapped["u"], forcing={"inflow": mapped["inflow"][:3]})


def test_the_well_is_read_with_its_constant_fields_and_scalars(tmp_path: Path) -> None:
    import h5py

    path = tmp_path / "invented.hdf5"
    values = write_well_file(path)
    with h5py.File(path, "r+") as file:
        scalars = file["scalars"]
        scalars["reynolds"], scalars["pulse"] = np.array([1.0, 2, 3], dtype="f4"), np.ones((3, 6), dtype="f4")
        scalars["reynolds"].attrs.update(sample_varying=True, time_varying=False)
        scalars["pulse"].attrs.update(sample_varying=True, time_varying=True)
    data = open_dataset(path)
    assert [field.name for field in data.problem.static] == ["mask"] and data.problem.parameters == ("reynolds",)
    assert np.array_equal(data.read([1], part="static")[0, ..., 0], values["mask"])
    assert data.read([2, 0], part="parameters").tolist() == [[3.0], [1.0]]
    assert open_dataset(path, static=[], parameters=[]).problem.parts == ()
    copy = open_dataset(convert(path, tmp_path / "train.hdf5"))
    assert copy.problem.parameters == ("reynolds",) and copy.provenance["left_out"] == ["pulse"]


def test_a_number_that_differs_between_files_is_a_parameter(tmp_path: Path) -> None:
    import h5py

    for split, names in (("train", "ab"), ("test", "a")):
        for index, name in enumerate(names):
            path = tmp_path / "data" / split / f"{name}.hdf5"
            write_well_file(path, num_trajectories=2)
            with h5py.File(path, "r+") as file:
                file["scalars/viscosity"][...] = 0.1 * (index + 1)
    assert open_dataset(tmp_path, "train").read(slice(None), part="parameters")[:, 0].tolist() == pytest.approx(
        [0.1, 0.1, 0.2, 0.2]
    )
    test = open_dataset(tmp_path, "test")
    assert test.problem.parameters == ("viscosity",)
    assert float(test.normalizer().parameters_mean[0]) == pytest.approx(0.15)
