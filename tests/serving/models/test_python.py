"""Kind python: classes and functions of a user, from files and modules."""

from __future__ import annotations

import os
import pathlib
import sys
import textwrap

import numpy as np
import pytest

from serving.errors import InferenceFailed, ModelLoadFailed
from serving.models.python import Model


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))

    def load_source(source: str, name: str = "Model", threads: int = 1) -> Model:
        file = tmp_path / "own.py"
        file.write_text(textwrap.dedent(source))
        return Model(pathlib.Path(f"{file}:{name}"), threads=threads)

    return load_source


def test_a_class_gets_arrays_and_gives_arrays(load):
    model = load("""
        class Model:
            def predict_batch(self, inputs):
                return {"output": inputs["input"] * 2}
    """)
    answer = model.predict_batch({"input": np.ones((3, 2), np.float32)})
    np.testing.assert_array_equal(answer["output"], np.full((3, 2), 2, np.float32))


def test_without_a_signature_it_is_rows_of_floats(load):
    signature = load("def Model(items): return items").signature
    assert [spec.as_json() for spec in signature.inputs + signature.outputs] == [
        {"name": "input", "datatype": "FP32", "shape": [-1, -1]},
        {"name": "output", "datatype": "FP32", "shape": [-1, -1]},
    ]
    assert signature.platform == "python"


def test_a_function_gets_a_list_of_items_and_gives_a_list(load):
    model = load(
        """
        def total(items):
            assert isinstance(items, list)
            return [float(item.sum()) for item in items]
    """,
        "total",
    )
    answer = model.predict_batch({"input": np.arange(6, dtype=np.float32).reshape(3, 2)})["output"]
    assert answer.dtype == np.float32
    assert answer.tolist() == [1, 5, 9]


def test_declared_tensors_are_the_signature_and_answers_take_their_datatype(load):
    model = load("""
        class Model:
            inputs = [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
            outputs = [
                {"name": "length", "datatype": "INT64", "shape": [-1]},
                {"name": "capitals", "datatype": "BYTES", "shape": [-1]},
            ]
            def predict_batch(self, inputs):
                texts = inputs["text"]
                return {"length": [len(t) for t in texts], "capitals": [t.upper() for t in texts]}
    """)
    answer = model.predict_batch({"text": np.array([b"ab", b"c"], object)})
    assert answer["length"].dtype == np.int64
    assert answer["length"].tolist() == [2, 1]
    assert answer["capitals"].tolist() == [b"AB", b"C"]
    answer = model.predict_batch({"text": np.array([b"a\0", b"\0\0", b"abc"], object)})
    assert answer["capitals"].tolist() == [b"A\0", b"\0\0", b"ABC"]


@pytest.mark.parametrize(
    ("datatype", "expected"),
    [
        ("BOOL", "bool"),
        ("UINT8", "uint8"),
        ("INT64", "int64"),
        ("FP16", "float16"),
        ("FP64", "float64"),
    ],
)
def test_every_datatype_has_its_array_type(load, datatype, expected):
    model = load(f"""
        class Model:
            outputs = [{{"name": "y", "datatype": "{datatype}", "shape": [-1]}}]
            def predict_batch(self, inputs):
                return [1] * len(inputs["input"])
    """)
    assert model.predict_batch({"input": np.zeros((2, 1))})["y"].dtype == np.dtype(expected)


def test_the_constructor_gets_path_and_threads_where_it_asks(load, tmp_path):
    model = load(
        """
        class Model:
            def __init__(self, path, threads):
                self.answer = f"{path.name} {threads}"
            outputs = [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
            def predict_batch(self, inputs):
                return [self.answer] * len(inputs["input"])
    """,
        threads=3,
    )
    assert model.predict_batch({"input": np.zeros((1, 1))})["text"].tolist() == ["own.py 3"]


def test_a_file_may_import_its_neighbours(load, tmp_path):
    (tmp_path / "neighbour_of_own.py").write_text("FACTOR = 3\n")
    model = load(
        """
        from neighbour_of_own import FACTOR
        def scale(items): return [item * FACTOR for item in items]
    """,
        "scale",
    )
    assert model.predict_batch({"input": np.ones((1, 2))})["output"].tolist() == [[3, 3]]


