"""A user's own model, equation and metric from files outside the package: in Python, as a plugin, installed."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import factformer
from commands import run
from factformer import Field, Grid, Problem, build_surrogate, catalog, fit, load, simulate
from factformer.bundle import save_bundle
from factformer.data import generate, open_dataset
from factformer.errors import UserError
from factformer.evaluation import evaluate, evaluate_run
from factformer.models import Backbone, ModelConfig, find_model
from factformer.models._backbone import backbone_of, check_model
from factformer.pdes import find_pde
from factformer.plugins import read_plugin
from factformer.report.html import report_runs

PLUGIN = '''
"""A wave that travels round a ring, a network of two maps, and the error at the worst point."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from factformer import Field, Grid
from factformer.config import Config
from factformer.models import Backbone, ModelConfig
from factformer.pdes import PDE, Preset, Task


class Parameters(Config):
    speed: float = 1.0


class Ring(PDE):
    """A wave that travels round a ring."""

    name = "ring"
    parameters = Parameters
    varying = ("speed",)
    dimensions = (1,)
    state = (Field("height"),)
    task = Task(0.125, num_context_frames=2, horizon=2)
    presets = {"tiny": Preset(16, 16, 8, 0.125, {"train": 4, "valid": 1, "test": 2}, batch_size=4)}

    def grid(self, shape):
        return Grid(shape, 1.0, periodic=True)

    def sample_initial(self, grid, generators, *, dtype, device, initial=None):
        self.choose_initial(initial)
        phases = torch.stack([torch.rand(1, generator=item) for item in generators])
        waves = torch.sin(2 * torch.pi * (grid.axis(0) + phases))
        return waves.unsqueeze(-1).to(device, dtype)

    def frames(self, initial, num_frames, frame_dt, parameters):
        for number in range(num_frames):
            yield initial.roll(round(parameters.speed * frame_dt * number * initial.shape[1]), 1)


class TwoMapsConfig(ModelConfig):
    name: Literal["two_maps"] = "two_maps"
    widening: int = 2


class TwoMaps(Backbone):
    """Two maps with a kink between them, at every point alike."""

    config_class = TwoMapsConfig

    def __init__(self, config, problem):
        super().__init__(config, problem)
        self.first = nn.Linear(config.dim, config.widening * config.dim)
        self.second = nn.Linear(config.widening * config.dim, config.dim)

    def forward(self, z, grid):
        return z + self.second(torch.relu(self.first(z)))


def worst_point(prediction, target, problem):
    assert prediction.shape[-1] == problem.num_state_channels
    return (prediction - target).abs().flatten(1).amax(1)


