"""The pages of the documentation, run as they are written: files are created, commands and Python executed."""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from factformer import recipes
from factformer.cli import main
from factformer.studies.combinations import Study
from lab.pages.notebook import notebook

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Only the length of runs is cut down, so that a page is read in minutes and tested in seconds.
SHORTER = {
    "--trajectories 16": "--trajectories 2",
    "num_frames=60": "num_frames=28",
    "training.updates=600": "training.updates=2",
}
SETTINGS = {
    "factformer train allen_cahn": " --set training.updates=2 --set training.batch_size=2",
    "factformer evaluate": " --starts 1 --batch-size 1",
    "factformer train demo": " --set training.updates=2 --set training.batch_size=2",
}


def blocks(page):
    return [match.groups() for match in BLOCK.finditer((DOCS / page).read_text(encoding="utf-8"))]


def run_page(page, folder, monkeypatch):
    """Run all blocks of a page in ``folder``; returns the names that its Python defined."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    names: dict[str, object] = {"__name__": "page"}
    for language, title, code in blocks(page):
        if title is not None:
            (folder / title).write_text(code, encoding="utf-8")
        elif language == "python":
            exec(compile(code, page, "exec"), names)
        elif language == "sh":
            for line in code.strip().splitlines():
                run_command(line)
    return names


def run_command(line):
    for long, short in SHORTER.items():
        line = line.replace(long, short)
    line += next((more for start, more in SETTINGS.items() if line.startswith(start)), "")
    program, *arguments = shlex.split(line)
    assert program == "factformer"
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 0, line


@pytest.fixture(autouse=True)
def forget_the_files_of_a_page():
    yield
    for name in ("allen_cahn", "plain_convolution", "largest"):
        sys.modules.pop(name, None)


def test_adding_a_pde(tmp_path, monkeypatch):
    names = run_page("how-to/add-a-pde.md", tmp_path, monkeypatch)
    assert names["frames"].shape == (1, 9, 64, 64, 1)
    assert names["shrinks"].tolist() == pytest.approx([2 * math.pi * 0.02] * 8, rel=0.03)
    assert names["both"][0].equal(names["frames"][0]) and not names["both"][1].equal(names["frames"][0])
    assert (tmp_path / "report" / "report.html").exists()


def test_adding_a_model(tmp_path, monkeypatch):
    from factformer.data import generate

    generate("kolmogorov_flow", tmp_path / "data" / "flow", preset="tiny", trajectories=1, settings=["num_frames=28"])
    names = run_page("how-to/add-a-model.md", tmp_path, monkeypatch)
    assert names["future"].shape == (1, 2, 16, 12, 2)
    assert (tmp_path / "runs" / "plain" / "bundle" / "bundle.json").exists()
    assert names["again"].config == names["trained"].config


def test_adding_a_metric(tmp_path, monkeypatch):
    from factformer.data import generate
    from factformer.training import run_experiment

    generate("kolmogorov_flow", tmp_path / "data" / "demo", preset="tiny", trajectories=1, settings=["num_frames=28"])
    sizes = ["model.dim=8", "model.depth=1", "training.updates=1", "training.batch_size=1", "data.resolution=null"]
    experiment = recipes.build("demo", "small", [*sizes, f"data.path={tmp_path / 'data' / 'demo'}"])
    run_experiment(experiment, tmp_path / "runs" / "demo")
    names = run_page("how-to/add-a-metric.md", tmp_path, monkeypatch)
    largest = names["result"].metrics["largest_error"]
    assert 0 < largest.standard_error < largest.mean
    assert largest.floor > 0
    assert "largest_error" in (tmp_path / "report" / "comparison.md").read_text(encoding="utf-8")


def test_fine_tuning(tmp_path, monkeypatch):
    from factformer.data import generate

    generate("kolmogorov_flow", tmp_path / "data" / "flow", preset="tiny", trajectories=1, settings=["num_frames=28"])
    names = run_page("how-to/fine-tune.md", tmp_path, monkeypatch)
    assert names["finer"].config.dim == 16
    assert len(names["logged"]) == 3
    assert names["surrogate"].provenance["updates"] == 3


def test_comparing_models_over_seeds(tmp_path, monkeypatch):
    names = run_page("how-to/studies.md", tmp_path, monkeypatch)
    assert [row["seeds"] for row in names["summary"]] == [2, 2]
    assert (tmp_path / "tiny-study" / "report" / "report.html").exists()
    written = next(code for language, _, code in blocks("how-to/studies.md") if language == "yaml")
    (tmp_path / "rivals.yaml").write_text(written, encoding="utf-8")
    study = Study.read(tmp_path / "rivals.yaml")
    study.check()
    assert len(study.trainings()) == 2 * 3 * 1 * 2 * 3


def test_running_without_factformer(tmp_path, monkeypatch):
    import jaxtyping

    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # its comparisons would fix the number of samples
    names = run_page("how-to/export.md", tmp_path, monkeypatch)
    sys.modules.pop("waves_pt2_rollout", None)
    assert names["frames"].shape == (3, 8, 32, 1)


def test_bundles_by_name(tmp_path, monkeypatch):
    monkeypatch.delenv("FACTFORMER_ZOO_URL", raising=False)
    run_page("how-to/zoo.md", tmp_path, monkeypatch)


def test_parameters_and_geometry(tmp_path, monkeypatch):
    names = run_page("how-to/parameters-and-geometry.md", tmp_path, monkeypatch)
    assert names["thick"][-1].std() < names["thin"][-1].std()
    assert len(names["predicted"]) == 6
    assert names["several"].problem.parameters == ("viscosity", "frame_dt") and len(names["coarse"]) == 4
    assert names["temperature"].isnan().any()
    for frame in names["unseen"]:
        assert frame.isfinite().all() and bool((frame[~names["mask"][10:]] == 0).all())


def run_notebook(name, folder, monkeypatch):
    """Run the cells of a notebook in ``folder``; returns the names that they defined."""
    monkeypatch.chdir(folder)
    names: dict[str, object] = {"__name__": "notebook"}
    for cell in json.loads((DOCS / name).read_text(encoding="utf-8"))["cells"]:
        lines = "".join(cell["source"]).splitlines() if cell["cell_type"] == "code" else []
        for line in lines if lines and lines[0].startswith("!") else []:
            run_command(line.removeprefix("!"))
        if lines and not lines[0].startswith("!"):
            exec(compile("\n".join(lines), name, "exec"), names)
    return names


def test_the_notebook_is_the_tutorial():
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    assert (DOCS / "tutorial.ipynb").read_text(encoding="utf-8") == notebook(page), "run python -m lab.pages.make"


def test_the_tutorial_in_its_notebook(tmp_path, monkeypatch):
    names = run_notebook("tutorial.ipynb", tmp_path, monkeypatch)
    assert names["future"].shape == (1, 16, 32, 32, 1)
    assert names["start"].grad.abs().sum() > 0
    for made in ("report/report.html", "rollout.png", "rollout.gif"):
        assert (tmp_path / made).stat().st_size > 1000


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="needs mkdocs-material, of the extra `docs`")
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=DOCS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "reference.html").stat().st_size > 50_000
