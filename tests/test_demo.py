"""The demonstration: a bundle of the zoo on a flow made anew, and none where there is none."""

import pytest

from factformer.demo import run_demo, show_bundle
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
