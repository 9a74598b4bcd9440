"""Export of a function as an importable module, without pickle.

Writes `model.py`. A function from an importable module is imported. Others are written as source
with what they use: modules and functions likewise, plain values as literals, arrays as .npy files.
"""

from __future__ import annotations

import ast
import builtins
import dis
import importlib.util
import inspect
import math
import pathlib
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from serving.clipper_admin.exceptions import ClipperException

FILE = "model.py"
ATTRIBUTE = "predict"

_INSTALLED = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_ADVICE = "put it into a module and deploy its function, or load it from a file in the function"


def save_function(
    function: Callable[[list[Any]], Any], folder: str | pathlib.Path, *, input_type: str
) -> str:
    """Write a function's module and return `path/to/model.py:predict`, absolute.

    Args:
        function: maps a list of inputs to one string per input.
        folder: an existing folder; an earlier module is replaced.

    Raises:
        ClipperException: the function uses something that cannot be written.
    """
    if not inspect.isfunction(function):
        raise ClipperException(
            f"{function!r} is a {type(function).__name__}, expected a function; a class with "
            "predict_batch is deployed by build_and_deploy_model as path/to/file.py:Name"
        )
    where = pathlib.Path(folder).absolute()
    module = _Module(where)
    expression = ast.unparse(module.value(function, "itself", function))
    ending = f"function = {expression}\n{ATTRIBUTE} = _wrap_function(function, input_type={input_type!r})"
    module.statements += ast.parse(ending).body
    (where / FILE).write_text(module.text(), encoding="utf-8")
    return f"{where / FILE}:{ATTRIBUTE}"


def load_function(reference: str) -> Callable[[list[Any]], Any]:
    """Reload a function that `save_function` wrote, or raise ClipperException."""
    file = reference.rpartition(":")[0]
    spec = importlib.util.spec_from_file_location("_clipper_function", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # any error of the user's modules
        raise ClipperException(
            f"The function cannot be loaded again: {type(error).__name__}: {error}"
        ) from error
    call: Callable[[list[Any]], Any] = module.function
    return call


class _Module:
    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.imports: dict[str, str] = {}
        self.roots: dict[str, None] = {}
        self.statements: list[ast.stmt] = []
        self._names: dict[int, str] = {}
        self._writing: set[int] = set()
        self._arrays = 0

    def text(self) -> str:
        """Return the source of the module."""
        lines = [
            '"""Written by clipper_admin: a function by Clipper\'s contract."""',
            "from __future__ import annotations",
            "import math as _math, pathlib as _pathlib, sys as _sys",
            "import numpy as _numpy",
            "from serving.models.clipper_function import wrap_function as _wrap_function",
            "_HERE = _pathlib.Path(__file__).parent",
            *(f"_sys.path.insert(0, {root!r})" for root in self.roots),
            *(f"import {module} as {name}" for module, name in self.imports.items()),
            ast.unparse(ast.fix_missing_locations(ast.Module(self.statements, []))),
        ]
        return "\n".join(lines) + "\n"

    def value(self, value: Any, name: str, user: types.FunctionType) -> ast.expr:
        """Return an expression for what `user` knows as `name`, or raise ClipperException."""
        if isinstance(value, types.ModuleType) and value.__name__ != "__main__":
            return _expression(self._import(value))
        if callable(value) and _is_importable(value):
            module = self._import(sys.modules[value.__module__])
            return _expression(f"{module}.{value.__qualname__}")
        if isinstance(value, types.FunctionType):
            return ast.Name(self._function(value), ast.Load())
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            file = f"array_{self._arrays}.npy"
            self._arrays += 1
            np.save(self.folder / file, value, allow_pickle=False)
            return _expression(f"_numpy.load(_HERE / {file!r}, allow_pickle=False)")
        if isinstance(value, np.ufunc):
            ufunc = str(getattr(value, "__name__", ""))
            if getattr(np, ufunc, None) is value:
                return _expression(f"_numpy.{ufunc}")
        if isinstance(value, np.generic):
            literal = _literal(value.item())
            if literal is not None:
                return _expression(f"_numpy.{type(value).__name__}({literal})")
        literal = _literal(value)
        if literal is None:
            raise _not_written(name, value, user)
        return _expression(literal)

    def _function(self, function: types.FunctionType) -> str:
        """Return the name of a function that cannot be imported, writing it if it is new."""
        known = self._names.get(id(function))
        if known is not None:
            return known
        if id(function) in self._writing:
            raise ClipperException(
                f"{function.__qualname__} and another function call one another: put them into a "
                "module"
            )
        self._writing.add(id(function))
        name = f"_function_{len(self._writing)}"
        self._write_source(function, name)
        self._names[id(function)] = name
        return name

    def _write_source(self, function: types.FunctionType, name: str) -> None:
        node = _definition(function)
        body: list[ast.stmt] = []
        for used, value in _used_names(function):
            if value is not function:
                body.append(_assignment(used, self.value(value, used, function)))
        node.args.defaults = [
            self.value(value, "a default", function) for value in function.__defaults__ or ()
        ]
        keyword_defaults = function.__kwdefaults__ or {}
        node.args.kw_defaults = [
            self.value(keyword_defaults[argument.arg], "a default", function)
            if argument.arg in keyword_defaults
            else None
            for argument in node.args.kwonlyargs
        ]
        if isinstance(node, ast.Lambda):
            inner = "_lambda"
            body.append(ast.Assign([ast.Name(inner, ast.Store())], node))
        else:
            inner = node.name
            body.append(node)
        body.append(ast.Return(ast.Name(inner, ast.Load())))
        maker = ast.parse(f"def {name}():\n    pass").body[0]
        assert isinstance(maker, ast.FunctionDef)
        maker.body = body
        self.statements += [maker, *ast.parse(f"{name} = {name}()").body]

    def _import(self, module: types.ModuleType) -> str:
        root = _root_of(module)
        if root is not None and root not in _INSTALLED:
            self.roots[root] = None
        return self.imports.setdefault(module.__name__, f"_module_{len(self.imports)}")


def _is_importable(target: Any) -> bool:
    module, qualified = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualified, str):
        return False
    if module in {"__main__", "_clipper_function"} or "<" in qualified:
        return False
    found: Any = sys.modules.get(module)
    if found is None or not all(part.isidentifier() for part in module.split(".")):
        return False
    if isinstance(target, types.FunctionType) and _root_of(found) is None:
        return module.partition(".")[0] in sys.stdlib_module_names
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return found is target


