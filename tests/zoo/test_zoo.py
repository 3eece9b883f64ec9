"""Bundles by name: looked up, fetched from a server that misbehaves, resumed, checked, and never half there."""

import json
import shutil
import socket
from pathlib import Path

import pytest
from zoo_server import publish

from factformer import load
from factformer.cli import main
from factformer.errors import UserError
from factformer.zoo import fetch, lookup
from factformer.zoo.index import parse_index, read_index
from factformer.zoo.lookup import cache_folder, contents, find, installed, pull

ROOT = Path(__file__).parents[2]


WEIGHTS = "flow/1/model.safetensors"


def weights_asked(server):
    return [first for path, first in server.asked if path == WEIGHTS]


def nothing_is_there(tmp_path):
    return not list((tmp_path / "cache").glob("zoo/*/[!.]*"))


def test_load_fetches_a_bundle_once_and_needs_no_network_then(server, bundle, tmp_path):
    ours = load("flow")
    assert ours.num_parameters == load(bundle).num_parameters
    assert {path.name for path in (tmp_path / "cache/zoo/flow/1").iterdir()} == {"model.safetensors", "bundle.json"}
    count = len(server.asked)
    load("flow")
    assert len(server.asked) == count
    assert [path.name for path in (tmp_path / "cache/zoo/flow").iterdir()] == ["1"]


