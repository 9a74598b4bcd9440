"""Studies to export, with models of several kinds."""

import dataclasses

import pytest

from serving.model_spec import ModelSpec
from tests.fakes import studies
from tuner import export
from tuner.study import problem
from tuner.values.configuration import Configuration

STUDY = studies.study(trials=12)
RESNET = problem.find_spec("resnet")
MODEL_TARGETS = [target for target in export.FORMATS if target not in export.WITHOUT_MODEL]


def texts_of(target, study=STUDY, card=RESNET, **options):
    """The files of a target that are texts."""
    files = export.export(study, target, card=card, **options)
    return {name: content for name, content in files.items() if isinstance(content, str)}


def with_best(study=STUDY, **values):
    """The study with another best configuration: knobs by name, with two underscores for the dot."""
    changed = {name.replace("__", "."): value for name, value in values.items()}
    best = Configuration({**study.best, **changed})
    verdict = dataclasses.replace(study.verdict, outcome="better")
    return dataclasses.replace(study, best=best, verdict=verdict)


def of_model(card, given, study=STUDY):
    """The study of another model, as it was named."""
    settings = {"target": {"model": given}}
    return dataclasses.replace(study, model=card.name, settings=settings)


def own_model(path, kind="onnx", **fields):
    """The card of a user's model."""
    return ModelSpec(name="mine", version="1", kind=kind, path=path, **fields)


@pytest.fixture(params=MODEL_TARGETS)
def target(request):
    """Every target that looks at the model, in turn."""
    return request.param
