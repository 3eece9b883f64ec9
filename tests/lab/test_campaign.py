"""Equal-cost runs end to end at tiny scale: files, skipping, failures, time, and runs in segments."""

import json
import os
import signal
import threading
import time
from dataclasses import replace

import pytest
import torch

import factformer
from factformer.data.generate.run import generate
from factformer.data.generate.simulated import simulate_splits
from factformer.data.store import open_dataset
from factformer.errors import UserError
from factformer.pdes import find_pde
from factformer.studies import runner
from factformer.studies.scales import experiment_of
from factformer.training import Machine
from factformer.training.runfolder import checkpoint
from lab.campaign import campaign as module
from lab.campaign import search, segments
from lab.campaign.campaign import Campaign
from lab.campaign.datasets import DATA
from lab.campaign.entries import again
from lab.campaign.run_groups import GROUPS, find_entries
from lab.pages.findings import read_findings

FEW = {name: replace(data, train=4 if "darcy" in name else 2, test=2, batch_size=None) for name, data in DATA.items()}


def tiny(folder, **options):
    return Campaign(
        folder / "results",
        folder / "work",
        scale="tiny",
        device="cpu",
        data=FEW,
        **{"minutes": 0.004, "say": lambda message: None, **options},
    )


def test_simulated_splits_are_those_of_files(tmp_path):
    made = simulate_splits("darcy_flow", find_pde("darcy_flow").presets["tiny"], {"train": 3, "test": 2}, (15, 22))
    for size, splits in made.items():
        generate(
            "darcy_flow",
            tmp_path / str(size),
            preset="tiny",
            resolution=size,
            splits=["train", "test"],
            trajectories={"train": 3, "test": 2},
        )
        for name, ours in splits.items():
            theirs = open_dataset(tmp_path / str(size), name)
            assert ours.fingerprint == theirs.fingerprint
            assert torch.equal(ours.read(slice(None)), theirs.read(slice(None)))
            for part in ours.problem.parts:
                assert torch.equal(ours.read([1], part=part), theirs.read([1], part=part))
            assert ours.normalizer().to_dict() == theirs.normalizer().to_dict()
    with pytest.raises(UserError, match="training split"):
        simulate_splits("darcy_flow", find_pde("darcy_flow").presets["tiny"], {"test": 2})


def test_frames_in_16_bits_keep_exact_statistics_and_tests():
    preset = find_pde("kolmogorov_flow").presets["tiny"]
    exact = simulate_splits("kolmogorov_flow", preset, {"train": 2, "test": 1})[32]
    short = simulate_splits("kolmogorov_flow", preset, {"train": 2, "test": 1}, storage=torch.bfloat16)[32]
    assert short["train"].frames.dtype == torch.bfloat16
    assert short["train"].resident(torch.device("cpu"), torch.bfloat16) is short["train"].frames
    assert short["train"].normalizer().to_dict() == exact["train"].normalizer().to_dict()
    assert torch.equal(short["test"].read([0]), exact["test"].read([0]))


def test_ideas_are_not_judged_by_the_test_set():
    choosing = {"research", "search", "spacing"}
    assert {entry.split for name in choosing for entry in GROUPS[name]()} == {"valid"}
    assert {entry.split for name, build in GROUPS.items() if name not in choosing for entry in build()} == {"test"}


def test_the_search_is_the_same_for_all_and_its_best_choice_is_trained(tmp_path):
    entries = find_entries(["search/transolver"])
    kolmogorov, darcy = ([e for e in entries if e.run.recipe == recipe] for recipe in ("kolmogorov", "darcy"))
    assert [e.title for e in kolmogorov] == [e.title for e in darcy] == list(search.CHOICES)
    assert search.tuned(tmp_path / "results") == []
    statuses = tiny(tmp_path).run(darcy)
    assert [status.word for status in statuses] == ["done"] * 4
    (best,) = search.tuned(tmp_path / "results")
    found = read_findings(tmp_path / "results")
    errors = {e.title: found[e.path].result["fields"]["solution"]["relative_l2"] for e in darcy}
    assert best.title == min(errors, key=errors.get)
    assert set(search.CHOICES[best.title]) < set(best.run.settings)
    assert best.path == "darcy-85/transolver-tuned-3min.json"


