"""MLflow's folders as MLflow writes them: native files by their kinds, code only where it is trusted."""

import json
import os
import pickle
import sys

import numpy as np
import pytest
import yaml

from serving import models, zoo
from serving.errors import ModelLoadFailed
from serving.zoo import model_specs
from tests.frameworks.conftest import import_mlflow

pd = pytest.importorskip("pandas")
lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")
catboost = pytest.importorskip("catboost")
linear_model = pytest.importorskip("sklearn.linear_model")
mlflow, infer_signature = import_mlflow()

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("default"),  # what MLflow says to those who store models
]
X = np.random.default_rng(3).normal(size=(120, 3))
Y = (X.sum(axis=1) > 0).astype(int)
NO_LOOKUP = {"pip_requirements": []}
"""MLflow starts a process to find out what a model needs, unless it is told."""
FRAME = pd.DataFrame(X, columns=list("abc"))


class Joined(mlflow.pyfunc.PythonModel):
    """Numbers and texts in, a table of both out."""

    def predict(self, context, model_input, params=None):
        loud = model_input["text"].str.upper()
        return pd.DataFrame({"loud": loud, "twice": 2 * model_input["number"]})


TEXTS = pd.DataFrame({"text": ["lute", "é"], "number": [1.5, 2.0]})


def boosted(path):
    booster = xgboost.train({"objective": "binary:logistic"}, xgboost.DMatrix(FRAME, Y), 3)
    mlflow.xgboost.save_model(booster, path, signature=infer_signature(FRAME, Y * 1.0), **NO_LOOKUP)
    return booster.predict(xgboost.DMatrix(FRAME))


def lit(path):
    booster = lightgbm.train({"verbose": -1}, lightgbm.Dataset(X, Y), 3)
    mlflow.lightgbm.save_model(booster, path, **NO_LOOKUP)
    return booster.predict(X)


def cat(path):
    options = {"iterations": 3, "verbose": 0, "allow_writing_files": False}
    model = catboost.CatBoostClassifier(**options).fit(X, Y)
    mlflow.catboost.save_model(model, path, **NO_LOOKUP)
    return model.predict_proba(X)


def skopsed(path):
    estimator = linear_model.LogisticRegression().fit(X, Y)
    mlflow.sklearn.save_model(estimator, path, serialization_format="skops", **NO_LOOKUP)
    return estimator.predict_proba(X)


def exported(path):
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(3, 2).eval()
    rows = X.astype(np.float32)
    free = {"input": {0: torch.export.Dim.DYNAMIC}}
    program = torch.export.export(module, (torch.from_numpy(rows),), dynamic_shapes=free)
    flavor = {"model_data": "data", "pytorch_version": str(torch.__version__)}
    (path / "data").mkdir(parents=True)
    torch.export.save(program, path / "data" / "model.pt2")
    (path / "MLmodel").write_text(yaml.safe_dump({"flavors": {"pytorch": flavor}}))
    return module(torch.from_numpy(rows)).detach().numpy()


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("xgboost", boosted),
        ("lightgbm", lit),
        ("catboost", cat),
        ("sklearn", skopsed),
        ("torch", exported),
    ],
)
def test_native_files_are_served_by_their_kinds_without_trust_or_mlflow(
    tmp_path, monkeypatch, kind, make
):
    expected = make(tmp_path / "mine")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    card = zoo.find(str(tmp_path / "mine"))
    assert (card.kind, card.name) == (kind, "mine")
    model = models.load(card.kind, card.path, threads=1)
    (spec,) = model.signature.inputs
    rows = X.astype({"FP32": np.float32, "FP64": np.float64}[spec.datatype])
    (answer,) = model.predict_batch({spec.name: rows}).values()
    np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-6)


def pickled(path, form="pickle", rows=X, **options):
    estimator = linear_model.LinearRegression().fit(rows, Y)
    mlflow.sklearn.save_model(estimator, path, serialization_format=form, **options, **NO_LOOKUP)
    return estimator


