"""What may go wrong while data are made or read: nothing finished is lost, one line says what happened."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fake_pdes import Decay, Doubling

from factformer._support import files
from factformer._support.files import whole_file
from factformer.cli import describe
from factformer.config import Config
from factformer.data import convert, generate, open_dataset, trajectory_seed
from factformer.data.layout import offsets
from factformer.data.writer import SplitWriter
from factformer.errors import UserError

HERE = Path(__file__).parent
PYTHONPATH = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])

SLOW_GENERATION = """
import sys, time
from fake_pdes import Decay
from factformer.data import generate

class SlowDecay(Decay):
    def frames(self, *arguments):
        for frame in super().frames(*arguments):
            time.sleep(0.02)
            yield frame

generate(SlowDecay(), sys.argv[1], batch_size=1)
"""


def run_script(text: str, *arguments: str | Path, **options) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", text, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, **options)


def kill_after(out: Path, num_batches: int, delay: float) -> None:
    """Start generation, wait for some finished batches and a little more, and kill -9 it."""
    process = run_script(SLOW_GENERATION, out)
    deadline = time.monotonic() + 60
    while process.poll() is None and not (
        list(out.glob(".*/data.hdf5")) and len(list(out.glob(".*/*.json"))) >= num_batches
    ):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_killed_and_started_again_gives_the_same_bytes(decay, tmp_path: Path) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    generate(decay, straight)
    kill_after(killed, num_batches=2, delay=0.05)
    assert not (killed / "train.hdf5").exists()
    finished = sorted(killed.glob(".train.hdf5.partial/*.json"))
    assert 2 <= len(finished) < 7
    solved = []

    class Watched(Decay):
        def frames(self, initial, *arguments) -> Iterator[torch.Tensor]:
            solved.append(len(initial))
            return super().frames(initial, *arguments)

    generate(Watched(), killed, batch_size=1)
    assert sum(solved) == 12 - len(finished)  # what was finished is not solved again
    for split in ("train", "valid", "test"):
        assert (straight / f"{split}.hdf5").read_bytes() == (killed / f"{split}.hdf5").read_bytes()
    assert sorted(path.name for path in killed.iterdir()) == sorted(path.name for path in straight.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(20))
def test_killed_at_many_moments_gives_the_same_bytes(decay, tmp_path: Path, moment: int) -> None:
    generate(decay, tmp_path / "straight")
    killed = tmp_path / "killed"
    for _ in range(2):
        kill_after(killed, num_batches=0, delay=0.085 * moment)
    generate(decay, killed)
    for split in ("train", "valid", "test"):
        assert (tmp_path / "straight" / f"{split}.hdf5").read_bytes() == (killed / f"{split}.hdf5").read_bytes()


def test_two_processes_share_the_work_and_give_the_same_bytes(decay, tmp_path: Path) -> None:
    generate(decay, tmp_path / "one", splits=["train"], batch_size=2)
    script = tmp_path / "work.py"
    script.write_text(
        "import os, sys\n"
        "from fake_pdes import Decay\n"
        "from factformer.data import generate\n"
        "class Told(Decay):\n"
        "    def frames(self, initial, *arguments):\n"
        "        open(f\"{sys.argv[2]}.{os.environ['RANK']}\", 'a').write(f'{len(initial)}\\n')\n"
        "        return super().frames(initial, *arguments)\n"
        "generate(Told(), sys.argv[1], splits=['train'], batch_size=2)\n"
    )
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--master-port=0",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=localhost:0",
        str(script),
        str(tmp_path / "two"),
        str(tmp_path / "told"),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "one" / "train.hdf5").read_bytes() == (tmp_path / "two" / "train.hdf5").read_bytes()
    shares = [(tmp_path / f"told.{rank}").read_text().split() for rank in (0, 1)]
    assert [len(share) for share in shares] == [2, 2]


class BlowsUp(Decay):
    """Trajectory 4 of the training split turns to NaN at its last frame."""

    def frames(self, initial: torch.Tensor, num_frames: int, frame_dt: float, parameters: Config):
        bad = torch.randn(
            12,
            12,
            3,
            generator=torch.Generator().manual_seed(trajectory_seed(0, "train", 4)),
            dtype=torch.float64,
        ) + torch.tensor([1.0, 2.0, 3.0])
        for index, frame in enumerate(super().frames(initial, num_frames, frame_dt, parameters)):
            hit = (initial - bad.float()).abs().flatten(1).amax(1) == 0
            if index == num_frames - 1:
                frame = torch.where(hit.reshape(-1, 1, 1, 1), torch.nan, frame)
            yield frame


def test_blow_up_is_named_by_index_and_seed_and_keeps_finished_batches(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        generate(BlowsUp(), tmp_path, splits=["train"], batch_size=3)
    message = str(error.value)
    assert f"trajectory 4 (seed {trajectory_seed(0, 'train', 4)})" in message
    assert "frame 4" in message
    assert "\n" not in message
    assert [path.name for path in tmp_path.glob(".train.hdf5.partial/*.json")] == ["00000000-00000003.json"]
    assert not (tmp_path / "train.hdf5").exists()
    with pytest.raises(UserError, match="interrupted, start it again"):
        open_dataset(tmp_path)


def test_full_disk_in_the_middle_is_one_line_and_the_run_goes_on_later(decay, tmp_path: Path, monkeypatch) -> None:
    generate(decay, tmp_path / "straight", splits=["train"])
    write, calls = os.pwrite, []

    def full(descriptor: int, content, offset: int) -> int:
        calls.append(len(content))
        if len(calls) > 50:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(UserError, match=r"disk is full .*finished batches are kept") as error:
        generate(decay, tmp_path / "full", splits=["train"])
    assert "\n" not in str(error.value)
    assert not (tmp_path / "full" / "train.hdf5").exists()
    assert len(list((tmp_path / "full").glob(".train.hdf5.partial/*.json"))) == 1
    monkeypatch.undo()
    generate(decay, tmp_path / "full", splits=["train"])
    assert (tmp_path / "full" / "train.hdf5").read_bytes() == (tmp_path / "straight" / "train.hdf5").read_bytes()


def test_file_size_limit_of_the_system_is_one_line(tmp_path: Path) -> None:
    limited = (
        "import resource, sys\n"
        "from fake_pdes import Decay\n"
        "from factformer.data import generate\n"
        "from factformer.errors import UserError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))\n"
        "try:\n"
        "    generate(Decay(), sys.argv[1])\n"
        "except UserError as error:\n"
        "    print('UserError:', error, file=sys.stderr)\n"
    )
    process = run_script(limited, tmp_path / "out")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "disk is full" in errors
    assert errors.startswith("UserError:")
    assert len(errors.splitlines()) == 1
    assert not list((tmp_path / "out").glob("*"))


def test_too_little_space_is_said_before_anything_is_solved(decay, tmp_path: Path, monkeypatch) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(UserError, match=r"disk full: .* needs 15.1 kB, only 1 kB are free"):
        generate(decay, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_folder_that_cannot_be_written_is_one_line(decay, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="is a file, not a folder"):
        generate(decay, tmp_path / "file" / "out")

    def refuse(*_, **__) -> None:  # as root nothing is forbidden, so the system's answer is made up
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError, match="Permission denied"):
        generate(decay, tmp_path / "out")


def test_truncated_and_foreign_files_are_named(decay, tmp_path: Path) -> None:
    generate(decay, tmp_path, splits=["train"])
    path = tmp_path / "train.hdf5"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"train\.hdf5 is truncated"):
        open_dataset(tmp_path)
    path.write_bytes(b"no HDF5")
    with pytest.raises(UserError, match="not an HDF5 file"):
        open_dataset(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        open_dataset(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"no test split .* it holds train"):
        open_dataset(tmp_path, "test")


def test_another_problem_is_refused(decay, doubling, tmp_path: Path) -> None:
    generate(decay, tmp_path, splits=["train"])
    with pytest.raises(UserError, match="of another problem: fields"):
        generate(doubling, tmp_path, splits=["test"])
    with pytest.raises(UserError, match="of another problem: grid"):
        generate(decay, tmp_path, splits=["test"], resolution=4)
    with pytest.raises(UserError, match=r"made with rate=0\.5, asked for 1\.0"):
        generate(decay, tmp_path, splits=["test"], parameters={"rate": 1.0})
    with pytest.raises(UserError, match="do not fit 'doubling': fields"):
        open_dataset(tmp_path).require(doubling.problem(6))
    assert [path.name for path in tmp_path.glob("*.hdf5")] == ["train.hdf5"]
    generate(decay, tmp_path, splits=["test"], trajectories=1, seed=3)


def test_nothing_is_overwritten_unless_asked(decay, tmp_path: Path) -> None:
    generate(decay, tmp_path, splits=["train"])
    before = (tmp_path / "train.hdf5").read_bytes()
    generate(decay, tmp_path, splits=["train"])  # the same again: left alone
    with pytest.raises(UserError, match="exists already"):
        generate(decay, tmp_path, splits=["train"], seed=1)
    assert (tmp_path / "train.hdf5").read_bytes() == before
    generate(decay, tmp_path, splits=["train"], seed=1, overwrite=True)
    assert (tmp_path / "train.hdf5").read_bytes() != before


def test_unfinished_work_of_other_settings_is_not_mixed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="NaN"):
        generate(BlowsUp(), tmp_path, splits=["train"])
    with pytest.raises(UserError, match="unfinished work of other settings"):
        generate(Decay(), tmp_path, splits=["train"], seed=1)
    generate(Decay(), tmp_path, splits=["train"], seed=1, overwrite=True)
    generate(Decay(), tmp_path / "fresh", splits=["train"], seed=1)
    assert (tmp_path / "train.hdf5").read_bytes() == (tmp_path / "fresh" / "train.hdf5").read_bytes()


def test_damaged_batches_are_noticed_and_made_again(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="NaN"):
        generate(BlowsUp(), tmp_path / "damaged", splits=["train"], batch_size=1)
    partial = tmp_path / "damaged" / ".train.hdf5.partial" / "data.hdf5"
    where = offsets(partial)["t0_fields/pressure"]
    with open(partial, "r+b") as file:
        file.seek(where)
        file.write(b"\x55" * 16)
    generate(Decay(), tmp_path / "damaged", splits=["train"])
    generate(Decay(), tmp_path / "fresh", splits=["train"])
    assert (tmp_path / "damaged" / "train.hdf5").read_bytes() == (tmp_path / "fresh" / "train.hdf5").read_bytes()


def test_a_second_writer_is_turned_away(decay, tmp_path: Path) -> None:
    class Nosy(Decay):
        def frames(self, *arguments):
            with pytest.raises(UserError, match="another process is writing"):
                generate(Decay(), tmp_path, splits=["train"])
            return super().frames(*arguments)

    generate(Nosy(), tmp_path, splits=["train"], batch_size=7)
    assert open_dataset(tmp_path).num_trajectories == 7


def test_the_folder_of_work_that_is_left_of_a_finished_split_goes_with_the_next_command(decay, tmp_path: Path) -> None:
    generate(decay, tmp_path, splits=["train"])
    before = (tmp_path / "train.hdf5").read_bytes()
    (tmp_path / ".train.hdf5.partial").mkdir()
    generate(decay, tmp_path, splits=["train"])
    assert not (tmp_path / ".train.hdf5.partial").exists()
    assert (tmp_path / "train.hdf5").read_bytes() == before


@pytest.mark.parametrize("command", ["generate", "convert"])
def test_what_a_killed_command_left_of_the_statistics_goes_with_the_next_one(
    decay, tmp_path: Path, monkeypatch, command: str
) -> None:
    generate(decay, tmp_path / "a", splits=["train"])
    ended = subprocess.Popen(["true"])
    ended.wait()
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "getpid", lambda: ended.pid)
        mark = files._process_mark()
    folder = tmp_path / ("a" if command == "generate" else "b")
    folder.mkdir(exist_ok=True)
    left = folder / f".stats.yaml.{mark}.tmp"
    left.write_text("torn", encoding="utf-8")
    if command == "generate":
        generate(decay, folder, splits=["train"])
    else:
        convert(tmp_path / "a" / "train.hdf5", folder / "train.hdf5")
    assert not left.exists()


def test_a_mistake_that_stops_the_first_batch_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="forcing_wavenumber"):
        generate("kolmogorov_flow", tmp_path, preset="tiny", splits=["train"], settings=["forcing_wavenumber=40"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), OSError("262144 requested and 76768 written")]
)
def test_a_full_disk_leaves_no_half_file_and_is_named(tmp_path: Path, error: OSError) -> None:
    """NumPy says it in words of its own."""
    target = tmp_path / "new" / "frames.npy"

    def write() -> None:
        with whole_file(target) as partial:
            partial.write_bytes(b"half")
            raise error

    with pytest.raises(UserError, match=r"the disk is full while writing .*frames\.npy"):
        write()
    assert list(target.parent.iterdir()) == []
    with whole_file(target) as partial:
        partial.write_bytes(b"whole")
    assert [path.read_bytes() for path in target.parent.iterdir()] == [b"whole"]
    code, line = describe(error)
    assert (code, "disk is full" in line) == (2, True)


def test_a_split_that_another_process_finishes_meanwhile_is_left_as_it_is(decay, tmp_path: Path, monkeypatch) -> None:
    """The lock is taken before anything is looked at, so nobody solves for what is there by then."""
    real = SplitWriter.lock

    def late(writer: SplitWriter) -> None:
        monkeypatch.setattr(SplitWriter, "lock", real)
        generate(decay, tmp_path, splits=["train"])
        real(writer)

    class Idle(Decay):
        def frames(self, *arguments) -> Iterator[torch.Tensor]:
            raise AssertionError("solved again")

    monkeypatch.setattr(SplitWriter, "lock", late)
    generate(Idle(), tmp_path, splits=["train"])
    assert not (tmp_path / ".train.hdf5.partial").exists()


def test_a_folder_of_work_that_was_removed_before_it_was_locked_is_made_again(
    decay, tmp_path: Path, monkeypatch
) -> None:
    import fcntl

    real = fcntl.flock

    def removed_first(descriptor, operation):
        monkeypatch.setattr(fcntl, "flock", real)
        (tmp_path / ".train.hdf5.partial").rmdir()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    generate(decay, tmp_path, splits=["train"])
    assert (tmp_path / "train.hdf5").exists()


@pytest.mark.parametrize("change", [{"num_frames": 2}, {"warmup": 1.0}], ids=str)
def test_a_preset_with_time_is_refused_for_a_steady_equation(change: dict, tmp_path: Path) -> None:
    preset = replace(Doubling.presets["small"], **change)
    with pytest.raises(UserError, match=f"doubling is steady: {next(iter(change))} has no meaning"):
        generate(Doubling(), tmp_path, preset=preset)


def test_a_file_truncated_while_it_is_streamed_fails(decay, tmp_path: Path) -> None:
    generate(decay, tmp_path, splits=["train"])
    dataset = open_dataset(tmp_path, "train")
    before = dataset.read([0], slice(0, 2))
    assert torch.equal(dataset.read([0], slice(0, 2)), before)
    path = tmp_path / "train.hdf5"
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(UserError, match=r"train\.hdf5 was truncated while it was read: \d+ bytes of \d+ are left"):
        dataset.read([dataset.num_trajectories - 1], slice(0, 2))
