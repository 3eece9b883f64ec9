"""What surrounds the package: the Dockerfile, the metadata, and that text is read and written as UTF-8."""

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import factformer

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TEXT_CALLS = {"read_text", "write_text"}


def instructions():
    """The instructions of the Dockerfile: the word, and what follows with continued lines joined."""
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    joined = text.replace("\\\n", " ").splitlines()
    return [tuple(line.split(maxsplit=1)) for line in joined if line.strip()]


def test_the_dockerfile_has_both_targets_and_copies_what_is_there():
    found = instructions()
    known = {"FROM", "RUN", "COPY", "WORKDIR", "USER", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in found} <= known
    stages = [rest.split(" AS ") for word, rest in found if word == "FROM"]
    assert [name for _, name in stages] == ["wheel", "cpu", "cuda"]
    for image, _ in stages:
        assert re.fullmatch(r"python:3\.1[123]-slim", image), "a base image has a version"
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for word, rest in found:
        if word == "COPY" and not rest.startswith("--from="):
            *sources, _ = shlex.split(rest)
            for source in sources:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in ignored, source
        if word == "RUN":
            assert "sudo" not in rest
            if "apt-get install" in rest:
                assert "--no-install-recommends" in rest and "rm -rf /var/lib/apt/lists" in rest
            for call in re.findall(r"pip (?:install|wheel)[^&]*", rest):
                assert "--no-cache-dir" in call, call
        if word in ("ENTRYPOINT", "CMD"):
            assert isinstance(ast.literal_eval(rest), list)
    for target in ("cpu", "cuda"):
        last = [word for word, _ in found][: None if target == "cuda" else [w for w, _ in found].index("USER") + 1]
        assert "USER" in last, "the program does not run as root"


def test_image_and_source_archive_hold_every_bundle_of_the_wheel():
    (bundles,) = re.findall(r"^BUNDLES = (.*)$", (ROOT / "setup.py").read_text(encoding="utf-8"), re.MULTILINE)
    copied = [shlex.split(rest)[0] for word, rest in instructions() if word == "COPY"]
    archived = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    for name in ast.literal_eval(bundles):
        assert f"zoo/{name}" in copied, "docker build would fail"
        assert f"recursive-include zoo/{name} *" in archived, "the source archive could not be built"


def test_the_dockerfile_takes_the_pinned_torch():
    (pinned,) = re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    told = [version for _, rest in instructions() for version in re.findall(r"torch==([\d.]+)\+cpu", rest)]
    assert told == [pinned]
    extras = {
        extra
        for _, rest in instructions()
        for group in re.findall(r"\}\[([\w,]+)\]", rest)
        for extra in group.split(",")
    }
    assert extras <= set(PROJECT["optional-dependencies"])


def test_classifiers_name_the_pythons_of_the_pins():
    from lab.check_pins import PYTHONS

    prefix = "Programming Language :: Python :: "
    told = [item.removeprefix(prefix) for item in PROJECT["classifiers"] if item.startswith(f"{prefix}3.")]
    assert told == list(PYTHONS)
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"] == factformer.__version__
    assert {"title", "authors", "message", "license", "preferred-citation"} <= set(citation)


@pytest.mark.parametrize("folder", ["src", "lab", "benchmarks"])
def test_text_is_read_and_written_as_utf_8(folder):
    """Beside ruff's PLW1514, which does not follow every path: the system's own encoding is never taken."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TEXT_CALLS:
                named = {keyword.arg for keyword in node.keywords}
                positional = len(node.args) > (1 if node.func.attr == "write_text" else 0)
                assert "encoding" in named or positional, f"{path}:{node.lineno}"


def test_modules_of_the_package_are_found_by_their_names():
    script = "import factformer; print(factformer.nn.FactorizedAttention.__name__, factformer.catalog.__name__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["FactorizedAttention", "factformer.catalog"]
    with pytest.raises(AttributeError, match="'factformer' has no attribute 'nowhere'"):
        _ = factformer.nowhere
