"""One thread per test process, and shape annotations checked at run time."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from jaxtyping import install_import_hook

# The layers whose annotations are shapes; everything below is checked by beartype while tests run.
install_import_hook(
    ["factformer.metrics", "factformer.nn", "factformer.surrogate", "factformer.rollout"],
    "beartype.beartype",
)

import pytest
import torch


@pytest.fixture(autouse=True)
def _quiet_and_deterministic():
    torch.manual_seed(0)
    torch.set_num_threads(1)