def test_a_cut_connection_is_resumed(server, tmp_path):
    size = len(server.files[WEIGHTS])
    server.cuts[WEIGHTS] = [1000, 500, size // 2]
    done = []
    folder = pull("flow", progress=lambda have, total: done.append((have, total)))
    assert weights_asked(server) == [0, 1000, 1500, 1500 + size // 2]
    assert (folder / "model.safetensors").read_bytes() == server.files[WEIGHTS]
    assert done == sorted(done) and done[-1][0] == done[-1][1]


def test_a_later_command_resumes_what_an_earlier_one_left(server, tmp_path):
    server.cuts[WEIGHTS] = [1000, 0, 0, 0]
    with pytest.raises(UserError, match=r"model.safetensors ends after 1 kB of .*; try again later"):
        pull("flow")
    assert nothing_is_there(tmp_path)
    assert weights_asked(server) == [0, 1000, 1000, 1000]
    pull("flow")
    assert weights_asked(server)[-1] == 1000
    load("flow")


def test_a_server_without_ranges_begins_anew(server):
    server.cuts[WEIGHTS] = [1000]
    server.ranges = False
    assert (pull("flow") / "model.safetensors").read_bytes() == server.files[WEIGHTS]


@pytest.mark.parametrize("kind", ["changed", "longer", "shorter", "page"])
def test_wrong_bytes_are_not_kept(server, tmp_path, kind):
    right = server.files[WEIGHTS]
    wrong = {
        "changed": right[:-1] + bytes([right[-1] ^ 1]),
        "longer": right + b"more",
        "shorter": right[:-5],
        "page": b"<html>please log in</html>",
    }
    server.files[WEIGHTS] = wrong[kind]
    with pytest.raises(UserError, match=r"does not match its checksum|ends after|answers 416") as error:
        load("flow")
    assert "\n" not in str(error.value)
    assert nothing_is_there(tmp_path)
    server.files[WEIGHTS] = right
    load("flow")


def test_the_rest_of_another_file_is_thrown_away(server, tmp_path):
    """A part that an earlier version left makes a wrong whole; it is fetched again from the start."""
    partial = tmp_path / "cache/zoo/flow/.1.partial"
    partial.mkdir(parents=True)
    (partial / "model.safetensors.part").write_bytes(b"x" * 999)
    pull("flow")
    assert weights_asked(server) == [999, 0]
    load("flow")


def test_a_part_longer_than_the_file_is_thrown_away(server, tmp_path):
    partial = tmp_path / "cache/zoo/flow/.1.partial"
    partial.mkdir(parents=True)
    (partial / "model.safetensors.part").write_bytes(b"x" * (len(server.files[WEIGHTS]) + 5))
    pull("flow")
    load("flow")


def test_a_server_that_stumbles_is_asked_again_and_one_that_refuses_is_not(server):
    server.codes[WEIGHTS] = [503, 500]
    pull("flow")
    assert weights_asked(server) == [0, 0, 0]
    shutil.rmtree(cache_folder())
    server.codes[WEIGHTS] = [403]
    with pytest.raises(UserError, match=r"answers 403 Forbidden; check the address of the zoo"):
        pull("flow")


def test_a_silent_server_is_one_line(server, monkeypatch):
    monkeypatch.setattr(fetch, "TIMEOUT", 0.2)
    with socket.socket() as deaf:  # takes connections and says nothing
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        monkeypatch.setenv("FACTFORMER_ZOO_URL", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        with pytest.raises(UserError, match=r"cannot reach .*timed out.*FACTFORMER_ZOO"):
            load("flow")


def test_without_a_network_one_line_says_what_to_do(server, capsys, monkeypatch):
    server.http.socket.close()
    with pytest.raises(SystemExit) as stopped:
        main(["zoo", "pull", "flow"])
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert "cannot reach" in error and "set FACTFORMER_ZOO to the folder it lies in" in error and error.count("\n") == 1
    monkeypatch.setenv("FACTFORMER_ZOO_URL", "ftp://somewhere")
    with pytest.raises(UserError, match=r"begins with https:// or http://, got 'ftp://somewhere/index.json'"):
        load("flow")


def test_a_new_version_is_fetched_when_it_is_pulled(server, bundle, tmp_path):
    pull("flow")
    publish(server, bundle, release="2")
    assert find("flow").name == "1"
    assert pull("flow").name == "2"
    assert find("flow").name == "2"


def test_damage_in_the_cache_is_found_and_mended(server, capsys):
    weights = pull("flow") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    with pytest.raises(SystemExit) as stopped:
        main(["zoo", "verify"])
    assert stopped.value.code == 1
    assert "model.safetensors has another checksum" in capsys.readouterr().out
    pull("flow")
    with pytest.raises(SystemExit) as stopped:
        main(["zoo", "verify", "--json"])
    assert stopped.value.code == 0 and json.loads(capsys.readouterr().out) == {"flow": "ok"}
    with pytest.raises(SystemExit) as stopped:
        main(["zoo", "verify", "flaw"])
    assert stopped.value.code == 2


def test_the_list_says_where_bundles_are(server, bundle, tmp_path, capsys, monkeypatch):
    assert [(item.name, item.state) for item in contents()] == [("flow", "elsewhere")]
    pull("flow")
    shutil.copytree(bundle, tmp_path / "mine" / "own")
    monkeypatch.setenv("FACTFORMER_ZOO", str(tmp_path / "mine"))
    with pytest.raises(SystemExit):
        main(["zoo", "list"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split()[-1] == "fetched" and lines[1].strip() == "A small flow."
    assert lines[2].split() == ["own", "here"]
    with pytest.raises(SystemExit):
        main(["zoo", "list", "--json"])
    assert [row["state"] for row in json.loads(capsys.readouterr().out)] == ["fetched", "here"]


def test_folders_of_ones_own_come_first(server, bundle, tmp_path, monkeypatch):
    shutil.copytree(bundle, tmp_path / "mine" / "flow")
    monkeypatch.setenv("FACTFORMER_ZOO", str(tmp_path / "mine"))
    assert find("flow") == tmp_path / "mine" / "flow"
    assert server.asked == []


def test_the_bundles_of_a_wheel_are_found(server, bundle, tmp_path, monkeypatch):
    shutil.copytree(bundle, tmp_path / "packaged" / "flow")
    monkeypatch.setattr(lookup, "PACKAGED", tmp_path / "packaged")
    assert installed() == {"flow": tmp_path / "packaged" / "flow"}
    load("flow")
    assert server.asked == []


def test_an_index_without_an_address_says_where_to_get_bundles(server, bundle, tmp_path, monkeypatch):
    monkeypatch.delenv("FACTFORMER_ZOO_URL")
    (tmp_path / "packaged").mkdir()
    (tmp_path / "packaged" / "index.json").write_bytes(server.files["index.json"])
    monkeypatch.setattr(lookup, "PACKAGED", tmp_path / "packaged")
    with pytest.raises(UserError, match=r"'flow' is not on this computer.*set FACTFORMER_ZOO_URL to one, or") as error:
        load("flow")
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=r"there is no bundle at flux\. Bundles by name: flow\."):
        load("flux")
    publish(server, bundle, base=server.address + "/")
    (tmp_path / "packaged" / "index.json").write_bytes(server.files["index.json"])
    load("flow")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "is no index of a zoo in version 1"),
        ({"version": 2}, "is no index of a zoo in version 1"),
        ({"base": 3}, "base and hub are texts or null"),
        ({"bundles": {"../flow": {"version": "1", "card": "", "files": {}}}}, "'../flow' is no name"),
        ({"bundles": {"flow": {"version": "..", "card": "", "files": {}}}}, r"'\.\.' is no name"),
        ({"bundles": {"flow": {"version": "1", "card": "", "files": {"run.py": {}}}}}, r"has the files run\.py"),
        ({"bundles": {"flow": {"version": "1", "card": ""}}}, "is no index of a zoo: KeyError"),
        ({"bundles": []}, "is no index of a zoo: AttributeError"),
    ],
)
def test_an_index_is_checked(server, bundle, change, message):
    publish(server, bundle, **change)
    with pytest.raises(UserError, match=message) as error:
        load("flow")
    assert "\n" not in str(error.value)


def test_an_index_that_is_no_json_is_one_line(server):
    for content in (b"<html>", b"\xff\xfe", b"[" * 100000):
        server.files["index.json"] = content
        with pytest.raises(UserError, match=r"index.json is (not valid JSON|no UTF-8 text|nested)"):
            load("flow")


def test_our_index_is_that_of_our_bundles():
    from lab.zoo_index import build

    index = read_index(ROOT / "zoo" / "index.json")
    built = parse_index(build(ROOT / "zoo"), "built")
    assert index == built
    assert "kolmogorov-128" in index.bundles


def test_the_next_version_of_a_changed_bundle(tmp_path, bundle):
    from lab.zoo_index import build

    shutil.copytree(bundle, tmp_path / "flow")
    first = build(tmp_path)
    assert first["bundles"]["flow"]["version"] == "1"
    (tmp_path / "index.json").write_text(json.dumps({**first, "base": "https://zoo"}), encoding="utf-8")
    (tmp_path / "flow" / "README.md").write_text("# flow\n\nA `small` flow.\n", encoding="utf-8")
    second = build(tmp_path)
    assert second["bundles"]["flow"] | {"files": {}} == {"version": "2", "card": "A small flow.", "files": {}}
    assert second["base"] == "https://zoo"


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/factformer/zoo"),
        ("linux", {}, "/home/me/.cache/factformer/zoo"),
        ("darwin", {}, "/home/me/Library/Caches/factformer/zoo"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/factformer/zoo"),
        ("win32", {"FACTFORMER_CACHE": "/mine", "XDG_CACHE_HOME": "/x"}, "/mine/zoo"),
    ],
)
def test_the_cache_is_where_the_system_keeps_such_files(platform, environment, expected, monkeypatch):
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "FACTFORMER_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(lookup.sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    assert cache_folder().as_posix() == expected


