"""Every target end to end at tiny scale on a CPU."""

import time

import pytest

from factformer.studies import reproduce_target
from factformer.studies.targets import BUILDERS

QUICK = ("table1", "figure-darcy-resolutions", "spectra")


def run_target(name, out):
    began = time.monotonic()
    outcome = reproduce_target(name, scale="tiny", out=out, device="cpu")
    for row in outcome.rows():
        if row["status"] == "published only":
            assert row["ours"] is None and row["paper"] is not None
            continue
        assert row["status"].startswith("reduced ("), row
        assert row["ours"] is not None
        assert (row["ratio"] is None) == (row["paper"] is None)
    assert {path.name for path in outcome.folder.iterdir()} >= {"result.json", "table.md", "table.csv", "table.json"}
    assert list((outcome.folder / "figures").glob("*.png"))
    return time.monotonic() - began


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("targets")


@pytest.mark.parametrize("name", QUICK)
def test_target(name, shared):
    run_target(name, shared)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDERS)
def test_target_within_two_minutes(name, tmp_path):
    assert run_target(name, tmp_path) < 120