def test_every_entry_of_every_group_is_a_valid_experiment():
    paths = []
    for name, build in GROUPS.items():
        for entry in build():
            experiment = experiment_of(entry.run, "paper", "data", minutes=None)
            assert experiment.data.resolution == entry.run.resolution
            assert entry.group == name
            paths.append(entry.path)
    assert len(set(paths)) == len(paths)
    assert len(GROUPS["kolmogorov"]()) == 9
    with pytest.raises(UserError, match="did you mean 'kolmogorov'"):
        find_entries(["kolmogorow"])
    with pytest.raises(UserError, match="run of darcy"):
        find_entries(["darcy/nothing"])


def test_a_file_per_run_with_all_that_a_reader_needs(tmp_path):
    entries = find_entries(["darcy/factformer_plus", "smoke/ffno"])
    statuses = tiny(tmp_path, pack=tmp_path / "out").run(entries)
    assert [status.word for status in statuses] == ["done", "done"]
    found = read_findings(tmp_path / "results")
    assert list(found) == ["darcy-85/factformer_plus-2min.json", "smoke-64/ffno-3min.json"]
    result = found["darcy-85/factformer_plus-2min.json"].result
    for key in ("command", "commit", "seed", "hardware", "wall_seconds", "dataset_fingerprint", "parameters"):
        assert key in result, key
    assert result["training"]["updates"] > 0
    assert result["fields"]["solution"]["standard_error"] > 0
    assert list(result["transfer"]) == ["8"]
    assert result["stored_float16"]["fields"]["solution"]["relative_l2"] == pytest.approx(
        result["fields"]["solution"]["relative_l2"], rel=0.05
    )
    assert result["data"]["fingerprints"]["test"] == result["dataset_fingerprint"]
    # What leaves the machine is enough to put everything into its place elsewhere.
    written = segments.collect(tmp_path / "out", tmp_path / "elsewhere")
    assert len(written) == 4
    copy = tmp_path / "elsewhere" / "results" / "smoke-64" / "ffno-3min.json"
    assert json.loads(copy.read_text()) == found["smoke-64/ffno-3min.json"].result
    assert factformer.load(tmp_path / "elsewhere" / "zoo" / "darcy-85").problem.name == "darcy_flow"


def test_what_else_used_the_device_is_recorded(tmp_path):
    entries = find_entries(["darcy/factformer-"])
    assert [status.word for status in tiny(tmp_path, beside="another run").run(entries)] == ["done"]
    assert read_findings(tmp_path / "results")["darcy-85/factformer-2min.json"].beside == "another run"


def test_longer_roll_outs_show_whether_a_surrogate_stays_with_the_flow(tmp_path, monkeypatch):
    entries = find_entries(["kolmogorov/ffno-3min"])
    path = "kolmogorov-128/ffno-3min.json"
    monkeypatch.setattr(module, "TIMES_AS_FAR", 1000)
    tiny(tmp_path / "short").run(entries)
    assert "beyond" not in read_findings(tmp_path / "short" / "results")[path].result  # the data end before
    monkeypatch.setattr(module, "TIMES_AS_FAR", 1)
    tiny(tmp_path / "long").run(entries)
    result = read_findings(tmp_path / "long" / "results")[path].result
    far = result["beyond"]
    assert far["num_frames"] == result["num_frames"]
    assert far["num_windows"] == 2  # one of each solution
    assert len(far["fields"]["vorticity"]["relative_l2_per_frame"]) == far["num_frames"]


