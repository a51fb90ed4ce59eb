"""A verb: a request, a function, an answer, and where the answer may go.

    @verb(DuelRequest, outputs=ChartOutputs)
    def duel(request: DuelRequest) -> DuelAnswer: ...

A function that also takes `outputs` is given them; one that takes `progress` or `bars` reports how far it is. The help
page is the docstring of the function's module.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from specmargin.answers.options_schema import request_options
from specmargin.answers.outputs_schema import Outputs, TableOutputs
from specmargin.answers.request_schema import Request, read_request
from specmargin.errors import needs_extra

RequestKind = TypeVar("RequestKind", bound=Request)
AnswerKind = TypeVar("AnswerKind")
Item = TypeVar("Item")

#: Called with what is counted and how many there are; gives the function that is told how many more are done.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


#: Gives the function that is told of a name how many there are of it and how many are done: one bar per name.
Bars = Callable[[], AbstractContextManager[Callable[[str, int, int], None]]]


def silent(_what: str, _total: int) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda _: None)


def no_bars() -> AbstractContextManager[Callable[[str, int, int], None]]:
    return nullcontext(lambda *_: None)


def tracked(progress: Progress, what: str, items: Sequence[Item]) -> Iterator[Item]:
    """Iterate over the items under a progress bar."""
    with progress(what, len(items)) as advance:
        for item in items:
            yield item
            advance(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb(Generic[RequestKind, AnswerKind]):
    name: str
    request: type[RequestKind]
    outputs: type[Outputs]
    function: Callable[..., AnswerKind]
    waiting: str | None  # shown while the answer takes longer than two seconds
    served: bool  # also over HTTP, by the server of the web page: it is answered within a second

    @property
    def help(self) -> str:
        return inspect.cleandoc(sys.modules[self.function.__module__].__doc__ or "")

    @property
    def services(self) -> frozenset[str]:
        """What the function takes besides its request: `outputs`, `progress`, `bars`."""
        return frozenset(list(inspect.signature(self.function).parameters)[1:])

    def __call__(self, request: RequestKind, **services: Any) -> AnswerKind:
        with needs_extra():
            return self.function(request, **{name: value for name, value in services.items() if name in self.services})

    def ask(self, *arguments: Any, **options: Any) -> AnswerKind:
        """From Python: arguments and options of the command line, with underscores."""
        names = [option.field for option in request_options(self.request) if option.shown.argument]
        return self(read_request(self.request, dict(zip(names, arguments, strict=False)) | options))


def verb(
    request: type[RequestKind],
    *,
    outputs: type[Outputs] = TableOutputs,
    waiting: str | None = None,
    served: bool = False,
    name: str | None = None,
) -> Callable[[Callable[..., AnswerKind]], Verb[RequestKind, AnswerKind]]:
    """`name`: as it is typed, where that is one word with a hyphen."""

    def register(function: Callable[..., AnswerKind]) -> Verb[RequestKind, AnswerKind]:
        typed = name or function.__name__.replace("_", " ")
        return Verb(name=typed, request=request, outputs=outputs, function=function, waiting=waiting, served=served)

    return register
