"""Applications of two gateways: one changes them and the other follows, while both learn."""

import asyncio
import pathlib
import tempfile

from hypothesis import example, given, settings
from hypothesis import strategies as st

from serving.engine.applications import Applications
from serving.selection.application import Application
from serving.selection.feedback_exchange import FeedbackExchange
from serving.selection.model_output import Label
from serving.selection.policy import Choice, Decision, Query
from serving.selection.stores.sqlite_shared import SqliteShared

MODELS = ("a", "b")
POLICIES = (
    {"policy": "exp3"},
    {"policy": "exp3", "options": {"learning_rate": 0.5}},
    {"policy": "exp3", "contexts": "user"},
    {"policy": "exp4"},
    {"policy": "thompson"},
    {"policy": "per-user", "contexts": "user"},
)
USERS = ("", "u", "v")


class Gateways:
    """Two over one file: the first one changes the application, and the second looks now and then."""

    def __init__(self, path):
        self.exchanges = [FeedbackExchange(SqliteShared(path)) for _ in range(2)]
        self.one, self.other = (Applications(None, exchange) for exchange in self.exchanges)
        self.one.add(Application(name="app", models=MODELS, **POLICIES[0]))
        self.follow()

    def follow(self):
        self.other.adopt("app", self.one.application("app"))

    async def step(self, what, at, number):
        """Something happens to one gateway, or to the application."""
        exchange = self.exchanges[at]
        if what == "tell":
            decision = Decision(
                query=Query(id=exchange.next_id(), user=USERS[number % 3], input_hash="h"),
                choice=Choice(models=MODELS, probabilities=dict.fromkeys(MODELS, 0.5)),
                answers={"a": Label("1"), "b": Label("0")},
                output="1",
            )
            exchange.keep_decision("app", decision)
            applications = (self.one, self.other)[at]
            applications._of("app").contexts.observe(decision, "01"[number % 2])
        elif what == "sync":
            await exchange.sync(save=number % 2 == 0)
        elif what == "swap":
            self.one.delete("app")
            self.one.flush()
            if number % 2:  # as over Clipper's API: links are another command
                self.one.add(Application(name="app", **POLICIES[number]))
                self.one.link("app", MODELS)
            else:
                self.one.add(Application(name="app", models=MODELS, **POLICIES[number]))
        elif what == "follow":
            self.follow()
        elif what == "ask":
            (self.one, self.other)[at].state("app", USERS[number % 3])

    async def settle(self):
        """The second one looks, and all that was told reaches both."""
        self.follow()
        for exchange in self.exchanges * 3:
            await exchange.sync(save=True)

    def close(self):
        for exchange in self.exchanges:
            exchange.close()


def history(text):
    return [(what, int(at), int(number)) for what, at, number in map(str.split, text.split(", "))]


LOG_FIRST = history("tell 0 1, sync 0 0, sync 1 0, swap 0 4, sync 0 0, sync 1 0, follow 0 0")
ROW_FIRST = history("tell 0 1, sync 0 0, sync 1 0, swap 0 5, follow 0 0, tell 0 1")
FEEDBACK_FIRST = history("swap 0 1, tell 0 0, sync 0 1, sync 1 1, follow 0 0, ask 1 0, tell 0 1")
SAVED_FIRST = history("swap 0 1, tell 0 0, sync 0 1, sync 1 0, follow 0 0, ask 1 0, tell 0 1")
STEPS = st.tuples(
    st.sampled_from(("tell", "tell", "ask", "sync", "sync", "swap", "follow")),
    st.integers(0, 1),
    st.integers(0, 5),
)


@example(steps=LOG_FIRST)
@example(steps=ROW_FIRST)
@example(steps=FEEDBACK_FIRST)
@example(steps=SAVED_FIRST)
@settings(max_examples=25)
@given(steps=st.lists(STEPS, max_size=25))
def test_an_application_registered_anew_is_the_same_on_all_gateways(steps):
    """Whichever comes first to the other one: its deletion, feedback on it, or its new policy."""

    async def play():
        with tempfile.TemporaryDirectory() as name:
            gateways = Gateways(pathlib.Path(name) / "states.db")
            try:
                for step in steps:
                    await gateways.step(*step)
                await gateways.settle()
                for user in USERS:
                    states = [one.state("app", user) for one in (gateways.one, gateways.other)]
                    first, second = ({**state, "decisions": None} for state in states)
                    assert first == second
            finally:
                gateways.close()

    asyncio.run(play())
