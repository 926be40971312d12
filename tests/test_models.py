"""Networks for instances against their formulas written out, and ResNet-20 against a second forward pass."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from experiments.models.resnet import ResNet20
from moreauc.core.pooling import POOLINGS
from moreauc.models import MLP, InstanceMLP, InstanceNetwork

HEADS = [False, True, "gated"]


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def linear(layer, x):
    """One row through a linear layer, in plain Python."""
    bias = [0.0] * layer.out_features if layer.bias is None else layer.bias.tolist()
    rows = zip(layer.weight.tolist(), bias, strict=True)
    return [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in rows]


def logit_by_hand(head, features):
    units = [math.tanh(value) for value in linear(head.hidden, features)]
    if head.gate is not None:
        units = [u / (1 + math.exp(-g)) for u, g in zip(units, linear(head.gate, features), strict=True)]
    return linear(head.logit, units)[0]


@pytest.mark.parametrize("attention", HEADS)
def test_scores_and_logits_of_the_one_layer_network_by_hand(float64, attention):
    model = InstanceMLP(4, attention=attention)
    x = torch.randn(6, 4)
    found = model(x)
    assert found.shape == ((6, 2) if attention else (6,))
    for row, output in zip(x.tolist(), found.tolist(), strict=True):
        features = [math.tanh(value) for value in linear(model.encoder[0], row)]
        expected = [linear(model.score, features)[0]]
        if attention:
            expected.append(logit_by_hand(model.attention, features))
        assert output == pytest.approx(expected if attention else expected[0], abs=1e-12)


@pytest.mark.parametrize(("attention", "extra"), [(False, 0), (True, 166 * 167 + 166), ("gated", 2 * 166 * 167 + 166)])
def test_the_hidden_layer_is_as_wide_as_the_input(attention, extra):
    assert count(InstanceMLP(166, attention=attention)) == 166 * 167 + 167 + extra
    assert InstanceMLP(166, hidden=7).num_features == 7


def test_dropout_is_for_training_only():
    assert not any(isinstance(module, nn.Dropout) for module in InstanceMLP(8).modules())
    model = InstanceMLP(8, hidden=64, dropout=0.5)
    x = torch.randn(3, 8)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


@pytest.mark.parametrize("name", list(POOLINGS))
@pytest.mark.parametrize("kind", ["mlp", "resnet", "own"])
def test_every_network_feeds_every_pooling(name, kind):
    pooling = POOLINGS[name]()
    attention = pooling.columns == 2
    if kind == "resnet":
        model, x = ResNet20(attention=attention, width=2), torch.rand(7, 3, 32, 32)
    elif kind == "mlp":
        model, x = InstanceMLP(5, attention=attention), torch.randn(7, 5)
    else:
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU())
        model, x = InstanceNetwork(encoder, 4, attention=attention), torch.randn(7, 3, 4)
    scores = pooling(model(x), torch.tensor([0, 0, 1, 1, 1, 2, 2]), 3)
    assert scores.shape == (3,)
    scores.square().sum().backward()
    missing = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert missing == []


@pytest.mark.parametrize("attention", HEADS)
def test_the_weights_of_resnet20_by_hand(attention):
    stages = [6 * 16 * 16, 16 * 32 + 5 * 32 * 32, 32 * 64 + 5 * 64 * 64]
    norms = 2 * (16 + 6 * 16 + 6 * 32 + 6 * 64)
    encoder = 9 * (3 * 16 + sum(stages)) + norms
    assert encoder == 269_072  # with the ten classes of the reference, 269,722
    head = {False: 0, True: 64 * 65 + 64, "gated": 2 * 64 * 65 + 64}[attention]
    model = ResNet20(attention=attention)
    assert count(model) == encoder + 65 + head and model.num_features == 64
    layers = [m for m in model.encoder.modules() if isinstance(m, nn.Conv2d)]
    assert len(layers) + 1 == 20


def second_forward(model, x):
    """The features of patches in [-1, 1] from the weights by name, with the shortcut written in another way."""
    state = model.encoder.state_dict()

    def norm(x, name):
        mean, var = (state[f"{name}.running_{key}"].view(-1, 1, 1) for key in ("mean", "var"))
        weight, bias = (state[f"{name}.{key}"].view(-1, 1, 1) for key in ("weight", "bias"))
        return (x - mean) / (var + 1e-5).sqrt() * weight + bias

    x = norm(functional.conv2d(x, state["first.weight"], padding=1), "norm").clamp_min(0)
    for number in range(9):
        body, stride = f"blocks.{number}.body", 2 if number in (3, 6) else 1
        y = functional.conv2d(x, state[f"{body}.0.weight"], stride=stride, padding=1)
        y = functional.conv2d(norm(y, f"{body}.1").clamp_min(0), state[f"{body}.3.weight"], padding=1)
        if stride == 2:
            x = functional.avg_pool2d(x, 1, 2)
            x = torch.cat([x, torch.zeros_like(x)], dim=1)
        x = (norm(y, f"{body}.4") + x).clamp_min(0)
    return x.flatten(2).mean(2)


@pytest.mark.parametrize("size", [(32, 32), (9, 14)])
@pytest.mark.parametrize(("channels", "width"), [(3, 16), (1, 4)])
def test_resnet20_against_a_second_forward(float64, size, channels, width):
    model = ResNet20(attention=True, in_channels=channels, width=width)
    patches = torch.randint(256, (5, channels, *size), dtype=torch.uint8)
    model(patches)  # moves the running statistics
    model.eval()
    features = second_forward(model, (patches.double() / 255 - 0.5) / 0.5)
    torch.testing.assert_close(model.encoder(patches), features, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(model(patches)[:, 0], features @ model.score.weight[0] + model.score.bias)


def test_bytes_and_fractions_are_the_same_patches():
    model = ResNet20(width=4).eval()
    patches = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8)
    torch.testing.assert_close(model(patches), model(patches.float() / 255))
    half = copy.deepcopy(model).bfloat16()
    assert half(patches).dtype == torch.bfloat16
    torch.testing.assert_close(half(patches).float(), model(patches), rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((InstanceNetwork, {"encoder": torch.relu}), (InstanceNetwork, {"num_features": 0})),
        *((InstanceNetwork, {"attention": "soft"}), (InstanceMLP, {"attention": 1}), (ResNet20, {"attention": None})),
        *((InstanceMLP, {"num_features": 3.0}), (InstanceMLP, {"hidden": -1}), (InstanceMLP, {"dropout": 1.0})),
        *((MLP, {"num_features": 0}), (MLP, {"hidden": 4}), (MLP, {"hidden": (0,)}), (MLP, {"dropout": 1.0})),
        (MLP, {"num_outputs": 0}),
    ],
)
def test_arguments_out_of_range(kind, options):
    needed = {InstanceNetwork: {"encoder": nn.Identity(), "num_features": 3}, ResNet20: {}}.get(
        kind, {"num_features": 3}
    )
    with pytest.raises(ValueError, match=f"{kind.__name__}: {next(iter(options))} must be"):
        kind(**{**needed, **options})
