"""A hub of Clipper's applications in memory: its true semantics, models that run in the loop's own thread.

A query without linked models is answered by the default output at once; one whose model does not
answer in time, at its SLO.
"""

import asyncio
import dataclasses
import itertools
from typing import Any, NamedTuple

from serving import models as kinds
from serving import zoo
from serving.api.clipper.inputs import input_types
from serving.api.clipper.service import Container
from serving.errors import InvalidRequest, ModelLoadFailed, NotReady, UnknownModel
from serving.values import ModelId
from tests.fakes.servables import arrays_of, frame_of

NO_MODELS = "No connected models found for query"
TOO_LATE = "Failed to retrieve a prediction response within the specified latency SLO"


@dataclasses.dataclass
class App:
    name: str
    input_type: str
    default_output: str
    latency_slo_s: float
    models: list
    policy: str = "fixed"


class Result(NamedTuple):
    query_id: int
    output: Any
    is_default: bool = False
    explanation: str | None = None
    confidence: float | None = None
    is_suspicious: bool = False


class Function:
    """A model that is a function of arrays."""

    def __init__(self, signature, predict_batch):
        self.signature = signature
        self.predict_batch = predict_batch


class Asked:
    """One query: the ticket, and its timer."""

    def __init__(self, hub, application, asker):
        self._hub = hub
        self._query_handler = asker
        self._id = next(hub.query_ids)
        self.cancelled = False
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(application.latency_slo_s, self.default, TOO_LATE)

    def on_result(self, frame):
        self._once(Result(self._id, memoryview(frame)))

    def default(self, explanation):
        self._once(Result(self._id, None, True, explanation))

    def _once(self, result):
        if not self.cancelled:
            self._end()
            self._query_handler(result)

    def cancel(self):
        self._end()
        self._hub.given_up.append(self._id)

    def _end(self):
        self.cancelled = True
        self._timer.cancel()


class FakeHub:
    """A `ClipperService` with the `Applications` behind it."""

    def __init__(self):
        self.applications = self
        self.apps = {}
        self.records = {}
        self.current = {}
        self.running = {}
        self.delays_s = {}
        self.updates = []
        self.asked = []
        self.given_up = []
        self.query_ids = itertools.count()
        self.fail_with = None
        self.start_error = None

    def run(self, name, version, signature, function, replicas=1):
        """A model of a test, as if its containers had been started."""
        self.running[name, version] = (Function(signature, function), replicas)

    # Applications

    def application(self, name):
        return self.apps.get(name)

    def model_versions(self, model):
        return [version for name, version in self.records if name == model]

    def ask(self, application, question, query_handler, *, version, user):
        if self.fail_with is not None:
            raise self.fail_with
        app = self.apps[application]
        loop = asyncio.get_running_loop()
        self.asked.append((application, version, user))
        if not app.models:
            asked = Asked(self, app, query_handler)
            loop.call_soon(asked.default, NO_MODELS)
            return asked
        name = app.models[0]
        version = version or self.current[name]
        model, replicas = self.running.get((name, version), (None, 0))
        if not replicas:
            return Asked(self, app, query_handler)
        query = question.query(model.signature)
        asked = Asked(self, app, query_handler)

        def work():
            outputs = model.predict_batch(arrays_of(query.frame))
            asked.on_result(frame_of(outputs, model.signature.outputs))

        loop.call_later(self.delays_s.get(name, 0.0), work)
        return asked

    hears_late = False

    def feedback(self, application, label, *, user, input_key, query_id, is_last):
        assert is_last
        if label == "nonsense":
            raise InvalidRequest("label: 'nonsense' is no class")
        if label == "unlearnt":
            raise NotReady("the server of the states does not answer")
        self.updates.append((application, user, label, query_id, input_key))
        return bool(self.apps[application].models)

    def all(self):
        return list(self.apps.values())

    def add(self, application):
        names = [field.name for field in dataclasses.fields(App)]
        given = {name: getattr(application, name) for name in names}
        self.apps[application.name] = App(**{**given, "models": []})

    def delete(self, name):
        del self.apps[name]

    def link(self, application, models):
        self.apps[application].models += models

    def unlink(self, application, models):
        for model in models:
            self.apps[application].models.remove(model)

    def state(self, application, user):
        return {"application": application, "user": user}

    # Models

    def models(self):
        return list(self.records.values())

    def model(self, name, version):
        return self.records.get((name, version))

    def current_versions(self):
        return self.current

    def served_input_types(self, name):
        for (model, _), (function, replicas) in self.running.items():
            if model == name and replicas:
                return input_types(function.signature)
        return None

    def add_model(self, model):
        self.records[model.name, model.version] = model
        self.current[model.name] = model.version

    def set_current_version(self, name, version):
        assert (name, version) in self.records
        self.current[name] = version

    def delete_model(self, name, version):
        self.records[name, version] = self.records[name, version]._replace(is_valid=False)

    def containers(self):
        return [
            Container(name, version, replica, self.records[name, version].input_type)
            for (name, version), (_, replicas) in self.running.items()
            for replica in range(replicas)
            if (name, version) in self.records
        ]

    async def start(self, model, *, container, replicas, batch_size):
        if model in self.running:
            raise InvalidRequest(f"model {model.name}:{model.version} is already running")
        if self.start_error is not None:
            raise self.start_error
        try:
            card = zoo.find(container)
        except UnknownModel as error:
            raise ModelLoadFailed(container, str(error)) from None
        loaded = kinds.load(card.kind, card.path, threads=1)
        await asyncio.sleep(0)
        self.running[model] = (loaded, replicas)

    async def resize(self, model, replicas):
        if model not in self.running:
            raise UnknownModel(model.name, tuple(name for name, _ in self.running), model.version)
        self.running[model] = (self.running[model][0], replicas)

    async def stop(self, models):
        for model in models:
            self.running.pop(model, None)

    def count(self, model):
        return self.running.get(ModelId(*model), (None, 0))[1]
