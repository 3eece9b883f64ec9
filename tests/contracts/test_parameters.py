"""Parameters condition every model of the catalog: neutral before training, in every block, and never ignored."""

import math
from dataclasses import replace

import pytest
import torch
from telling import error_when_told

from factformer import Field, Grid, Problem, catalog, simulate
from factformer.batch import Batch
from factformer.bundle import load, save_bundle
from factformer.data.normalization import Normalizer
from factformer.models._backbone import Backbone, ModelConfig
from factformer.nn.conditions import Modulation
from factformer.surrogate import Surrogate, build_surrogate
from small_models import SMALL, VARIANTS, named, small_sizes

PLAIN = Problem("channel", Grid((8, 6), 1.0, (True, False)), (Field("u", 2),), num_context_frames=2, boundary="zero")
PROBLEM = replace(PLAIN, parameters=("reynolds", "slope"))
KNOWN = {"state_mean": [0.0, 0.1], "state_std": [1.0, 1.0], "increment_std": [0.3, 0.3]}
KNOWN |= {"context_mean": KNOWN["state_mean"], "context_std": KNOWN["state_std"]}
OF_PARAMETERS = {
    "parameters_mean": [6.0, 0.0],
    "parameters_std": [0.8, 0.5],
    "parameters_log": [1.0, 0.0],
    "parameters_min": [100.0, -1.0],
    "parameters_max": [2000.0, 1.0],
}


@pytest.fixture(params=[*catalog.names("models"), *VARIANTS])
def model(request) -> str:
    return request.param


def small(model: str | type[Backbone], problem: Problem = PROBLEM, **options) -> Surrogate:
    sizes = small_sizes(model)
    statistics = {**KNOWN, **OF_PARAMETERS} if problem.parameters else KNOWN
    torch.manual_seed(0)
    return build_surrogate(
        problem, named(model), marching_steps=2, normalizer=Normalizer(**statistics), **sizes, **options
    ).eval()


def batch(*reynolds: float) -> Batch:
    generator = torch.Generator().manual_seed(1)
    context = torch.randn(1, 2, 8, 6, 2, generator=generator).expand(len(reynolds), -1, -1, -1, -1)
    return Batch(context, parameters=torch.tensor([[value, 0.3] for value in reynolds]))


def moved(surrogate: Surrogate, values: Batch) -> Surrogate:
    """After one update."""
    optimizer = torch.optim.SGD(surrogate.parameters(), lr=0.1)
    surrogate(values).square().mean().backward()
    optimizer.step()
    return surrogate


def test_before_training_parameters_change_no_bit(model):
    plain, conditioned = small(model, PLAIN), small(model)
    found = conditioned(batch(100.0, 900.0))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found, plain(batch(100.0, 900.0).context)), "the same seed gives the same other weights"
    shared = plain.state_dict().keys()
    for name, tensor in conditioned.state_dict().items():
        assert name not in shared or torch.equal(tensor, plain.state_dict()[name]), name


def test_without_parameters_nothing_is_added(model):
    added = {"modulation", "embedding", "around"}
    assert not any(added & set(name.split(".")) for name in small(model, PLAIN).state_dict())


def test_every_block_is_modulated_and_learns_it(model):
    surrogate = small(model)
    modulations = {name: part for name, part in surrogate.named_modules() if isinstance(part, Modulation)}
    assert len(modulations) >= SMALL["depth"] and surrogate.around is None
    values = batch(150.0, 900.0)
    surrogate(values).square().mean().backward()
    for name, modulation in modulations.items():
        assert modulation.weight.grad.abs().max() > 1e-9, name
    moved(surrogate, values)
    surrogate.zero_grad()
    surrogate(values).square().mean().backward()
    for name, parameter in surrogate.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_after_an_update_predictions_depend_on_each_parameter(model):
    surrogate = moved(small(model), batch(150.0, 900.0))
    found = surrogate(batch(150.0, 900.0, 900.0))
    assert not torch.allclose(found[0], found[1], rtol=1e-4)
    assert torch.equal(found[1], found[2])
    other = batch(150.0)
    steeper = other._replace(parameters=other.parameters + torch.tensor([[0.0, 0.5]]))
    assert not torch.allclose(surrogate(other), surrogate(steeper), rtol=1e-4)


def test_samples_see_their_own_parameters_alone(model):
    surrogate = moved(small(model), batch(150.0, 900.0)).double()
    together = surrogate(batch(150.0, 900.0, 400.0).to(torch.float64))
    alone = torch.cat([surrogate(batch(value).to(torch.float64)) for value in (150.0, 900.0, 400.0)])
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-9)


def test_a_bundle_keeps_what_was_learned_of_parameters(model, tmp_path):
    surrogate = moved(small(model), batch(150.0, 900.0))
    loaded = load(save_bundle(surrogate, tmp_path / "bundle"))
    assert torch.equal(loaded(batch(150.0, 700.0)), surrogate(batch(150.0, 700.0)))
    assert loaded.normalizer.to_dict() == surrogate.normalizer.to_dict()


def test_recomputed_activations_give_the_same_gradients(model):
    plain = moved(small(model), batch(150.0, 900.0)).train()
    again = small(model, checkpointing=True).train()
    again.load_state_dict(plain.state_dict())
    for surrogate in (plain, again):
        surrogate.zero_grad()
        surrogate(batch(150.0, 900.0)).square().mean().backward()
    for (name, one), other in zip(plain.named_parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, msg=name)


class OwnConfig(ModelConfig):
    name: str = "own_without_conditions"


class Own(Backbone):
    """A user's model that was written before there were conditions."""

    config_class = OwnConfig

    def __init__(self, config, problem) -> None:
        super().__init__(config, problem)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(config.dim, config.dim) for _ in range(config.depth))

    def forward(self, z, grid):
        for layer in self.layers:
            z = z + torch.tanh(layer(z))
        return z


def test_a_model_that_takes_no_conditions_sees_parameters_before_and_after():
    plain, conditioned = small(Own, PLAIN), small(Own)
    assert torch.equal(conditioned(batch(100.0, 900.0)), plain(batch(100.0, 900.0).context))
    surrogate = moved(conditioned, batch(150.0, 900.0))
    assert all(part.weight.grad.abs().max() > 1e-9 for part in surrogate.around)
    found = surrogate(batch(150.0, 900.0))
    assert not torch.allclose(found[0], found[1], rtol=1e-4)


def test_one_surrogate_over_a_range_of_speeds_needs_to_be_told_the_speed():
    """Advection of waves: one frame tells nothing of the speed."""
    grid = Grid(16, 2 * math.pi, True)
    generator = torch.Generator().manual_seed(0)
    speed = 0.5 + 1.5 * torch.rand(32, generator=generator)
    start = torch.cos(grid.axis(0) + 2 * math.pi * torch.rand(32, 1, generator=generator))[..., None]
    frames = simulate("advection_diffusion", start, 9, 0.2, velocity=speed.double()).float()

    told, untold = (
        error_when_told("parameters", known, frames, grid, num_training=24, updates=80, depth=2, frame_dt=0.2)
        for known in ({"speed": speed}, {})
    )
    assert told < 0.4 * untold, (told, untold)
