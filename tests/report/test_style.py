"""The colour maps are what they claim: even steps to the eye, monotone lightness, a centre that is zero."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest

from factformer.report import style

MAPS = [
    style.diverging_map(),
    style.difference_map(),
    style.diverging_map(dark=True),
    style.difference_map(dark=True),
]


def lab(colors):
    return style.srgb_to_oklab(colors(np.arange(colors.N))[:, :3])


@pytest.mark.parametrize("colors", MAPS, ids=lambda m: m.name)
def test_diverging_maps_take_even_perceptual_steps(colors):
    steps = np.linalg.norm(np.diff(lab(colors), axis=0), axis=1)
    assert steps.std() / steps.mean() < 0.05


@pytest.mark.parametrize("colors", MAPS, ids=lambda m: m.name)
def test_diverging_maps_are_symmetric_and_monotone_in_lightness(colors):
    lightness = lab(colors)[:, 0]
    middle = colors.N // 2
    assert colors.N % 2 == 1
    arm = np.diff(lightness[middle:])
    assert (arm > 0).all() or (arm < 0).all()
    np.testing.assert_allclose(lightness, lightness[::-1], atol=0.02)
    np.testing.assert_allclose(lab(colors)[middle, 1:], 0, atol=1e-3)


def test_arms_differ_for_red_green_blind_eyes():
    """Deuteranopes keep the blue-yellow axis (b of OKLab): the two arms lie on opposite sides of it."""
    for colors in (style.diverging_map(), style.difference_map()):
        b = lab(colors)[:, 2]
        quarter = colors.N // 4
        assert b[quarter] < -0.04
        assert b[-quarter] > 0.04


def test_oklab_of_known_colours():
    white, red = style.srgb_to_oklab(np.array([[1.0, 1, 1], [1, 0, 0]]))
    np.testing.assert_allclose(white, [1, 0, 0], atol=1e-3)
    np.testing.assert_allclose(red, [0.628, 0.2249, 0.1258], atol=1e-3)  # Ottosson's published value


def test_style_leaves_matplotlib_as_it_was():
    before = dict(matplotlib.rcParams)

    @style.styled
    def inside():
        return matplotlib.rcParams["axes.spines.top"]

    assert inside() is False
    assert dict(matplotlib.rcParams) == before


def test_palette_has_a_dark_form_of_every_colour():
    assert len(style.SERIES) == len(style.SERIES_DARK) == len(set(style.SERIES))
    assert style.series_color(len(style.SERIES)) == style.SERIES[0]
