"""MultiInstanceClassifier: bags as they come, scikit-learn's ways, the operating point, which instance decided."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import get_scorer
from sklearn.model_selection import GridSearchCV, cross_val_score
from torch import nn

from moreauc.data import (
    FileBags,
    FlatBags,
    ListBags,
    bag_scores,
    instance_weights,
)
from moreauc.estimators import MultiInstanceClassifier
from moreauc.estimators.multi_instance import InstanceScores
from moreauc.estimators.operating_point import choose_threshold
from moreauc.methods import METHODS
from moreauc.metrics import tpauc_score
from moreauc.models import InstanceMLP


def quick(**options):
    few = {"epochs": 3, "num_positives": 4, "num_negatives": 4, "lr": 0.02, "random_state": 0}
    return MultiInstanceClassifier(**{**few, **options})


def make_bags(number: int = 40, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    """Positive bags have one instance far out in the first feature."""
    random = np.random.default_rng(seed)
    y = (np.arange(number) % 4 == 0).astype(int)
    bags = [random.normal(size=(random.integers(2, 7), 3)) for _ in range(number)]
    for bag, label in zip(bags, y, strict=True):
        bag[-1, 0] += 6.0 * label
    return bags, y


@pytest.fixture(scope="module")
def data():
    return make_bags()


@pytest.fixture(scope="module")
def fitted(data):
    return quick(epochs=20).fit(*data)


@pytest.mark.parametrize("method", sorted(METHODS["bags"]))
def test_each_method_fits_and_predicts(data, method):
    bags, y = data
    classifier = quick(loss=method).fit(bags, y)
    assert classifier.pooling_.name == METHODS["bags"][method].pooling
    scores = classifier.decision_function(bags)
    assert scores.shape == (40,) and scores.dtype == np.float64 and np.isfinite(scores).all()
    assert set(classifier.predict(bags)) <= {0, 1}
    assert len(classifier.history_["loss"]) == 3
    assert classifier.score(bags, y) == tpauc_score(y, scores, min_tpr=0.5, max_fpr=0.5)
    assert not classifier.model_.training and len(classifier.loss_.state_dict()) >= 0


def test_it_learns_what_is_there(fitted):
    bags, y = make_bags(80, seed=1)
    assert fitted.score(bags, y) > 0.9
    assert fitted.n_features_in_ == 3 and fitted.classes_.tolist() == [0, 1]


def test_scores_are_those_of_whole_bags_by_hand(data, fitted):
    bags, _ = data
    rows = np.concatenate([bag for k, bag in enumerate(bags) if k not in fitted.held_out_])
    mean, std = rows.mean(0), rows.std(0)
    expected = []
    for bag in bags:
        with torch.no_grad():
            score, logit = fitted.model_(torch.tensor((bag - mean) / std).float()).double().unbind(1)
        share = torch.exp(logit) / torch.exp(logit).sum()
        expected.append(float((share * score).sum()))
    np.testing.assert_allclose(fitted.decision_function(bags), np.array(expected) - fitted.threshold_, atol=1e-6)


def test_chunks_do_not_matter(data, fitted):
    other = pickle.loads(pickle.dumps(fitted)).set_params(chunk=2)
    np.testing.assert_allclose(
        other.decision_function(data[0]), fitted.decision_function(data[0]), rtol=1e-6, atol=1e-7
    )


def test_the_hold_out_is_stratified_and_of_whole_bags(data, fitted):
    _, y = data
    held = fitted.held_out_
    assert len(held) == 8 and y[held].sum() == 2
    scores = fitted.decision_function(data[0])
    assert choose_threshold(y[held], scores[held], 0.5) == pytest.approx(0.0, abs=1e-12)
    assert fitted.history_.best_score == tpauc_score(y[held], scores[held], min_tpr=0.5, max_fpr=0.5)


def test_the_threshold_keeps_to_the_budget(data):
    bags, y = data
    classifier = quick(fpr_budget=0.0).fit(bags, y)
    held = classifier.held_out_
    assert not classifier.predict([bags[k] for k in held if y[k] == 0]).any()


def test_too_few_bags_to_hold_any_out():
    bags, y = make_bags(12)
    classifier = quick().fit(bags, y)
    assert len(classifier.held_out_) == 0 and classifier.history_.best_score is None
    assert choose_threshold(y, classifier.decision_function(bags), 0.5) == pytest.approx(0.0, abs=1e-12)


def test_kinds_of_bags_give_the_same(data, tmp_path):
    bags, y = data
    expected = quick().fit(bags, y).decision_function(bags)
    offsets = np.cumsum([0, *map(len, bags)])
    for k, bag in enumerate(bags):
        np.save(tmp_path / f"{k}.npy", bag)
    kinds = {
        "tensors": [torch.tensor(bag) for bag in bags],
        "tuple": tuple(bags),
        "lists": [bag.tolist() for bag in bags],
        "frames": [pd.DataFrame(bag, columns=["a", "b", "c"]) for bag in bags],
        "objects": np.array([*bags, None], dtype=object)[:-1],
        "list bags": ListBags(bags, y),
        "flat bags": FlatBags(np.concatenate(bags), offsets, y),
        "files": FileBags([tmp_path / f"{k}.npy" for k in range(len(bags))], y),
    }
    for name, kind in kinds.items():
        np.testing.assert_array_equal(quick().fit(kind, y).decision_function(kind), expected, err_msg=name)
        np.testing.assert_array_equal(quick().fit(kind, y).decision_function(bags), expected, err_msg=name)
    own = quick().fit(kinds["flat bags"])  # its own labels
    np.testing.assert_array_equal(own.decision_function(bags), expected)
    assert own.score(kinds["files"]) == own.score(bags, y)


def test_names_of_columns(data):
    bags, y = data
    frames = [pd.DataFrame(bag, columns=["a", "b", "c"]) for bag in bags]
    classifier = quick().fit(frames, y)
    assert classifier.feature_names_in_.tolist() == ["a", "b", "c"]
    with pytest.raises(ValueError, match=r"bag 0 must have its columns named and ordered as before, got 'b' for 'a'"):
        classifier.predict([frame[["b", "a", "c"]] for frame in frames])
    with pytest.raises(ValueError, match=r"bag 3 must have its columns named"):
        quick().fit([*frames[:3], frames[3][["b", "a", "c"]]], [0, 1, 0, 1])
    with pytest.raises(ValueError, match=r"bag 3 must have its columns named"):  # the first has no names, the others do
        quick().fit([bags[0], *frames[1:3], frames[3][["b", "a", "c"]]], [0, 1, 0, 1])
    assert quick().fit([bags[0], *frames[1:]], y).feature_names_in_.tolist() == ["a", "b", "c"]
    assert not hasattr(classifier.fit(bags, y), "feature_names_in_")
    numbered = [pd.DataFrame(bag) for bag in bags]
    assert not hasattr(classifier.fit(numbered, y), "feature_names_in_")


def test_equal_bags_in_one_array_and_integers():
    array = np.random.default_rng(0).integers(9, size=(12, 5, 2))
    y = np.arange(12) % 2
    classifier = quick(loss="sont_mean").fit(array, y)
    assert classifier.n_features_in_ == 2
    mixed = [bag if k % 2 else bag.astype(np.float32) for k, bag in enumerate(array)]
    np.testing.assert_array_equal(classifier.decision_function(mixed), classifier.decision_function(array))


def test_large_numbers_with_small_differences():
    bags, y = make_bags()
    near = quick().fit(bags, y).decision_function(bags)
    far = [bag + 2.0**20 for bag in bags]  # float32 has 3 bits left for the rest
    np.testing.assert_allclose(quick().fit(far, y).decision_function(far), near, rtol=1e-3, atol=1e-4)


def test_images_stay_bytes_for_a_module_of_ones_own():
    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 1)

        def forward(self, images):
            assert images.dtype == torch.uint8
            return self.linear(images.flatten(1).float() / 255)

    random = np.random.default_rng(0)
    bags = [random.integers(256, size=(3, 4, 4), dtype=np.uint8) for _ in range(12)]
    y = np.arange(12) % 2
    classifier = quick(loss="sont_smx", module=Patches(), standardize=False).fit(bags, y)
    assert classifier.n_features_in_ == 16 and classifier.scale_ is None
    with pytest.raises(ValueError, match=r"module must be given for instances that are no vectors, got shape \(4, 4\)"):
        quick().fit(bags, y)


def byte_bags(number: int = 12) -> tuple[list[np.ndarray], np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(256, size=(3, 4), dtype=np.uint8) for _ in range(number)], np.arange(number) % 2


def as_flat(bags, y):
    return FlatBags(np.concatenate(bags), np.cumsum([0, *map(len, bags)]), y)


@pytest.mark.parametrize("wrap", [lambda bags, y: bags, ListBags, as_flat], ids=["list", "list bags", "flat bags"])
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64])
def test_bytes_and_numbers_do_not_mix(wrap, kind):
    images, y = byte_bags()
    numbers = [image.astype(kind) for image in images]
    by_bytes = quick(standardize=False).fit(wrap(images, y), y)
    by_numbers = quick(standardize=False).fit(wrap(numbers, y), y)
    got_numbers = r"must hold bytes \(uint8\), as before, got numbers that are no bytes"
    got_bytes = r"must hold numbers that are no bytes, as before, got bytes \(uint8\)"
    for call in (by_bytes.decision_function, by_bytes.predict, by_bytes.predict_proba):
        with pytest.raises(ValueError, match=f"MultiInstanceClassifier: bag 0 {got_numbers}"):
            call(wrap(numbers, y))
    with pytest.raises(ValueError, match=f"MultiInstanceClassifier: bag {got_numbers}"):
        by_bytes.instance_scores(numbers[0])
    with pytest.raises(ValueError, match=f"MultiInstanceClassifier: bag 0 {got_bytes}"):
        by_numbers.decision_function(wrap(images, y))
    assert np.isfinite(by_bytes.decision_function(wrap(images, y))).all()


def test_one_bag_of_numbers_among_bytes_is_refused():
    images, y = byte_bags()
    mixed = [image.astype(float) if k == 5 else image for k, image in enumerate(images)]
    with pytest.raises(ValueError, match=r"bag 5 must hold bytes \(uint8\), as before, got numbers that are no bytes"):
        quick().fit(mixed, y)
    with pytest.raises(ValueError, match=r"bag 1 must hold numbers that are no bytes, as before, got bytes \(uint8\)"):
        quick().fit([images[0].astype(float), *images[1:]], y)


@pytest.mark.parametrize("wrap", [lambda bags, y: bags, ListBags, as_flat], ids=["list", "list bags", "flat bags"])
def test_bytes_are_never_standardized(wrap):
    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 1)

        def forward(self, images):
            assert images.dtype == torch.uint8
            return self.linear(images.float() / 255)

    images, y = byte_bags()
    bags, module = wrap(images, y), Watching()
    asked, plain = (quick(loss="sont_mean", module=module, standardize=flag).fit(bags, y) for flag in (True, False))
    assert asked.scale_ is None
    np.testing.assert_array_equal(asked.decision_function(bags), plain.decision_function(bags))
    assert asked.instance_scores(images[0]).score.shape == (3,)


@pytest.mark.parametrize(("number", "options"), [(5, {}), (40, {"validation_fraction": 0.0})], ids=["few", "fraction"])
def test_patience_without_a_hold_out_runs_all_epochs(number, options):
    bags, y = make_bags(number)
    classifier = quick(patience=1, lr=1e-12, **options).fit(bags, y)
    assert len(classifier.held_out_) == 0 and len(classifier.history_["loss"]) == 3


def test_patience_ends_a_run_with_a_hold_out(data):
    classifier = quick(epochs=30, patience=1, lr=1e-12).fit(*data)
    assert len(classifier.held_out_) and len(classifier.history_["loss"]) < 30


def test_a_function_makes_the_module_under_the_seed(data):
    bags, y = data
    made = [quick(module=lambda size: InstanceMLP(size, hidden=5, attention=True)).fit(bags, y) for _ in range(2)]
    np.testing.assert_array_equal(made[0].decision_function(bags), made[1].decision_function(bags))
    assert made[0].model_.num_features == 5


def test_a_module_is_copied(data):
    module = InstanceMLP(3, attention=True)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    fitted = quick(module=module).fit(*data)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert fitted.model_ is not module


def test_the_same_seed_gives_the_same_and_changes_nothing_global(data):
    bags, y = data
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first, second, other = (quick(random_state=seed).fit(bags, y).decision_function(bags) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()
    assert torch.equal(torch.get_rng_state(), torch_before) and (np.random.get_state()[1] == numpy_before).all()


def test_options_reach_the_loss(data):
    classifier = quick(loss="sont_smx", loss_options={"temperature": 0.7, "gamma": 0.1}).fit(*data)
    assert classifier.pooling_.temperature == 0.7 and classifier.loss_.gamma == (0.1, 0.1, 0.1)
    sgd = quick(optimizer="sgd", warm_start_epochs=1, patience=1, instances_per_bag=None).fit(*data)
    assert sgd.history_.rows[0]["phase"] == "warm start"


def test_classes_and_the_one_to_find(data):
    bags, y = data
    names = np.where(y == 1, "bad", "good")
    plain = quick().fit(bags, y)
    finder = quick(positive_label="bad").fit(bags, names)
    assert finder.classes_.tolist() == ["bad", "good"] and finder.positive_label_ == "bad"
    np.testing.assert_array_equal(finder.decision_function(bags), -plain.decision_function(bags))
    np.testing.assert_array_equal(finder.predict(bags) == "bad", plain.predict(bags) == 1)
    np.testing.assert_array_equal(finder.predict_proba(bags)[:, 0], plain.predict_proba(bags)[:, 1])
    assert finder.score(bags, names) == plain.score(bags, y)
    assert get_scorer("roc_auc")(finder, bags, names) == pytest.approx(get_scorer("roc_auc")(plain, bags, y))


@pytest.mark.parametrize("label", [0, 1])
def test_decisions_are_cut_at_zero(data, label):
    bags, y = data
    classifier = quick(positive_label=label).fit(bags, y)
    np.testing.assert_array_equal(classifier.predict(bags), classifier.decision_function(bags) > 0)


@pytest.mark.parametrize("kind", ["threshold", "calibrated"])
def test_probabilities(data, kind):
    bags, y = data
    classifier = quick(probabilities=kind).fit(bags, y)
    shares = classifier.predict_proba(bags)
    scores, (slope, intercept) = classifier.decision_function(bags), classifier.platt_
    odds = slope * scores
    if kind == "calibrated":
        odds += slope * classifier.threshold_ + intercept
    np.testing.assert_allclose(shares[:, 1], 1 / (1 + np.exp(-odds)), rtol=1e-9)
    np.testing.assert_allclose(shares.sum(1), 1.0)
    if kind == "threshold":
        np.testing.assert_array_equal(shares[:, 1] > 0.5, classifier.predict(bags) == 1)


def test_which_instance_decided(data, fitted):
    bags, y = data
    hits = [
        np.argmax(fitted.instance_scores(bag).contribution) == len(bag) - 1 for bag in np.array(bags, object)[y == 1]
    ]
    assert np.mean(hits) > 0.8


@pytest.mark.parametrize("method", ["sont_mean", "sont_smx", "sont_att"])
def test_instance_scores_by_hand(data, method):
    bags, y = data
    classifier = quick(loss=method).fit(bags, y)
    bag = bags[2]
    found = classifier.instance_scores(bag)
    mean, std = (part.numpy() for part in classifier.scale_)
    with torch.no_grad():
        outputs = classifier.model_(torch.tensor((bag - mean) / std).float()).double().numpy()
    score = outputs[:, 0] if method == "sont_att" else outputs
    logit = {"sont_mean": 0.0 * score, "sont_smx": score / 0.1, "sont_att": outputs.T[-1] if outputs.ndim == 2 else 0}
    share = np.exp(logit[method]) / np.exp(logit[method]).sum()
    np.testing.assert_allclose(found.score, score, rtol=1e-6)
    np.testing.assert_allclose(found.weight, share, rtol=1e-5)
    np.testing.assert_allclose(found.contribution, share * (score - classifier.threshold_), rtol=1e-5, atol=1e-8)
    margin = classifier.decision_function([bag])[0]
    excess = found.contribution.sum() - margin
    if method == "sont_smx":
        assert 0.0 <= excess <= 0.1 * np.log(len(bag))
    else:
        assert abs(excess) < 1e-6
    assert isinstance(found, InstanceScores) and found.score.shape == (len(bag),)


def test_weights_of_huge_logits_add_up_to_one(data):
    class Far(nn.Module):
        def forward(self, x):
            return 1e6 * x[:, :2]

    classifier = quick().fit(*data)
    classifier.model_ = Far()
    found = classifier.instance_scores(data[0][0])
    assert found.weight.sum() == pytest.approx(1.0, abs=1e-12) and (found.weight >= 0).all()


@pytest.mark.parametrize("method", ["sont_mean", "sont_smx", "sont_att"])
def test_weights_are_those_of_the_figures(data, method, monkeypatch):
    classifier = quick(loss=method).fit(*data)
    asked = []

    def spy(outputs, pooling):
        asked.append(pooling)
        return instance_weights(outputs, pooling)

    monkeypatch.setattr("moreauc.estimators.multi_instance.instance_weights", spy)
    found = classifier.instance_scores(data[0][1])
    assert asked == [classifier.pooling_] and found.weight.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("head", ["score", "attention.logit"])
def test_instances_with_outputs_that_are_not_finite_are_refused(data, fitted, head):
    broken = pickle.loads(pickle.dumps(fitted))
    nn.init.constant_(broken.model_.get_submodule(head).weight, torch.inf)
    with pytest.raises(ValueError, match="MultiInstanceClassifier: the model gave scores that are not finite"):
        broken.instance_scores(data[0][0])


def test_cross_validation_and_search_over_lists(data):
    bags, y = data
    scores = cross_val_score(quick(), bags, y, cv=2)
    assert scores.shape == (2,) and (scores >= 0).all() and (scores <= 1).all()
    search = GridSearchCV(quick(epochs=1), {"loss": ["sont_mean", "ce_att"]}, cv=2).fit(bags, y)
    assert search.best_params_["loss"] in ("sont_mean", "ce_att")


def test_clone_parameters_and_pickles(data, fitted):
    copied = clone(fitted)
    assert copied.get_params() == fitted.get_params() and not hasattr(copied, "model_")
    assert copied.set_params(loss="ce_att", epochs=1).get_params()["loss"] == "ce_att"
    loaded = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(loaded.predict_proba(data[0]), fitted.predict_proba(data[0]))


def test_whole_bags_of_the_library_agree(data, fitted):
    prepared = [torch.tensor((bag - fitted.scale_[0].numpy()) / fitted.scale_[1].numpy()).float() for bag in data[0]]
    expected = bag_scores(fitted.model_, ListBags(prepared, data[1]), "attention") - fitted.threshold_
    np.testing.assert_allclose(fitted.decision_function(data[0]), expected, rtol=1e-6, atol=1e-7)


ZEROS = np.zeros((2, 3))
BAD_BAGS = [
    ([ZEROS, np.zeros((0, 3)), ZEROS, ZEROS], r"bag 1 must have at least one instance, got none"),
    ([ZEROS, ZEROS, np.zeros((2, 4)), ZEROS], r"bag 2 must have instances of shape \(3,\), as before, got \(4,\)"),
    ([ZEROS, ZEROS, np.array([[1.0, np.nan, 0.0]]), ZEROS], r"instances of bag 2 must be finite, got nan"),
    ([ZEROS, np.zeros(3), ZEROS, ZEROS], r"bag 1 must have shape \(instances, features\), got \(3,\)"),
    ([np.zeros((2, 0)), ZEROS, ZEROS, ZEROS], r"bag 0 must have shape \(instances, features\), got \(2, 0\)"),
    ([ZEROS, [["a", "b", "c"]], ZEROS, ZEROS], r"bag 1 must be an array of numbers, got a list"),
    ([ZEROS, np.array([[1, object(), 2]]), ZEROS, ZEROS], r"bag 1 must be an array of numbers, got a ndarray"),
    ([ZEROS, ZEROS.astype(complex), ZEROS, ZEROS], r"bag 1 must hold real numbers, got torch.complex128"),
    ([pd.DataFrame({"a": [1.0], "b": ["x"]})] * 4, r"bag 0 must hold numbers in column 'b'"),
    ([pd.DataFrame(index=[0, 1])] * 4, r"bag 0 must have shape \(instances, features\), got \(2, 0\)"),
    ([pd.DataFrame({"a": [1.0, None]})] * 4, r"instances of bag 0 must be finite, got nan"),
    ([np.array([[2**53 + 1]])] * 4, r"instances of bag 0 must hold whole numbers of at most 9007199254740992"),
    ([pd.DataFrame({"a": [2**53 + 1]})] * 4, r"column 'a' of bag 0 must hold whole numbers of at most"),
    ([], r"bags must hold at least one bag, got none"),
    (pd.DataFrame({"a": [1.0]}), r"bags must be Bags or a list of arrays, one for each bag, got DataFrame"),
    ("bags", r"bags must be Bags or a list of arrays, one for each bag, got str"),
]


@pytest.mark.parametrize(("bags", "message"), BAD_BAGS, ids=[message[:40] for _, message in BAD_BAGS])
def test_bad_bags_are_refused(fitted, bags, message):
    classifier = quick()
    with pytest.raises(ValueError, match=f"MultiInstanceClassifier: {message}"):
        classifier.fit(bags, [0, 1, 0, 1])
    assert not [name for name in vars(classifier) if name.endswith("_")]
    with pytest.raises(ValueError, match="MultiInstanceClassifier: "):
        fitted.predict(bags)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([1, 1, 1, 1], r"y must hold two classes, got one class, \[1\]"),
        ([0, 1, 2, 1], r"y must hold two classes, got 3 classes"),
        (["a", "a ", "a", "a"], r"y must not hold two texts that read the same, got 'a' and 'a '"),
        ([0, 1, 0], r"y must have a class for each of 4 bags, got 3"),
        ([0.0, 1.0, np.nan, 1.0], r"y must have no missing values, got 1"),
        (np.array([0, "a", 0, "a"], dtype=object), r"y must hold classes that can be sorted, got int and str"),
        (np.array([(1,), 2, 2, 2], dtype=object), r"y must hold classes that can be sorted, got int and tuple"),
        (None, r"y must be given, unless bags are Bags with labels, got None"),
    ],
)
def test_bad_classes_are_refused(y, message):
    with pytest.raises(ValueError, match=f"MultiInstanceClassifier: {message}"):
        quick().fit([ZEROS] * 4, y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "sonx"}, r"loss must be one of \['sont_mean', .*\], got 'sonx'"),
        ({"optimizer": "lion"}, r"optimizer must be one of \['adam', 'sgd'\], got 'lion'"),
        ({"probabilities": "none"}, r"probabilities must be one of"),
        ({"min_tpr": 1.0}, r"min_tpr must be a number in \[0, 1\), got 1.0"),
        ({"max_fpr": 0.0}, r"max_fpr must be a number in \(0, 1\], got 0.0"),
        ({"loss_options": 3}, r"loss_options must be a dictionary or None, got 3"),
        ({"loss_options": {"pooling": "mean"}}, r"loss_options must not hold 'pooling'"),
        ({"module": "mlp"}, r"module must be None, a module or a function that makes one, got 'mlp'"),
        ({"module": lambda size: size}, r"module must make a torch module, got int"),
        ({"num_positives": 0}, r"num_positives must be an integer of at least 1, got 0"),
        ({"num_negatives": 0}, r"num_negatives must be an integer of at least 1, got 0"),
        ({"instances_per_bag": 0}, r"instances_per_bag must be an integer of at least 1, got 0"),
        ({"chunk": 0}, r"chunk must be an integer of at least 1, got 0"),
        ({"validation_fraction": 1.0}, r"validation_fraction must be a number in \[0, 1\), got 1.0"),
        ({"patience": 0}, r"patience must be an integer of at least 1, got 0"),
        ({"patience": 0, "validation_fraction": 0.0}, r"patience must be an integer of at least 1, got 0"),
        ({"fpr_budget": 2.0}, r"fpr_budget must be a number in \[0, 1\], got 2.0"),
        ({"device": "abacus"}, r"device must be one that torch has here, got 'abacus'"),
        ({"positive_label": 7}, r"positive_label must be one of \[0, 1\], got 7"),
    ],
)
def test_bad_arguments_are_refused(data, options, message):
    with pytest.raises(ValueError, match=f"MultiInstanceClassifier: {message}"):
        quick(**options).fit(*data)


def test_other_errors_of_the_data(data, fitted):
    bags, y = data
    with pytest.raises(ValueError, match=r"bag 0 must have instances of shape \(3,\), as before, got \(2,\)"):
        fitted.decision_function(ListBags([np.zeros((2, 2))], [0]))
    with pytest.raises(ValueError, match=r"bag must have instances of shape \(3,\), as before, got \(2,\)"):
        fitted.instance_scores(np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"y must hold the classes \[0, 1\], got \[5\]"):
        fitted.score(bags, np.where(y == 1, 5, 0))
    with pytest.raises(ValueError, match=r"y must have a class for each of 40 bags, got 39"):
        fitted.score(bags, y[1:])
    with pytest.raises(ValueError, match=r"options of 'sont_att' must be among .*, got 'colour'"):
        quick(loss_options={"colour": 1}).fit(bags, y)
    broken = pickle.loads(pickle.dumps(fitted))
    nn.init.constant_(broken.model_.score.bias, torch.inf)
    with pytest.raises(ValueError, match=r"the model gave scores that are not finite"):
        broken.predict(bags)


@pytest.mark.parametrize(
    "call", ["decision_function", "predict", "predict_proba", "instance_scores", lambda c, b: c.score(b, [0])]
)
def test_not_fitted(call):
    classifier = quick()
    with pytest.raises(NotFittedError):
        call(classifier, [ZEROS]) if callable(call) else getattr(classifier, call)([ZEROS])


def test_tags_say_that_bags_are_no_table():
    tags = quick().__sklearn_tags__()
    assert not tags.input_tags.two_d_array and not tags.classifier_tags.multi_class
