"""Kinds xgboost, lightgbm and catboost: the server's answers are the bare libraries', and what is refused."""

import asyncio
import contextlib
import json
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

from serving import models, zoo
from serving.errors import ModelLoadFailed

xgboost = pytest.importorskip("xgboost", reason="XGBoost is installed by make test-frameworks")
lightgbm = pytest.importorskip("lightgbm", reason="LightGBM is installed by make test-frameworks")
catboost = pytest.importorskip("catboost", reason="CatBoost is installed by make test-frameworks")

pytestmark = pytest.mark.frameworks
RNG = np.random.default_rng(7)
X = RNG.normal(size=(300, 4)).astype(np.float32)
SUM = X.sum(axis=1)
TWO, THREE = (SUM > 0).astype(int), np.digitize(SUM, [-1, 1])
ROWS = X[:9]
COLOUR = np.where(X[:, 1] > 0, "red", "blue")
NOTE = np.where(X[:, 2] > 0, "a good day", "a bad night")


def table(rows):
    """Numbers, a category between them, and a text, as the training of the mixed model had them."""
    made = np.empty((len(X[rows]), 4), object)
    made[:, 0], made[:, 1], made[:, 2], made[:, 3] = (
        X[rows, 0],
        COLOUR[rows],
        X[rows, 3],
        NOTE[rows],
    )
    return made


def boosted(folder, name, label, **options):
    """A booster's file, and what the library answers of it."""
    matrix = xgboost.DMatrix(X, label, feature_names=["d", "c", "b", "a"])
    booster = xgboost.train({"nthread": 1, "max_depth": 3, **options}, matrix, 7)
    booster.save_model(folder / name)
    return lambda rows: booster.predict(xgboost.DMatrix(rows), validate_features=False)


def stopped_early(folder, name):
    """A classifier that had gone on after its best iteration."""
    made = xgboost.XGBClassifier(n_estimators=30, early_stopping_rounds=3, max_depth=3)
    made.fit(X, TWO, eval_set=[(X, np.roll(TWO, 1))], verbose=False)
    assert made.best_iteration + 1 < made.get_booster().num_boosted_rounds()
    made.save_model(folder / name)
    return lambda rows: made.predict_proba(rows)[:, 1]


def lit(folder, name, label, **options):
    data = lightgbm.Dataset(X.astype(np.float64), label)
    booster = lightgbm.train({"verbose": -1, "num_threads": 1, **options}, data, 7)
    booster.save_model(folder / name)
    return booster.predict


def cat(folder, name, label, **options):
    given = {"iterations": 7, "verbose": 0, "thread_count": 1, "allow_writing_files": False}
    is_class = "Log" in options["loss_function"] or "Class" in options["loss_function"]
    kind = catboost.CatBoostClassifier if is_class else catboost.CatBoostRegressor
    model = kind(**given, **options).fit(X, label)
    model.save_model(str(folder / name))
    return model.predict_proba if is_class else model.predict


MADE = {
    "xgboost-two.ubj": lambda *at: boosted(*at, TWO, objective="binary:logistic"),
    "xgboost-three.json": lambda *at: boosted(*at, THREE, objective="multi:softprob", num_class=3),
    "xgboost-number.ubj": lambda *at: boosted(*at, SUM, objective="reg:squarederror"),
    "xgboost-dart.json": lambda *at: boosted(*at, SUM, booster="dart"),
    "xgboost-linear.json": lambda *at: boosted(*at, SUM, booster="gblinear", max_depth=None),
    "xgboost-stopped.json": stopped_early,
    "lightgbm-two.txt": lambda *at: lit(*at, TWO, objective="binary"),
    "lightgbm-three.txt": lambda *at: lit(*at, THREE, objective="multiclass", num_class=3),
    "lightgbm-number.txt": lambda *at: lit(*at, SUM, objective="regression"),
    "catboost-two.cbm": lambda *at: cat(*at, TWO, loss_function="Logloss"),
    "catboost-three.cbm": lambda *at: cat(*at, THREE, loss_function="MultiClass"),
    "catboost-number.cbm": lambda *at: cat(*at, SUM, loss_function="RMSE"),
    "catboost-count.cbm": lambda *at: cat(*at, TWO + 1, loss_function="Poisson"),
    "catboost-targets.cbm": lambda *at: cat(*at, X[:, :2] * 2, loss_function="MultiRMSE"),
}
"""File -> makes it in a folder under its name, and returns what the library answers to rows."""


@pytest.fixture(scope="module", name="made")
def _made(tmp_path_factory):
    """The folder of all files, and the bare libraries' answers."""
    folder = tmp_path_factory.mktemp("trees")
    return folder, {name: make(folder, name) for name, make in MADE.items()}


def load(path, threads=1):
    card = zoo.find(str(path))
    return card, models.load(card.kind, card.path, threads=threads)


@pytest.mark.parametrize("name", MADE)
def test_a_file_answers_as_its_library_does(made, name):
    """One row, some rows, and values that are missing; with one thread as with two."""
    folder, bare = made
    kind, _, rest = name.partition("-")
    for threads in (1, 2):
        card, model = load(folder / name, threads)
        assert (card.kind, model.signature.platform) == (kind, kind)
        (spec,), (output,) = model.signature.inputs, model.signature.outputs
        dtype = {"FP32": np.float32, "FP64": np.float64}[spec.datatype]
        is_score = rest.startswith(("two", "three", "stopped"))
        assert output.name == ("scores" if is_score else "prediction")
        for rows in (ROWS, ROWS[:1], np.where(ROWS > 1, np.nan, ROWS)):
            if "linear" in name and np.isnan(rows).any():
                continue
            answer = model.predict_batch({"input": rows.astype(dtype)})[output.name]
            np.testing.assert_allclose(answer, bare[name](rows.astype(dtype)), rtol=1e-6, atol=1e-7)
            assert output.shape == (-1, *answer.shape[1:])