def test_a_file_changed_within_its_second_is_read_anew(tmp_path, monkeypatch):
    """Python takes bytecode that it kept for that of a file of the same size and the same second."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "changed.py"
    for factor in (5, 7):
        file.write_text(f"def scale(items): return [item * {factor} for item in items]\n")
        os.utime(file, (1_000_000, 1_000_000))
        model = Model(pathlib.Path(f"{file}:scale"), threads=1)
        assert model.predict_batch({"input": np.ones((1, 1))})["output"].tolist() == [[factor]]


def test_a_module_can_be_named_instead_of_a_file(tmp_path, monkeypatch):
    (tmp_path / "words_for_a_test.py").write_text("def same(items): return items\n")
    monkeypatch.syspath_prepend(tmp_path)
    model = Model(pathlib.Path("words_for_a_test:same"), threads=1)
    assert model.predict_batch({"input": np.ones((1, 1))})["output"].tolist() == [[1]]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        pytest.param(
            "import os\nfrom json import loads\nclass Models: pass\ndef other(items): return items",
            r"no class or function 'Model' in it, did you mean 'Models'\? \(it has Models, other\)$",
            id="no such name",
        ),
        pytest.param("x = 3", r"no class or function 'Model' in it \(it has none\)$", id="nothing"),
        pytest.param("class Model: pass", "neither a function", id="no predict_batch"),
        pytest.param("Model = 3", "neither a function", id="not a model at all"),
        pytest.param("raise OSError('no\\ndisk')", "OSError: no disk", id="the module raises"),
        pytest.param("def Model(:", "SyntaxError", id="not Python"),
        pytest.param(
            "class Model:\n  def __init__(self): raise ValueError('bad weights')",
            "ValueError: bad weights",
            id="the constructor raises",
        ),
        pytest.param(
            "class Model:\n  inputs = [{'name': 'x', 'datatype': 'FLOAT', 'shape': [-1]}]",
            "'FLOAT' is not one of",
            id="unknown datatype",
        ),
        pytest.param(
            "def Model(items): pass\nModel.inputs = []",
            "declare one input",
            id="function, no input",
        ),
    ],
)
def test_code_that_cannot_be_served_is_one_clear_line(load, source, reason):
    with pytest.raises(ModelLoadFailed, match=reason) as caught:
        load(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", [None, pathlib.Path("no_colon.py"), pathlib.Path(":Name")])
def test_a_path_without_file_and_name_says_the_form(path):
    with pytest.raises(ModelLoadFailed, match=r"path/to/file\.py:Name"):
        Model(path, threads=1)


def test_a_file_that_does_not_exist_is_named():
    with pytest.raises(ModelLoadFailed, match=r"/no/such\.py"):
        Model(pathlib.Path("/no/such.py:Model"), threads=1)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        pytest.param("[1, 2]", "for 3 items", id="too few"),
        pytest.param("5", "for 3 items", id="no axis of items"),
        pytest.param("{'other': [1, 2, 3]}", "'output' is missing", id="another name"),
    ],
)
def test_an_answer_that_breaks_the_contract_is_told_so(load, answer, complaint):
    model = load(f"""
        class Model:
            def predict_batch(self, inputs):
                return {answer}
    """)
    with pytest.raises(InferenceFailed, match=complaint):
        model.predict_batch({"input": np.zeros((3, 1))})


def test_what_the_model_raises_goes_through(load):
    model = load("def fail(items): raise ZeroDivisionError", "fail")
    with pytest.raises(ZeroDivisionError):
        model.predict_batch({"input": np.zeros((1, 1))})


STAGES = """
    import numpy as np

    class Model:
        inputs = [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
        outputs = [{"name": "length", "datatype": "INT64", "shape": [-1]}]
        def preprocess(self, inputs):
            return [text.decode() for text in inputs["text"]]
        def predict_batch(self, texts):
            return [len(text) for text in texts]
        def postprocess(self, lengths):
            return {"length": lengths}
"""


def test_what_comes_before_and_after_is_handed_on_as_it_is(load):
    model = load(STAGES)
    texts = model.preprocess({"text": np.array([b"ab", b"c"], object)})
    assert texts == ["ab", "c"]
    lengths = model.predict_batch(texts)
    assert lengths == [2, 1]
    answer = model.postprocess(lengths)["length"]
    assert (answer.dtype, answer.tolist()) == (np.int64, [2, 1])


def test_a_model_without_stages_has_none(load):
    model = load("def Model(items): return items")
    assert model.preprocess is model.postprocess is None


def test_preprocess_alone_leaves_the_answer_to_the_prediction(load):
    model = load("""
        class Model:
            def preprocess(self, inputs): return inputs["input"].sum(1)
            def predict_batch(self, sums): return {"output": sums[:, None]}
    """)
    sums = model.preprocess({"input": np.ones((2, 3), np.float32)})
    assert model.predict_batch(sums)["output"].tolist() == [[3], [3]]


def test_a_class_derived_from_another_kind_takes_over_its_signature(load):
    model = load("""
        from serving.models import echo

        class Model(echo.Model):
            outputs = [{"name": "data", "datatype": "INT32", "shape": [-1, -1]}]

            def __init__(self, path, threads):
                super().__init__(path, threads=threads)
    """)
    assert [spec.datatype for spec in model.signature.inputs] == ["UINT8"]
    assert [spec.datatype for spec in model.signature.outputs] == ["INT32"]
    answer = model.predict_batch({"data": np.ones((1, 2), np.uint8)})
    assert answer["data"].dtype == np.int32
