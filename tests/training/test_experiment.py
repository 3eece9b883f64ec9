"""Configurations: strict keys, overrides, and recipes under another model."""

import pytest

from factformer import catalog, recipes
from factformer.errors import UserError
from factformer.training.experiment.definition import Experiment, differences
from factformer.training.launch import wanted_problem


@pytest.fixture
def experiment() -> Experiment:
    return Experiment.parse({"problem": "custom", "model": {"name": "factformer", "dim": 32, "heads": 2}})


def test_overrides_reach_every_section(experiment):
    changed = experiment.override(
        ["model.dim=16", "data.stride=2", "protocol.pushforward=0", "training.learning_rate=1e-4"]
    )
    assert (changed.model.dim, changed.data.stride) == (16, 2)
    assert (changed.protocol.pushforward, changed.training.learning_rate) == (0, 1e-4)
    assert len(differences(experiment, changed)) == 4


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("training.updatess=3", "did you mean 'training.updates'"),
        ("model.kernel_dims=3", "did you mean 'model.kernel_dim'"),
        ("protocl.unroll=3", "did you mean 'protocol'"),
        ("training.updates=many", "training.updates"),
        ("training.batch_size=0", "training.batch_size"),
        ("model.name=factfromer", "did you mean 'factformer'"),
        ("training.updates", "KEY=VALUE"),
    ],
)
def test_a_wrong_override_is_named_in_one_line(experiment, assignment, message):
    with pytest.raises(UserError, match=message) as caught:
        experiment.override([assignment])
    assert "\n" not in str(caught.value)


def test_another_model_keeps_shared_options_and_drops_its_predecessors_own(experiment):
    changed = experiment.override(["model.name=fno"])
    assert (changed.model.name, changed.model.dim) == ("fno", 32)
    with pytest.raises(UserError, match=r"model\.heads"):
        experiment.override(["model.name=fno", "model.heads=4"])


def test_an_experiment_survives_its_file(experiment, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(experiment.override(["training.ema_decay=0.9"]).to_yaml(), encoding="utf-8")
    assert Experiment.read(path) == experiment.override(["training.ema_decay=0.9"])


@pytest.mark.parametrize("scale", ["small", "paper"])
@pytest.mark.parametrize("recipe", catalog.names("recipes"))
def test_every_recipe_builds_at_every_scale_with_every_model(recipe, scale):
    for model in catalog.names("models"):
        assert recipes.build(recipe, scale, [f"model.name={model}"]).model.name == model


@pytest.mark.parametrize(
    ("recipe", "scale", "depth"),
    [
        ("kolmogorov", "paper", 4),
        ("turbulence", "paper", 6),
        ("turbulence", "small", 3),
        ("darcy", "paper", 4),
    ],
)
def test_layers_that_see_one_axis_each_are_as_many_for_every_axis(recipe, scale, depth):
    assert recipes.build(recipe, scale, ["model.name=axial_transformer"]).model.depth == depth


def test_the_papers_settings():
    experiment = recipes.build("kolmogorov", "paper")
    assert (experiment.model.dim, experiment.model.depth, experiment.model.heads) == (128, 4, 8)
    assert (experiment.training.updates, experiment.training.optimizer) == (100_000, "adamw")
    assert (experiment.protocol.marching_steps, experiment.protocol.pushforward_every) == (4, 3)
    rival = recipes.build("kolmogorov", "paper", ["model.name=fno", "protocol.name=autoregressive"])
    assert (rival.model.dim, rival.protocol.unroll) == (96, 12)
    assert (rival.training.updates, rival.training.optimizer, rival.training.final_fraction) == (
        64_000,
        "adam",
        0.01,
    )


def test_an_unknown_recipe_and_scale_list_the_choices():
    with pytest.raises(UserError, match=r"darcy, .*demo, kolmogorov, .*, obstacle, smoke, turb"):
        recipes.build("kolmo")
    with pytest.raises(UserError, match=r"paper, small"):
        recipes.build("demo", "large")


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_what_we_found_better_is_for_our_model_alone(scale):
    for recipe in ("kolmogorov", "smoke"):
        assert recipes.build(recipe, scale, ["model.name=factformer_plus"]).protocol.marching_steps == 1
        assert recipes.build(recipe, scale, ["model.name=dilated_resnet"]).protocol.marching_steps == 4
    ours = recipes.build("kolmogorov", scale, ["model.name=factformer_plus", "protocol.marching_steps=2"])
    assert (ours.model.local_kernel, ours.protocol.marching_steps) == (7, 2)


def test_the_paper_s_modes_on_darcy_flow():
    assert recipes.build("darcy", "paper", ["model.name=fno"]).model.modes == 20
    assert recipes.build("kolmogorov", "paper", ["model.name=fno"]).model.num_modes(2) == 24


@pytest.mark.parametrize("value", ["true", ".inf", "inf", "-.inf", ".nan", "nan", "false"])
@pytest.mark.parametrize("key", ["training.learning_rate", "training.noise", "training.updates", "training.clip"])
def test_a_number_is_finite_and_no_truth_value(key, value):
    with pytest.raises(UserError, match=key):
        recipes.build("demo").override([f"{key}={value}"])


def test_a_list_without_brackets_is_one_complaint_that_shows_how_it_is_written():
    with pytest.raises(UserError) as refused:
        recipes.build("demo").override(["protocol.stride=1,2"])
    assert str(refused.value).count("protocol.stride") == 1
    assert "; a list is written [1,2]" in str(refused.value)


def test_a_problem_that_is_no_recipe_says_how_it_is_trained():
    with pytest.raises(UserError, match="leave it out to train on --data"):
        recipes.build("burgers")


def test_a_truth_value_stays_one():
    changed = recipes.build("demo").override(["training.augment=false", "model.residual=true", "training.clip=null"])
    assert (changed.training.augment, changed.model.residual, changed.training.clip) == (False, True, None)
    with pytest.raises(UserError, match=r"model\.local_dilations"):
        recipes.build("demo").override(["model.local_dilations=[true]"])


@pytest.mark.parametrize(("scale", "shape"), [("small", (12, 12, 24, 24)), ("paper", (32, 32, 32, 32))])
def test_a_recipe_on_four_axes(scale, shape):
    """Its grid is that of its preset, with or without data, and layers that see one axis each are as many for each."""
    experiment = recipes.build("vlasov", scale)
    assert wanted_problem(experiment).grid.shape == shape
    assert wanted_problem(experiment.override(["data.resolution=8"])).grid.shape == tuple(
        8 * size // shape[0] for size in shape
    )
    assert recipes.build("vlasov", scale, ["model.name=axial_transformer"]).model.depth == 4
