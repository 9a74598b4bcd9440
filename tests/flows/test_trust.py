"""Models that run code from their files: served where the command line says --trust, and never by a client's word."""

import json
import pickle

import pytest
import yaml
from sklearn.linear_model import LinearRegression

from tests.flows.test_server import server


@pytest.fixture(name="folder")
def _folder(tmp_path):
    """As MLflow stores an estimator."""
    path = tmp_path / "mine"
    path.mkdir()
    estimator = LinearRegression().fit([[0.0, 1.0], [1.0, 1.0], [2.0, 5.0]], [1.0, 2.0, 7.0])
    (path / "model.pkl").write_bytes(pickle.dumps(estimator))
    flavor = {"pickled_model": "model.pkl", "serialization_format": "pickle"}
    (path / "MLmodel").write_text(yaml.safe_dump({"flavors": {"sklearn": flavor}}))
    return path


def test_without_trust_it_is_wrong_use(serve, folder):
    """One line that says what it means, and exit code 2."""
    ended = serve("--model", str(folder))
    assert ended.code == 2
    assert "runs code from its files (its flavor sklearn: pickle)" in ended.err
    assert len(ended.err.strip().splitlines()) == 1


def test_with_trust_it_is_served_and_a_client_cannot_say_so(folder):
    """The same server refuses to deploy it once more when a client asks."""
    with server("--model", str(folder), "--trust") as running:
        item = {"name": "input", "datatype": "FP64", "shape": [1, 2], "data": [2.0, 5.0]}
        status, answer = running.json("POST", "/v2/models/mine/infer", {"inputs": [item]})
        assert status == 200, answer
        assert answer["outputs"][0]["data"] == pytest.approx([7.0])
        for data in (
            {"model": str(folder), "name": "again"},
            {"model": str(folder), "name": "again", "trust": True},
        ):
            status, answer = running.json("POST", "/admin/models", data, admin=True)
            assert status >= 400
            assert "trust" in json.dumps(answer)
        models = running.json("GET", "/admin/models", admin=True)[1]["models"]
        assert [model["name"] for model in models] == ["mine"]
