"""Functions that a test deploys by their names, and what they use."""

OFFSET = 100


def sums(inputs):
    """The sum of each input, with what this module holds."""
    return [str(float(sum(values)) + OFFSET) for values in inputs]


def decorated(function):
    """Wrap a function without a trace."""

    def inner(inputs):
        return function(inputs)

    return inner
