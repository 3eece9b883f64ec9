"""The offline check of constraints.txt finds every way in which pins can fail to fit."""

import tomllib
from itertools import chain
from pathlib import Path

from lab.check_pins import TORCH_REQUIRES_TRITON, check, read_pins

ROOT = Path(__file__).parents[2]
METADATA = {
    "numpy": [],
    "tables": ["numpy>=2", "colorama; sys_platform == 'win32'", "tables-extra>1; extra == 'fast'"],
    "colorama": [],
}


def problems(requirements, pins):
    return check(requirements, read_pins(pins), lambda name, version: METADATA.get(name))


def test_pins_that_fit_are_accepted():
    pins = "numpy==2.1\ntables==1.0  # why\ncolorama==0.4 ; sys_platform == 'win32'\n"
    assert problems(["numpy>=1.26", "Tables"], pins) == []


def test_a_requirement_without_a_pin_is_named():
    assert "pyproject.toml requires tables, which has no pin" in problems(["tables"], "numpy==2.1")[0]


def test_a_pin_outside_the_required_range_is_named():
    (line,) = problems(["numpy>=3"], "numpy==2.1")
    assert "requires numpy>=3, the pin is 2.1" in line


def test_a_pin_missing_on_one_platform_is_named_with_that_platform():
    (line,) = problems(["tables"], "numpy==2.1\ntables==1.0")
    assert "tables 1.0 requires colorama, which has no pin" in line
    assert "win32" in line and "linux" not in line and "darwin" not in line


def test_pins_that_contradict_each_other_are_named():
    found = problems(["tables"], "numpy==1.26\ntables==1.0\ncolorama==0.4")
    assert any("tables 1.0 requires numpy>=2, the pin is 1.26" in line for line in found)


def test_requirements_of_a_requested_extra_are_followed():
    pins = "numpy==2.1\ntables==1.0\ncolorama==0.4"
    assert problems(["tables"], pins) == []
    assert "requires tables-extra" in problems(["tables[fast]"], pins)[0]


def test_two_pins_of_one_package_and_ranges_are_refused():
    assert "numpy has two pins" in problems([], "numpy==2.1\nNumPy==2.2")[0]
    assert problems([], "numpy==2.1 ; python_version < '3.12'\nnumpy==2.2 ; python_version >= '3.12'") == []
    assert "is not a pin" in problems([], "numpy>=2.1")[0]


def test_triton_3_6_beside_torch_2_13_of_the_index_is_refused():
    (line,) = problems(["torch"], "torch==2.13.0\ntriton==3.6.0 ; sys_platform == 'linux'")
    assert "torch 2.13.0 of the index requires triton==3.7.1" in line and "the pin is 3.6.0" in line


def test_a_torch_whose_triton_is_unknown_is_named():
    assert "has no line for torch 9.0" in problems(["torch"], "torch==9.0")[0]


def test_the_pins_of_this_repository_cover_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = read_pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    requirements = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    assert check(requirements, pins, lambda name, version: None) == []
    assert next(str(pin.specifier) for pin in pins if pin.name == "torch")[2:] in TORCH_REQUIRES_TRITON
