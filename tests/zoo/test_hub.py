"""Bundles from a Hugging Face repository: with a stand-in for its package, and with the package itself."""

import sys
import urllib.request
from pathlib import Path
from types import ModuleType

import pytest
from zoo_server import HUB, publish

from factformer import load
from factformer.errors import UserError
from factformer.zoo import lookup
from factformer.zoo.lookup import pull

WEIGHTS = "flow/1/model.safetensors"


@pytest.fixture
def hub(server, bundle, tmp_path, monkeypatch):
    """A package whose index names a repository, and that repository on loopback."""
    monkeypatch.delenv("FACTFORMER_ZOO_URL")
    publish(server, bundle, hub=HUB)
    (tmp_path / "packaged").mkdir()
    (tmp_path / "packaged" / "index.json").write_bytes(server.files["index.json"])
    monkeypatch.setattr(lookup, "PACKAGED", tmp_path / "packaged")
    monkeypatch.setenv("HF_ENDPOINT", server.address.removesuffix("/zoo"))
    return server


@pytest.fixture
def stand_in(hub, monkeypatch):
    """What we use of ``huggingface_hub``, over plain HTTP."""

    def hf_hub_download(repository, file, local_dir):
        address = f"{hub.address.removesuffix('/zoo')}/{repository}/resolve/main/{file}"
        target = Path(local_dir) / file
        target.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(address) as answer:
            target.write_bytes(answer.read())
        return str(target)

    package = ModuleType("huggingface_hub")
    package.hf_hub_download = hf_hub_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", package)
    return hub


@pytest.fixture
def package(hub, monkeypatch):
    """The package itself. It reads its endpoint when it is imported, so it is imported anew."""
    for name in [name for name in sys.modules if name.split(".")[0] == "huggingface_hub"]:
        monkeypatch.delitem(sys.modules, name)
    pytest.importorskip("huggingface_hub")
    return hub


@pytest.fixture(params=["stand_in", pytest.param("package", marks=pytest.mark.thirdparty)])
def repository(request):
    return request.getfixturevalue(request.param)


def test_a_bundle_of_a_repository_is_fetched_once(repository, bundle, tmp_path):
    done = []
    folder = pull("flow", progress=lambda have, total: done.append((have, total)))
    assert folder == tmp_path / "cache/zoo/flow/1"
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "bundle.json"}
    assert (folder / "model.safetensors").read_bytes() == repository.files[WEIGHTS]
    assert done == sorted(done) and done[-1][0] == done[-1][1]
    count = len(repository.asked)
    assert load("flow").num_parameters == load(bundle).num_parameters
    assert len(repository.asked) == count


def test_wrong_bytes_of_a_repository_are_not_kept(repository, tmp_path):
    right = repository.files[WEIGHTS]
    repository.files[WEIGHTS] = right[:-1] + bytes([right[-1] ^ 1])
    with pytest.raises(UserError, match=rf"{HUB}/{WEIGHTS} .*checksum"):
        pull("flow")
    assert not (tmp_path / "cache/zoo/flow/1").exists()
    repository.files[WEIGHTS] = right
    assert (pull("flow") / "model.safetensors").read_bytes() == right


def test_a_file_that_a_repository_lacks_is_one_line(repository):
    del repository.files[WEIGHTS]
    with pytest.raises(UserError, match=rf"cannot fetch {HUB}/{WEIGHTS} from Hugging Face") as caught:
        pull("flow")
    assert "\n" not in str(caught.value)


@pytest.mark.thirdparty
def test_a_connection_to_a_hub_that_breaks_is_resumed(package):
    package.cuts[WEIGHTS] = [1000, 500]
    assert (pull("flow") / "model.safetensors").read_bytes() == package.files[WEIGHTS]


def test_a_hub_that_keeps_breaking_off_is_one_line(repository):
    repository.cuts[WEIGHTS] = [10] * 50
    with pytest.raises(UserError, match=rf"cannot fetch {HUB}/{WEIGHTS} from Hugging Face"):
        pull("flow")


def test_a_hub_without_its_package_is_one_line(hub, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=rf"repository {HUB} need a package: pip install 'factformer\[hub\]'"):
        load("flow")
