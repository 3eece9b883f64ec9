"""Real fields without a solver: Gaussian vortices carried across a periodic box, and a lagging surrogate."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import torch
import yaml

from factformer import metrics
from factformer._support.documents import json_text
from factformer.bundle import save_bundle
from factformer.evaluation.results import Evaluation, FieldErrors, Floor, Spectrum
from factformer.grid import Grid
from factformer.problem import Field, Problem
from factformer.report.runs import ReportRun
from factformer.report.samples import Rollout
from factformer.surrogate import build_surrogate

VORTICITY = (Field("vorticity"),)


def vortices(shape, num_frames, *, seed=0, speed=1.0, strength=1.0, num_channels=1, frame_dt=0.125):
    """(frame, *grid, channel): vortices of both signs advected at constant velocity, exact at every frame."""
    rng = np.random.default_rng(seed)
    axes = np.meshgrid(*(np.arange(n) * (2 * np.pi / n) for n in shape), indexing="ij")
    frames = np.zeros((num_frames, *shape, num_channels))
    for channel in range(num_channels):
        for _ in range(14):
            centre = rng.uniform(0, 2 * np.pi, len(shape))
            velocity = rng.normal(size=len(shape))
            sign, width = rng.choice([-1, 1]) * rng.uniform(2, 6), rng.uniform(0.25, 0.6)
            for k in range(num_frames):
                place = centre + speed * velocity * k * frame_dt
                squared = sum(2 - 2 * np.cos(x - c) for x, c in zip(axes, place, strict=True))
                frames[k, ..., channel] += strength * sign * np.exp(-squared / (2 * width**2))
    return frames.astype(np.float32)


def evaluation_of(last_known, truth, prediction, fields, frame_dt):
    """The JSON that evaluation writes, measured on these samples with the package's own metrics."""
    t, p = torch.from_numpy(np.stack(truth)), torch.from_numpy(np.stack(prediction))
    start, groups = 0, {}
    for item in fields:
        part = slice(start, start + item.num_channels)
        start += item.num_channels
        last = torch.from_numpy(np.stack(last_known))[..., part].expand_as(t[..., part])
        errors = metrics.relative_l2(p[..., part], t[..., part])
        per_frame = metrics.relative_l2_per_frame(p[..., part], t[..., part]).mean(0)
        floor = metrics.relative_l2_per_frame(last, t[..., part]).mean(0)
        truth_spectrum = metrics.energy_spectrum(t[:, -1, ..., part]).mean(0)
        groups[item.name] = FieldErrors(
            relative_l2=float(errors.mean()),
            relative_l2_final=float(per_frame[-1]),
            relative_l2_per_frame=per_frame.tolist(),
            standard_error=metrics.standard_error(errors),
            standard_error_final=None,
            vrmse=float(metrics.vrmse(p[..., part], t[..., part]).mean()),
            spectrum_error=float(metrics.spectrum_error(p[..., part], t[..., part]).mean()),
            correlation_time=float(metrics.correlation_time(p[..., part], t[..., part], frame_dt).mean()),
            persistence=Floor(
                relative_l2=float(metrics.relative_l2(last, t[..., part]).mean()),
                relative_l2_final=float(floor[-1]),
                relative_l2_per_frame=floor.tolist(),
            ),
            spectrum=Spectrum(
                wavenumber=list(range(len(truth_spectrum))),
                prediction=metrics.energy_spectrum(p[:, -1, ..., part]).mean(0).tolist(),
                truth=truth_spectrum.tolist(),
            ),
        )
    return evaluation(groups, num_windows=len(truth), frame_dt=frame_dt)


def evaluation(fields, **changes):
    """An evaluation of these `FieldErrors` by name."""
    values = {
        "fields": fields,
        "persistence": {name: errors.persistence.relative_l2 for name, errors in fields.items()},
        "floor": "last context frame",
        "parameters": 3_460_000,
        "seconds_per_sequence": 0.0421,
        "seconds_per_batch": 0.1684,
        "peak_memory_mb": 812.0,
        "batch_size": 4,
        "num_windows": 2,
        "num_trajectories": 2,
        "num_diverged": 0,
        "num_frames": len(next(iter(fields.values())).relative_l2_per_frame),
        "frame_dt": 1.0,
        "problem": "kolmogorov_flow",
        "model": "factformer",
        "grid": [32, 32],
        "split": "test",
        "other_parameters": "",
        "dataset_fingerprint": "0123456789abcdef",
        "precision": "32-true",
        "hardware": "2-core CPU",
        "evaluation_seconds": 1.5,
    }
    return Evaluation(**(values | changes))


