import sys

import pytest
from arena import Arena
from artefacts import Kit, make_kit

collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]  # /proc, pidfd and limits of memory


@pytest.fixture(scope="session")
def arena():
    with Arena() as arena:
        yield arena


@pytest.fixture(scope="session")
def kit(arena, tmp_path_factory) -> Kit:
    kit = make_kit(tmp_path_factory.mktemp("fuzz") / "kit", arena)
    kit.tell(arena)
    return kit
