"""Names of fields and runs are text to every reader: no mathematics, terminal escape, Markdown or formula."""

from __future__ import annotations

import csv
import io

import pytest
from report_samples import evaluation, make_run, plain_errors, save_run
from rich.console import Console

from factformer._support.text import file_stem, printable
from factformer.errors import UserError
from factformer.problem import Field
from factformer.report.analysis import evaluation_table, write_evaluation_figures
from factformer.report.figures import TrendLine, error_trend, spectra
from factformer.report.html import report_runs
from factformer.report.tables import Column, Table

NAMES = ["$x_$", "a$b", "n" * 250, "\x1b[31mred\x07", "=1+1|x", "[bold]", "<b>", "é" * 200, "tab\there", "_hidden"]


@pytest.mark.parametrize("name", NAMES)
def test_figures_draw_any_name_letter_by_letter(name):
    figure = error_trend([TrendLine(name, [0.1, 0.2])], field=name, persistence=[0.3, 0.3])
    figure.draw_without_rendering()
    text = figure.axes[0].get_ylabel()
    assert len(text) < 80 and text.isprintable()
    spectra([0, 1, 2], {name: [1.0, 0.5, 0.1]}, [1.0, 0.5, 0.2], field=name).draw_without_rendering()


@pytest.mark.parametrize("name", ["n" * 101, "\x1b[31mred\x07", "tab\there", "a/b", ""])
def test_names_too_long_or_not_printable_are_refused_where_a_field_is_made(name):
    with pytest.raises(UserError, match=r"a field's name is printable|a field needs a name") as caught:
        Field(name)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_fields_of_any_name_are_drawn_and_reported(tmp_path):
    names = ["$x_$", "a$b", "n" * 100, "=1+1|x", "[bold]", "<b>", "é" * 100, "_hidden"]
    fields = tuple(Field(name) for name in names)
    folder = save_run(tmp_path / "run", make_run("$m$", shape=(8, 8), num_frames=2, num_samples=1, fields=fields))
    drawn = write_evaluation_figures(folder)
    assert len({path.name for path in drawn}) == 3 * len(names)
    assert all(path.stat().st_size > 1_000 and path.name.isprintable() for path in drawn)
    report_runs([folder], tmp_path / "report")
    for name in ("comparison.md", "comparison.csv"):
        text = (tmp_path / "report" / name).read_text(encoding="utf-8")
        assert "\x1b" not in text and "\x07" not in text
        assert len(text.splitlines()) < 6


def test_file_names_stay_apart_and_ordinary_ones_stay_as_they_are():
    assert file_stem("vorticity") == "vorticity"
    stems = {file_stem(name) for name in [*NAMES, "a/b", "a_b", "..", "x\0y", "\udc80"]}
    assert len(stems) == len(NAMES) + 5
    assert all(len(stem.encode()) < 100 and "/" not in stem and "\0" not in stem for stem in stems)


TABLE = Table(
    "\x1b[2Jtitle",
    [Column("=model", "a|b"), Column("error", "*error*", "error")],
    [{"=model": "=HYPERLINK(1)", "error": -0.5}, {"=model": "@x\x1b[2J", "error": 0.25}, {"=model": "a|`b` <i>"}],
)


def test_csv_holds_no_formula_and_numbers_stay_numbers():
    rows = list(csv.reader(io.StringIO(TABLE.to_csv())))
    assert rows[0] == ["'=model", "error"]
    assert rows[1] == ["'=HYPERLINK(1)", "-0.5"]
    assert rows[2] == ["'@x\\x1b[2J", "0.25"]


def test_markdown_shows_names_as_they_are():
    lines = TABLE.to_markdown().splitlines()
    assert lines[0] == r"| a\|b | \*error\* |"
    assert r"a\|\`b\` \<i\>" in lines[4]
    assert len(lines) == 5


def test_a_terminal_does_not_obey_names():
    stream = io.StringIO()
    named = evaluation({"\x1b]0;gone\x07": plain_errors([0.1])}, model="[red]x[/red]\x1b[2J")
    for table in (TABLE, evaluation_table(named)):
        Console(file=stream, width=200).print(table.to_rich())
    assert "\x1b" not in stream.getvalue() and "\x07" not in stream.getvalue()
    assert "[red]x[/red]" in stream.getvalue()
    assert printable("a\nb\x1b[1m\u202e\x9b") == "a\\nb\\x1b[1m\\u202e\\x9b"
