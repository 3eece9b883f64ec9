"""The engine: what is chosen when, and that every way to execute a network gives the same answer."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from factformer import Field, Grid, Problem, build_surrogate, engine, load
from factformer.batch import Batch
from factformer.bundle import save_bundle
from factformer.nn import FactorizedAttention
from factformer.nn.fourier_features import FourierFeatures
from factformer.nn.frame_encoder import FrameEncoder
from factformer.nn.stage import Stage

SMALL = {"dim": 16, "depth": 3, "heads": 2, "head_dim": 4, "kernel_dim": 4}
GRID = Grid((8, 9), (1.0, 2.5), (True, False))


@pytest.fixture
def surrogate():
    torch.manual_seed(0)
    problem = Problem("test", GRID, (Field("a"), Field("b")), num_context_frames=2, boundary="zero")
    return build_surrogate(problem, "factformer_plus", marching_steps=3, **SMALL)


@pytest.fixture
def frames():
    return torch.randn(2, 2, *GRID.shape, 2, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def on_gpu(monkeypatch):
    """Tensors of a GPU without values, on a machine that has none."""
    monkeypatch.setattr(engine, "device_limits", lambda device: engine.FULL)
    monkeypatch.setattr(engine, "_can_compile", lambda device: True)
    monkeypatch.delenv(engine.VARIABLE, raising=False)
    with FakeTensorMode():
        yield


def attention(dim=128, heads=2, head_dim=64, kernel_dim=128, **options):
    return FactorizedAttention(2, dim, heads, head_dim, kernel_dim, **options)


def way(layer, dtype=torch.bfloat16, device="cuda", mode=None):
    u = torch.empty(1, 8, 9, layer.dim, dtype=dtype, device=device)
    return engine.StageExecution("attention", mode).choice(layer, u, None, GRID)[0]


def test_the_table_on_a_gpu(on_gpu):
    assert way(attention()) == "fused"
    assert way(attention(dim=256)) == "compiled", "wider than the kernels' tiles"
    assert way(attention(head_dim=128)) == "compiled"
    assert way(attention(kernel_dim=512)) == "compiled"
    assert way(attention(parallel=True)) == "compiled"
    assert way(attention(), torch.float16) == "compiled"
    assert way(attention(), torch.float32) == "plain"
    assert way(attention(dim=32, head_dim=16)) == "fused"
    assert way(attention(), mode="off") == "plain"
    assert way(attention(), device="cpu") == "plain"


def test_autocast_counts_as_the_number_format(on_gpu, monkeypatch):
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.bfloat16)
    assert way(attention(), torch.float32) == "fused"
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.float16)
    assert way(attention(), torch.float32) == "compiled"


def test_other_gpus_compile_and_those_without_a_compiler_run_plain(on_gpu, monkeypatch):
    monkeypatch.setattr(engine, "device_limits", lambda device: None)
    assert way(attention()) == "compiled"
    monkeypatch.setattr(engine, "_can_compile", lambda device: False)
    assert way(attention()) == "plain"


def test_a_map_of_positions_is_not_worth_compiling(on_gpu):
    wide = FourierFeatures(2, 512, 1.0)
    wide.linear.weight = nn.Parameter(torch.empty(512, 512, device="cuda", dtype=torch.bfloat16))
    assert engine.StageExecution("positions").choice(wide, GRID)[0] == "plain"


def test_the_environment_is_asked_at_every_call_unless_a_mode_was_given(monkeypatch):
    layer = attention(12, 2, 6, 4)
    monkeypatch.setenv(engine.VARIABLE, "force")
    assert way(layer, torch.float32, "cpu") == "fused"
    assert way(layer, torch.float64, "cpu") == "plain"
    assert way(layer, torch.float32, "cpu", "off") == "plain"
    monkeypatch.setenv(engine.VARIABLE, "off")
    assert way(layer, torch.float32, "cpu") == "plain"
    assert way(layer, torch.float32, "cpu", "force") == "fused"


def test_a_bare_layer_is_plain_pytorch(monkeypatch):
    monkeypatch.setenv(engine.VARIABLE, "force")

    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = FactorizedAttention(2, 8, 2, 4, 4)

        def forward(self, u):
            return self.attention.add_to(u, None, GRID)

    mine, u = Mine(), torch.randn(1, *GRID.shape, 8)
    assert mine.attention.implementation is None
    assert torch.equal(mine(u), u + mine.attention(u, GRID))


def test_a_subclass_computes_what_it_says():
    class Twice(FrameEncoder):
        def plain(self, frames, statistics):
            return 2 * super().plain(frames, statistics)

    encoder, frames = Twice(2, 1, 16), torch.randn(1, 2, 8, 1)
    expected = encoder(frames)
    engine.attach(encoder, "force")
    assert encoder.implementation is None
    assert torch.equal(encoder(frames), expected)


COMPILED = """
import sys
import warnings
import torch
from torch._dynamo import register_backend
from factformer import Field, Grid, Problem, build_surrogate, engine

