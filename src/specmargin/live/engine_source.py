"""An engine's Python source, read without importing it: modules, classes with their bases, attributes, signatures.

Works on an installed package and on unpacked sources, without PyTorch. Names are followed through imports, and members
through base classes of the same package; what another package would add to a class is not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = ast.ClassDef | Function | ast.stmt
_FURTHER = 8  # imports that are followed from one module to the next
_CLOSED_BASES = ("NamedTuple", "Struct", "Enum", "IntEnum", "StrEnum")  # their objects take no further attributes


@dataclass(frozen=True, slots=True)
class Imported:
    """A name that a module imports: `name` of `module`, or the module itself if the name is empty."""

    module: str
    name: str


@dataclass(slots=True)
class Module:
    name: str
    tree: ast.Module
    names: dict[str, Node | Imported] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)  # modules of `from … import *`


@dataclass(frozen=True, slots=True)
class Found:
    """A definition and the module that has it."""

    module: Module
    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Of a function, without `self` or `cls`."""

    positional: tuple[str, ...]
    keywords: tuple[str, ...]  # keyword-only ones
    required: frozenset[str]
    takes_more: bool  # *args
    takes_keywords: bool  # **kwargs

    @property
    def names(self) -> tuple[str, ...]:
        return self.positional + self.keywords


class EngineSource:
    """The package in `folder`, whose name is the package's. A file that cannot be parsed is a module that is absent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._modules: dict[str, Module | None] = {}
        self._attributes: dict[int, frozenset[str]] = {}  # by the identity of a class

    def module(self, name: str) -> Module | None:
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def _read(self, name: str) -> Module | None:
        package, *parts = name.split(".")
        if package != self._folder.name:
            return None
        path = self._folder.joinpath(*parts)
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError):
            return None
        module = Module(name, tree)
        inside = name if path.is_dir() else name.rpartition(".")[0]
        for statement in _top_level(tree.body):
            _enter(module, statement, inside)
        return module

    def find(self, module: str, name: str, further: int = _FURTHER) -> Found | None:
        """A class, function or variable of a module, wherever it is defined; a module where `name` is one."""
        there = self.module(module)
        if there is None or further == 0:
            return None
        node = there.names.get(name)
        if isinstance(node, Imported):
            if node.name:
                found = self.find(node.module, node.name, further - 1)
                return found or self._whole(f"{node.module}.{node.name}")
            return self._whole(node.module)
        if node is not None:
            return Found(there, node)
        return next(filter(None, (self.find(star, name, further - 1) for star in there.stars)), None)

    def _whole(self, name: str) -> Found | None:
        module = self.module(name)
        return None if module is None else Found(module, ast.Pass())

    def has_name(self, module: str, name: str) -> bool:
        """Whether a module has this name, also one that it imports from another package."""
        there = self.module(module)
        imported = None if there is None else there.names.get(name)
        elsewhere = isinstance(imported, Imported) and imported.module.partition(".")[0] != self._folder.name
        return elsewhere or self.find(module, name) is not None

    def lineage(self, found: Found) -> Iterator[Found]:
        """A class and its bases in this package, depth first: near enough to Python's order to find a member."""
        seen: set[int] = set()
        waiting = [found]
        while waiting:
            one = waiting.pop(0)
            if not isinstance(one.node, ast.ClassDef) or id(one.node) in seen:
                continue
            seen.add(id(one.node))
            yield one
            bases = (self._base(one.module, base) for base in one.node.bases)
            waiting = [*(base for base in bases if base is not None), *waiting]

    def _base(self, module: Module, base: ast.expr) -> Found | None:
        if isinstance(base, ast.Subscript):  # Generic[T]
            base = base.value
        if isinstance(base, ast.Name):
            return self.find(module.name, base.id)
        if isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name):
            owner = module.names.get(base.value.id)
            if isinstance(owner, Imported):
                inside = f"{owner.module}.{owner.name}" if owner.name else owner.module
                return self.find(inside, base.attr)
        return None

    # --- members ---

    def method(self, found: Found, name: str) -> Function | None:
        """Of the class or of the nearest base that has it."""
        for one in self.lineage(found):
            for statement in _top_level(one.node.body):  # type: ignore[union-attr]
                if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name == name:
                    return statement
        return None

    def constructor(self, found: Found) -> Signature | None:
        """Of `__init__`, or of the fields of a class that is written as a list of them."""
        method = self.method(found, "__init__")
        if method is not None:
            return signature(method, bound=True)
        fields = [entry for one in reversed([*self.lineage(found)]) for entry in _fields(one.node)]
        names = tuple(dict.fromkeys(name for name, _ in fields))
        required = frozenset(name for name, has_default in fields if not has_default)
        return Signature(positional=names, keywords=(), required=required, takes_more=False, takes_keywords=False)

    def has_attribute(self, found: Found, name: str) -> bool:
        """A field, a property, a class variable, or `self.name = …` in any method. Of a class with `__getattr__`, also
        a name that its module has as text: such classes look their attributes up."""
        if any(name in self._own_attributes(one.node) for one in self.lineage(found)):
            return True
        dynamic = (one.module for one in self.lineage(found) if "__getattr__" in self._own_attributes(one.node))
        return any(_has_text(module.tree, name) for module in dynamic)

    def _own_attributes(self, node: Node) -> frozenset[str]:
        if id(node) not in self._attributes:
            self._attributes[id(node)] = frozenset(_attributes(node))
        return self._attributes[id(node)]

    def is_frozen(self, found: Found) -> bool:
        """Whether fields of its objects cannot be set."""
        return any(_says(one.node, "frozen") or "NamedTuple" in _base_names(one.node) for one in self.lineage(found))

    def is_closed(self, found: Found) -> bool:
        """Whether its objects take no attributes beside their own."""
        lineage = [*self.lineage(found)]
        slotted = all(_says(one.node, "slots") or "__slots__" in self._own_attributes(one.node) for one in lineage)
        based = any(set(_base_names(one.node)) & set(_CLOSED_BASES) for one in lineage)
        return self.is_frozen(found) or slotted or based


