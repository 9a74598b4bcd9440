"""Kind sklearn: stored estimators, arrays of coefficients, and the files that are refused."""

from __future__ import annotations

# ruff: noqa: E402 - what follows importorskip needs the extra `sklearn`
import pathlib
import pickle

import numpy as np
import pytest

pytest.importorskip("sklearn")
skops_io = pytest.importorskip("skops.io")
threadpoolctl = pytest.importorskip("threadpoolctl")

from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
)
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.naive_bayes import MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from serving import models
from serving.errors import InvalidRequest, ModelLoadFailed
from serving.models.sklearn import Model

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(60, 4))
CLASSES = (ROWS[:, 0] > 0).astype(np.int64) + (ROWS[:, 1] > 0)
NAMES = np.array(["low", "middle", "high"])[CLASSES]


@pytest.fixture
def stored(tmp_path):
    def store(estimator: object, threads: int = 1) -> Model:
        path = tmp_path / "model.skops"
        skops_io.dump(estimator, path)
        return Model(path, threads=threads)

    return store


def test_a_classifier_gives_the_scores_of_its_classes(stored):
    estimator = make_pipeline(StandardScaler(), LogisticRegression()).fit(ROWS, CLASSES)
    model = stored(estimator)
    assert [spec.as_json() for spec in model.signature.inputs + model.signature.outputs] == [
        {"name": "input", "datatype": "FP64", "shape": [-1, 4]},
        {"name": "scores", "datatype": "FP32", "shape": [-1, 3]},
    ]
    scores = model.predict_batch({"input": ROWS})["scores"]
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, estimator.predict_proba(ROWS), rtol=1e-6)


@pytest.mark.parametrize(
    ("estimator", "targets", "datatype", "shape"),
    [
        pytest.param(LinearRegression(), ROWS[:, 0], "FP64", (-1,), id="regressor"),
        pytest.param(LinearRegression(), ROWS[:, :2], "FP64", (-1, 2), id="two targets"),
        pytest.param(LinearSVC(), CLASSES, "INT64", (-1,), id="numbered classes"),
        pytest.param(LinearSVC(), NAMES, "BYTES", (-1,), id="named classes"),
        pytest.param(LinearSVC(), CLASSES > 0, "BOOL", (-1,), id="yes or no"),
        pytest.param(KMeans(3, n_init=1, random_state=0), None, "INT64", (-1,), id="clusters"),
        pytest.param(
            RandomForestClassifier(3, random_state=0),
            np.stack([CLASSES, CLASSES], axis=1),
            "INT64",
            (-1, 2),
            id="scores of two targets are not one array",
        ),
    ],
)
def test_without_scores_the_output_is_the_prediction(stored, estimator, targets, datatype, shape):
    model = stored(estimator.fit(ROWS, targets))
    output = model.signature.outputs[0]
    assert (output.name, output.datatype, output.shape) == ("prediction", datatype, shape)
    answer = model.predict_batch({"input": ROWS})["prediction"]
    assert answer.dtype == models_dtype(datatype)
    expected = estimator.predict(ROWS)
    if datatype == "FP64":
        np.testing.assert_allclose(answer, expected)
    else:
        np.testing.assert_array_equal(answer, expected)


def models_dtype(datatype: str) -> np.dtype:
    return np.dtype({"FP64": "f8", "INT64": "i8", "BOOL": "?", "BYTES": "O"}[datatype])


def test_an_estimator_may_say_more_about_its_input(stored):
    estimator = LogisticRegression().fit(ROWS, CLASSES)
    estimator.serving_input = {"name": "image", "datatype": "FP32", "shape": [1, 2, 2]}
    model = stored(estimator)
    assert model.signature.inputs[0].shape == (-1, 1, 2, 2)
    images = ROWS.astype(np.float32).reshape(-1, 1, 2, 2)
    scores = model.predict_batch({"image": images})["scores"]
    np.testing.assert_allclose(scores, estimator.predict_proba(ROWS), rtol=1e-4, atol=1e-6)


def test_texts_come_as_bytes_and_go_in_as_single_values(stored):
    texts = ["good film", "bad film", "good", "bad"]
    estimator = make_pipeline(CountVectorizer(), MultinomialNB()).fit(texts, ["+", "-", "+", "-"])
    estimator.serving_input = {"name": "text", "datatype": "BYTES", "shape": []}
    model = stored(estimator)
    assert model.signature.inputs[0].shape == (-1,)
    scores = model.predict_batch({"text": np.array([b"good", b"bad"], object)})["scores"]
    np.testing.assert_allclose(scores, estimator.predict_proba(["good", "bad"]), rtol=1e-6)


def test_an_estimator_that_does_not_know_its_features_is_asked_for_them(stored):
    estimator = make_pipeline(CountVectorizer(), MultinomialNB()).fit(["one two", "three"], [0, 1])
    with pytest.raises(ModelLoadFailed, match="set serving_input"):
        stored(estimator)


