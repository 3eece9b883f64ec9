"""The page docs/how-to/read-the-well.md, run as it is written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner
from well_files import write_well_file

from factformer.cli import data as data_commands
from factformer.data import generate, open_dataset

pytest.importorskip("the_well.data")
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "read-the-well.md"


def test_the_page_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split, seed in (("train", 0), ("test", 1)):
        write_well_file(
            tmp_path / "active_matter" / "data" / split / "a.hdf5", num_trajectories=4, seed=seed, frames=20
        )
    generate("kolmogorov_flow", tmp_path / "kolmogorov", preset="tiny", splits=["train"])
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)
    assert names["window"].shape == (2, 10, 8, 5, 8)
    assert names["data"].problem.horizon == 3
    assert names["sample"]["input_fields"].shape == (4, 32, 32, 1)
    (command,) = re.findall(r"```console\nfactformer (.*?)\n```", text)
    app = typer.Typer()
    app.command()(data_commands.generate)
    app.command()(data_commands.convert)
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code == 0, result.output
    assert open_dataset("mine").problem.horizon == 10
