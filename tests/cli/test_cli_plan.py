"""``factformer plan`` as a user meets it."""

import json

import pytest

from commands import run

SMALL = ["plan", "turbulence", "--grid", "16", "--batch", "2"]


def test_says_what_an_update_takes_as_json(capsys):
    code, out, _ = run(capsys, *SMALL, "--devices", 2, "--domain", 2, "--memory", "80GB", "--json")
    answer = json.loads(out)
    assert code == 0
    assert (answer["grid"], answer["part"]) == ([16, 16, 16], [8, 16, 16])
    assert answer["training_bytes"] == answer["plain"]["total"]
    assert answer["sent_bytes_per_update"]["gradients"] == 4 * answer["parameters"]
    assert answer["fits"]
    assert answer["largest_batch_size"] > 2


def test_the_table_is_narrow_and_names_what_helps(capsys):
    code, out, _ = run(capsys, *SMALL, "--memory", "20MB", "--set", "training.accumulate=2")
    assert code == 0
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "does not fit into 20 MB" in out
    assert "model.patch" in out or "--domain" in out


@pytest.mark.parametrize("recipe", ["kolmogorov", "demo"])
def test_a_batch_of_the_recipe_is_rounded_up_to_the_devices_and_said(capsys, recipe):
    words = ("plan", recipe, "--grid", "16", "--devices", 7, "--set", "training.accumulate=3")
    code, out, _ = run(capsys, *words, "--json")
    answer = json.loads(out)
    assert code == 0
    usual, batch = answer["rounded_up_from"], answer["batch_size"]
    assert batch % 21 == 0
    assert batch - 21 < usual < batch
    assert f"{batch}, rounded up from {usual}" in run(capsys, *words)[1]
    assert json.loads(run(capsys, *SMALL, "--devices", 2, "--json")[1])["rounded_up_from"] is None


@pytest.mark.parametrize(("nodes", "devices"), [(1, 4), (2, 4), (4, 4)])
def test_a_domain_alone_takes_the_devices_it_needs(capsys, nodes, devices):
    code, out, _ = run(capsys, "plan", "turbulence", "--grid", "16", "--domain", 4, "--num-nodes", nodes, "--json")
    assert code == 0
    assert (json.loads(out)["devices"], json.loads(out)["domain"]) == (devices, 4)


def test_one_size_is_for_all_axes_of_the_preset(capsys):
    code, out, _ = run(capsys, "plan", "vlasov", "--grid", "6", "--json")
    assert code == 0
    assert json.loads(out)["grid"] == [6, 6, 12, 12]  # the proportions of the preset


def test_without_a_recipe_it_speaks_of_plan(capsys):
    code, _, err = run(capsys, "plan", "--grid", "16")
    assert code == 2
    assert "factformer plan demo" in err
    assert "train" not in err


def test_options_reach_the_experiment(capsys):
    words = (*SMALL, "--precision", "bf16-mixed", "--checkpointing", "--json")
    changed, plain = (json.loads(run(capsys, *w)[1]) for w in (words, (*SMALL, "--json")))
    assert changed["precision"] == "bf16-mixed"
    assert changed["plain"]["activations"] < plain["plain"]["activations"]


def test_the_time_is_that_of_the_device_with_the_numbers_that_were_given(capsys):
    shared = (*SMALL, "--devices", "2", "--json")
    usual, slow = (
        json.loads(run(capsys, *shared, *more)[1])["predicted"]
        for more in ((), ("--on", "a100", "--bandwidth", "1GB", "--rate", "0.01", "--link", "1GB"))
    )
    assert (usual["device"], usual["given"], usual["execution"]) == ("H200", [], "plain")
    assert (slow["device"], slow["given"]) == ("A100 80 GB SXM", ["bandwidth", "link", "rate"])
    assert slow["work_seconds"] > 20 * usual["work_seconds"]
    assert slow["exchange_seconds"]["gradients"] > 100 * usual["exchange_seconds"]["gradients"]
    for answer in (usual, slow):
        assert answer["seconds_per_update"] == answer["work_seconds"] + sum(answer["exchange_seconds"].values())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on", "h300"], "unknown --on 'h300'"),
        (["--link", "fast"], "--link is a size such as"),
        (["--memory", "8XB"], "--memory is a size such as"),
        (["--grid", "16x16"], "has 3 axes, got 2 sizes"),
        (["--grid", "many"], "--grid takes points per axis"),
        (["--devices", "1", "--domain", "2"], "must be a multiple of it"),
        (["--set", "model.name=fno", "--devices", "2", "--domain", "2"], "cannot be cut"),
        (["--batch", "3", "--devices", "2"], "training.batch_size=3"),
    ],
)
def test_wrong_use_is_one_line(capsys, words, message):
    code, out, err = run(capsys, *SMALL, *words)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


def test_a_cpu_has_no_fused_kernels(capsys):
    words = (*SMALL, "--precision", "bf16-mixed", "--json")
    on_gpu, on_cpu = (json.loads(run(capsys, *words, *more)[1]) for more in ((), ("--on", "cpu")))
    assert (on_gpu["execution"], on_cpu["execution"]) == ("fused", "plain")
    assert on_cpu["predicted"]["execution"] == "plain"
    assert on_cpu["training_bytes"] == on_cpu["plain"]["total"] < on_gpu["plain"]["total"]