def _root_of(module: types.ModuleType) -> str | None:
    file = getattr(module, "__file__", None)
    if file is None or not str(file).endswith(".py"):
        return None
    path = pathlib.Path(file).absolute()
    parts = module.__name__.split(".")
    own = path.parent if path.name == "__init__.py" else path.with_suffix("")
    for part in reversed(parts):
        if own.name != part:
            return None
        own = own.parent
    return str(own)


def _definition(function: types.FunctionType) -> ast.FunctionDef | ast.Lambda:
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        raise ClipperException(
            f"The source of {function.__qualname__} is not to be found; define it in a file"
        ) from None
    indented = f"if True:\n{source}" if source[:1].isspace() else source
    is_lambda = function.__name__ == "<lambda>"
    try:
        tree = ast.parse(indented)
    except SyntaxError:
        raise ClipperException(
            f"The source of {function.__qualname__} cannot be read by itself; define it by def"
        ) from None
    wanted = ast.Lambda if is_lambda else ast.FunctionDef
    found = [node for node in ast.walk(tree) if isinstance(node, wanted)]
    if is_lambda and len(found) != 1:
        raise ClipperException("A line holds several lambdas; define the function by def")
    if not found or (isinstance(found[0], ast.FunctionDef) and found[0].name != function.__name__):
        raise ClipperException(
            f"{function.__qualname__} is not a plain function; put it into a module"
        )
    node = found[0]
    assert isinstance(node, ast.FunctionDef | ast.Lambda)
    if isinstance(node, ast.FunctionDef) and node.decorator_list:
        raise ClipperException(
            f"{function.__qualname__} is decorated; put it into a module and import it"
        )
    return node


def _used_names(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    cells: Mapping[str, Any] = dict(
        zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    )
    for name, cell in cells.items():
        try:
            yield name, cell.cell_contents
        except ValueError:
            raise ClipperException(
                f"{function.__qualname__} uses {name!r}, which has no value yet"
            ) from None
    for name in dict.fromkeys(_globals_of(function.__code__)):
        if name in cells or not name.isidentifier():  # pytest's rewritten asserts use such names
            continue
        if name in function.__globals__:
            yield name, function.__globals__[name]
        elif not hasattr(builtins, name):
            raise ClipperException(f"{function.__qualname__} uses {name!r}, which is not defined")


def _globals_of(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in {"LOAD_GLOBAL", "LOAD_NAME"}:
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals_of(constant)


def _literal(value: Any) -> str | None:
    if value is None or value is Ellipsis or type(value) in {bool, int, str, bytes}:
        return repr(value)
    if type(value) is float:
        if math.isfinite(value):
            return repr(value)
        return "_math.nan" if math.isnan(value) else "_math.inf" if value > 0 else "-_math.inf"
    if type(value) in {list, tuple, set, frozenset}:
        parts = [_literal(item) for item in value]
        if None in parts:
            return None
        inner = ", ".join(str(part) for part in parts)
        if type(value) is list:
            return f"[{inner}]"
        if type(value) is tuple:
            return f"({inner},)" if parts else "()"
        return f"{type(value).__name__}([{inner}])"
    if type(value) is dict:
        pairs = [(_literal(key), _literal(item)) for key, item in value.items()]
        if any(None in pair for pair in pairs):
            return None
        return "{" + ", ".join(f"{key}: {item}" for key, item in pairs) + "}"
    return None


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _assignment(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _not_written(name: str, value: object, user: types.FunctionType) -> ClipperException:
    return ClipperException(
        f"{user.__qualname__} uses {name!r}, a {type(value).__name__}, which cannot be "
        f"saved without pickle: {_ADVICE}"
    )