def test_categories_and_texts_are_inputs_of_their_own(tmp_path):
    """CatBoost's file tells which features they are; columns stay in the order of the training."""
    pool = catboost.Pool(table(slice(None)), TWO, cat_features=[1], text_features=[3])
    options = {"iterations": 9, "verbose": 0, "allow_writing_files": False, "thread_count": 1}
    trained = catboost.CatBoostClassifier(**options).fit(pool)
    trained.save_model(str(tmp_path / "mixed.cbm"))
    _, model = load(tmp_path / "mixed.cbm")
    inputs = [(spec.name, spec.datatype, spec.shape) for spec in model.signature.inputs]
    expected = [
        ("input", "FP32", (-1, 2)),
        ("categories", "BYTES", (-1, 1)),
        ("texts", "BYTES", (-1, 1)),
    ]
    assert inputs == expected
    rows = slice(0, 9)
    given = {
        "input": X[rows][:, [0, 3]],
        "categories": np.array([[text.encode()] for text in COLOUR[rows]], object),
        "texts": np.array([[text.encode()] for text in NOTE[rows]], object),
    }
    bare = trained.predict_proba(catboost.Pool(table(rows), cat_features=[1], text_features=[3]))
    np.testing.assert_allclose(model.predict_batch(given)["scores"], bare, rtol=1e-9)


def test_embeddings_are_refused_in_one_line(tmp_path):
    given = [[list(row[:2]), row[3]] for row in X]
    pool = catboost.Pool(given, TWO, embedding_features=[0])
    options = {"iterations": 2, "verbose": 0, "allow_writing_files": False, "thread_count": 1}
    catboost.CatBoostClassifier(**options).fit(pool).save_model(str(tmp_path / "e.cbm"))
    with pytest.raises(ModelLoadFailed, match="embedding features, which cannot be"):
        load(tmp_path / "e.cbm")


@pytest.mark.parametrize(
    "name", ["xgboost-two.ubj", "xgboost-three.json", "lightgbm-two.txt", "catboost-two.cbm"]
)
@pytest.mark.parametrize("part", [0.1, 0.5])
def test_a_file_that_was_cut_off_is_one_line(made, tmp_path, name, part):
    content = (made[0] / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(len(content) * part)])
    with pytest.raises(ModelLoadFailed, match=r"\((XGBoost|LightGBM|CatBoost) \d") as caught:
        load(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert "/workspace" not in str(caught.value)


@pytest.mark.parametrize("kind", ["xgboost", "lightgbm", "catboost"])
def test_no_file_is_told_with_what_is_needed(kind, tmp_path):
    for path in (None, tmp_path, tmp_path / "none"):
        with pytest.raises(
            ModelLoadFailed,
            match=r"no such file; the kind .* needs a .*file written by .*save_model",
        ):
            models.load(kind, path, threads=1)


@contextlib.contextmanager
def served(*arguments):
    """What a server of these arguments says of itself."""
    command = [sys.executable, "-m", "serving", "--port", "0", "--admin-port", "0", *arguments]
    command += ["--log-level", "error", "--set", "server.grpc_port=0"]
    command += ["--set", "replica.ready_timeout_s=90"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield json.loads(server.stdout.readline())
            server.terminate()
            assert server.wait(30) == 0
        finally:
            server.kill()


def ask(url, rows, datatype):
    """The one output over REST."""
    item = {"name": "input", "datatype": datatype, "shape": [*rows.shape], "data": rows.tolist()}
    request = urllib.request.Request(url, json.dumps({"inputs": [item]}).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        (output,) = json.loads(answer.read())["outputs"]
    return np.reshape(output["data"], output["shape"])


async def test_rest_and_grpc_answer_as_the_libraries(made):
    """One server of a model of each library, asked over both protocols."""
    kserve = pytest.importorskip("kserve", reason="kserve is installed by make test-frameworks")
    folder, bare = made
    names = ["xgboost-three.json", "lightgbm-three.txt", "catboost-three.cbm"]
    options = [word for name in names for word in ("--model", str(folder / name))]
    with served(*options) as facts:
        client = kserve.InferenceGRPCClient(f"127.0.0.1:{facts['grpc_port']}")
        for name in names:
            model, wide = name.partition(".")[0], "lightgbm" in name
            datatype, dtype = ("FP64", np.float64) if wide else ("FP32", np.float32)
            rows = ROWS.astype(dtype)
            url = f"http://127.0.0.1:{facts['port']}/v2/models/{model}/infer"
            rest = await asyncio.to_thread(ask, url, rows, datatype)
            given = kserve.InferInput("input", [9, 4], datatype)
            given.set_data_from_numpy(rows, binary_data=True)
            found = await client.infer(kserve.InferRequest(model, [given]))
            for scores in (rest, found.outputs[0].as_numpy()):
                np.testing.assert_allclose(scores, bare[name](rows), rtol=1e-6)
        await client.close()
