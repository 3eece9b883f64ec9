"""Problems, the catalog, strict configurations and their overrides."""

import pytest

from factformer import Field, Grid, Problem, catalog
from factformer.config import Config, apply_overrides, fingerprint

PERIODIC = Grid((8, 8), 1.0, True)
BOX = Grid((8, 8), 1.0, (True, False))


def test_channels_of_field_groups():
    problem = Problem("flow", PERIODIC, (Field("pressure"), Field("velocity", 2)), num_context_frames=3, horizon=5)
    assert problem.num_state_channels == 3
    assert problem.state_slices == {"pressure": slice(0, 1), "velocity": slice(1, 3)}
    assert problem.padding == ("periodic", "periodic")
    assert Problem.from_dict(problem.to_dict()) == problem


def test_mixed_boundaries_and_steady_problems():
    problem = Problem(
        "darcy", BOX, (Field("solution"),), (Field("coefficient"),), num_context_frames=0, boundary="zero"
    )
    assert problem.padding == ("periodic", "zero")
    assert Problem.from_dict(problem.to_dict()) == problem


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"state": ()}, "no fields"),
        ({"state": (Field("a"), Field("a"))}, "'a' twice"),
        ({"state": ["a"]}, "takes fields"),
        ({"static": (Field("a"),)}, "'a' twice"),
        ({"forcing": (Field("f"),), "parameters": ("f",)}, "'f' twice"),
        ({"static": (Field("mask"),), "masked": True}, "'mask' twice"),
        ({"parameters": ("Reynolds number",)}, "needs a name such as"),
        ({"parameters": "reynolds"}, "a list of names"),
        ({"grid": BOX}, "all periodic"),
        ({"boundary": "open"}, "one of"),
        ({"frame_dt": 0.0}, "positive"),
        ({"num_context_frames": -1}, "at least 0"),
        ({"num_context_frames": 0}, "needs static fields"),
        ({"num_context_frames": 0, "static": (Field("b"),), "horizon": 2}, "one frame"),
        ({"num_context_frames": 0, "static": (Field("b"),), "forcing": (Field("f"),)}, "'f' as a static field"),
    ],
)
def test_impossible_problems_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        Problem(**{"name": "x", "grid": PERIODIC, "state": (Field("a"),), **options})


@pytest.mark.parametrize("name", ["", "a/b", ".", 3])
def test_fields_have_names_that_files_can_hold(name):
    with pytest.raises(ValueError, match="without a slash"):
        Field(name)


def test_catalog_finds_files_and_lists_choices():
    assert "factformer" in catalog.names("models")
    assert "kolmogorov_flow" in catalog.names("pdes")
    assert not any(name.startswith("_") for folder in catalog.KINDS for name in catalog.names(folder))
    with pytest.raises(ValueError, match=r"unknown model 'factfomer'; did you mean 'factformer'\?.*Choices: .*fno"):
        catalog.find("models", "factfomer")
    assert all(catalog.summaries("models").values())


class Inner(Config):
    updates: int = 3
    rate: float = 0.1


class Outer(Config):
    training: Inner = Inner()
    name: str = "a"


def test_overrides_are_typed_and_strict():
    values = apply_overrides(Outer().model_dump(), ["training.rate=1e-4", "name=b"])
    outer = Outer.parse(values)
    assert (outer.training.rate, outer.training.updates, outer.name) == (1e-4, 3, "b")
    with pytest.raises(ValueError, match=r"did you mean 'training.updates'"):
        Outer.parse(apply_overrides(Outer().model_dump(), ["training.update=5"]))
    with pytest.raises(ValueError, match=r"training.updates: .*integer"):
        Outer.parse(apply_overrides(Outer().model_dump(), ["training.updates=many"]))
    with pytest.raises(ValueError, match="unknown section 'trainin'"):
        apply_overrides(Outer().model_dump(), ["trainin.rate=1"])
    with pytest.raises(ValueError, match="KEY=VALUE"):
        apply_overrides(Outer().model_dump(), ["training.rate"])
    with pytest.raises(ValueError, match="frozen"):
        outer.name = "c"


def test_fingerprints_differ_where_any_value_differs():
    base = Outer()
    changed = [base.replace(name="b"), base.replace(training=Inner(updates=4)), base.replace(training=Inner(rate=0.2))]
    assert len({c.fingerprint() for c in [base, *changed]}) == 4
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})


def test_words_that_yaml_takes_for_truth_values_stay_words():
    assert apply_overrides({"a": 1}, ["a=off"]) == {"a": "off"}
    assert apply_overrides({"a": 1}, ["a=true", "b=False", "c=null"]) == {"a": True, "b": False, "c": None}
