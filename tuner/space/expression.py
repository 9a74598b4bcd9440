"""Language of constraints and conditions: a small, safe subset of Python's expressions.

    replica.count * replica.memory_mb <= machine.memory_mb
    replica.threads == 1 or replica.cpu > 1

`ast` parses the expression, and checked nodes become small functions; nothing is run as Python.
Numbers and truth values do not mix; strings can only be compared for equality, with the knob's
choices.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from serving.error_text import nearest
from tuner.values.configuration import Value

MAX_LENGTH = 500
MAX_CONSTANT = 1e15
"""Largest number literal, as beyond it float arithmetic is inexact."""

NUMBER = "number"
TRUTH = "truth"


class ByChoice(NamedTuple):
    """Symbol with a number for each choice of a knob."""

    knob: str
    numbers: tuple[tuple[Value, float], ...]


Kind = str | tuple[Value, ...] | ByChoice
"""Kind of a symbol: `NUMBER`, `TRUTH`, the choices of an unordered knob, or numbers by choice."""
Evaluate = Callable[[Mapping[str, Value]], Any]

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_CALLS: dict[str, Callable[..., Any]] = {"min": min, "max": max}
_ALLOWED = "allowed are names, numbers, + - * /, comparisons, and / or / not, min() and max()"


class ExpressionError(ValueError):
    """Invalid expression; `position` (from 1) is that of the offending character."""

    def __init__(self, position: int, text: str) -> None:
        super().__init__(position, text)
        self.position = position
        self.text = text

    def __str__(self) -> str:
        return f"at character {self.position}: {self.text}"


class _Part(NamedTuple):
    kind: Kind
    evaluate: Evaluate


class Expression:
    """Checked expression."""

    __slots__ = ("_holds", "names", "text")

    def __init__(self, text: str, symbols: Mapping[str, Kind]) -> None:
        compiler = _Compiler(text, symbols)
        self._holds = compiler.truth()
        self.text = text
        self.names = frozenset(compiler.names)
        """Symbols whose values the expression needs; for a `ByChoice`, its knob."""

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Whether the expression is true; dividing by 0 raises ZeroDivisionError."""
        return bool(self._holds(values))

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


