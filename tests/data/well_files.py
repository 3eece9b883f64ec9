"""Files in the layout of The Well, made up for tests."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np


def write_well_file(path: Path, *, num_trajectories: int = 3, seed: int = 0, frames: int = 6) -> dict[str, np.ndarray]:
    """A file as The Well's authors make them: chunks, compression, static and broadcast fields, scalars."""
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    num_frames, shape = frames, (8, 5)
    values = {
        "density": random.normal(size=(num_trajectories, num_frames, *shape)).astype("f4"),
        "height": random.normal(size=(num_trajectories, num_frames, 1, 5)).astype("f4"),
        "velocity": random.normal(size=(num_trajectories, num_frames, *shape, 2)).astype("f4"),
        "stress": random.normal(size=(num_trajectories, num_frames, *shape, 2, 2)).astype("f4"),
        "mask": random.normal(size=shape).astype("f4"),
    }
    orders = {"density": 0, "height": 0, "mask": 0, "velocity": 1, "stress": 2}
    with h5py.File(path, "w") as file:
        file.attrs.update(dataset_name="invented", grid_type="cartesian", n_spatial_dims=2)
        file.attrs["n_trajectories"] = num_trajectories
        file.attrs["simulation_parameters"] = ["viscosity"]
        file.attrs["viscosity"] = 0.1
        dimensions = file.create_group("dimensions")
        dimensions.attrs["spatial_dims"] = ["x", "y"]
        dimensions["time"] = (10 + 0.5 * np.arange(num_frames)).astype("f4")
        dimensions["x"] = (np.arange(8) * (2 * np.pi / 8)).astype("f4")
        dimensions["y"] = (-1 + 2 * np.arange(5) / 4).astype("f4")
        for name in ("time", "x", "y"):
            dimensions[name].attrs.update(sample_varying=False, time_varying=name == "time")
        conditions = file.create_group("boundary_conditions")
        for name, size, kind in (("x", 8, "PERIODIC"), ("y", 5, "WALL")):
            condition = conditions.create_group(f"{name}_{kind.lower()}")
            condition.attrs.update(bc_type=kind, sample_varying=False, time_varying=False)
            condition.attrs["associated_dims"] = [name]
            condition.attrs["associated_fields"] = []
            condition["mask"] = np.isin(np.arange(size), (0, size - 1))
        scalars = file.create_group("scalars")
        scalars.attrs["field_names"] = ["viscosity"]
        scalars["viscosity"] = np.float32(0.1)
        scalars["viscosity"].attrs.update(sample_varying=False, time_varying=False)
        for order in range(3):
            group = file.create_group(f"t{order}_fields")
            names = [name for name in values if orders[name] == order]
            group.attrs["field_names"] = names
            for name in names:
                group.create_dataset(name, data=values[name], chunks=True, compression="gzip")
                group[name].attrs.update(sample_varying=name != "mask", time_varying=name != "mask")
                group[name].attrs["dim_varying"] = [name != "height", True]
    return values
