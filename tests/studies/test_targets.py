"""The declared targets, the experiments behind them, and their fingerprints."""

import copy
from dataclasses import replace

import pytest

from factformer import build_surrogate, catalog
from factformer.errors import UserError
from factformer.evaluation.cost import Case
from factformer.grid import Grid
from factformer.pdes import find_pde
from factformer.problem import Field, Problem
from factformer.report import paper
from factformer.studies.cells import SCALES, Cell, Costing, Looking, Quoted, Target, Training
from factformer.studies.pictures import trends
from factformer.studies.result import StudyResult
from factformer.studies.runner import Ended
from factformer.studies.scales import data_name, describe_case, describe_scale, experiment_of, run_fingerprint, size_of
from factformer.studies.targets import find_target, targets

NAMES = [
    "table1",
    "table2",
    "table3",
    "table4",
    "figure-darcy-resolutions",
    "figure-error-trend",
    "figure-error-trend-turbulence",
    "figure-error-trend-smoke",
    "ablation-heads",
    "ablation-kernel-dim",
    "seeds",
    "figure-cost-2d",
    "figure-cost-3d",
    "spectra",
    "kernels",
    "pictures",
    "darcy-literature",
    "navier-stokes-literature",
    "apebench",
    "apebench-1d",
]
RUN = Training("kolmogorov")


def test_every_target_of_the_paper_is_there_at_every_scale():
    for scale in SCALES:
        found = targets(scale)
        assert list(found) == NAMES
        for name, target in found.items():
            assert target.name == name
            assert target.cells
            assert len({(cell.row, cell.quantity) for cell in target.cells}) == len(target.cells)


def test_tables_hold_all_published_numbers():
    cells = {(cell.row, cell.quantity): cell.paper for cell in find_target("table2", "paper").cells}
    assert cells["dilated_resnet AR", "velocity, average error"] == 0.1143
    assert cells["factformer LM", "pressure, final error"] == 0.3431
    assert cells["fno LM", "parameters"] == pytest.approx(509.8e6)
    assert cells["ffno AR", "inference time (s)"] == 2.77
    expected = sum(2 * len(result.errors) + 2 for result in paper.TABLE_2.results)
    assert len(cells) == expected


@pytest.mark.parametrize("scale", SCALES)
def test_every_run_is_a_valid_experiment_of_its_own(scale):
    marks = {}
    for target in targets(scale).values():
        for run in target.trainings:
            experiment = experiment_of(run, scale, "data", minutes=None)
            assert experiment.model.name == run.model
            assert experiment.protocol.name == run.protocol
            mark = run_fingerprint(run, experiment, scale)
            assert marks.setdefault(mark, experiment) == experiment
            status = describe_scale(run, experiment, scale)
            short = any("budget_minutes" in text for text in run.settings)
            assert (status == "paper scale") == (scale == "paper" and not short)
    assert len(marks) > 40 or scale != "paper"


def test_paper_scale_is_the_papers():
    run = find_target("table4", "paper").trainings[0]
    experiment = experiment_of(run, "paper", "data", minutes=None)
    assert (experiment.data.resolution, experiment.training.updates) == (128, 100_000)
    assert experiment.training.budget_minutes is None
    shorter = experiment_of(run, "paper", "data", minutes=5)
    assert describe_scale(run, shorter, "paper").startswith("reduced (") and "5 min" in describe_scale(
        run, shorter, "paper"
    )
    assert data_name(RUN, "paper").startswith("kolmogorov_flow-256-")
    changed = describe_scale(run, experiment, "paper", ["training.updates=10"])
    assert changed.startswith("reduced (128² grid")


@pytest.mark.parametrize(
    ("recipe", "resolution", "said"),
    [
        ("kolmogorov", None, "64² grid"),
        ("kolmogorov", 32, "32² grid"),
        ("turbulence", None, "24³ grid"),
        ("obstacle", None, "128×64 grid"),
        ("obstacle", 32, "64×32 grid"),
        ("vlasov", None, "12×12×24×24 grid"),
    ],
)
def test_the_status_of_a_run_names_the_grid_of_its_data(recipe, resolution, said):
    run = Training(recipe, resolution=resolution)
    experiment = experiment_of(run, "small", "data", minutes=None)
    assert describe_scale(run, experiment, "small").startswith(f"reduced ({said}, ")


def test_the_cost_on_one_axis_and_on_four_is_of_as_many_points():
    def on(*shape):
        problem = Problem("box", Grid(shape, 1.0, True), (Field("u"),), frame_dt=1.0)
        return describe_case(Case("a case", problem, "factformer"), "reduced")

    assert on(64) == "reduced (64 points)"
    assert on(8, 8, 8, 8) == "reduced (8⁴ grid)"
    assert on(8, 16) == "reduced (8×16 grid)"


def test_costs_are_of_the_paper_only_where_it_has_the_case():
    def statuses(name, scale):
        return {
            cell.row: describe_case(cell.work.case, scale)
            for cell in find_target(name, scale).cells
            if isinstance(cell.work, Costing)
        }

    volumes = statuses("figure-cost-3d", "reduced")
    assert volumes["factformer, 16³"] == "reduced (16³ grid)"
    assert volumes["linear_attention, 32³"] == "paper scale"
    assert set(statuses("figure-cost-3d", "tiny").values()) == {
        "reduced (6³ grid, tiny model)",
        "reduced (8³ grid, tiny model)",
    }
    for name in ("table4", "figure-cost-2d", "figure-cost-3d"):
        assert set(statuses(name, "paper").values()) == {"paper scale"}
    assert set(statuses("table4", "tiny").values()) == {"reduced (16² grid, tiny model)"}


