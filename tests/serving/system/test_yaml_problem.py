"""What is wrong with a text that is not YAML: on one line, its place once."""

import pytest
import yaml

from serving.system.yaml_problem import yaml_problem


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "a: [1\nb: 2",
            "while parsing a flow sequence, expected ',' or ']', but got ':' (line 2, column 2)",
        ),
        ("a: {b", "while parsing a flow mapping, expected ',' or '}', but got '<stream end>'"),
        ("a: b: c", "mapping values are not allowed here (line 1, column 5)"),
        ("\x00", "character #x00 at position 0: special characters are not allowed"),
        ("a: 2001-99-99", "month must be in 1..12"),
    ],
)
def test_the_problem_is_one_line(text, said):
    """PyYAML's words without the drawing and without the name of a string."""
    with pytest.raises((yaml.YAMLError, ValueError)) as caught:
        yaml.safe_load(text)
    assert yaml_problem(caught.value).startswith(said)
    assert "\n" not in yaml_problem(caught.value)
    assert "unicode string" not in yaml_problem(caught.value)
