"""Step-3.5 and Step-3.7: three sliding layers, with more heads, to each full one; a gate per head."""

from __future__ import annotations

from dataclasses import replace

from specmargin.architecture.config import Config
from specmargin.architecture.families.builder import LayerBuilder, Reading, builder, model, mtp_builder
from specmargin.architecture.families.mixture import pool
from specmargin.architecture.types import Architecture, ExpertBlock, GroupedAttention, Layer
from specmargin.errors import ArchitectureError

_SLIDING = "sliding_attention"


def step3p5(reading: Reading) -> Architecture:
    """The keys are those of the checkpoints (`moe_num_experts`, `num_attention_groups`, `attention_other_setting`).

    The MTP blocks are sliding layers with a dense MLP and an LM head of their own; engines run them one after another.
    """
    config = reading.config
    hidden, layers = config.positive("hidden_size"), config.layer_count()
    kinds = config.kinds("layer_types", layers, ("full_attention", _SLIDING))
    routing = _routing_layers(config)

    def layer(make: LayerBuilder, *, kind: str, routes: bool) -> Layer:
        attention = _attention(config, kind)
        gate = make.columns("self_attn.g_proj", attention.heads, units=attention.heads)
        return Layer(
            attention=attention,
            projections=(*make.grouped_projections(attention), gate),
            dense=() if routes else make.gated_mlp("mlp", config.positive("intermediate_size")),
            experts=_experts(make, config) if routes else None,
            vector_parameters=2 * hidden + 2 * attention.key_dim,
        )

    stack = [layer(builder(reading, i, hidden), kind=kinds[i], routes=i in routing) for i in range(layers)]
    mtp = config.integer("num_nextn_predict_layers", 0)
    draft = [layer(mtp_builder(reading, hidden, index=layers), kind=_SLIDING, routes=False)] if mtp else []
    built = model(reading, family="step3p5", hidden=hidden, layers=stack, tied_default=False, draft_layers=draft)
    head = built.draft_head
    return built if head is None else replace(built, draft_head=replace(head, shares_lm_head=False))


def _routing_layers(config: Config) -> frozenset[int]:
    """`moe_layers_enum`: the layers with experts, "3,4,5"."""
    listed = config.text("moe_layers_enum")
    if not all(part.strip().isdigit() for part in listed.split(",")):
        raise ArchitectureError(f"{config.origin}: 'moe_layers_enum' must list layer numbers, got {listed!r}")
    return frozenset(int(part) for part in listed.split(","))


def _attention(config: Config, kind: str) -> GroupedAttention:
    """Sliding layers have their own head counts, in `attention_other_setting`."""
    sliding = kind == _SLIDING
    shape = config.section("attention_other_setting") if sliding else config
    dim = shape.positive("head_dim", config.positive("head_dim"))
    return GroupedAttention(
        heads=shape.positive("num_attention_heads"),
        kv_heads=shape.positive("num_attention_groups"),
        key_dim=dim,
        value_dim=dim,
        window=config.positive("sliding_window") if sliding else None,
    )


def _experts(make: LayerBuilder, config: Config) -> ExpertBlock:
    return make.experts(
        pool(config, "moe_num_experts", shared=1, per_token_key="moe_top_k"),
        name="moe",
        router="moe.gate",
        intermediate=config.positive("moe_intermediate_size"),
        shared=make.gated_mlp("share_expert", config.positive("share_expert_dim")),
    )