def signature(function: Function, *, bound: bool) -> Signature:
    """`bound`: a method, whose first parameter is not given by the caller."""
    arguments = function.args
    static = any(_last_name(decorator) == "staticmethod" for decorator in function.decorator_list)
    every = [*arguments.posonlyargs, *arguments.args]
    positional = [one.arg for one in every][1 if bound and not static else 0 :]
    with_default = {one.arg for one in every[len(every) - len(arguments.defaults) :]}
    keywords = [one.arg for one in arguments.kwonlyargs]
    with_default |= {name for name, value in zip(keywords, arguments.kw_defaults, strict=True) if value is not None}
    return Signature(
        positional=tuple(positional),
        keywords=tuple(keywords),
        required=frozenset((*positional, *keywords)) - with_default,
        takes_more=arguments.vararg is not None,
        takes_keywords=arguments.kwarg is not None,
    )


# --- statements ---

_PLAIN = (ast.Expr, ast.Return, ast.Raise, ast.Assert, ast.Pass, ast.Delete)  # assign nothing, hold no statements
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)


def _blocks(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Statements directly inside a compound one; of a match statement, those of its cases."""
    for name in ("body", "orelse", "finalbody"):
        yield from getattr(statement, name, ())
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield from part.body


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Also inside `if`, `try` and `with`, where modules define what depends on the platform."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With):
            yield from _top_level(_blocks(statement))


def _enter(module: Module, statement: ast.stmt, inside: str) -> None:
    names = module.names
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        names[statement.name] = statement
    elif isinstance(statement, ast.ImportFrom):
        whole = _absolute(statement, inside)
        for alias in statement.names:
            if alias.name == "*":
                module.stars.append(whole)
            else:
                names.setdefault(alias.asname or alias.name, Imported(whole, alias.name))
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            bound = alias.asname or alias.name.partition(".")[0]
            names.setdefault(bound, Imported(alias.name if alias.asname else bound, ""))
    else:
        for target in _targets(statement):
            if isinstance(target, ast.Name):
                names.setdefault(target.id, statement)


def _absolute(statement: ast.ImportFrom, inside: str) -> str:
    if not statement.level:
        return statement.module or ""
    parts = inside.split(".")
    base = parts[: len(parts) - statement.level + 1]
    return ".".join([*base, *filter(None, [statement.module])])


def _targets(statement: ast.stmt) -> Iterator[ast.expr]:
    """What a statement assigns to."""
    if isinstance(statement, ast.Assign):
        found: list[ast.expr | None] = [*statement.targets]
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign | ast.For):
        found = [statement.target]
    elif isinstance(statement, ast.With | ast.AsyncWith):
        found = [item.optional_vars for item in statement.items]
    else:
        found = []
    for target in found:
        if isinstance(target, ast.Tuple | ast.List):
            yield from target.elts
        elif target is not None:
            yield target


def _attributes(node: Node) -> Iterator[str]:
    for statement in _top_level(getattr(node, "body", ())):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement.name
            first = [*statement.args.posonlyargs, *statement.args.args][:1]
            if first:
                yield from _set_on(first[0].arg, statement)
        else:
            yield from (target.id for target in _targets(statement) if isinstance(target, ast.Name))


def _set_on(owner: str, function: Function) -> Iterator[str]:
    """Attributes of `owner` that a statement of the function assigns."""
    waiting = [function.body]
    while waiting:
        for statement in waiting.pop():
            kind = type(statement)
            if kind in _PLAIN:
                continue
            for target in _targets(statement):
                if (
                    isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id == owner
                ):
                    yield target.attr
            if kind not in _ASSIGNMENTS:
                waiting.append([*_blocks(statement)])


def _fields(node: Node) -> Iterator[tuple[str, bool]]:
    """Annotated fields of a class, and whether they have a default; without those that `__init__` does not take."""
    for statement in getattr(node, "body", ()):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            annotated = ast.unparse(statement.annotation)
            made = statement.value
            omitted = isinstance(made, ast.Call) and any(
                word.arg == "init" and isinstance(word.value, ast.Constant) and word.value.value is False
                for word in made.keywords
            )
            if not annotated.startswith(("ClassVar", "typing.ClassVar")) and not omitted:
                yield statement.target.id, made is not None


def _says(node: Node, word: str) -> bool:
    """Whether the class, or a decorator of it, has `word=True`."""
    calls = [one for one in getattr(node, "decorator_list", ()) if isinstance(one, ast.Call)]
    words = [keyword for call in calls for keyword in call.keywords] + getattr(node, "keywords", [])
    return any(one.arg == word and isinstance(one.value, ast.Constant) and one.value.value is True for one in words)


def _base_names(node: Node) -> list[str]:
    return [_last_name(base) for base in getattr(node, "bases", ())]


def _last_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Call | ast.Subscript):
        expression = expression.func if isinstance(expression, ast.Call) else expression.value
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")


def _has_text(tree: ast.Module, text: str) -> bool:
    return any(isinstance(node, ast.Constant) and node.value == text for node in ast.walk(tree))
