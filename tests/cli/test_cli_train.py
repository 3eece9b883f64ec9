"""`factformer train` from the outside: runs, stops, resumes, and names every mistake in one line."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
import torch
import yaml

from commands import run
from factformer import cli, load
from factformer.data import convert
from small_data import generate_small_flow

SMALL = [
    "data.resolution=16",
    "data.num_context_frames=2",
    "model.dim=8",
    "model.depth=1",
    "model.heads=2",
    "model.head_dim=4",
    "model.kernel_dim=4",
    "protocol.marching_steps=2",
    "training.batch_size=2",
    "training.updates=6",
    "training.checkpoint_every=2",
    "training.log_every=2",
    "training.validate_every=4",
]


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Kolmogorov flow on the coarsest grid that holds its force."""
    folder = tmp_path_factory.mktemp("data") / "kolmogorov"
    return generate_small_flow(folder, splits=["train", "valid"], trajectories={"train": 2, "valid": 1})


def words(*arguments, settings=SMALL):
    return ["train", *map(str, arguments), *(word for value in settings for word in ("--set", value))]


def call(capsys, *arguments, settings=SMALL):
    """Exit code, standard output and the complaint of a training."""
    return run(capsys, *words(*arguments, settings=settings))


def complaint(capsys, *arguments, settings=SMALL):
    """The one line that a wrong use is answered with."""
    code, _, error = call(capsys, *arguments, settings=settings)
    lines = error.strip().splitlines()
    assert code == 2, error
    assert len(lines) == 1
    return lines[0]


