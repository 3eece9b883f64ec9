"""Our surrogates in other people's loops."""

import pytest
import torch
from small_waves import TINY_MODEL, wave_problem, waves
from torch.utils.data import DataLoader

import factformer
from factformer.errors import UserError
from factformer.training.adapters import ChannelsFirst, to_channels_first
from small_data import generate_small_flow


@pytest.fixture
def surrogate():
    options = {key: value for key, value in TINY_MODEL.items() if key != "name"}
    return factformer.build_surrogate(wave_problem(), marching_steps=2, **options)


def test_channels_first_is_the_surrogate_in_another_layout(surrogate):
    module = ChannelsFirst(surrogate)
    frames = waves(2)
    with torch.no_grad():
        answer = module(to_channels_first(frames[:, :3]), y=None)
        assert torch.equal(answer, to_channels_first(surrogate(frames[:, :3], 2)))
    assert answer.shape == (2, module.num_output_channels, 8, 8)
    with pytest.raises(UserError, match=r"frame after frame, 1 channels each"):
        module(torch.zeros(2, 4, 8, 8))


def test_neuraloperators_trainer_drives_a_surrogate(surrogate, capsys):
    neuralop = pytest.importorskip("neuralop")
    frames = waves(8)
    samples = [{"x": to_channels_first(f[None, :3])[0], "y": to_channels_first(f[None, 3:4])[0]} for f in frames]
    module = ChannelsFirst(surrogate, num_steps=1)
    trainer = neuralop.Trainer(model=module, n_epochs=12, device="cpu", verbose=False)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    loss = neuralop.LpLoss(d=2, p=2)
    batch = {key: torch.stack([sample[key] for sample in samples]) for key in ("x", "y")}
    with torch.no_grad():
        before = float(loss(module(**batch), batch["y"]))
    trainer.train(
        train_loader=DataLoader(samples, batch_size=4),
        test_loaders={},
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.ConstantLR(optimizer),
        training_loss=loss,
    )
    with torch.no_grad():
        after = float(loss(module(**batch), batch["y"]))
    assert after < 0.8 * before


def test_the_wells_dataset_is_a_source(tmp_path):
    well = pytest.importorskip("the_well.data")
    from factformer.data.formats.well_dataset import from_well_dataset

    folder = generate_small_flow(tmp_path / "data", splits=["train"], trajectories=2)
    theirs = well.WellDataset(path=str(folder), include_filters=["train.hdf5"], use_normalization=False)
    settings = {f"model.{key}": value for key, value in TINY_MODEL.items() if key != "name"}
    trained = factformer.fit(from_well_dataset(theirs), updates=2, settings=settings, progress=False)
    assert [field.name for field in trained.problem.state] == ["vorticity"]