class _Compiler:
    def __init__(self, text: str, symbols: Mapping[str, Kind]) -> None:
        self._text = text.replace("\n", " ")
        self._indent = len(self._text) - len(self._text.lstrip())
        self._symbols = symbols
        self.names: set[str] = set()

    def truth(self) -> Evaluate:
        root = self._parse()
        part = self._part(root)
        if part.kind != TRUTH:
            raise self._error(
                root, f"the expression is {_noun(part.kind)}, expected a comparison such as a <= b"
            )
        return part.evaluate

    def _parse(self) -> ast.expr:
        if not self._text.strip():
            raise ExpressionError(1, "it is empty")
        if len(self._text) > MAX_LENGTH:
            raise ExpressionError(
                MAX_LENGTH, f"it has {len(self._text)} characters, more than {MAX_LENGTH}"
            )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # the parser only warns of «1or 2»
                return ast.parse(self._text.lstrip(), mode="eval").body
        except SyntaxError as error:
            position = self._indent + max(1, error.offset or 1)
            raise ExpressionError(position, f"not an expression ({error.msg})") from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise ExpressionError(1, f"not an expression ({error})") from None

    def _part(self, node: ast.expr) -> _Part:
        match node:
            case ast.Constant():
                return self._constant(node)
            case ast.Name() | ast.Attribute():
                return self._symbol(node)
            case ast.UnaryOp(op=ast.USub()):
                operand = self._of_kind(node.operand, NUMBER)
                return _Part(NUMBER, lambda values: -operand(values))
            case ast.UnaryOp(op=ast.Not()):
                operand = self._of_kind(node.operand, TRUTH)
                return _Part(TRUTH, lambda values: not operand(values))
            case ast.BinOp() if type(node.op) in _BINARY:
                return self._arithmetic(node)
            case ast.BoolOp():
                return self._logic(node)
            case ast.Compare():
                return self._comparison(node)
            case ast.Call():
                return self._call(node)
            case _:
                raise self._error(node, f"{_excerpt(node)} is not allowed; {_ALLOWED}")

    def _constant(self, node: ast.Constant) -> _Part:
        value = node.value
        if isinstance(value, bool | str):
            return _Part((value,), lambda _: value)
        if not isinstance(value, int | float):
            raise self._error(node, f"{value!r} is not allowed; {_ALLOWED}")
        if abs(value) > MAX_CONSTANT:
            raise self._error(node, f"the number is larger than {MAX_CONSTANT:g}")
        return _Part(NUMBER, lambda _: value)

    def _symbol(self, node: ast.Name | ast.Attribute) -> _Part:
        name = self._dotted_name(node)
        if name not in self._symbols:
            known = ", ".join(self._symbols)
            raise self._error(
                node, f"{name!r} is not known{nearest(name, self._symbols)} (known: {known})"
            )
        kind = self._symbols[name]
        if isinstance(kind, ByChoice):
            knob, numbers = kind.knob, dict(kind.numbers)
            self.names.add(knob)
            return _Part(NUMBER, lambda values: numbers[values[knob]])
        self.names.add(name)
        return _Part(kind, operator.itemgetter(name))

    def _dotted_name(self, node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Attribute):
            return f"{self._dotted_name(node.value)}.{node.attr}"
        raise self._error(node, f"{_excerpt(node)} before a dot is not allowed; {_ALLOWED}")

    def _arithmetic(self, node: ast.BinOp) -> _Part:
        apply = _BINARY[type(node.op)]
        left, right = self._of_kind(node.left, NUMBER), self._of_kind(node.right, NUMBER)
        return _Part(NUMBER, lambda values: apply(left(values), right(values)))

    def _logic(self, node: ast.BoolOp) -> _Part:
        operands = [self._of_kind(operand, TRUTH) for operand in node.values]
        if isinstance(node.op, ast.And):
            return _Part(TRUTH, lambda values: all(operand(values) for operand in operands))
        return _Part(TRUTH, lambda values: any(operand(values) for operand in operands))

    def _comparison(self, node: ast.Compare) -> _Part:
        nodes = [node.left, *node.comparators]
        parts = [self._part(operand) for operand in nodes]
        steps = []
        for i, op in enumerate(node.ops):
            if type(op) not in _COMPARE:
                word = type(op).__name__.lower()
                raise self._error(nodes[i + 1], f"{word!r} is not allowed; {_ALLOWED}")
            self._check_comparable(nodes[i + 1], op, parts[i].kind, parts[i + 1].kind)
            steps.append((parts[i].evaluate, _COMPARE[type(op)], parts[i + 1].evaluate))
        if len(steps) == 1:
            left, compare, right = steps[0]
            return _Part(TRUTH, lambda values: compare(left(values), right(values)))
        return _Part(
            TRUTH,
            lambda values: all(
                compare(left(values), right(values)) for left, compare, right in steps
            ),
        )

    def _check_comparable(self, node: ast.expr, op: ast.cmpop, left: Kind, right: Kind) -> None:
        if left == right == NUMBER:
            return
        if isinstance(left, str) or isinstance(right, str):
            raise self._error(node, f"{_noun(left)} cannot be compared with {_noun(right)}")
        if not isinstance(op, ast.Eq | ast.NotEq):
            raise self._error(node, f"{_noun(left)} has no order; compare it with == or !=")
        if not set(left) & set(right):
            fewer, more = sorted((left, right), key=len)
            hint = nearest(str(fewer[0]), [str(choice) for choice in more])
            raise self._error(node, f"{_noun(fewer)} is never {_noun(more)}{hint}")

    def _call(self, node: ast.Call) -> _Part:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in _CALLS or node.keywords:
            raise self._error(node, f"{_excerpt(node)} is not allowed; {_ALLOWED}")
        if len(node.args) < 2:
            raise self._error(node, f"{name}() takes two or more numbers")
        apply = _CALLS[name]
        operands = [self._of_kind(argument, NUMBER) for argument in node.args]
        return _Part(NUMBER, lambda values: apply(operand(values) for operand in operands))

    def _of_kind(self, node: ast.expr, kind: str) -> Evaluate:
        part = self._part(node)
        if part.kind != kind:
            raise self._error(node, f"{_noun(part.kind)} found where {_noun(kind)} is expected")
        return part.evaluate

    def _error(self, node: ast.expr, text: str) -> ExpressionError:
        before = self._text.lstrip().encode()[: node.col_offset]  # the parser counts bytes
        return ExpressionError(self._indent + len(before.decode()) + 1, text)


def _noun(kind: Kind) -> str:
    if kind == NUMBER or isinstance(kind, ByChoice):
        return "a number"
    if kind == TRUTH:
        return "a comparison"
    return " or ".join(repr(choice) for choice in kind)


def _excerpt(node: ast.AST) -> str:
    text = ast.unparse(node)
    return repr(text if len(text) <= 40 else text[:37] + "...")