def test_code_is_refused_unless_it_is_trusted(tmp_path):
    """By `find`, by a record of an earlier start, and where a `model.yaml` names the kind."""
    pickled(tmp_path / "mine")
    with pytest.raises(ModelLoadFailed, match=r"flavor sklearn: pickle.*add --trust") as caught:
        zoo.find(str(tmp_path / "mine"))
    assert "\n" not in str(caught.value)
    card = zoo.find(str(tmp_path / "mine"), is_trusted=True)
    assert (card.kind, card.path) == ("mlflow", tmp_path / "mine")
    with pytest.raises(ModelLoadFailed, match="add --trust"):
        model_specs.from_json(json.loads(json.dumps(model_specs.as_json(card))))
    (tmp_path / "model.yaml").write_text('name: mine\nversion: "1"\nkind: mlflow\n')
    with pytest.raises(ModelLoadFailed, match="add --trust"):
        zoo.find(str(tmp_path))


def trusted(path):
    card = zoo.find(str(path), is_trusted=True)
    return models.load(card.kind, card.path, threads=1)


@pytest.mark.parametrize("form", ["pickle", "cloudpickle"])
@pytest.mark.parametrize("told", ["nothing", "tensor", "columns"])
def test_a_pickled_estimator_answers_as_it_did(tmp_path, monkeypatch, form, told):
    """With inputs by its signature: a matrix, or a column each; MLflow is not needed."""
    given = {"tensor": X, "columns": FRAME}.get(told)
    signature = {} if given is None else {"signature": infer_signature(given, Y * 1.0)}
    estimator = pickled(tmp_path / "mine", form, X if given is None else given, **signature)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    model = trusted(tmp_path / "mine")
    if told == "columns":
        assert [spec.name for spec in model.signature.inputs] == ["a", "b", "c"]
        inputs = {name: FRAME[name].to_numpy() for name in "abc"}
    else:
        inputs = {"input": X}
    assert [spec.as_json() for spec in model.signature.outputs] == [
        {"name": "prediction", "datatype": "FP64", "shape": [-1]}
    ]
    answer = model.predict_batch(inputs)["prediction"]
    np.testing.assert_allclose(answer, estimator.predict(X if given is None else given), rtol=1e-12)


def test_a_python_function_gets_a_frame_and_gives_one(tmp_path):
    """Texts come as bytes and go as texts; the input example tells the outputs, and warms up."""
    signature = infer_signature(TEXTS, Joined().predict(None, TEXTS))
    options = {"signature": signature, "input_example": TEXTS, **NO_LOOKUP}
    mlflow.pyfunc.save_model(tmp_path / "mine", python_model=Joined(), **options)
    model = trusted(tmp_path / "mine")
    assert [(spec.name, spec.datatype) for spec in model.signature.inputs] == [
        ("text", "BYTES"),
        ("number", "FP64"),
    ]
    assert [(spec.name, spec.datatype) for spec in model.signature.outputs] == [
        ("loud", "BYTES"),
        ("twice", "FP64"),
    ]
    samples = model.sample_inputs()
    assert samples["text"].tolist() == [b"lute", "é".encode()]
    answer = model.predict_batch(samples)
    assert answer["loud"].tolist() == ["LUTE", "É"]
    assert answer["twice"].tolist() == [3.0, 4.0]


def test_a_python_function_needs_mlflow(tmp_path, monkeypatch):
    signature = infer_signature(TEXTS, Joined().predict(None, TEXTS))
    options = {"signature": signature, **NO_LOOKUP}
    mlflow.pyfunc.save_model(tmp_path / "mine", python_model=Joined(), **options)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setitem(sys.modules, "mlflow.pyfunc", None)
    with pytest.raises(ModelLoadFailed, match=r"package 'mlflow': pip install '\.\[mlflow\]'"):
        trusted(tmp_path / "mine")


def test_nothing_is_unpickled_before_it_is_trusted(tmp_path):
    """A pickle that leaves a trace: not at `find`, only when a trusted model is loaded."""
    pickled(tmp_path / "mine")
    trace = tmp_path / "trace"

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(trace),)

    (tmp_path / "mine" / "model.pkl").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ModelLoadFailed, match="--trust"):
        zoo.find(str(tmp_path / "mine"))
    assert not trace.exists()
    with pytest.raises(ModelLoadFailed):
        trusted(tmp_path / "mine")
    assert trace.exists()


def test_what_mlflow_has_written_is_bounded(tmp_path):
    """In the kind as in the search for models: aliases, which stand for more than is written, are refused."""
    from serving.models.mlflow import Model  # noqa: PLC0415 - imports pandas

    (tmp_path / "MLmodel").write_text("flavors: &a {sklearn: *a}\n")
    with pytest.raises(ModelLoadFailed, match="anchors"):
        Model(tmp_path, threads=1)
