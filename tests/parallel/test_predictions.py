"""Predictions on a cut grid are those on a whole one: by several processes, and by one that takes piece after piece."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
from prediction_cases import CASES, case, difference, predicted

from factformer import Field, Grid, Problem, build_surrogate
from factformer.bundle import save_bundle
from factformer.data.layout import Contents
from factformer.data.writer import SplitWriter
from factformer.errors import UserError
from factformer.parallel.turns import in_pieces
from factformer.training.cut_predictions import Sharing

SCRIPT = Path(__file__).with_name("prediction_cases.py")


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_one_process_predicts_piece_after_piece(name, offload):
    surrogate, batch = case(name)
    whole = predicted(surrogate, batch)
    for count in (2, 4):
        with in_pieces(surrogate, count, offload=offload):
            assert difference(predicted(surrogate, batch), whole) < 1e-10
    assert surrogate.implementation is None
    assert torch.equal(predicted(surrogate, batch), whole)


def test_pieces_keep_to_the_number_format_of_the_call():
    surrogate, batch = case("factformer_plus on a square", torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        whole = predicted(surrogate, batch)
        with in_pieces(surrogate, 2, offload=True):
            ours = predicted(surrogate, batch)
    assert ours.dtype == whole.dtype
    assert difference(ours, predicted(surrogate, batch)) > 1e-4  # rounded as the whole grid is
    assert difference(ours, whole) < 0.05


def test_waiting_pieces_hold_nothing_on_the_device(monkeypatch):
    surrogate, batch = case("dilated_resnet")
    from factformer.parallel import turns

    held = []

    def counted(self, put_away=turns.HeldFields.put_away):
        put_away(self)
        tables = {id(t.untyped_storage()) for cache in self._caches for row in cache.tables.values() for t in row}
        held.append(sum(s.nbytes() for s in self._made if id(s) not in tables))

    monkeypatch.setattr(turns.HeldFields, "put_away", counted)
    with in_pieces(surrogate, 3, offload=True):
        predicted(surrogate, batch)
    assert len(held) > 10
    assert set(held) == {0}


def test_a_piece_that_fails_ends_the_others(monkeypatch):
    surrogate, batch = case("dilated_resnet")
    plain = type(surrogate).predict
    calls = []

    def broken(self, part, steps, grid):
        calls.append(grid)
        if len(calls) == 2:
            raise MemoryError("no more room")
        return plain(self, part, steps, grid)

    monkeypatch.setattr(type(surrogate), "predict", broken)
    with in_pieces(surrogate, 3):
        with pytest.raises(MemoryError, match="no more room"):
            predicted(surrogate, batch)
        monkeypatch.undo()
        ours = predicted(surrogate, batch)  # and the next call begins anew
    assert difference(ours, predicted(surrogate, batch)) < 1e-10
    assert threading.active_count() < 10


def test_what_cannot_be_cut_is_refused():
    problem = Problem("cut", Grid((16, 16), 1.0, True), (Field("u"),))
    with pytest.raises(UserError, match="'fno' cannot be cut"), in_pieces(build_surrogate(problem, "fno", dim=8), 2):
        pass
    with pytest.raises(UserError, match="--devices 1 for one part after the other"):
        Sharing(4, 2)


def test_what_cannot_be_cut_is_refused_before_processes_start(monkeypatch):
    problem = Problem("cut", Grid((16, 16), 1.0, True), (Field("u"),))
    monkeypatch.setattr("factformer.training.cut_predictions.start", lambda *_: pytest.fail("processes were started"))
    sharing = Sharing(2, device="cpu")
    with pytest.raises(UserError, match="'fno' cannot be cut"), sharing.applied(build_surrogate(problem, "fno", dim=8)):
        pass


@pytest.mark.parametrize("size", [2, 4])
def test_processes_predict_together(tmp_path, size):
    words = [sys.executable, str(SCRIPT), str(tmp_path / "rendezvous")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([*words, str(rank), str(size)], **pipes) for rank in range(size)]
    answers = [process.communicate(timeout=300) for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(error[-3000:] for _, error in answers)
    found = json.loads(answers[0][0].splitlines()[-1])
    assert len(found) == 2 * len(CASES)
    far = {name: value for name, value in found.items() if value > (1e-10 if "float64" in name else 1e-5)}
    assert far == {}


@pytest.mark.slow
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_lost_process_ends_the_others_in_one_line(tmp_path, rank):
    script = SCRIPT.with_name("lost_run.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), rank], capture_output=True, text=True, timeout=300, check=False
    )
    other = int((tmp_path / f"{1 - int(rank)}.pid").read_text(encoding="utf-8"))
    while Path(f"/proc/{other}").exists() and time.time() - (tmp_path / "died").stat().st_mtime < 30:
        time.sleep(0.1)
    assert time.time() - (tmp_path / "died").stat().st_mtime < 30
    assert done.returncode == (1 if rank == "1" else -signal.SIGKILL), done.stdout + done.stderr
    if rank == "1":
        assert "a process that predicts a part of the grid was lost; start again" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr


@pytest.fixture
def bundle(tmp_path):
    problem = Problem("cut", Grid((16, 12), 1.0, True), (Field("u"),), num_context_frames=2, horizon=3, frame_dt=0.1)
    torch.manual_seed(0)
    sizes = {"dim": 8, "depth": 1, "heads": 2, "head_dim": 4, "kernel_dim": 4}
    save_bundle(build_surrogate(problem, "factformer_plus", marching_steps=2, **sizes), tmp_path / "bundle")
    return tmp_path / "bundle"


def command(*words, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "factformer", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_the_command_rollout_cuts_the_grid(bundle, tmp_path):
    context = np.random.default_rng(0).standard_normal((2, 2, 16, 12, 1)).astype(np.float32)
    np.save(tmp_path / "context.npy", context)
    files = sorted((file.name, file.read_bytes()) for file in bundle.iterdir())
    found = []
    for number, options in enumerate([[], ["--domain", 3, "--devices", 1], ["--domain", 2]]):
        out = tmp_path / f"{number}.npy"
        words = ["--input", tmp_path / "context.npy", "--frames", 4, "--device", "cpu", "--out", out, *options]
        done = command("rollout", bundle, *words)
        assert done.stdout.count("frames (2, 4, 16, 12, 1)") == 1  # the first process alone says so
        found.append(np.load(out))
    for ours in found[1:]:
        np.testing.assert_allclose(ours, found[0], rtol=0, atol=1e-5 * np.abs(found[0]).max())
    assert files == sorted((file.name, file.read_bytes()) for file in bundle.iterdir())


@pytest.mark.slow
def test_the_command_evaluate_cuts_the_grid(bundle, tmp_path):
    problem = Problem("cut", Grid((16, 12), 1.0, True), (Field("u"),), num_context_frames=2, horizon=3, frame_dt=0.1)
    frames = torch.randn(3, 7, 16, 12, 1, generator=torch.Generator().manual_seed(2))
    for split in ("train", "test"):
        writer = SplitWriter(tmp_path / "data" / f"{split}.hdf5", Contents(problem, split, 3, 7))
        writer.prepare()
        for batch in writer.pending(3):
            with writer.batch(batch) as output:
                for frame in frames.unbind(1):
                    output.write(frame.numpy())
        writer.finish()
    found = []
    for number, options in enumerate([[], ["--domain", 2], ["--domain", 3, "--devices", 1]]):
        words = ["--data", tmp_path / "data", "--device", "cpu", "--no-figures", "--json", *options]
        done = command("evaluate", bundle, *words, "--out", tmp_path / f"out{number}")
        found.append((json.loads(done.stdout), np.load(tmp_path / f"out{number}" / "rollouts.npz")))
    (alone, kept), *others = found
    for ours, rolled in others:
        assert ours["fields"]["u"]["relative_l2_per_frame"] == pytest.approx(
            alone["fields"]["u"]["relative_l2_per_frame"], rel=1e-5
        )
        assert ours["num_windows"] == alone["num_windows"]
        np.testing.assert_allclose(rolled["prediction"], kept["prediction"], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_the_processes_of_a_cut_grid_answer_requests_together(bundle):
    """They wait between requests, and end with the server."""
    pytest.importorskip("starlette")
    words = [sys.executable, "-m", "factformer", "serve", str(bundle), "--port", "0", "--device", "cpu", "--json"]
    context = np.random.default_rng(0).standard_normal((1, 2, 16, 12, 1)).astype(np.float32)
    body = io.BytesIO()
    np.savez(body, context=context, num_frames=4)
    answers = []
    for options in ([], ["--domain", "2"]):
        server = subprocess.Popen([*words, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            text = ""
            while not text.endswith("}\n"):
                text += server.stdout.readline()
            url = json.loads(text)["url"]
            for _ in range(2):
                request = urllib.request.Request(f"{url}predict", body.getvalue())
                with urllib.request.urlopen(request, timeout=60) as response:
                    answer = np.load(io.BytesIO(response.read()))["frames"]
            answers.append(answer)
        finally:
            server.send_signal(signal.SIGINT)
            _, errors = server.communicate(timeout=60)
        assert server.returncode == 0, errors
    np.testing.assert_allclose(answers[1], answers[0], rtol=0, atol=1e-5 * np.abs(answers[0]).max())


@pytest.mark.slow
def test_a_server_that_waits_ends_in_one_line_with_a_process_that_is_killed(bundle):
    pytest.importorskip("starlette")
    words = ["serve", str(bundle), "--port", "0", "--device", "cpu", "--domain", "2"]
    server = subprocess.Popen(
        [sys.executable, "-m", "factformer", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert "serving" in server.stdout.readline()
        (other,) = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text(encoding="utf-8").split()
        os.kill(int(other), signal.SIGKILL)
        _, errors = server.communicate(timeout=60)
    finally:
        server.kill()
    assert (server.returncode, errors.count("\n")) == (1, 1), errors
    assert errors.startswith("factformer: process 1 of the job failed")
