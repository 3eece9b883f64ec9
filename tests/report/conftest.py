from __future__ import annotations

import pytest
from report_samples import make_run

from factformer.problem import Field


@pytest.fixture(scope="session")
def plane_run():
    return make_run()


@pytest.fixture(scope="session")
def rival_run():
    return make_run("ffno", lag=0.12, protocol="autoregressive")


@pytest.fixture(scope="session")
def box_run():
    """Three axes, a scalar and a vector."""
    fields = (Field("pressure"), Field("velocity", 3))
    return make_run(shape=(12, 10, 8), num_frames=3, num_samples=1, fields=fields)