ring = Ring()
METRICS = {"worst_point": worst_point}
'''
SIZES = {"dim": 8, "depth": 1}
PROBLEM = Problem("ring", Grid((16,), 1.0, True), (Field("height"),), num_context_frames=2, horizon=2)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    path = tmp_path_factory.mktemp("elsewhere") / "mine.py"
    path.write_text(PLUGIN, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def mine(plugin):
    return read_plugin(plugin)


def test_mistakes_with_a_model_of_ones_own_are_named(mine, tmp_path):
    (model,), (surrogate,) = mine.models, [build_surrogate(PROBLEM, mine.models[0], **SIZES)]
    save_bundle(surrogate, tmp_path / "bundle")
    with pytest.raises(UserError, match=r"models= takes a list of classes: models=\[TwoMaps\]"):
        load(tmp_path / "bundle", models=model)
    surrogate.backbone.forward = lambda z, grid: z[..., :2]
    with pytest.raises(UserError, match=r"'two_maps' was given .* \(1, 16, 8\) and returned \(1, 16, 2\)"):
        surrogate(torch.zeros(1, 2, 16, 1))


def test_from_simulation_to_report_in_python(mine, tmp_path):
    (model,), (ring,) = mine.models, mine.pdes
    start = ring.sample_initial(ring.grid((16,)), [torch.Generator().manual_seed(0)], dtype=torch.float32, device="cpu")
    frames = simulate(ring, start, num_frames=3)
    torch.testing.assert_close(frames[:, 1], start.roll(2, 1))
    generate(ring, tmp_path / "data", preset="tiny")
    data = open_dataset(tmp_path / "data", "train")
    surrogate = fit(
        data,
        model=model,
        updates=2,
        settings={"model.dim": 8, "model.widening": 3, "training.batch_size": 2},
        out=tmp_path / "run",
        progress=False,
    )
    assert type(surrogate.backbone) is model and surrogate.config.widening == 3
    assert "two_maps" not in catalog.names("models")  # nothing stays behind
    again = load(tmp_path / "run", models=[model])
    context = data.read([0], slice(0, 2))
    assert torch.equal(surrogate(context), again(context))
    test = open_dataset(tmp_path / "data", "test")
    result = evaluate(again, test, metrics=mine.metrics, timing=False)
    with catalog.using(models=[model]):
        kept = evaluate_run(tmp_path / "run", tmp_path / "data", metrics=mine.metrics, timing=False)
    assert kept.metrics == result.metrics
    page = report_runs([tmp_path / "run"], tmp_path / "report")
    assert "worst_point" in page.read_text(encoding="utf-8")


def test_from_generation_to_report_on_the_command_line(plugin, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ring.yaml").write_text(
        "problem: ring\nmodel: {name: two_maps, dim: 8}\ndata: {path: data}\n"
        "protocol: {name: latent_marching, marching_steps: 2}\ntraining: {updates: 2, batch_size: 2}\n"
    )
    own = ["--plugin", plugin]
    context = np.zeros((1, 2, 16, 1), dtype=np.float32)
    np.save(tmp_path / "context.npy", context)
    for words in (
        ["generate", "ring", "--preset", "tiny", "--out", "data"],
        ["train", "ring.yaml", "--out", "run", "--quiet"],
        ["evaluate", "run", "--starts", "1"],
        ["rollout", "run", "--input", "context.npy", "--frames", "2", "--out", "future.npy"],
        ["inspect", "run", "--parameters"],
        ["benchmark", "solver", "run"],
        [
            "benchmark",
            "model",
            "--problem",
            "ring",
            "--models",
            "two_maps",
            "--resolution",
            "8",
            "--set",
            "model.dim=8",
        ],
        ["report", "run", "--out", "report"],
        ["train", "--resume", "--out", "run", "--quiet"],
    ):
        code, out, error = run(capsys, *words, *own)
        assert code == 0, (words, error)
        if words[0] == "evaluate":
            assert re.search(r"^worst_point: \S+ ± \S+ \(floor \S+\)$", out, re.MULTILINE)
    evaluation = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert evaluation["metrics"]["worst_point"]["mean"] > 0
    table = json.loads((tmp_path / "report" / "comparison.json").read_text())
    assert table["rows"][0]["metric: worst_point"] == evaluation["metrics"]["worst_point"]["mean"]
    assert "worst_point" in (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "two_maps" not in catalog.names("models")


def test_list_shows_what_a_plugin_brings(plugin, capsys):
    code, out, _ = run(capsys, "list", "--plugin", plugin, "--json")
    listed = json.loads(out)
    assert code == 0
    assert listed["models"]["two_maps"] == "Two maps with a kink between them, at every point alike."
    assert listed["problems"]["ring"] == "A wave that travels round a ring."
    assert "two_maps" not in json.loads(run(capsys, "list", "--json")[1])["models"]


def test_what_a_plugin_brings_does_not_outlive_the_command(plugin, capsys, tmp_path):
    assert run(capsys, "list", "--plugin", plugin)[0] == 0
    code, _, error = run(capsys, "generate", "ring", "--out", tmp_path / "data")
    assert code == 2
    assert "unknown problem 'ring'" in error and "--plugin FILE" in error


def test_a_bundle_whose_model_is_unknown_says_how_to_give_it(mine, tmp_path, capsys):
    save_bundle(build_surrogate(PROBLEM, mine.models[0], **SIZES), tmp_path / "bundle")
    with pytest.raises(UserError, match=r"holds the model 'two_maps', .* models=\[…\] .* --plugin FILE") as caught:
        load(tmp_path / "bundle")
    assert str(caught.value).startswith(f"{tmp_path / 'bundle'} holds the model")
    assert "\n" not in str(caught.value)
    code, _, error = run(capsys, "inspect", tmp_path / "bundle", "--parameters")
    assert code == 2 and "--plugin FILE" in error and len(error.splitlines()) == 1
    with pytest.raises(UserError, match="a model is a subclass of Backbone"):
        load(tmp_path / "bundle", models=["two_maps"])


def test_a_run_of_an_unknown_model_says_how_to_give_it(plugin, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("problem: ring\nmodel: {name: two_maps}\n")
    code, _, error = run(capsys, "train", "--resume", "--out", "run")
    assert code == 2
    assert "unknown model 'two_maps'" in error and "--plugin FILE" in error


def test_a_backbone_that_its_config_does_not_describe_is_not_saved(mine, tmp_path):
    surrogate = build_surrogate(PROBLEM, "fno", **SIZES)
    surrogate.backbone = mine.models[0](mine.models[0].config_class(**SIZES), PROBLEM)
    with pytest.raises(UserError, match=r"backbone is a .*TwoMaps, its configuration describes the model 'fno'"):
        save_bundle(surrogate, tmp_path / "bundle")
    resized = build_surrogate(PROBLEM, mine.models[0], **SIZES)
    resized.backbone = mine.models[0](mine.models[0].config_class(**SIZES, widening=5), PROBLEM)
    with pytest.raises(UserError, match=r"backbone.first.bias has shape \(40,\), its configuration describes \(16,\)"):
        save_bundle(resized, tmp_path / "bundle")
    compiled = build_surrogate(PROBLEM, "fno", **SIZES)
    compiled.backbone = torch.compile(compiled.backbone)
    with pytest.raises(UserError, match="OptimizedModule"):
        save_bundle(compiled, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_saving_draws_no_random_numbers(tmp_path):
    surrogate = build_surrogate(PROBLEM, "fno", **SIZES)
    before = torch.get_rng_state()
    save_bundle(surrogate, tmp_path / "bundle")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_configuration_finds_its_model_and_fit_takes_it(mine):
    model = mine.models[0]
    config = model.config_class(dim=8, widening=4)
    assert backbone_of(config) is model
    trained = fit(
        torch.randn(2, 8, 16, 1),
        grid=PROBLEM.grid,
        fields=["height"],
        num_context_frames=2,
        model=config,
        updates=1,
        settings={"training.batch_size": 1},
        progress=False,
    )
    assert (trained.config.widening, trained.config.residual) == (4, True)


class SharedConfig(ModelConfig):
    name: str = "shared"


class Shared(Backbone):
    config_class = SharedConfig

    def forward(self, z, grid):
        return z


def test_models_that_cannot_be_are_named():
    class Child(Shared):
        pass

    with pytest.raises(UserError, match="the model Child needs a configuration of its own"):
        build_surrogate(PROBLEM, Child)
    with pytest.raises(UserError, match="Thief and Model share a configuration"):

        class Thief(find_model("fno")):
            config_class = find_model("fno").config_class

    with pytest.raises(UserError, match="must be a subclass of ModelConfig"):

        class Unconfigured(Backbone):
            config_class = dict

    with pytest.raises(UserError, match="needs a name"):

        class Nameless(Backbone):
            config_class = type("NamelessConfig", (ModelConfig,), {})

    with pytest.raises(UserError, match="Shared is called 'shared'; its configuration says 'other'"):
        build_surrogate(PROBLEM, SharedConfig(name="other"))
    with pytest.raises(UserError, match="a model is a subclass of Backbone"):
        check_model(nn.Linear)
    assert find_model("fno").config_class.backbone_class is find_model("fno")


def test_names_of_ours_are_refused():
    mine = _another("fno")
    with pytest.raises(UserError, match="model 'fno' is a name of ours"), catalog.using(models=[mine]):
        pass
    with catalog.using(models=[find_model("fno")], pdes=[find_pde("darcy_flow")]):  # our own are no others
        assert find_model("fno") is find_model("fno")
    shared = [Shared, _another("shared")]
    with pytest.raises(UserError, match="two models are called 'shared'"), catalog.using(models=shared):
        pass
    with pytest.raises(UserError, match="is no model: it has no name"), catalog.using(models=[3]):
        pass


def _another(called):
    class Config(ModelConfig):
        name: str = called

    class Other(Shared):
        config_class = Config

    return Other


def test_a_class_defined_again_in_a_notebook_takes_the_place_of_the_old_one():
    made = [_another("shared"), _another("shared")]
    for model in made:
        with catalog.using(models=[model]):
            assert find_model("shared") is model


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no plugin file"),
        ("def (", "is not valid Python: line 1: "),
        ("x = 1", "holds no Backbone class, no PDE object and no METRICS"),
        ("import nonsense_that_is_not_there", "fails with ModuleNotFoundError: No module named"),
        ("from factformer.models.fno import Model", "holds no Backbone class"),
        ("METRICS = [1]", "METRICS must be functions by name"),
        ("METRICS = {'vrmse': len}", "metric 'vrmse' is a name of ours"),
        ("METRICS = {'largest': 3}", "metrics are functions by name"),
        (PLUGIN.replace("ring = Ring()", "").replace("METRICS", "X").replace("(Backbone)", ""), "pde = Ring()"),
        (PLUGIN.replace('["two_maps"] = "two_maps"', '["fno"] = "fno"'), "model 'fno' is a name of ours"),
        (PLUGIN.replace('name = "ring"', 'name = "darcy_flow"'), "problem 'darcy_flow' is a name of ours"),
        (PLUGIN.replace("config_class = TwoMapsConfig", ""), "TwoMaps needs a configuration of its own"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_named_in_one_line(text, message, tmp_path, capsys):
    path = tmp_path / "plugin.py"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    code, _, error = run(capsys, "list", "--plugin", path)
    assert code == 2
    assert message in error and len(error.splitlines()) == 1


def test_two_plugins_may_not_share_a_name(plugin, tmp_path, capsys):
    (tmp_path / "other.py").write_text(PLUGIN, encoding="utf-8")
    code, _, error = run(capsys, "list", "--plugin", plugin, "--plugin", tmp_path / "other.py")
    assert code == 2 and "two metrics are called 'worst_point'" in error


@pytest.mark.parametrize("command", ["list", "generate", "convert", "train", "evaluate", "rollout", "inspect"])
def test_commands_that_take_a_model_or_a_pde_take_a_plugin(command, capsys):
    code, out, _ = run(capsys, command, "--help")
    assert code == 0 and "--plugin" in out


@pytest.mark.parametrize("value", [1.0, torch.ones(3), torch.ones(1, 2)])
def test_a_metric_must_give_one_number_per_sample(value, mine, tmp_path):
    generate(mine.pdes[0], tmp_path, preset="tiny", splits=["test"])
    surrogate = build_surrogate(mine.pdes[0].problem(16), mine.models[0], **SIZES)
    data = open_dataset(tmp_path, "test", num_context_frames=2, horizon=2)
    with pytest.raises(UserError, match=r"metric 'odd' must give one number per sample, shape \(2,\); got"):
        evaluate(surrogate, data, metrics={"odd": lambda *_: value}, timing=False, num_starts=1)


def install(folder, name, models="", pdes=""):
    """A package as an installer leaves it: a module and the description beside it."""
    (folder / f"{name}.py").write_text(PLUGIN, encoding="utf-8")
    description = folder / f"{name}-1.0.dist-info"
    description.mkdir()
    (description / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = {"factformer.models": models, "factformer.pdes": pdes}
    text = "".join(f"[{group}]\n{lines}\n" for group, lines in groups.items() if lines)
    (description / "entry_points.txt").write_text(text)


def test_an_installed_package_offers_its_models_and_equations(tmp_path, monkeypatch, capsys):
    install(tmp_path, "their_waves", "two_maps = their_waves:TwoMaps", "ring = their_waves:ring")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "their_waves", raising=False)
    assert "two_maps" in catalog.names("models") and "their_waves" not in sys.modules
    listed = json.loads(run(capsys, "list", "--json")[1])
    assert listed["models"]["two_maps"] == "of the installed package 'their_waves'"
    assert "their_waves" not in sys.modules  # listing runs nobody's code
    surrogate = build_surrogate(find_pde("ring").problem(16), "two_maps", **SIZES)
    save_bundle(surrogate, tmp_path / "bundle")
    assert type(load(tmp_path / "bundle").backbone) is sys.modules["their_waves"].TwoMaps
    assert run(capsys, "generate", "ring", "--preset", "tiny", "--out", tmp_path / "data")[0] == 0


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ("fno = their_waves:TwoMaps", "package 'their_waves' offers a model 'fno', which is a name of ours"),
        ("other = their_waves:TwoMaps", "offers model 'other', but what is there is called 'two_maps'"),
        ("gone = their_waves:Gone", "model 'gone' of the installed package 'their_waves' cannot be imported"),
        ("ring = their_waves:ring", "a model is a subclass of Backbone"),
    ],
)
def test_a_package_that_offers_nonsense_is_named(models, message, tmp_path, monkeypatch):
    install(tmp_path, "their_waves", models)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "their_waves", raising=False)
    with pytest.raises(UserError, match=re.escape(message)):
        find_model(models.partition(" ")[0])
    assert find_model("ffno").name == "ffno"


def test_public_names_are_there_without_loading_torch():
    code = "import sys, factformer.models, factformer.catalog; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
    assert {"Backbone", "ModelConfig"} <= set(factformer.models.__all__)
    assert {"PDE", "Preset", "Task"} <= set(factformer.pdes.__all__)
