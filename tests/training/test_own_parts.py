"""A user's own loss terms, metrics, callbacks and loggers in `fit`."""

import json

import pytest
import torch
from small_waves import TINY_MODEL, wave_data

import factformer
from factformer.errors import UserError

SETTINGS = {f"model.{key}": value for key, value in TINY_MODEL.items() if key != "name"} | {"training.log_every": 1}
SHORT = {"updates": 3, "settings": SETTINGS, "progress": False}


def mean_error(prediction, target):
    return (prediction.mean() - target.mean()).square()


def largest(prediction, target, problem):
    assert problem.name == "waves"
    return (prediction - target).abs().flatten(1).amax(1)


def lines(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_loss_term_is_added_to_the_loss_and_logged(tmp_path):
    dataset, _ = wave_data()
    factformer.fit(dataset, out=tmp_path / "run", loss_terms={"mean_error": mean_error}, **SHORT)
    for line in lines(tmp_path / "run"):
        assert line["mean_error"] > 0
        assert line["loss"] == pytest.approx(line["u"] + line["mean_error"], rel=1e-5)


def test_a_loss_term_changes_what_is_learnt():
    dataset, _ = wave_data()
    plain, other = (
        factformer.fit(dataset, loss_terms=terms, **SHORT)
        for terms in ({}, {"large": lambda prediction, target: 100 * prediction.square().mean()})
    )
    pairs = zip(plain.parameters(), other.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)


def test_a_metric_is_logged_with_the_validation_and_does_not_decide_the_best(tmp_path):
    dataset, held_out = wave_data()
    factformer.fit(dataset, valid=held_out, out=tmp_path / "run", metrics={"largest": largest}, **SHORT)
    validated = [line for line in lines(tmp_path / "run") if "validation" in line]
    assert validated
    for line in validated:
        assert line["validation_largest"] > 0
        assert line["validation"] == pytest.approx(line["validation_u"])


def test_callbacks_see_every_update_and_may_end_the_training():
    dataset, _ = wave_data()
    seen = []

    def stop_at_two(update, surrogate):
        seen.append((update, type(surrogate).__name__))
        return update == 2

    surrogate = factformer.fit(dataset, callbacks=[stop_at_two], **SHORT)
    assert seen == [(1, "Surrogate"), (2, "Surrogate")]
    assert surrogate.provenance["updates"] == 2


def test_a_function_logs_what_the_log_has(tmp_path):
    dataset, _ = wave_data()
    logged = []
    factformer.fit(
        dataset, out=tmp_path / "run", loggers=[lambda values, update: logged.append((update, values))], **SHORT
    )
    assert [update for update, _ in logged] == [1, 2, 3]
    assert [values["loss"] for _, values in logged] == [line["loss"] for line in lines(tmp_path / "run")]


def test_tensorboard_from_fit(tmp_path):
    pytest.importorskip("tensorboard")
    dataset, _ = wave_data()
    factformer.fit(dataset, out=tmp_path / "run", loggers=["tensorboard"], **SHORT)
    assert list((tmp_path / "run" / "tensorboard").iterdir())


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"loss_terms": {"u": mean_error}}, "loss_terms: 'u' is a name of ours"),
        ({"loss_terms": {"mine": 3}}, "loss_terms= takes functions by name"),
        ({"loss_terms": {"mine": lambda p, t: 1.0}}, "loss term 'mine' must give one number as a tensor"),
        ({"loss_terms": {"mine": lambda p, t: p}}, "loss term 'mine' must give one number"),
        ({"loss_terms": [mean_error]}, "loss_terms= takes functions by name"),
        ({"metrics": largest}, "metrics= takes functions by name"),
        ({"callbacks": mean_error}, "callbacks= takes several functions, such as"),
        ({"metrics": {"mine": largest}}, "metrics= are computed where the run is validated"),
        ({"callbacks": [3]}, "callbacks= takes functions"),
        ({"loggers": ["tensorbord"]}, "unknown logger 'tensorbord'; did you mean 'tensorboard'"),
    ],
)
def test_mistakes_are_named(options, what):
    dataset, _ = wave_data()
    with pytest.raises(UserError, match=what):
        factformer.fit(dataset, **SHORT, **options)
