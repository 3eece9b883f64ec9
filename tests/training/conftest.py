import pytest
from small_waves import wave_data

from factformer.data.dataset import ArrayDataset


@pytest.fixture(scope="session")
def datasets() -> tuple[ArrayDataset, ArrayDataset]:
    """Training and held-out waves."""
    return wave_data()