@pytest.mark.parametrize(
    "estimator",
    [
        RandomForestClassifier(3, random_state=0),
        GradientBoostingClassifier(n_estimators=3, random_state=0),
        HistGradientBoostingClassifier(max_iter=3, random_state=0),
        KNeighborsClassifier(3),
        MLPClassifier((4,), max_iter=20, random_state=0, tol=1.0),
        StackingClassifier([("forest", RandomForestClassifier(2, random_state=0))], cv=2),
        CalibratedClassifierCV(LinearSVC(), cv=2),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_the_common_estimators_can_be_served(stored, estimator):
    model = stored(estimator.fit(ROWS, CLASSES))
    scores = model.predict_batch({"input": ROWS})["scores"]
    np.testing.assert_allclose(scores, estimator.predict_proba(ROWS), rtol=1e-5, atol=1e-6)


def test_every_part_keeps_to_the_threads(stored):
    forest = RandomForestClassifier(3, n_jobs=-1, random_state=0)
    model = stored(make_pipeline(StandardScaler(), forest).fit(ROWS, CLASSES), threads=2)
    assert model._estimator[-1].n_jobs == 2


def test_the_pools_below_keep_to_the_threads_of_whoever_is_called(stored):
    """Two models in one process: each call is limited as its model was loaded."""

    class Seen(LogisticRegression):
        """Not stored: it stands in for what was loaded."""

        def predict_proba(self, rows):
            pools = threadpoolctl.threadpool_info()
            seen.append({pool["num_threads"] for pool in pools})
            return super().predict_proba(rows)

    seen: list[set[int]] = []
    estimator = LogisticRegression().fit(ROWS, CLASSES)
    one, two = stored(estimator, threads=1), stored(estimator, threads=2)
    for model in (one, two):
        model._estimator.__class__ = Seen
    for model in (one, two, one, one):
        model.predict_batch({"input": ROWS})
    assert seen == [{1}, {2}, {1}, {1}]


@pytest.mark.parametrize("classes", [2, 3])
def test_coefficients_give_what_the_estimator_gave(tmp_path, classes):
    labels = np.minimum(CLASSES, classes - 1)
    estimator = LogisticRegression().fit(ROWS, labels)
    np.savez(
        tmp_path / "m.npz",
        coef=estimator.coef_,
        intercept=estimator.intercept_,
        classes=estimator.classes_,
    )
    model = Model(tmp_path / "m.npz", threads=1)
    scores = model.predict_batch({"input": ROWS})["scores"]
    np.testing.assert_allclose(scores, estimator.predict_proba(ROWS), rtol=1e-5)


@pytest.mark.parametrize("suffix", [".pkl", ".pickle", ".joblib", ".skops"])
def test_a_pickle_is_refused_whatever_its_name_and_never_loaded(tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ModelLoadFailed) as caught:
        Model(path, threads=1)
    assert str(caught.value).endswith(
        "run where it was made: import joblib, skops.io; "
        f"skops.io.dump(joblib.load({path.name!r}), 'model.skops')"
    )
    assert not Bomb.exploded


class Bomb:
    """Runs code when it is unpickled."""

    exploded = False

    def __reduce__(self):
        return (setattr, (Bomb, "exploded", True))


class OwnScaler(StandardScaler):
    """A user's own type."""


def test_types_of_others_are_refused_by_name(stored):
    with pytest.raises(ModelLoadFailed, match=r"not trusted: .*OwnScaler.*kind python"):
        stored(make_pipeline(OwnScaler(), LogisticRegression()).fit(ROWS, CLASSES))


@pytest.mark.parametrize(
    ("thing", "reason"),
    [
        pytest.param(
            {"a": 1}, "it holds a dict, expected a scikit-learn estimator", id="no estimator"
        ),
        pytest.param(
            LinearRegression(), "number of the estimator's features is unknown", id="not fitted"
        ),
    ],
)
def test_what_is_no_fitted_estimator_is_refused(stored, thing, reason):
    with pytest.raises(ModelLoadFailed, match=reason):
        stored(thing)


def test_broken_arrays_are_one_clear_line(tmp_path):
    np.savez(tmp_path / "m.npz", coef=np.zeros((2, 3)))
    with pytest.raises(ModelLoadFailed, match="missing array classes, intercept"):
        Model(tmp_path / "m.npz", threads=1)
    (tmp_path / "m.npz").write_bytes(b"PK\3\4 no more")
    with pytest.raises(ModelLoadFailed, match="BadZipFile"):
        Model(tmp_path / "m.npz", threads=1)


@pytest.mark.parametrize("path", [None, pathlib.Path("/no/such.skops")])
def test_a_missing_file_is_refused(path):
    with pytest.raises(ModelLoadFailed, match="no such file"):
        models.load("sklearn", path, threads=1)


@pytest.mark.parametrize(
    ("inputs", "complaint"),
    [
        pytest.param({}, "expected one, named 'input'", id="no input"),
        pytest.param({"x": ROWS}, r"inputs \['x'\]", id="another name"),
        pytest.param(
            {"input": ROWS[:, :3]}, r"expected shape \[-1, 4\], given \[60, 3\]", id="shape"
        ),
    ],
)
def test_an_input_that_does_not_fit_is_the_clients_fault(stored, inputs, complaint):
    model = stored(LogisticRegression().fit(ROWS, CLASSES))
    with pytest.raises(InvalidRequest, match=complaint):
        model.predict_batch(inputs)
