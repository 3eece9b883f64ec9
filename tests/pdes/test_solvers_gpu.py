"""The solvers on a GPU, with kernels and without, against the CPU: ``pytest -m gpu tests/pdes``."""

import pytest
import torch

from factformer import simulate
from factformer.pdes import find_pde

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CASES = [
    ("kolmogorov_flow", 512, {}),
    ("kolmogorov_flow", 64, {"integrator": "crank_nicolson_heun"}),
    ("kolmogorov_flow", 60, {}),
    ("isotropic_turbulence", 60, {"dt": 0.005}),
    ("isotropic_turbulence", 20, {}),
]


@pytest.mark.parametrize("fused", ["auto", "off"])
@pytest.mark.parametrize(("name", "size", "settings"), CASES)
def test_the_gpu_gives_what_the_cpu_gives(
    name: str, size: int, settings: dict[str, float], fused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FACTFORMER_FUSED", fused)
    pde = find_pde(name)
    generators = [torch.Generator().manual_seed(i) for i in range(2)]
    initial = pde.sample_initial(pde.problem(size).grid, generators, dtype=torch.float64, device="cpu")
    expected = simulate(name, initial, 3, 0.02, **settings)
    for dtype, limit in ((torch.float32, 3e-6), (torch.float64, 1e-12)):
        frames = simulate(name, initial.to("cuda", dtype), 3, 0.02, **settings).cpu().double()
        assert (frames - expected).norm() < limit * expected.norm(), dtype
        alone = simulate(name, initial[1:].to("cuda", dtype), 3, 0.02, **settings).cpu().double()
        assert (frames[1:] - alone).norm() < limit * expected.norm(), dtype
