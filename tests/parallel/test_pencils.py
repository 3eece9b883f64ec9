"""Periodic fields cut over processes: transforms, starts and solvers give what one process gives, and send what the
formula says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from factformer.errors import UserError
from factformer.grid import Grid
from factformer.numerics.pencil_traffic import sent_by_transform
from factformer.numerics.pencils import WHOLE, cut_for, mode_ranges, part_of
from factformer.numerics.spectral import Spectrum, full_cutoff, padded_shape
from factformer.pdes import Semilinear, find_pde

CASES = Path(__file__).with_name("pencil_cases.py")


@pytest.mark.parametrize(
    ("size", "flags"),
    [
        (2, ["few"]),
        (4, ["few"]),
        pytest.param(2, [], marks=pytest.mark.slow),
        pytest.param(3, [], marks=pytest.mark.slow),
        pytest.param(4, [], marks=pytest.mark.slow),
    ],
)
def test_cut_fields_are_those_of_one_process(tmp_path, size, flags):
    words = [sys.executable, str(CASES), str(tmp_path / "rendezvous")]
    processes = [
        subprocess.Popen(
            [*words, str(rank), str(size), *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]
    answers = [process.communicate(timeout=900) for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(error[-3000:] for _, error in answers)
    assert json.loads(answers[0][0].splitlines()[-1]) == {}


def test_slabs_where_they_are_thick_enough_and_pencils_beyond():
    assert cut_for((2048, 2048, 2048), 64) == (64, 1, 1)
    assert cut_for((64, 64, 64), 16) == (16, 1, 1)
    assert cut_for((64, 64, 64), 64) == (8, 8, 1)
    assert cut_for((64, 64, 64), 48) == (8, 6, 1)
    assert cut_for((512, 512), 8) == (8, 1)
    assert cut_for((100, 101, 102), 1) == (1, 1, 1)
    with pytest.raises(UserError, match="64 x 64 points cannot be cut over 17 processes; use at most 16"):
        cut_for((64, 64), 17)
    with pytest.raises(UserError, match="cannot be cut over 2 processes"):
        cut_for((64,), 2)


def test_parts_make_up_the_whole_once():
    for size, parts in ((10, 3), (7, 7), (5, 8)):
        held = [list(range(size))[part_of(size, parts, place)] for place in range(parts)]
        assert [index for own in held for index in own] == list(range(size))
    ranges = [mode_ranges((4, 5, 3), (2, 3, 1), (a, b, 0)) for a in range(2) for b in range(3)]
    assert {own[0] for own in ranges} == {(0, 5)}
    assert sorted({own[1] for own in ranges}) == [(0, 3), (3, 6)]
    assert sorted({own[2] for own in ranges}) == [(0, 1), (1, 2), (2, 4)]


def test_one_process_sends_nothing_and_even_parts_send_what_the_formula_says():
    assert sent_by_transform((8, 8, 8), (2, 2, 2), (1, 1, 1), (0, 0, 0)) == (0, 0)
    # 16 x 16 x 16 points, 15 x 15 x 8 modes; slabs over 4: 16 · 15 · 8 numbers on the way, 3/4 of a quarter of them
    totals = [sent_by_transform((16, 16, 16), (7, 7, 7), (4, 1, 1), (place, 0, 0)) for place in range(4)]
    assert [sum(pair[way] for pair in totals) for way in (0, 1)] == [16 * 15 * 8 * 3 // 4] * 2


def test_the_example_of_the_documentation():
    cutoff = full_cutoff((2048,) * 3)
    points = padded_shape(cutoff)
    assert points == (3072,) * 3
    for cut, gigabytes in (((64, 1, 1), 28.5), ((8, 8, 1), 63.4)):
        to_modes, to_points = sent_by_transform(points, cutoff, cut, tuple(count // 2 for count in cut))
        assert 8e-9 * (12 * to_modes + 24 * to_points) == pytest.approx(gigabytes, abs=0.1)


def test_the_whole_is_its_only_part():
    spectrum = Spectrum([1.0, 2.0], (3, 4))
    assert spectrum.pencils is WHOLE and spectrum.ranges == ((0, 4), (0, 5))
    assert Grid((4, 6), 1.0, True).whole.shape == (4, 6)


def test_a_start_of_ones_own_is_not_cut_unless_it_says_so():
    class Own(type(find_pde("burgers"))):
        def start(self, grid, generator):
            raise NotImplementedError

    class Cuttable(Own):
        cuttable = True

    assert not Own.cuttable and Cuttable.cuttable and Semilinear.cuttable
    cuttable = {"burgers", "gray_scott", "fisher_kpp", "cahn_hilliard", "swift_hohenberg", "advection_diffusion"}
    cuttable |= {"kolmogorov_flow", "navier_stokes", "isotropic_turbulence", "kuramoto_sivashinsky"}
    assert all(find_pde(name).cuttable for name in cuttable)
    assert not any(find_pde(name).cuttable for name in ("smoke_buoyancy", "darcy_flow", "obstacle_flow"))
