"""MultiInstanceClassifier, what differs from the other estimators: bags as they come, which instance decided."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.model_selection import GridSearchCV, cross_val_score
from test_estimators import QUICK_BAGS, make_bags
from torch import nn

from moreauc.data import FileBags, FlatBags, ListBags
from moreauc.estimators import MultiInstanceClassifier
from moreauc.estimators.decisions import choose_threshold
from moreauc.estimators.multi_instance import InstanceScores


def quick(**options):
    return MultiInstanceClassifier(**{**QUICK_BAGS, "random_state": 0, **options})


@pytest.fixture(scope="module")
def data():
    return make_bags()


@pytest.fixture(scope="module")
def fitted(data):
    return quick(epochs=20).fit(*data)


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


@pytest.mark.parametrize("number", [5, 12])
def test_too_few_bags_to_hold_any_out(number):
    bags, y = make_bags(number)
    classifier = quick(patience=1).fit(bags, y)
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


def byte_bags(number: int = 12, shape: tuple[int, ...] = (4,)) -> tuple[list[np.ndarray], np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(256, size=(3, *shape), dtype=np.uint8) for _ in range(number)], np.arange(number) % 2


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
def test_images_stay_bytes_and_are_never_standardized(wrap):
    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 1)

        def forward(self, images):
            assert images.dtype == torch.uint8
            return self.linear(images.flatten(1).float() / 255)

    images, y = byte_bags(shape=(4, 4))
    bags, module = wrap(images, y), Watching()
    asked, plain = (quick(loss="sont_mean", module=module, standardize=flag).fit(bags, y) for flag in (True, False))
    assert asked.scale_ is None and asked.n_features_in_ == 16
    np.testing.assert_array_equal(asked.decision_function(bags), plain.decision_function(bags))
    assert asked.instance_scores(images[0]).score.shape == (3,)
    with pytest.raises(ValueError, match="module must be given"):
        quick().fit(bags, y)


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


def test_other_errors_of_the_data(data, fitted):
    bags, y = data
    with pytest.raises(ValueError, match=r"bag 0 must have instances of shape \(3,\), as before, got \(2,\)"):
        fitted.decision_function(ListBags([np.zeros((2, 2))], [0]))
    with pytest.raises(ValueError, match=r"bag must have instances of shape \(3,\), as before, got \(2,\)"):
        fitted.instance_scores(np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"y must have a class for each of 40 bags, got 39"):
        fitted.score(bags, y[1:])


def test_tags_say_that_bags_are_no_table():
    tags = quick().__sklearn_tags__()
    assert not tags.input_tags.two_d_array and not tags.classifier_tags.multi_class
