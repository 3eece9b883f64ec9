"""The gallery has a card for every equation and a picture that is small enough."""

import json

import pytest
from PIL import Image

from factformer import catalog
from factformer.pdes import find_pde
from lab.gallery import films, gallery_page
from lab.gallery.equations import CARDS

NAMES = catalog.names("pdes")


def test_every_equation_has_a_card_a_film_and_a_section():
    assert set(NAMES) == set(CARDS) == set(films.FILMS)
    text = gallery_page.gallery_page()
    for name in NAMES:
        assert f"{{ #{name} }}" in text
        assert f"factformer generate {name} --preset small" in text


@pytest.mark.parametrize("name", NAMES)
def test_a_card_speaks_of_parameters_that_exist_and_of_all_of_them(name):
    assert set(CARDS[name].good) == set(find_pde(name).parameters.model_fields)


@pytest.mark.parametrize("name", NAMES)
def test_pictures_open_and_are_small(name):
    path = films.FOLDER / f"{name}.webp"
    assert path.stat().st_size <= films.MOST_BYTES
    with Image.open(path) as picture:
        assert min(picture.size) >= 100
        assert getattr(picture, "n_frames", 1) == 1 or picture.n_frames >= 8


def test_all_pictures_together_are_light():
    assert sum(path.stat().st_size for path in films.FOLDER.iterdir()) < 2_500_000


def test_a_cost_on_the_page_is_the_measured_one():
    row = json.loads(gallery_page.COSTS.read_text(encoding="utf-8"))["rows"][0]
    assert f"**{row['processor_seconds']:g} s** on one core" in gallery_page.section(row["equation"], [row])
    assert "not measured yet" in gallery_page.section(row["equation"], [])


def test_a_card_takes_defaults_from_the_class():
    lines = gallery_page.parameters(find_pde("burgers"), CARDS["burgers"]._replace(good={}))
    assert "| `viscosity`&nbsp;• | 0.01 |  |" in lines
    assert "| `extent` | 2π |  |" in lines  # one grid for all trajectories of a dataset
    assert "| `dt` | 1/128 |  |" in lines
