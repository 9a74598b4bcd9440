"""The language of constraints: what it computes, and what it refuses where."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.space.expression import NUMBER, Expression, ExpressionError

SYMBOLS = {
    "replica.count": NUMBER,
    "replica.memory_mb": NUMBER,
    "machine.cores": NUMBER,
    "concurrency": NUMBER,
    "routing.policy": ("least-loaded", "round-robin"),
    "toy.flag": (True, False),
}
VALUES = {
    "replica.count": 3,
    "replica.memory_mb": 512,
    "machine.cores": 2,
    "concurrency": 20,
    "routing.policy": "round-robin",
    "toy.flag": True,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("replica.count * replica.memory_mb <= 1536", True),
        ("replica.count * replica.memory_mb < 1536", False),
        ("replica.count + 1 == machine.cores * 2", True),
        ("concurrency / 8 > 2.4", True),
        ("concurrency - 20 != 0", False),
        ("-replica.count >= -3", True),
        ("1 < machine.cores < replica.count", True),
        ("1 < replica.count < machine.cores", False),
        ("min(replica.count, machine.cores, 9) == 2", True),
        ("max(replica.count, machine.cores) == 3", True),
        ("replica.count == 1 or machine.cores == 2", True),
        ("replica.count == 3 and machine.cores == 1", False),
        ("not replica.count == 3", False),
        ("routing.policy == 'round-robin'", True),
        ("'least-loaded' != routing.policy", True),
        ("toy.flag == True", True),
        ("(replica.count > 1) and not (concurrency > 99 or machine.cores == 1)", True),
        ("  replica.count\n  <= 3", True),
    ],
)
def test_expressions_mean_what_they_mean_in_python(text, expected):
    """Arithmetic, comparisons and logic have their usual precedence and result."""
    assert expected is Expression(text, SYMBOLS).holds(VALUES)


def test_names_are_those_that_the_text_uses():
    """An expression says what it depends on."""
    expression = Expression("replica.count * 2 <= machine.cores", SYMBOLS)

    assert {"replica.count", "machine.cores"} == expression.names


REFUSED = [
    ("nothing", "  ", 1, "empty"),
    ("a call of another function", "abs(concurrency) > 1", 1, "is not allowed"),
    ("an import", "__import__('os').system('true') == 1", 1, "is not allowed"),
    ("a method", "min(concurrency, 1).real > 1", 1, "before a dot"),
    ("a method's call", "concurrency.bit_length() > 1", 1, "is not allowed"),
    ("a subscript", "concurrency[0] > 1", 1, "is not allowed"),
    ("a power", "concurrency ** 2 > 1", 1, "is not allowed"),
    ("a lambda", "(lambda: 1)() > 1", 1, "is not allowed"),
    ("an assignment", "(x := 1) > 1", 2, "is not allowed"),
    ("a conditional", "1 if concurrency else 2", 1, "is not allowed"),
    ("a list", "concurrency in [1, 2]", 16, "is not allowed"),
    ("a formatted text", "f'{concurrency}' == 'a'", 1, "is not allowed"),
    ("identity", "concurrency is 2", 16, "is not allowed"),
    ("a positive sign", "+concurrency > 1", 1, "is not allowed"),
    ("two statements", "concurrency > 1; 1", 16, "not an expression"),
    ("an open bracket", "  (concurrency > 1", 3, "not an expression"),
    ("a number run into a word", "1or concurrency > 1", 1, "not an expression"),
    ("a null byte", "concurrency > 1\0", 1, "not an expression"),
    ("a starred argument", "min(*concurrency, 1) > 1", 5, "is not allowed"),
    ("a keyword argument", "min(1, 2, key=1) > 1", 1, "is not allowed"),
    ("one argument", "min(concurrency) > 1", 1, "two or more numbers"),
    ("a complex number", "concurrency == 2j", 16, "is not allowed"),
    ("bytes", "concurrency == b'1'", 16, "is not allowed"),
    ("a huge number", "concurrency < 99999999999999999999", 15, "larger than 1e+15"),
    ("a long text", "concurrency > 1 or " * 40 + "concurrency > 1", 500, "more than 500"),
    ("an unknown name", "replica.cout > 1", 1, "did you mean 'replica.count'?"),
    ("an unknown name, further on", "1 < machine.core", 5, "did you mean 'machine.cores'?"),
    ("a part of a name", "replica > 1", 1, "'replica' is not known"),
    ("a number as the whole", "concurrency + 1", 1, "expected a comparison"),
    ("a number as a truth", "concurrency and machine.cores > 1", 1, "a number found where"),
    ("a truth as a number", "1 + (concurrency > 1) > 1", 6, "a comparison found where"),
    ("a truth compared", "(concurrency > 1) == 1", 22, "cannot be compared with"),
    ("a text compared with a number", "routing.policy == 1", 19, "cannot be compared with a number"),
    ("a text in order", "routing.policy < 'round-robin'", 18, "has no order"),
    ("a text that is no choice", "routing.policy == 'round-robbin'", 19, "did you mean 'round-robin'?"),
    ("deep nesting", "(" * 240 + "1" + ")" * 240 + " > 0", 200, "not an expression"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("phrase", "text", "position", "part"), REFUSED, ids=[row[0] for row in REFUSED]
)
def test_everything_else_is_refused_with_its_position(phrase, text, position, part):
    """What is outside the closed set is an error at the character where it begins."""
    with pytest.raises(ExpressionError) as caught:
        Expression(text, SYMBOLS)

    assert part in caught.value.text
    if phrase != "deep nesting":  # the parser's own limit decides where it gives up
        assert position == caught.value.position
    assert str(caught.value) == str(pickle.loads(pickle.dumps(caught.value)))


@settings(deadline=None)
@given(text=st.text(max_size=60) | st.text("()+-*/<>=.,'\"abcdefminaxnotrd01 \n", max_size=40))
def test_no_text_does_anything_but_parse_or_be_refused(text):
    """Any text is an expression or an ExpressionError with a position inside it."""
    found = position_of_error(text)

    assert found is None or 1 <= found <= len(text) + 2


def position_of_error(text):
    """Where a text is wrong; None if it is an expression."""
    try:
        Expression(text, SYMBOLS)
    except ExpressionError as error:
        return error.position
    return None


def test_dividing_by_zero_is_left_to_the_caller():
    """An expression cannot know which values its divisor takes."""
    with pytest.raises(ZeroDivisionError):
        Expression("1 / (replica.count - 3) > 0", SYMBOLS).holds(VALUES)
