"""From `--routing` to a profile: bundled curves, a bundled capture, a user's file, or uniform."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specmargin.architecture.types import Architecture
from specmargin.catalog.bundled import bundled_text, read_bundled
from specmargin.errors import InputError, RoutingError, nearest_names
from specmargin.files import split_detail
from specmargin.routing.curves import CurveRouting
from specmargin.routing.profile import UNIFORM, WITH_REPLACEMENT, ModelRouting, RoutingProfile, check_model
from specmargin.sources import Source, assumed, published

if TYPE_CHECKING:
    from specmargin.routing.schema import RoutingFile

BUNDLED = ("deepseek-v4-flash", "qwen3.6-35b-a3b")
CAPTURED = ("reference-moe",)  # profiles with expert ids, as `specmargin profile routing` writes them
SCALED = "qwen3.6-35b-a3b"  # stands for models without a capture: most categories and run lengths
_NAMED: dict[str, RoutingProfile] = {profile.name: profile for profile in (UNIFORM, WITH_REPLACEMENT)}
DEFAULT_CATEGORY = "all"
ASSUMED = "assumed"
_PRIOR_WEIGHT = 0.5  # of uniform routing, for a model without a capture


def bundled_categories(model: str) -> list[str]:
    return list(read_bundled(f"routing/{model}.json")["categories"])


@cache
def bundled_routing(model: str, category: str = DEFAULT_CATEGORY, source: Source | None = None) -> CurveRouting:
    values = read_bundled(f"routing/{model}.json")
    curves = values["categories"].get(category)
    if curves is None:
        names = bundled_categories(model)
        hint = nearest_names(category, names)
        raise InputError(f"the routing of {model} has no category {category!r}{hint}; known: {', '.join(names)}")
    rate, shape, second, growth = np.array(curves["by_layer"]).T
    longest = curves["longest_run"]
    detail = (
        f"routing of {model}, {category}: {values['source']}, within {curves['depth_error']:.1%} of the depth curve"
    )
    beyond = f"; runs beyond {longest} positions extrapolated"
    return CurveRouting(
        name=model if category == DEFAULT_CATEGORY else f"{model}:{category}",
        source=source or published(detail + beyond),
        rate_by_layer=rate,
        shape_by_layer=shape,
        second_by_layer=second,
        growth_by_layer=growth,
        captured_run=longest,
    )


@cache
def assumed_routing() -> CurveRouting:
    """For a model without a capture: halfway between a captured model's curves, scaled to its experts, and uniform.

    Published speed-ups of four mixtures lie between both ends: the curves alone predict 8% too much, uniform routing 2%
    too little, in the median (docs/results/speedups.md).
    """
    detail = f"halfway between the routing of {SCALED}, scaled to this model's experts, and uniform: capture your own"
    return bundled_routing(SCALED).towards_uniform(_PRIOR_WEIGHT, name=ASSUMED, source=assumed(detail))


def find_routing(spec: str | None, architecture: Architecture) -> RoutingProfile:
    """`uniform`, a bundled NAME[:CATEGORY], or FILE[:CATEGORY[=WEIGHT],…]; None: the model's own, or an assumed one."""
    if spec is not None and not architecture.is_moe:
        raise RoutingError(f"--routing {spec}: {architecture.name} is dense and has no experts; leave --routing out")
    if spec is None:
        return _bundled_profile(architecture) or assumed_routing()
    if spec.lower() == ASSUMED:
        return assumed_routing()
    if spec.lower() in _NAMED:
        return _NAMED[spec.lower()]
    name, categories = split_detail(spec)
    if name.lower() in BUNDLED:
        return _bundled_for(name.lower(), categories or DEFAULT_CATEGORY, architecture)
    if name.lower() in CAPTURED:
        return _checked(_captured_profile(name.lower(), categories), architecture)
    if not Path(name).exists() and not name.endswith(".json"):
        names = [*_NAMED, ASSUMED, *BUNDLED, *CAPTURED]
        raise InputError(
            f"unknown routing profile {spec!r}{nearest_names(spec, names)}; known: {', '.join(names)}, "
            "or a file written by `specmargin profile routing`"
        )
    from specmargin.routing.schema import read_routing  # noqa: PLC0415 (pydantic only where a file is read)

    return _checked(_profile(read_routing(Path(name)), categories), architecture)


def _bundled_profile(architecture: Architecture) -> RoutingProfile | None:
    """The bundled routing of this model; None where there is none."""
    if architecture.name in BUNDLED:
        return bundled_routing(architecture.name)
    if architecture.name in CAPTURED:
        return _checked(_captured_profile(architecture.name, ""), architecture)
    return None


@cache
def captured_routing(name: str) -> RoutingFile:
    from specmargin.routing.schema import parse_routing  # noqa: PLC0415 (pydantic only where a file is read)

    return parse_routing(bundled_text(f"routing/{name}.routing.json"), f"bundled routing {name}")


def _bundled_for(name: str, category: str, architecture: Architecture) -> CurveRouting:
    own = bundled_routing(name, category)
    if architecture.name == name:
        return own
    detail = f"routing as in {own.name}, its curves scaled to this model's experts"
    return bundled_routing(name, category, assumed(detail))


@cache
def _captured_profile(name: str, categories: str) -> ModelRouting:
    return _profile(captured_routing(name), categories)


def _profile(file: RoutingFile, categories: str) -> ModelRouting:
    return ModelRouting(own=file.profile(_weights(categories) if categories else None), others=assumed_routing())


def _checked(routing: ModelRouting, architecture: Architecture) -> ModelRouting:
    check_model(routing.own, architecture)
    return routing


def _weights(text: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, equals, weight = part.partition("=")
        try:
            weights[name.strip()] = float(weight) if equals else 1.0
        except ValueError:
            raise InputError(f"--routing: {weight!r} is not a weight; write CATEGORY=0.7") from None
        if not 0.0 <= weights[name.strip()] < float("inf"):
            raise InputError(f"--routing: the weight of {name.strip()!r} must not be negative")
    return weights
