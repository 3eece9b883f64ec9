"""Checkpoints: whole or not there, verified, pruned without losing the best."""

import errno

import pytest
import torch

from factformer.errors import UserError
from factformer.training.runfolder import checkpoint
from factformer.training.runfolder.checkpoint import Snapshot


def snapshot(update: int, attempt: int = 0) -> Snapshot:
    tensors = {"weights.a": torch.arange(6.0).reshape(2, 3) + update, "random.torch": torch.get_rng_state()}
    return Snapshot(tensors, {"update": update, "attempt": attempt}, f'{{"update": {update}}}\n')


def test_what_is_saved_comes_back_bit_by_bit(tmp_path):
    before = snapshot(40)
    after = checkpoint.load(checkpoint.save(tmp_path, before))
    assert after.state == before.state
    assert after.metrics == before.metrics
    assert after.tensors.keys() == before.tensors.keys()
    assert all(torch.equal(after.tensors[k], before.tensors[k]) for k in before.tensors)


def test_the_last_ones_and_the_best_are_kept_and_later_attempts_count_as_later(tmp_path):
    for update in (10, 20, 30, 40):
        checkpoint.save(tmp_path, snapshot(update))
    checkpoint.save(tmp_path, snapshot(30, attempt=1))
    assert checkpoint.latest(tmp_path).name == "update-00000030.1"
    checkpoint.prune(tmp_path, 2, best="update-00000010")
    names = [path.name for path in checkpoint.checkpoints(tmp_path)]
    assert names == ["update-00000010", "update-00000040", "update-00000030.1"]


@pytest.mark.parametrize("name", [checkpoint.TENSORS, checkpoint.METRICS, checkpoint.DESCRIPTION])
def test_any_flipped_bit_is_found(tmp_path, name):
    path = checkpoint.save(tmp_path, snapshot(5))
    content = bytearray((path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (path / name).write_bytes(content)
    with pytest.raises(UserError, match=r"corrupted") as caught:
        checkpoint.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", [checkpoint.TENSORS, checkpoint.METRICS, checkpoint.DESCRIPTION])
def test_a_missing_or_truncated_file_is_found(tmp_path, name):
    path = checkpoint.save(tmp_path, snapshot(5))
    content = (path / name).read_bytes()
    (path / name).write_bytes(content[:-3])
    with pytest.raises(UserError, match=r"corrupted"):
        checkpoint.load(path)
    (path / name).unlink()
    with pytest.raises(UserError, match=r"corrupted"):
        checkpoint.load(path)


def test_another_format_version_is_refused(tmp_path, monkeypatch):
    path = checkpoint.save(tmp_path, snapshot(5))
    monkeypatch.setattr(checkpoint, "FORMAT_VERSION", 2)
    with pytest.raises(UserError, match=r"version 1"):
        checkpoint.load(path)


def test_a_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch):
    def no_space(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    checkpoint.save(tmp_path, snapshot(5))
    monkeypatch.setattr(checkpoint, "flush", no_space)
    with pytest.raises(UserError, match=r"disk is full.*--resume"):
        checkpoint.save(tmp_path, snapshot(6))
    assert [path.name for path in tmp_path.iterdir()] == ["update-00000005"]


def test_leftovers_of_a_killed_process_are_no_checkpoints_and_go(tmp_path):
    checkpoint.save(tmp_path, snapshot(5))
    (tmp_path / f"{checkpoint.HIDDEN}abc").mkdir()
    assert checkpoint.latest(tmp_path).name == "update-00000005"
    checkpoint.clean(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
