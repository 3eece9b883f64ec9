"""Checks constraints.txt offline, for every supported Python and platform: `python -m lab.check_pins`.

1. Every requirement of pyproject.toml, extras included, has exactly one pin that applies, and the pin satisfies it.
2. The same holds for what those packages require, as far as their metadata is installed in the pinned version.
3. The pin of triton is the one that torch from the package index requires. A local CPU build of torch does not say so.

What the index holds is checked by `pip install --dry-run` and not here.
"""

from __future__ import annotations

import itertools
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from lab import ROOT

PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = {
    "linux": {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64"},
    "darwin": {"sys_platform": "darwin", "platform_system": "Darwin", "os_name": "posix", "platform_machine": "arm64"},
    "win32": {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt", "platform_machine": "AMD64"},
}
# What torch from the package index requires; a new pin of torch needs a new line here.
TORCH_REQUIRES_TRITON = {"2.13.0": "triton==3.7.1; sys_platform == 'linux'"}

Requires = Callable[[str, Version], list[str] | None]  # name, version → requirements; None where they are not known


def environments() -> Iterator[tuple[str, dict[str, str]]]:
    for python in PYTHONS:
        for platform, values in PLATFORMS.items():
            version = {"python_version": python, "python_full_version": f"{python}.0", "implementation_name": "cpython"}
            yield f"Python {python} on {platform}", {**values, **version, "platform_python_implementation": "CPython"}


def read_pins(text: str) -> list[Requirement]:
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return [Requirement(line) for line in lines if line]


def installed_requires(name: str, version: Version) -> list[str] | None:
    """The requirements of an installed distribution, if it is the pinned version (of any local build)."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    return list(found.requires or []) if Version(found.version).public == version.public else None


def applies(requirement: Requirement, environment: Mapping[str, str], extras: Iterable[str] = ()) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({**environment, "extra": extra}) for extra in ("", *extras))


def pins_that_apply(
    pins: Iterable[Requirement], environment: Mapping[str, str]
) -> tuple[dict[str, Version], list[str]]:
    versions: dict[str, Version] = {}
    problems = []
    for pin in pins:
        name = canonicalize_name(pin.name)
        exact = [specifier.version for specifier in pin.specifier if specifier.operator == "=="]
        if len(exact) != 1 or len(pin.specifier) != 1:
            problems.append(f"{pin} is not a pin: write {pin.name}==VERSION")
        elif applies(pin, environment):
            if name in versions:
                problems.append(f"{name} has two pins")
            versions[name] = Version(exact[0])
    return versions, problems


def problems_in(
    roots: list[tuple[str, str]], pins: list[Requirement], environment: Mapping[str, str], requires: Requires
) -> list[str]:
    """Walks from the roots (who, what) through all known requirements and names pins that are missing or do not fit."""
    versions, problems = pins_that_apply(pins, environment)
    torch = versions.get("torch")
    if torch and torch.public in TORCH_REQUIRES_TRITON:
        roots = [*roots, (f"torch {torch.public} of the index", TORCH_REQUIRES_TRITON[torch.public])]
    elif torch:
        problems.append(f"TORCH_REQUIRES_TRITON in {Path(__file__).name} has no line for torch {torch.public}")
    waiting = [(origin, text, frozenset[str]()) for origin, text in roots]
    seen = set(waiting)
    while waiting:
        origin, text, extras = waiting.pop()
        requirement = Requirement(text)
        if not applies(requirement, environment, extras):
            continue
        name = canonicalize_name(requirement.name)
        if name not in versions:
            problems.append(f"{origin} requires {requirement.name}, which has no pin")
            continue
        if not requirement.specifier.contains(versions[name], prereleases=True):
            problems.append(f"{origin} requires {text}, the pin is {versions[name]}")
        for needed in requires(name, versions[name]) or []:
            step = (f"{name} {versions[name]}", needed, frozenset(requirement.extras))
            if step not in seen:
                seen.add(step)
                waiting.append(step)
    return problems


def check(requirements: list[str], pins: list[Requirement], requires: Requires = installed_requires) -> list[str]:
    """One line per problem, with the environments in which it occurs."""
    roots = [("pyproject.toml", requirement) for requirement in requirements]
    found: dict[str, list[str]] = {}
    for label, environment in environments():
        for problem in dict.fromkeys(problems_in(roots, pins, environment, requires)):
            found.setdefault(problem, []).append(label)
    return [f"constraints.txt: {problem} ({', '.join(labels)})" for problem, labels in found.items()]


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    pins = read_pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    problems = check([*project["dependencies"], *itertools.chain.from_iterable(extras)], pins)
    print("\n".join(problems) or f"constraints.txt: {len(pins)} pins fit for Python {', '.join(PYTHONS)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