def test_the_command_of_a_run_makes_the_same_experiment(tmp_path):
    from factformer import recipes

    (entry,) = find_entries(["kolmogorov/dilated_resnet"])
    experiment = experiment_of(entry.run, "paper", "d", minutes=None, assignments=["training.budget_minutes=3"])
    words = module.train_command(experiment).split()
    assert words[:7] == ["factformer", "train", "kolmogorov", "--scale", "paper", "--data", "d"]
    assignments = [word for word in words[7:] if word != "--set"]
    assert recipes.build("kolmogorov", "paper", [*assignments, "data.path=d"]) == experiment


def test_what_is_there_is_not_run_again_and_a_failure_costs_only_itself(tmp_path, monkeypatch):
    entries = find_entries(["darcy/fno", "darcy/ffno", "darcy/galerkin"])
    assert tiny(tmp_path).run(entries[:1])[0].word == "done"
    real = runner.train

    def broken(experiment, *arguments, **options):
        if experiment.model.name == "ffno":
            raise RuntimeError("out of luck")
        return real(experiment, *arguments, **options)

    monkeypatch.setattr(runner, "train", broken)
    statuses = tiny(tmp_path).run(find_entries(["darcy/fno", "darcy/ffno", "darcy/galerkin"]))
    assert [(status.label, status.word) for status in statuses] == [
        ("darcy-85/fno-2min.json", "found"),
        ("darcy-85/ffno-2min.json", "failed"),
        ("darcy-85/galerkin_transformer-2min.json", "done"),
    ]
    assert "out of luck" in module.summary(statuses)


def test_nothing_is_begun_that_does_not_fit_into_the_time(tmp_path):
    statuses = tiny(tmp_path, seconds=10, minutes=None).run(find_entries(["kolmogorov"]))
    assert {status.word for status in statuses} == {"no time"}
    assert not (tmp_path / "results").exists()


def test_a_problem_that_takes_long_around_its_training_does_not_keep_others_out(tmp_path):
    campaign = tiny(tmp_path, seconds=120)
    campaign.around["smoke"] = 1000.0
    statuses = campaign.run(find_entries(["smoke/ffno", "darcy/fno"]))
    assert [status.word for status in statuses] == ["no time", "done"]


def test_a_signal_ends_the_campaign_and_not_only_the_run(tmp_path, monkeypatch):
    real, unwatched = runner.train, signal.getsignal(signal.SIGTERM)

    def interrupted(*arguments, **options):
        ended = threading.Event()

        def interrupt():  # a signal that nobody watches for would end this process
            while signal.getsignal(signal.SIGTERM) is unwatched and not ended.wait(0.01):
                pass
            if not ended.wait(0.3):
                os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=interrupt).start()
        try:
            return real(*arguments, **options)
        finally:
            ended.set()

    monkeypatch.setattr(runner, "train", interrupted)
    (status,) = tiny(tmp_path, minutes=0.2).run(find_entries(["darcy/fno", "darcy/ffno"]))
    assert status.word == "stopped"
    assert "SIGTERM" in status.detail
    monkeypatch.setattr(runner, "train", real)
    after = tiny(tmp_path / "after").run(find_entries(["darcy/fno", "darcy/ffno"]))
    assert [status.word for status in after] == ["done", "done"], "a later campaign of this process knows nothing of it"


def test_warming_up_leaves_nothing_behind(tmp_path, monkeypatch):
    entries = find_entries(["kolmogorov/ffno-3"])
    campaign = tiny(tmp_path)
    splits = campaign.solved.splits(entries[0], entries)
    experiment = campaign.experiment(entries[0], splits, 1.0)
    campaign.warm_up(experiment, splits[16])
    assert not campaign.warm  # a CPU compiles nothing
    steps = []
    real = runner.train

    def watched(experiment, *arguments, **options):
        outcome = real(experiment, *arguments, **options)
        steps.append((experiment.training.updates, outcome.update, outcome.folder))
        return outcome

    monkeypatch.setattr(runner, "train", watched)
    monkeypatch.setattr(type(campaign.runner), "machine", property(lambda self: Machine("cpu")))
    campaign.runner.device = torch.device("cuda")
    campaign.warm_up(experiment, splits[16])
    campaign.warm_up(experiment, splits[16])
    ((wanted, done, folder),) = steps
    assert wanted == done == module.WARM_UP_UPDATES
    assert not folder.exists()