torch.manual_seed(0)
grid = Grid((8, 9), (1.0, 2.5), (True, False))
problem = Problem("test", grid, (Field("a"), Field("b")), num_context_frames=2, boundary="zero")
surrogate = build_surrogate(problem, "factformer_plus", depth=2, dim=16, heads=2, head_dim=4, kernel_dim=4)
parameters, frames, graphs = list(surrogate.parameters()), torch.randn(2, 2, 8, 9, 2), []
plain = surrogate(frames)
wanted = torch.autograd.grad(plain.square().sum(), parameters)


@register_backend(name="counting")
def counting(module, inputs):
    graphs.append(module)
    return module


@register_backend(name="broken")
def broken(module, inputs):
    raise RuntimeError("no compiler here")


engine.attach(surrogate, "compiled", "counting")
compiled = surrogate(frames)
assert torch.equal(compiled, plain)
assert len(graphs) == 4, graphs  # encoder, attention, local branch, marching and decoder: all layers share a graph
surrogate(frames)
assert len(graphs) == 4
for a, b in zip(torch.autograd.grad(compiled.square().sum(), parameters), wanted, strict=True):
    assert torch.equal(a, b)

torch._dynamo.reset()
engine.attach(surrogate, "compiled", "broken")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert torch.equal(surrogate(frames), plain)
    assert torch.equal(surrogate(frames), plain)
said = [str(w.message) for w in caught if "runs uncompiled" in str(w.message)]
assert len(said) == 4 and "'encoder'" in said[0], said

torch._dynamo.reset()
engine.detach(surrogate)
engine.attach(surrogate)
exported = torch.export.export(surrogate, (frames,), strict=False)
assert torch.allclose(exported.module()(frames), plain, atol=1e-6)
assert torch.equal(torch.compile(surrogate, backend="eager")(frames), plain)
print("agrees")
"""


def test_compiled_stages_give_the_plain_answer_share_graphs_and_fall_back():
    """In a process of its own: the run-time shape checks of the tests are not part of the graph."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "agrees", done.stderr[-2000:]


def test_an_attached_surrogate_is_copied_and_stored_like_any_other(surrogate, frames, tmp_path):
    plain, state = surrogate(frames), list(surrogate.state_dict())
    engine.attach(surrogate)
    assert list(surrogate.state_dict()) == state
    duplicate = copy.deepcopy(surrogate)
    assert duplicate.implementation.graphs is not surrogate.implementation.graphs
    for other in (duplicate, pickle.loads(pickle.dumps(surrogate)), load(save_bundle(surrogate, tmp_path / "bundle"))):
        stages = [part for part in other.modules() if isinstance(part, Stage)]
        assert len(stages) == 3 + 3 * SMALL["depth"]
        assert all(part.implementation is not None for part in stages)
        assert torch.equal(other(frames), plain)


def test_attaching_again_keeps_a_mode_and_detaching_brings_plain_pytorch_back(surrogate):
    engine.attach(surrogate, "off")
    engine.attach(surrogate)
    assert surrogate.implementation.mode == surrogate.encoder.implementation.mode == "off"
    engine.detach(surrogate)
    assert all(part.implementation is None for part in surrogate.modules() if isinstance(part, Stage))


def test_a_call_in_inference_mode_is_the_plain_one(surrogate, frames):
    """What a recorded call does at first: the same work outside of inference mode, on inputs made inside of it."""
    from factformer.kernels.graphs import CallGraphs

    plain = surrogate(frames)
    engine.attach(surrogate)
    calls = CallGraphs()
    with torch.inference_mode():
        inside = frames * 1.0
        result = calls(surrogate, "key", lambda x: engine.predict(surrogate, Batch(x), 3, GRID), inside)
    assert torch.equal(result, plain)
    assert not result.is_inference()


def test_the_trainer_attaches_what_it_trains():
    from types import SimpleNamespace

    from factformer.training.experiment.assembly import new_surrogate

    problem = Problem("test", GRID, (Field("a"),), num_context_frames=2, boundary="zero")
    protocol = SimpleNamespace(strides=(1,), coarse=1)
    experiment = SimpleNamespace(model=build_surrogate(problem, **SMALL).config, protocol=protocol)
    dataset = SimpleNamespace(problem=problem, normalizer=lambda: None)
    trained = new_surrogate(experiment, dataset, SimpleNamespace(problem=problem, steps_per_call=2))
    assert isinstance(trained.implementation, engine.CallExecution)
