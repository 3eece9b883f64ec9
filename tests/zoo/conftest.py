import pytest
from zoo_server import Server, publish

from factformer.zoo import lookup
from small_zoo import save_small_bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return save_small_bundle(tmp_path_factory.mktemp("made") / "flow")


@pytest.fixture
def server(bundle, tmp_path, monkeypatch):
    """A zoo with one bundle at an address, and a computer that has none."""
    for name in ("FACTFORMER_ZOO", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Server()
    monkeypatch.setenv("FACTFORMER_ZOO_URL", server.address)
    monkeypatch.setenv("FACTFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(lookup, "CHECKOUT", tmp_path / "none")
    monkeypatch.chdir(tmp_path)
    publish(server, bundle)
    yield server
    server.close()