def test_finished_runs_are_listed(bundle, tmp_path, capsys, monkeypatch):
    shutil.copytree(bundle, tmp_path / "runs" / "first" / "bundle")
    shutil.copytree(bundle, tmp_path / "second" / "bundle")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["list", "--json"])
    listed = json.loads(capsys.readouterr().out)
    assert {name: Path(path).as_posix() for name, path in listed["runs"].items()} == {
        "first": "runs/first/bundle",
        "second": "second/bundle",
    }
    assert {"problems", "models", "recipes", "bundles"} < set(listed)


@pytest.fixture
def out_of_reach(monkeypatch):
    monkeypatch.setenv("FACTFORMER_ZOO_URL", "http://127.0.0.1:1/zoo")


def command(capsys, *words):
    with pytest.raises(SystemExit) as stopped:
        main(["zoo", *words])
    return stopped.value.code, *capsys.readouterr()


def test_without_a_network_what_was_fetched_is_pulled_listed_and_verified(server, capsys, request):
    folder = pull("flow")
    request.getfixturevalue("out_of_reach")
    for words in (("pull", "flow"), ("list",), ("verify",)):
        code, out, err = command(capsys, *words)
        assert code == 0
        assert "flow" in out
        assert (err.count("\n"), "on this computer" in err or "of this computer" in err) == (1, True)
    (folder / "model.safetensors").write_bytes(b"damaged")
    assert command(capsys, "pull", "flow")[0] == 2


def test_without_a_network_and_a_copy_the_address_is_named(server, out_of_reach, capsys):
    code, _, err = command(capsys, "pull", "flow")
    assert (code, "cannot reach http://127.0.0.1:1" in err) == (2, True)


def test_an_installed_bundle_is_pulled_where_the_index_has_no_address(server, tmp_path, monkeypatch, capsys):
    shutil.copytree(pull("flow"), tmp_path / "zoo" / "flow")
    shutil.rmtree(tmp_path / "cache")
    index = tmp_path / "packaged" / "index.json"
    index.parent.mkdir()
    index.write_bytes(server.files["index.json"])
    monkeypatch.setattr(lookup, "PACKAGED", index.parent)
    monkeypatch.delenv("FACTFORMER_ZOO_URL")
    code, out, err = command(capsys, "pull", "flow")
    assert (code, out) == (0, f"flow: {tmp_path / 'zoo' / 'flow'}\n")
    assert "the index of the zoo has no address" in err
    (tmp_path / "zoo" / "flow" / "model.safetensors").write_bytes(b"damaged")
    code, _, err = command(capsys, "pull", "flow")
    assert (code, "is damaged" in err) == (2, True)
