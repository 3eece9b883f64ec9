"""Presets with other numbers of points along some axes."""

import pytest

from factformer.data.generate.run import generate
from factformer.data.store import open_dataset
from factformer.errors import UserError
from factformer.pdes import find_pde

FEW = {"preset": "four_axes_small", "splits": ["valid"], "trajectories": 1, "settings": ["num_frames=3"]}


def test_resolution_keeps_the_proportions(tmp_path):
    generate("vlasov_poisson", tmp_path / "a", **FEW, resolution=4)
    stored = open_dataset(tmp_path / "a", "valid")
    assert stored.problem.grid.shape == (4, 4, 8, 8)
    assert stored.problem.grid.extent[2] == 9.0  # the preset's v_max
    assert abs(float(stored.read([0]).mean())) < 1e-3 < float(stored.read([0]).abs().max())  # a departure


def test_another_number_of_axes_has_the_resolution_along_each(tmp_path):
    generate("vlasov_poisson", tmp_path / "a", **FEW | {"settings": ["num_frames=3", "num_axes=2"]}, resolution=8)
    assert open_dataset(tmp_path / "a", "valid").problem.grid.shape == (8, 8)
    with pytest.raises(UserError, match="2 or 4 axes"):
        generate("vlasov_poisson", tmp_path / "b", **FEW | {"settings": ["num_axes=3"]})


def test_every_preset_has_the_shape_of_its_equation():
    for name in ("vlasov_poisson", "obstacle_flow", "isotropic_turbulence", "burgers"):
        equation = find_pde(name)
        for plan in equation.presets.values():
            assert len(equation.shape_in(plan)) in equation.dimensions
    assert find_pde("obstacle_flow").shape_in(find_pde("obstacle_flow").presets["small"]) == (128, 64)