def plain_errors(errors, **changes):
    """`FieldErrors` with these errors per frame and little else."""
    values = dict.fromkeys(field.name for field in dataclasses.fields(FieldErrors))
    values |= {"relative_l2": errors[0], "relative_l2_per_frame": list(errors)}
    return FieldErrors(**(values | {"persistence": Floor(None, None, [None] * len(errors))} | changes))


def make_run(
    name="factformer",
    *,
    shape=(32, 32),
    num_frames=8,
    num_samples=2,
    fields=VORTICITY,
    lag=0.06,
    protocol="latent_marching",
    kernels=None,
):
    """A run whose surrogate is right but for moving ``lag`` too slowly and losing strength."""
    channels, frame_dt = sum(f.num_channels for f in fields), 0.125
    options = {"num_channels": channels, "frame_dt": frame_dt}
    whole = [vortices(shape, num_frames + 1, seed=s, **options) for s in range(num_samples)]
    slow = {"speed": 1 - lag, "strength": 1 - lag / 4}
    prediction = [vortices(shape, num_frames + 1, seed=s, **slow, **options)[1:] for s in range(num_samples)]
    last_known, truth = [frames[:1] for frames in whole], [frames[1:] for frames in whole]
    problem = Problem(
        "kolmogorov_flow",
        Grid(shape, 2 * np.pi, True),
        tuple(fields),
        frame_dt=frame_dt,
        num_context_frames=10,
        horizon=num_frames,
    )
    return ReportRun(
        name=name,
        evaluation=evaluation_of(last_known, truth, prediction, fields, frame_dt),
        rollouts=[Rollout(t, p) for t, p in zip(truth, prediction, strict=True)],
        config={
            "model": {"name": name, "dim": 64, "depth": 4},
            "protocol": {"name": protocol},
            "training": {"updates": 2000, "learning_rate": 5e-4, "seed": 0},
        },
        command=f"factformer train kolmogorov --scale small --set model.name={name} --out runs/{name}",
        protocol=protocol,
        problem=problem,
        kernels=kernels or {},
    )


def make_steady_run():
    """A steady problem in the manner of Darcy flow: two materials in, a smooth solution out."""
    grid, fields = Grid((24, 24), 1.0, False), (Field("solution"),)
    x, y = (grid.axis(m).numpy() for m in range(2))
    bump = (np.sin(np.pi * x)[:, None] * np.sin(np.pi * y))[None, ..., None].astype(np.float32)
    rollouts = []
    for sample in range(2):
        pattern = vortices((24, 24), 1, seed=sample)
        coefficient = np.where(pattern > 0, 12.0, 3.0).astype(np.float32)
        rollouts.append(Rollout(bump + 0.02 * pattern * bump, bump, coefficient))
    truth, prediction = ([getattr(r, name) for r in rollouts] for name in ("truth", "prediction"))
    mean = [np.full_like(bump, 0.4)] * 2
    return ReportRun(
        name="factformer",
        evaluation=dataclasses.replace(evaluation_of(mean, truth, prediction, fields, 1.0), floor="training mean"),
        rollouts=rollouts,
        protocol="steady",
        problem=Problem("darcy_flow", grid, fields, (Field("coefficient"),), num_context_frames=0, boundary="zero"),
    )


def save_run(folder, run, **changes):
    """A run folder as training and evaluation leave it, of an untrained surrogate."""
    sizes = {"dim": 8, "depth": 1, "heads": 1, "head_dim": 8, "kernel_dim": 8}
    save_bundle(build_surrogate(run.problem, **sizes), folder / "bundle")
    (folder / "config.yaml").write_text(yaml.safe_dump(run.config, sort_keys=False))
    (folder / "evaluation.json").write_text(json_text(run.evaluation.to_dict()))
    (folder / "environment.json").write_text(json.dumps({"command": run.command}))
    arrays = {name: np.stack([getattr(r, name) for r in run.rollouts]) for name in ("truth", "prediction")}
    fields = json.dumps([[f.name, f.num_channels] for f in run.fields])
    np.savez_compressed(folder / "rollouts.npz", fields=np.array(fields), **(arrays | changes))
    return folder
