"""One thread per test process, and shape annotations checked at run time."""

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
if not os.path.exists("/dev/nvidia0"):
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is first imported, which torch may do

from jaxtyping import install_import_hook

# The layers whose annotations are shapes; everything below is checked by beartype while tests run. Not kernels:
# Triton reads the source of its kernels, which the hook would wrap.
source = Path(__file__).parents[1] / "src"
layers = [path.relative_to(source) for path in (source / "factformer" / "nn").rglob("*.py")]
install_import_hook(
    [
        "factformer.metrics",
        "factformer.surrogate",
        "factformer.rollout",
        *(".".join(path.with_suffix("").parts) for path in layers if path.stem != "__init__"),
    ],
    "beartype.beartype",
)

import pytest  # noqa: E402
import torch  # noqa: E402


@pytest.fixture(autouse=True)
def _quiet_and_deterministic():
    torch.manual_seed(0)
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Chromium, for the tests of a file; skipped where there is none."""
    from tests.browsers import chromium

    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found