def read_log(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_train_makes_a_run_and_resume_is_idempotent(capsys, data, tmp_path):
    run = tmp_path / "run"
    code, out, _ = call(capsys, "demo", "--data", data, "--out", run)
    assert code == 0
    assert "bundle" in out
    assert [line["update"] for line in read_log(run)] == [2, 4, 6]
    assert {"update", "loss", "seconds"} <= read_log(run)[0].keys()
    environment = json.loads((run / "environment.json").read_text())
    assert environment["versions"]["torch"] == torch.__version__
    made_with = load(run).provenance["data_parameters"]
    assert (made_with["reynolds"], made_with["forcing_wavenumber"]) == (1000.0, 8)
    weights = (run / "bundle" / "model.safetensors").read_bytes()
    code, out, _ = call(capsys, "--out", run, "--resume", "--json", settings=[])
    assert code == 0
    assert json.loads(out)["finished"]
    assert (run / "bundle" / "model.safetensors").read_bytes() == weights


def test_a_time_limit_ends_with_exit_code_three_and_resume_with_zero(capsys, data, tmp_path):
    run = tmp_path / "run"
    code, out, _ = call(capsys, "demo", "--data", data, "--out", run, "--max-minutes", "1e-9", "--json")
    assert code == 3
    assert not json.loads(out)["finished"]
    assert call(capsys, "--out", run, "--resume", settings=[])[0] == 0
    assert "finite" in complaint(capsys, "--out", run, "--resume", "--max-minutes", "inf", settings=[])


def test_resume_leaves_a_bundle_that_somebody_copied_there(capsys, data, tmp_path):
    assert call(capsys, "demo", "--data", data, "--out", tmp_path / "run")[0] == 0
    shutil.copytree(tmp_path / "run" / "bundle", tmp_path / "d" / "bundle")
    line = complaint(capsys, "demo", "--data", data, "--out", tmp_path / "d", "--resume")
    assert "no checkpoint to resume from, but holds bundle" in line
    assert sorted(path.name for path in (tmp_path / "d").rglob("*")) == ["bundle", "bundle.json", "model.safetensors"]


def test_a_key_of_another_protocol_is_refused(capsys, data, tmp_path):
    settings = [*SMALL, "protocol.name=autoregressive"]
    line = complaint(capsys, "demo", "--data", data, "--out", tmp_path / "run", settings=settings)
    assert "unknown key 'protocol.marching_steps'" in line
    assert "(protocol.name=autoregressive)" in line


def test_a_run_of_the_first_edition_is_resumed(capsys, data, tmp_path):
    """It saved the keys of all protocols, and its checkpoints no settings."""
    run = tmp_path / "run"
    settings = [*(s for s in SMALL if "protocol" not in s), "protocol.name=autoregressive"]
    assert call(capsys, "demo", "--data", data, "--out", run, settings=settings)[0] == 0
    saved = yaml.safe_load((run / "config.yaml").read_text())
    saved["protocol"] |= {"marching_steps": 1, "curriculum": 0.06, "pushforward": 1, "pushforward_from": 0.5}
    saved["protocol"] |= {"pushforward_every": 3, "calls": 1, "calls_from": 0.0}
    (run / "config.yaml").write_text(yaml.safe_dump(saved, sort_keys=False))
    code, _, error = call(capsys, run / "config.yaml", "--out", run, "--resume", settings=[])
    assert code == 0, error


def test_another_model_and_protocol_by_name(capsys, data, tmp_path):
    settings = [
        "model.name=dilated_resnet",
        "protocol.name=autoregressive",
        "model.norm_groups=2",
        *(s for s in SMALL if not s.startswith(("model.h", "model.k", "protocol"))),
    ]
    code, _, error = call(capsys, "demo", "--data", data, "--out", tmp_path / "run", settings=settings)
    assert code == 0, error
    assert read_log(tmp_path / "run")[-1]["unroll"] == 2


def test_one_window_is_learnt_to_under_one_percent(capsys, data, tmp_path):
    settings = [
        "data.resolution=16",
        "data.num_context_frames=2",
        "data.stride=1000",
        "model.dim=48",
        "model.depth=2",
        "model.heads=4",
        "model.kernel_dim=16",
        "model.residual=true",
        "protocol.marching_steps=1",
        "protocol.pushforward=0",
        "training.batch_size=2",
        "training.updates=250",
        "training.learning_rate=4e-3",
        "training.augment=false",
        "training.ema_decay=null",
        "training.checkpoint_every=1000",
        "training.validate_every=1000",
        "training.log_every=5",
    ]
    code, _, error = call(capsys, "demo", "--data", data, "--out", tmp_path / "run", settings=settings)
    assert code == 0, error
    assert read_log(tmp_path / "run")[-1]["loss"] < 0.01


def test_bad_settings(capsys, data, tmp_path):
    arguments = ("demo", "--data", data, "--out", tmp_path / "run")
    assert "training.updates" in complaint(capsys, *arguments, settings=["training.update=3"])
    assert "did you mean 'demo'" in complaint(capsys, "dem0", "--data", data)
    assert "ddp" in complaint(capsys, *arguments, "--strategy", "horovod")
    assert "recipe" in complaint(capsys, "--out", tmp_path / "run")
    assert "32-true" in complaint(capsys, *arguments, "--precision", "64")
    assert "multiple" in complaint(capsys, *arguments, settings=[*SMALL, "training.accumulate=4"])
    assert not (tmp_path / "run").exists()


def test_a_gpu_that_is_not_there(capsys, data, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    line = complaint(capsys, "demo", "--data", data, "--out", tmp_path / "run", "--device", "cuda")
    assert "GPU" in line
    assert "--device cpu" in line


def test_data_that_do_not_fit(capsys, data, tmp_path):
    run = ("--out", tmp_path / "run")
    assert "generate kolmogorov_flow" in complaint(capsys, "demo", "--data", tmp_path / "none", *run)
    line = complaint(capsys, "demo", "--data", data, *run, settings=["data.resolution=32"])
    assert "the train split of" in line
    assert "grid (32, 32) expected, (16, 16) found" in line
    assert "--set data.resolution=null takes the data as they are; or choose other --data" in line
    line = complaint(capsys, "turbulence", "--data", data, *run, settings=["data.resolution=16"])
    assert "fields" in line
    assert "data.resolution=null" not in line
    assert "pressure" in line
    other = generate_small_flow(tmp_path / "other", splits=["valid"], trajectories=1)
    assert "no train split" in complaint(capsys, "demo", "--data", other, *run)
    assert not (tmp_path / "run").exists()


def edited(data, folder, change):
    """A copy of the dataset whose training file is somebody else's: without our attributes, and changed."""
    folder.mkdir()
    for file in data.iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    with h5py.File(folder / "train.hdf5", "r+") as file:
        for mark in ("fingerprint", "problem", "factformer_version"):
            del file.attrs[mark]
        change(file)
    return folder


def test_data_with_nan(capsys, data, tmp_path):
    def spoil(file):
        values = file["t0_fields/vorticity"]
        values[1, 3, 0, 0] = np.nan

    folder = edited(data, tmp_path / "data", spoil)
    line = complaint(capsys, "demo", "--data", folder, "--out", tmp_path / "run")
    assert "NaN" in line
    assert "trajectory 1" in line


def test_data_with_another_frame_interval(capsys, data, tmp_path):
    def stretch(file):
        file["dimensions/time"][...] *= 2

    folder = edited(data, tmp_path / "data", stretch)
    line = complaint(capsys, "demo", "--data", folder, "--out", tmp_path / "run")
    assert "frame interval" in line


def test_resume_under_another_configuration_or_from_damage(capsys, data, tmp_path):
    run = tmp_path / "run"
    assert call(capsys, "demo", "--data", data, "--out", run)[0] == 0
    assert "--resume" in complaint(capsys, "demo", "--data", data, "--out", run)
    resume = ("--out", run, "--resume")
    assert "model.dim is 8 there and 16 here" in complaint(capsys, "demo", *resume, settings=["model.dim=16"])
    assert "'demo', not 'darcy'" in complaint(capsys, "darcy", *resume, settings=[])
    assert "no run" in complaint(capsys, "--resume", "--out", tmp_path / "none", settings=[])
    other = tmp_path / "other.yaml"
    other.write_text("problem: kolmogorov_flow\nmodel: {name: factformer, dim: 99}\n")
    assert "was trained with another configuration" in complaint(capsys, other, *resume, settings=[])
    assert "leave out --scale" in complaint(capsys, other, "--scale", "paper", "--out", tmp_path / "new", settings=[])
    last = sorted((run / "checkpoints").iterdir())[-1]
    content = bytearray((last / "tensors.safetensors").read_bytes())
    content[-5] ^= 1
    (last / "tensors.safetensors").write_bytes(content)
    line = complaint(capsys, "demo", *resume, settings=[])
    assert "corrupted" in line
    assert str(last) in line


def test_a_run_whose_data_have_moved_goes_on_and_keeps_where_they_are(capsys, data, tmp_path):
    shutil.copytree(data, tmp_path / "before")
    run = tmp_path / "run"
    assert call(capsys, "demo", "--data", tmp_path / "before", "--out", run)[0] == 0
    (tmp_path / "before").rename(tmp_path / "after")
    with pytest.raises(SystemExit):
        cli.main(["evaluate", str(run), "--split", "valid"])
    line = capsys.readouterr().err
    assert "no data at" in line and "--data DIR" in line
    assert call(capsys, "--data", tmp_path / "after", "--out", run, "--resume", settings=[])[0] == 0
    assert yaml.safe_load((run / "config.yaml").read_text())["data"]["path"] == str(tmp_path / "after")


def test_a_run_on_own_data_goes_on_whatever_resolution_it_has_noted(capsys, tmp_path):
    flow, run = {"name": "flow", "num_axes": 1, "state": {"u": 1}, "periodic": True}, tmp_path / "run"
    np.save(tmp_path / "flow.npy", np.random.default_rng(0).normal(size=(2, 8, 12)))
    convert(tmp_path / "flow.npy", tmp_path / "data", flow, settings=["num_context_frames=2"])
    (tmp_path / "flow.yaml").write_text("problem: flow\nmodel: {name: factformer}\n")
    given = (tmp_path / "flow.yaml", "--data", tmp_path / "data", "--out", run)
    assert call(capsys, *given, settings=SMALL[2:])[0] == 0
    assert call(capsys, "--out", run, "--resume", settings=["data.resolution=12"])[0] == 0
    assert "are on (12,) points" in complaint(capsys, "--out", run, "--resume", settings=["data.resolution=24"])
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("resolution: null", "resolution: 64"))  # once the default
    assert "--set data.resolution=null" in complaint(capsys, "--out", run, "--resume", settings=[])
    code, _, error = call(capsys, "--out", run, "--resume", settings=["data.resolution=null"])
    assert code == 0, error
    assert "data.resolution is 64 there and 12 here" in complaint(
        capsys, "--out", run, "--resume", settings=["data.resolution=12"]
    )


def test_a_full_disk(capsys, data, tmp_path, monkeypatch):
    from factformer.training.runfolder import checkpoint

    def no_space(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint, "save_file", no_space)
    line = complaint(capsys, "demo", "--data", data, "--out", tmp_path / "run", "--quiet")
    assert "disk is full" in line


def test_out_of_memory(capsys, data, tmp_path, monkeypatch):
    from factformer.training.loop import trainer

    def starved(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(trainer, "train_step", starved)
    line = complaint(capsys, "demo", "--data", data, "--out", tmp_path / "run", "--quiet")
    assert "training.batch_size=1" in line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_process_well_and_says_how_to_go_on(data, tmp_path, number):
    run = tmp_path / "run"
    settings = [*(s for s in SMALL if "updates" not in s), "training.updates=100000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "factformer.cli", *words("demo", "--data", data, "--out", run, settings=settings)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (run / "metrics.jsonl").exists():
        time.sleep(0.05)
    process.send_signal(number)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 3, error
    assert f"--resume --out {run}" in out
    assert len(out.strip().splitlines()) == 1
    stopped = int(out.split("update ")[1].split()[0])
    assert sorted((run / "checkpoints").iterdir())[-1].name == f"update-{stopped:08d}"


WITHOUT_RECIPE = [setting for setting in SMALL if not setting.startswith(("data.", "protocol."))]


def test_data_alone_are_trained_as_fit_does(capsys, data, tmp_path):
    from factformer import fit
    from factformer.data.store import open_dataset

    run = tmp_path / "run"
    code, out, _ = call(capsys, "--data", data, "--out", run, "--quiet", settings=WITHOUT_RECIPE)
    assert (code, "trained 6 updates" in out) == (0, True)
    settings = dict(setting.split("=") for setting in WITHOUT_RECIPE if "updates" not in setting)
    train, valid = (open_dataset(data, split) for split in ("train", "valid"))
    same = fit(train, valid=valid, updates=6, settings=settings, progress=False)
    trained = load(run)
    assert trained.config == same.config
    assert trained.config.name == "factformer_plus"
    pairs = zip(trained.parameters(), same.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_finished_run_is_prolonged_and_fine_tuned(capsys, data, tmp_path):
    run, finer = tmp_path / "run", tmp_path / "finer"
    call(capsys, "--data", data, "--out", run, "--quiet", settings=WITHOUT_RECIPE)
    code, out, err = call(capsys, "--resume", "--out", run, settings=["training.updates=8"])
    assert (code, "trained 8 updates" in out) == (0, True)
    assert "training.updates was 6 and is 8 now" in err
    code, out, err = call(capsys, "--data", data, "--init", run, "--out", finer, settings=["training.updates=2"])
    assert (code, "trained 2 updates" in out) == (0, True)
    assert load(finer).config == load(run).config
    assert "began with" in err


def test_without_recipe_and_data_both_are_asked_for(capsys, data, tmp_path):
    assert "or give --data DIR" in complaint(capsys, settings=[])
    assert "there is no data at nowhere" in complaint(capsys, "--data", "nowhere", "--out", tmp_path / "r", settings=[])
    assert "--scale is for recipes" in complaint(capsys, "--data", data, "--scale", "small", settings=[])
    assert "there is no bundle at nowhere" in complaint(capsys, "--data", data, "--init", "nowhere", settings=[])


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.softmax=true", "model.softmax needs whole rows"),
        ("training.gradient_loss=0.1", "training.gradient_loss compares neighbours"),
        ("training.batch_size=3", "multiple of devices"),
    ],
)
def test_what_processes_cannot_share_is_refused_before_they_start(capsys, data, tmp_path, monkeypatch, setting, words):
    monkeypatch.setattr("factformer.training.loop.train.start", lambda *_: pytest.fail("processes were started"))
    sharing = ["--devices", 2] if "batch" in setting else ["--domain", 2]
    line = complaint(capsys, "demo", "--data", data, "--out", tmp_path / "run", *sharing, settings=[*SMALL, setting])
    assert words in line
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_several_processes_warn_of_nothing(data, tmp_path):
    """Of the strides of a kernel of length 1, PyTorch does."""
    sharing = ["--devices", "2", "--device", "cpu", "--quiet"]
    command = [sys.executable, "-m", "factformer", *words("demo", "--data", data, "--out", tmp_path / "run", *sharing)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_key_without_its_section_is_suggested_with_it(capsys, data, tmp_path):
    for key in ("num_context_frames", "problem.num_context_frames", "dta.num_context_frames"):
        line = complaint(capsys, "demo", "--data", data, "--out", tmp_path / "run", "--set", f"{key}=2")
        assert line.endswith(f"unknown key '{key}'; did you mean 'data.num_context_frames'?")
    lists = [
        complaint(capsys, "demo", "--data", data, "--out", tmp_path / "run", "--set", f"{key}=2").partition("Choices")[
            2
        ]
        for key in ("nothing", "nothing.such")
    ]
    assert lists[0] == lists[1] != ""
