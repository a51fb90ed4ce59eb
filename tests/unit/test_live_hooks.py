"""Hooks around an engine's functions: installed once, and the original decides what comes back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from specmargin.live.hooks import around


def _owner() -> Any:
    class Runner:
        def run(self, value: int, *, factor: int = 1) -> int:
            """Documented."""
            return value * factor

    return Runner


def _installed(owner: Any, seen: list[int]) -> None:
    @around(owner, "run")
    def noted(run: Any, runner: Any, value: int, **others: Any) -> int:
        seen.append(value)
        return int(run(runner, value, **others))


def test_a_hook_runs_in_the_place_of_a_method_once() -> None:
    owner, seen = _owner(), list[int]()
    for _ in range(3):  # a plug-in may be loaded several times in a process
        _installed(owner, seen)
    assert owner().run(3, factor=2) == 6
    assert seen == [3]
    assert (owner.run.__name__, owner.run.__doc__) == ("run", "Documented.")


def test_several_hooks_share_a_method() -> None:
    owner, seen = _owner(), list[int]()
    _installed(owner, seen)

    @around(owner, "run")
    def doubled(run: Any, runner: Any, value: int) -> int:
        return 2 * int(run(runner, value))

    _installed(owner, seen)
    assert owner().run(5) == 10
    assert seen == [5]


def test_functions_of_a_module_too() -> None:
    module = SimpleNamespace(create=lambda **options: sorted(options))

    @around(module, "create")
    def created(create: Any, **options: Any) -> list[str]:
        return [*create(**options), "more"]

    assert module.create(b=1, a=2) == ["a", "b", "more"]
    assert created(list) == ["more"]  # the hook itself is unchanged, for tests