def test_error_trends_are_drawn_at_the_times_of_each_run(tmp_path):
    works = [replace(RUN, model=model) for model in ("factformer", "fno")]
    cells = tuple(Cell(work.model, "error", work, "fields.u.relative_l2") for work in works)
    ended = []
    for interval, count in ((0.5, 4), (1.0, 2)):
        errors = {"relative_l2_per_frame": [0.1] * count, "persistence": {"relative_l2_per_frame": [1.0] * count}}
        result = {"frame_dt": interval, "grid": [8, 8], "fields": {"u": errors}}
        ended.append(Ended("done", result=result, folder=str(interval)))
    (figure,) = trends(StudyResult(Target("mine", "Mine", cells), "tiny", tuple(ended), tmp_path, 1.0)).values()
    assert [list(line.get_xdata()) for line in figure.axes[0].lines] == [
        [0.5, 1.0, 1.5, 2.0],
        [1.0, 2.0],
        [0.5, 1.0, 1.5, 2.0],
    ]


def test_no_run_is_held_against_two_published_numbers():
    for scale, count in (("paper", 10), ("reduced", 9), ("tiny", 9)):
        cells = find_target("figure-error-trend", scale).cells
        assert len(cells) == count
        assert len({cell.work for cell in cells}) == count


def test_the_turbulence_table_says_that_its_data_start_otherwise():
    for scale in SCALES:
        assert "preset `released`" in find_target("table2", scale).note
        assert find_target("table1", scale).note == ""


def test_reduced_runs_share_the_time():
    experiment = experiment_of(RUN, "reduced", "data", minutes=3)
    assert experiment.training.budget_minutes == 3
    assert "3 min of training" in describe_scale(RUN, experiment, "reduced")


class Dumped:
    """Stands for an experiment of which only the values matter."""

    def __init__(self, values):
        self.values = values

    def model_dump(self, mode):
        return copy.deepcopy(self.values)


def leaves(values, path=()):
    for key, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


def test_experiments_that_differ_in_one_value_never_share_a_fingerprint():
    values = experiment_of(RUN, "tiny", "data", minutes=None).model_dump(mode="json")
    marks = [run_fingerprint(RUN, Dumped(values), "tiny")]
    for path in leaves(values):
        if path == ("data", "path"):
            continue  # where the data lie does not matter; what they are does, below
        changed = copy.deepcopy(values)
        section = changed
        for key in path[:-1]:
            section = section[key]
        section[path[-1]] = "something else"
        marks.append(run_fingerprint(RUN, Dumped(changed), "tiny"))
    assert len(marks) > 50
    assert len(set(marks)) == len(marks)


def test_datasets_and_evaluations_are_part_of_the_fingerprint():
    experiment = experiment_of(RUN, "tiny", "data", minutes=None)
    moved = experiment_of(RUN, "tiny", "elsewhere", minutes=None)
    finer = Training("kolmogorov", resolution=24)
    assert run_fingerprint(RUN, experiment, "tiny") == run_fingerprint(RUN, moved, "tiny")
    assert run_fingerprint(RUN, experiment, "tiny") != run_fingerprint(finer, experiment, "tiny")
    assert run_fingerprint(RUN, experiment, "tiny") != run_fingerprint(RUN, experiment, "reduced")
    assert data_name(RUN, "tiny") != data_name(finer, "tiny")


def test_looking_shares_the_run_it_looks_at():
    target = find_target("kernels", "tiny")
    assert all(isinstance(work, Looking) for work in target.works)
    assert len(target.trainings) == 1


@pytest.mark.parametrize("recipe", ["kolmogorov", "turbulence"])
def test_every_model_is_small_at_tiny_scale(recipe):
    run = Training(recipe)
    equation = find_pde(experiment_of(run, "tiny", "data", minutes=None).problem)
    problem = equation.problem(equation.shape_in(size_of(run, "tiny").preset))
    sizes = {}
    for model in catalog.names("models"):
        config = experiment_of(replace(run, model=model), "tiny", "data", minutes=None).model
        parameters = build_surrogate(problem, config).parameters()
        sizes[model] = sum(parameter.numel() for parameter in parameters)
    assert "unet" in sizes
    assert {model: size for model, size in sizes.items() if size > 250_000} == {}


def test_unknown_targets_and_scales_list_the_choices():
    with pytest.raises(UserError, match="did you mean 'table1'"):
        find_target("tabel1", "tiny")
    with pytest.raises(UserError, match="Choices: paper, reduced, small, tiny"):
        experiment_of(RUN, "huge", "data", minutes=None)


@pytest.mark.parametrize(("name", "published"), [("darcy-literature", 0.0049), ("navier-stokes-literature", 0.0719)])
def test_tables_of_the_literature_train_every_model_equally_long(name, published):
    """The models that we have get three minutes each, ours the whole recipe too; others are quoted, never filled."""
    target = find_target(name, "paper")
    lengths = [experiment_of(run, "paper", "data", minutes=None).training.budget_minutes for run in target.trainings]
    assert lengths == [3.0] * 8 + [None]
    quoted = {cell.row: cell.paper for cell in target.cells if isinstance(cell.work, Quoted)}
    assert set(quoted) == {"ONO", "LSM", "LNO", "Transolver++"}
    assert quoted["Transolver++"] == published
    assert len(find_target(name, "reduced").trainings) == 8


def test_the_literature_s_darcy_data_are_every_fifth_point():
    run = find_target("darcy-literature", "paper").trainings[0]
    assert data_name(run, "paper").startswith("darcy_flow-85-")
    assert "1000 training samples" in describe_scale(run, experiment_of(run, "paper", "data", minutes=3), "paper")