def test_another_seed_has_a_file_of_its_own():
    (entry,) = find_entries(["kolmogorov/fno"])
    other = again(entry, 3)
    assert other.path == "kolmogorov-128/fno-3min-seed3.json"
    assert "training.seed=3" in other.run.settings


def test_a_long_run_goes_on_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SHORTEST_SEGMENT", 0.0)
    monkeypatch.setattr(module, "SECONDS_TO_PACK", 0.0)
    entries = find_entries(["long/factformer_plus"])
    first = tiny(tmp_path / "a", minutes=0.03, pack=tmp_path / "out")
    first.solved.splits(entries[0], entries)
    first.runner.deadline = time.monotonic() + 1.0
    (status,) = first.run(entries)
    assert status.word == "stopped"
    assert (tmp_path / "out" / "kolmogorov-128-factformer_plus-15min.state-0").is_file()
    second = tiny(tmp_path / "b", minutes=0.03, state=tmp_path / "out")
    (status,) = second.run(entries)
    assert status.word == "done"
    training = read_findings(tmp_path / "b" / "results")[entries[0].path].result["training"]
    assert training["training_seconds"] == pytest.approx(1.8, abs=0.5)
    left = tmp_path / "a" / "work" / "runs" / "kolmogorov-128-factformer_plus-15min" / "checkpoints"
    before = checkpoint.load(checkpoint.latest(left))
    assert training["updates"] > before.state["update"] > 0


def test_pieces_of_a_run_hold_its_weights_exactly(tmp_path):
    tensors = {
        "weights.w": torch.randn(40, 50),
        "optimizer.w/exp_avg": torch.randn(40, 50),
        "optimizer.w/step": torch.tensor(7.0),
        "random.torch": torch.get_rng_state()[None],
    }
    tensors["average.w"] = tensors["weights.w"] + 1e-3 * torch.randn(40, 50)
    run = tmp_path / "run"
    checkpoint.save(run / "checkpoints", checkpoint.Snapshot(tensors, {"update": 7}, "line\n"))
    for name in segments.FILES:
        (run / name).write_text(name)
    parts = segments.pack(run, tmp_path / "out", "run", part_bytes=4096)
    assert len(parts) > 2
    assert segments.unpack(tmp_path / "out", "run", tmp_path / "again")
    snapshot = checkpoint.load(checkpoint.latest(tmp_path / "again" / "checkpoints"))
    assert torch.equal(snapshot.tensors["weights.w"], tensors["weights.w"])
    assert torch.allclose(snapshot.tensors["average.w"], tensors["average.w"], atol=3e-5)
    assert torch.allclose(snapshot.tensors["optimizer.w/exp_avg"], tensors["optimizer.w/exp_avg"], rtol=5e-3)
    assert (snapshot.state, snapshot.metrics) == ({"update": 7}, "line\n")
    parts[1].unlink()
    with pytest.raises(UserError, match="not complete"):
        segments.unpack(tmp_path / "out", "run", tmp_path / "broken")
    assert not segments.unpack(tmp_path / "out", "other", tmp_path / "none")


def test_a_bundle_gives_way_but_to_one_trained_much_shorter(tmp_path):
    def archive(folder, seconds):
        description = tmp_path / "bundle.json"
        description.write_text(json.dumps({"provenance": {"training_seconds": seconds}}))
        segments.add_to_archive(tmp_path / folder / "zoo-x.tar", {"zoo/x/bundle.json": description})
        return tmp_path / folder

    root = tmp_path / "root"
    assert segments.collect(archive("long", 900), root)
    assert not segments.collect(archive("short", 180), root)
    assert segments.collect(archive("again", 899), root)
    assert json.loads((root / "zoo/x/bundle.json").read_text())["provenance"]["training_seconds"] == 899
