"""Files of our own: temporary names, links, leftovers, and what is read at all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from factformer._support.files import clean_leftovers, read_text, regular_file, whole_file, write_atomically
from factformer.errors import UserError


def test_temporary_names_cannot_be_guessed_and_follow_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for _ in range(2):
        with whole_file(tmp_path / "frames.npy") as partial:
            names.append(partial.name)
            partial.write_bytes(b"whole")
    assert names[0] != names[1]
    monkeypatch.setattr("factformer._support.files.secrets.token_hex", lambda size: "0" * 2 * size)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    with whole_file(tmp_path / "a.json") as partial:
        trap = partial.name
    (tmp_path / trap).symlink_to(victim)
    with pytest.raises(UserError, match=r"cannot write .*a\.json"), whole_file(tmp_path / "a.json"):
        pass
    assert victim.read_text() == "mine"


def test_files_have_the_usual_permissions(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "a.json", "{}")
    finally:
        os.umask(before)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o640


def test_leftovers_of_killed_commands_are_cleaned_and_nothing_else(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from factformer._support.files import whole_file\n"
        "with whole_file(Path(sys.argv[1])) as partial: os._exit(1)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "frames.npy")], env=environment, check=False)
    (left,) = tmp_path.iterdir()
    assert re.fullmatch(r"\.frames\.[0-9a-f]{8}-\d+-[0-9a-f]{16}\.partial\.npy", left.name)
    for name in (".hidden", "frames.partial.npy", ".frames.partial", ".train.hdf5.partial"):
        (tmp_path / name).write_text("somebody's")
    with whole_file(tmp_path / "other.npy") as partial:
        assert clean_leftovers(tmp_path) == [left]
        assert partial.exists()
    assert clean_leftovers(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 5


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_text(tmp_path / "link") == "text"
    for path, message in (
        (tmp_path / "none", "no file"),
        (tmp_path, "is a folder"),
        (Path("/dev/null"), "not a regular file"),
        (tmp_path / ("n" * 300), "cannot read"),
    ):
        with pytest.raises(UserError, match=message):
            regular_file(path)
    with pytest.raises(UserError, match="at most 2 bytes are read"):
        read_text(tmp_path / "file", longest=2)
