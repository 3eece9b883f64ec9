import torch

from factformer.training.loop.optimizer.ema import WeightAverage


def test_the_average_follows_its_formula_and_can_stand_in_for_the_weights():
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))
    average = WeightAverage({"w": weight}, decay=0.5)
    expected = weight.detach().clone()
    for update in range(1, 30):
        with torch.no_grad():
            weight += 0.1 * update
        average.update(update)
        decay = min(0.5, (1 + update) / (10 + update))
        expected = decay * expected + (1 - decay) * weight.detach()
    torch.testing.assert_close(average.average["w"], expected)
    kept = weight.detach().clone()
    with average.applied():
        torch.testing.assert_close(weight.detach(), expected)
    assert torch.equal(weight.detach(), kept)
