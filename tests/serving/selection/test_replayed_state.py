"""Laws of states that several gateways replay from one log."""

import functools

from hypothesis import given
from hypothesis import strategies as st

from serving.selection import registry
from serving.selection.decision_json import Feedback
from serving.selection.model_output import Label
from serving.selection.policy import Choice, Decision, Query
from serving.selection.replayed_state import ReplayedState

MODELS = ("a", "b", "c")
POLICIES = ("exp3", "exp4", "thompson", "epsilon-greedy")


def feedback(gateway, count, chosen, right):
    models = MODELS if chosen is None else (MODELS[chosen],)
    decision = Decision(
        query=Query(id=1000 * gateway + count),
        choice=Choice(models=models, probabilities=dict.fromkeys(MODELS, 1 / 3)),
        answers={model: Label(model) for model in models},
        output=models[0],
    )
    return Feedback(decision, MODELS[right])


@st.composite
def histories(draw):
    """What each gateway is told and hears, in an order that a log allows."""
    told = dict.fromkeys((1, 2), 0)
    steps, waiting = [], {1: [], 2: []}
    for _ in range(draw(st.integers(0, 25))):
        gateway = draw(st.sampled_from((1, 2)))
        if waiting[gateway] and draw(st.booleans()):
            steps.append(("write", waiting[gateway].pop(0)))
            continue
        told[gateway] += 1
        one = feedback(
            gateway,
            told[gateway],
            draw(st.sampled_from((0, 1, 2))),
            draw(st.sampled_from((0, 1, 2))),
        )
        waiting[gateway].append(one)
        steps.append(("tell", one))
        if draw(st.booleans()):
            steps.append(("read", draw(st.sampled_from((1, 2)))))
    steps += [("write", one) for gateway in (1, 2) for one in waiting[gateway]]
    return draw(st.sampled_from(POLICIES)), steps


@given(histories())
def test_all_gateways_end_with_the_log_replayed(history):
    """Whatever the order in which they are told, write and read; meanwhile nothing told is missing."""
    name, steps = history
    policy = registry.create(name)
    start = policy.initial(MODELS)
    observe = lambda state, one: policy.observe(state, one.decision, one.truth)  # noqa: E731
    states = {number: ReplayedState(policy, start) for number in (1, 2)}
    log, told, read = [], {1: [], 2: []}, {1: 0, 2: 0}

    def catch_up(number):
        for place, one in enumerate(log, start=1):
            states[number].replay(place, one)
        read[number] = len(log)

    for what, subject in steps:
        if what == "tell":
            states[subject.key // 1000].tell(subject)
            told[subject.key // 1000].append(subject)
        elif what == "write":
            log.append(subject)
        else:
            catch_up(subject)
        for number in (1, 2):
            seen = log[: read[number]]
            own = [one for one in told[number] if one not in seen]
            assert states[number].live == functools.reduce(observe, [*seen, *own], start)
    for number in (1, 2):
        catch_up(number)
        catch_up(number)  # what is known changes nothing
        assert states[number].live == functools.reduce(observe, log, start)
