import pytest
from serve_bundles import flow


@pytest.fixture(scope="module")
def surrogate():
    return flow()
