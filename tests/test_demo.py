"""The demonstration: a bundle of the zoo on a flow made anew, and none where there is none."""

from pathlib import Path

import pytest

from factformer.demo import MARKER, run_demo, show_bundle
from factformer.errors import UserError
from small_zoo import save_small_bundle


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    save_small_bundle(tmp_path / "bundles" / "flow")
    monkeypatch.setenv("FACTFORMER_ZOO", str(tmp_path / "bundles"))


def test_a_bundle_is_held_against_the_truth_and_persistence(zoo, tmp_path):
    said = []
    pictures = show_bundle("flow", tmp_path / "out", said.append)
    ((heading, figure),) = pictures.items()
    assert "persistence" in heading
    assert "flow" in heading
    assert len(figure.axes) >= 9  # prediction, truth and difference over time
    assert any("relative error" in line for line in said)
    assert show_bundle("absent", tmp_path / "none", said.append) == {}
    assert "no bundle absent" in said[-1]


def test_the_page_shows_both(zoo, tmp_path):
    page = run_demo(
        tmp_path / "demo",
        updates=2,
        trajectories={"train": 1, "valid": 1, "test": 1},
        bundle="flow",
        say=lambda line: None,
    )
    text = page.read_text(encoding="utf-8")
    assert "trained on this machine" in text
    assert "The bundle flow of the zoo" in text


def test_a_demo_replaces_only_what_a_demo_wrote(tmp_path):
    (tmp_path / MARKER).write_text("made by a demo")
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        run_demo(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    (tmp_path / "thesis.txt").unlink()
    with pytest.raises(UserError, match="add --overwrite"):
        run_demo(tmp_path)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    def forbidden(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", forbidden)
    with pytest.raises(UserError, match=r"cannot write .*Permission denied"):
        run_demo(tmp_path / "demo")
