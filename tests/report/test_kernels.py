"""Kernels of a real bundle, and a run folder with one."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from report_samples import evaluation, plain_errors

from factformer._support.documents import json_text
from factformer.bundle import save_bundle
from factformer.errors import UserError
from factformer.grid import Grid
from factformer.problem import Field, Problem
from factformer.report.kernels import captioned, learned_kernels
from factformer.report.runs import load_run
from factformer.surrogate import build_surrogate

PROBLEM = Problem("p", Grid((12, 10), 2 * np.pi, True), (Field("vorticity"),), num_context_frames=2, horizon=3)


def bundle(folder, model, **options):
    torch.manual_seed(0)
    return save_bundle(build_surrogate(PROBLEM, model, marching_steps=1, dim=16, **options), folder / "bundle")


def test_kernels_of_first_and_last_layer_on_every_axis(tmp_path):
    path = bundle(tmp_path, "factformer", depth=3, heads=2, kernel_dim=8)
    context = np.random.default_rng(0).normal(size=(2, 2, 12, 10, 1)).astype(np.float32)
    kernels = learned_kernels(path, context)
    assert list(kernels) == ["layer 1, x₁", "layer 1, x₂", "layer 3, x₁", "layer 3, x₂"]
    assert [kernel.shape for kernel in kernels.values()] == [(12, 12), (10, 10)] * 2
    assert all(np.linalg.matrix_rank(kernel) <= 8 for kernel in kernels.values())
    assert all(np.abs(kernel).max() > 0 for kernel in kernels.values())


def test_models_without_axial_kernels_have_none(tmp_path):
    path = bundle(tmp_path, "dilated_resnet", depth=1)
    assert learned_kernels(path, np.zeros((1, 2, 12, 10, 1), np.float32)) == {}


def test_a_head_that_is_not_there():
    with pytest.raises(UserError, match="2 heads"):
        captioned({(0, 0): torch.zeros(2, 4, 4)}, head=2)


def test_a_run_folder_brings_its_kernels(tmp_path):
    bundle(tmp_path, "factformer", depth=1, heads=2, kernel_dim=8)
    frames = np.random.default_rng(0).normal(size=(1, 3, 12, 10, 1)).astype(np.float32)
    fields = np.array(json.dumps([["vorticity", 1]]))
    np.savez(tmp_path / "rollouts.npz", truth=frames, prediction=frames, context=frames[:, :2], fields=fields)
    found = evaluation({"vorticity": plain_errors([0.0, 0.0, 0.0])})
    (tmp_path / "evaluation.json").write_text(json_text(found.to_dict()))
    run = load_run(tmp_path)
    assert list(run.kernels) == ["layer 1, x₁", "layer 1, x₂"]
    assert run.name == "factformer"
    assert load_run(tmp_path, kernels=False).kernels == {}
