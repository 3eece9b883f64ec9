"""A study of one's own data without a recipe: each run is what ``train --data`` makes of the folder."""

import json
import shutil

import pytest

import factformer
from factformer.cli import main
from factformer.errors import UserError
from factformer.studies.combinations import Study
from factformer.studies.running import run_study
from factformer.training.experiment.defaults import experiment_of_data
from factformer.training.runfolder.folder import RunFolder

SMALL = ["model.dim=8", "training.batch_size=2"]
COSTS = ("seconds_per_sequence", "peak_memory_mb", "training_seconds")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "waves"
    words = ["generate", "burgers", "--out", str(path), "--resolution", "32", "--trajectories", "4"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--preset", "tiny"])
    assert ended.value.code == 0
    return path


@pytest.fixture(scope="module")
def done(folder, tmp_path_factory):
    return factformer.study(
        data=folder,
        models=["factformer", "fno"],
        seeds=2,
        updates=4,
        settings={"": SMALL},
        out=tmp_path_factory.mktemp("study"),
        device="cpu",
    )


def errors_of(rows):
    return [{key: value for key, value in row.items() if key not in COSTS} for row in rows]


def test_every_run_is_what_train_makes_of_the_data(folder, done):
    assert [(row["model"], row["seeds"], row["status"]) for row in done] == [
        ("factformer", 2, "done"),
        ("fno", 2, "done"),
    ]
    assert {row["recipe"] for row in done} == {"waves"}
    one = done.groups[0].ended[1]
    saved = RunFolder(one.folder).read_config()
    changes = [f"data.path={folder}", "model.name=factformer", *SMALL, "training.updates=4", "training.seed=1"]
    assert saved == experiment_of_data(changes)
    assert one.result["split"] == "test"


def test_the_command_finds_the_runs_again(folder, done, capsys):
    words = ["study", "--data", str(folder), "--models", "factformer,fno", "--seeds", "2", "--updates", "4"]
    with pytest.raises(SystemExit) as ended:
        main([*words, *(f"--set={text}" for text in SMALL), "--out", str(done.folder), "--device", "cpu", "--json"])
    assert ended.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == done.rows and all(row["status"] == "done" for row in found["runs"])


def test_a_file_says_the_same_and_moved_data_are_the_same_data(folder, done, tmp_path):
    shutil.copytree(folder, tmp_path / "waves")
    file = tmp_path / "mine.yaml"
    text = f"data: {tmp_path / 'waves'}\nmodels: [factformer, fno]\nseeds: 2\nupdates: 4\nsettings: {{'': {SMALL}}}\n"
    file.write_text(text, encoding="utf-8")
    said = []
    found = run_study(Study.read(file), done.folder, device="cpu", report=said.append)
    assert sum(": found in" in line for line in said) == 4 and found.rows == done.rows


def test_runs_side_by_side_give_the_same_errors(folder, done, tmp_path):
    study = Study.parse({"data": str(folder), "models": ["fno"], "seeds": 2, "updates": 4, "settings": {"": SMALL}})
    assert errors_of(run_study(study, tmp_path, device="cpu", jobs=2).rows) == errors_of(done.rows[1:])


def test_without_a_test_split_the_validation_split_judges(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "waves", ignore=shutil.ignore_patterns("test*"))
    study = Study.parse({"data": str(tmp_path / "waves"), "models": ["fno"], "updates": 1, "settings": {"": SMALL}})
    found = run_study(study, tmp_path / "out", device="cpu")
    assert found.groups[0].ended[0].result["split"] == "valid"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"recipes": ["darcy"]}, "give one of them"),
        ({"data": ""}, "give one of them"),
        ({"data": "nowhere"}, "there is no"),
        ({"scale": "tiny"}, "scale and resolution are for recipes"),
        ({"models": ["fmo"]}, "did you mean 'fno'"),
        ({"settings": {"": ["model.dimm=3"]}}, "dimm"),
    ],
)
def test_a_mistake_is_named_before_anything_begins(folder, tmp_path, changes, said):
    with pytest.raises(UserError, match=said):
        run_study(Study.parse({"data": str(folder), "models": ["fno"], **changes}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_split_to_judge_by_is_named(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "waves", ignore=shutil.ignore_patterns("test*", "valid*"))
    with pytest.raises(UserError, match=r"no test\.hdf5 and no valid\.hdf5"):
        run_study(Study.parse({"data": str(tmp_path / "waves")}), tmp_path / "out")
