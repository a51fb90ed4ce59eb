"""What families share: matrices with their precision, the usual blocks of them, and the decoder around the layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from specmargin.architecture.config import Config
from specmargin.architecture.precision import Precision
from specmargin.architecture.quantization import QuantizationScheme
from specmargin.architecture.types import (
    Architecture,
    Attention,
    DraftHead,
    ExpertBlock,
    ExpertPool,
    GroupedAttention,
    Layer,
    Matrix,
    Split,
    grouped,
)
from specmargin.sources import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Input of a family reader."""

    name: str
    family: str
    config: Config
    scheme: QuantizationScheme
    source: Source

    @property
    def hidden(self) -> int:
        return self.config.positive("hidden_size")

    def builder(self, prefix: str) -> LayerBuilder:
        return LayerBuilder(prefix=prefix, scheme=self.scheme, hidden=self.hidden)


FamilyReader = Callable[[Reading], Architecture]


class Mixer(NamedTuple):
    """What mixes positions in a layer: attention, its projections, and its vector parameters."""

    attention: Attention
    projections: tuple[Matrix, ...]
    vectors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBuilder:
    """Makes the matrices of one layer; `prefix` is its module name, for the quantisation patterns."""

    prefix: str
    scheme: QuantizationScheme
    hidden: int

    def layer(self, mixer: Mixer, feed_forward: tuple[Matrix, ...] | ExpertBlock, *, norms: int = 2) -> Layer:
        """Norm, mixer, norm, and an MLP or experts."""
        dense, experts = ((), feed_forward) if isinstance(feed_forward, ExpertBlock) else (feed_forward, None)
        return Layer(
            attention=mixer.attention,
            projections=mixer.projections,
            dense=dense,
            experts=experts,
            vector_parameters=norms * self.hidden + mixer.vectors,
        )

    # --- matrices ---

    def columns(
        self,
        name: str,
        outputs: int,
        *,
        units: int,
        inputs: int | None = None,
        biased: bool = False,
        fused: str = "",
    ) -> Matrix:
        matrix = self._matrix(name, inputs or self.hidden, outputs, Split.COLUMNS, units, biased)
        return replace(matrix, fused=fused)

    def rows(self, name: str, inputs: int, *, units: int, biased: bool = False) -> Matrix:
        return self._matrix(name, inputs, self.hidden, Split.ROWS, units, biased)

    def whole(self, name: str, outputs: int, *, inputs: int | None = None, fused: str = "") -> Matrix:
        return replace(self._matrix(name, inputs or self.hidden, outputs, Split.NONE, 1, False), fused=fused)

    def router(self, name: str, outputs: int, *, biased: bool = False) -> Matrix:
        precision = self.scheme.of_special(f"{self.prefix}.{name}")
        return Matrix(name=name, inputs=self.hidden, outputs=outputs, precision=precision, biased=biased)

    def _matrix(self, name: str, inputs: int, outputs: int, split: Split, units: int, biased: bool) -> Matrix:
        stored_as = name.replace("gate_up_proj", "gate_proj")  # engines fuse matrices that checkpoints store separately
        return Matrix(
            name=name,
            inputs=inputs,
            outputs=outputs,
            precision=self.scheme.of_linear(f"{self.prefix}.{stored_as}"),
            split=split,
            split_units=units,
            biased=biased,
        )

    # --- feed-forward blocks ---

    def gated_mlp(self, name: str, intermediate: int) -> tuple[Matrix, ...]:
        """gate, up and down. Gate and up are one GEMM in every engine."""
        return (
            self.columns(f"{name}.gate_up_proj", 2 * intermediate, units=intermediate),
            self.rows(f"{name}.down_proj", intermediate, units=intermediate),
        )

    def plain_mlp(self, name: str, intermediate: int) -> tuple[Matrix, ...]:
        """up and down alone (squared ReLU)."""
        return (
            self.columns(f"{name}.up_proj", intermediate, units=intermediate),
            self.rows(f"{name}.down_proj", intermediate, units=intermediate),
        )

    def expert(
        self,
        name: str,
        intermediate: int,
        *,
        gated: bool = True,
        biased: bool = False,
        width: int | None = None,
    ) -> tuple[Matrix, ...]:
        """One routed expert. `width` is its input size where that is not the hidden size (a latent MoE)."""
        size = width or self.hidden

        def matrix(part: str, inputs: int, outputs: int, split: Split) -> Matrix:
            return Matrix(
                name=f"{name}.{part}",
                inputs=inputs,
                outputs=outputs,
                precision=self.scheme.of_expert_part(f"{self.prefix}.{name}", part),
                split=split,
                split_units=intermediate,
                biased=biased,
            )

        first = matrix("gate_up_proj" if gated else "up_proj", size, (1 + gated) * intermediate, Split.COLUMNS)
        return first, matrix("down_proj", intermediate, size, Split.ROWS)

    def experts(
        self,
        pool: ExpertPool,
        expert: tuple[Matrix, ...],
        *,
        router: str,
        router_biased: bool = False,
        shared: tuple[Matrix, ...] = (),
    ) -> ExpertBlock:
        gate = self.router(router, pool.experts, biased=router_biased)
        return ExpertBlock(pool=pool, expert=expert, router=(gate,), always_on=shared)

    # --- attention ---

    def grouped(
        self,
        attention: GroupedAttention,
        *,
        name: str = "self_attn",
        biased: bool = False,
        output_biased: bool = False,
        gated: bool = False,
        shared_key_value: bool = False,
        inputs: int | None = None,
        vectors: int = 0,
    ) -> Mixer:
        """q, k, v and o. `gated`: q carries an output gate as wide as itself (Qwen3-Next and later)."""
        heads, kv_heads = attention.heads, attention.kv_heads

        def project(part: str, outputs: int, units: int) -> Matrix:
            return self.columns(f"{name}.{part}", outputs, units=units, biased=biased, inputs=inputs, fused="qkv")

        queries = project("q_proj", (1 + gated) * heads * attention.key_dim, heads)
        keys = project("k_proj", kv_heads * attention.key_dim, kv_heads)
        values = project("v_proj", kv_heads * attention.value_dim, kv_heads)
        output = self.rows(f"{name}.o_proj", heads * attention.value_dim, units=heads, biased=output_biased)
        projections = (queries, keys, output) if shared_key_value else (queries, keys, values, output)
        return Mixer(attention, projections, vectors)


def plain_attention(config: Config, *, window: int | None = None) -> GroupedAttention:
    """Attention as most configurations spell it."""
    heads = config.positive("num_attention_heads")
    head_dim = config.optional_integer("head_dim") or config.positive("hidden_size") // heads
    return GroupedAttention(
        heads=heads,
        kv_heads=config.positive("num_key_value_heads", heads),
        key_dim=head_dim,
        value_dim=head_dim,
        window=window,
    )


def pool(config: Config, experts: str, *, per_token: str = "num_experts_per_tok", shared: int = 0) -> ExpertPool:
    """The experts by the names of the two keys."""
    return ExpertPool(
        experts=config.positive(experts), experts_per_token=config.positive(per_token), shared_experts=shared
    )


def routed(
    make: LayerBuilder,
    config: Config,
    experts: str,
    *,
    per_token: str = "num_experts_per_tok",
    width: str = "moe_intermediate_size",
    shared: str = "",
    module: str = "mlp",
    router: str = "gate",
    biased: bool = False,
    latent: int | None = None,
) -> ExpertBlock:
    """Experts by the names of their keys and modules. Shared ones are one wide MLP beside the routed ones."""
    intermediate, shared_experts = config.positive(width), config.integer(shared, 0) if shared else 0
    return make.experts(
        pool(config, experts, per_token=per_token, shared=shared_experts),
        make.expert(f"{module}.experts", intermediate, biased=biased, width=latent),
        router=f"{module}.{router}",
        router_biased=biased,
        shared=make.gated_mlp(f"{module}.shared_experts", shared_experts * intermediate) if shared_experts else (),
    )


MTP_MODULE = "mtp.layers.0"


def mtp_layers(config: Config, key: str = "num_nextn_predict_layers") -> int:
    """1 where the checkpoint has MTP layers, or 0: engines run the first one again and again."""
    return min(config.integer(key, 0), 1)


def decoder(
    reading: Reading,
    layer: Callable[[LayerBuilder, int], Layer],
    *,
    layers: int | None = None,
    draft_layers: int = 0,
    draft_module: str = "",
    tied_default: bool = False,
    head_name: str = "lm_head",
    vector_parameters: int | None = None,
    kv_precision: Precision | None = None,
) -> Architecture:
    """Embedding, layers and LM head, which are the same in every decoder.

    `layer` makes each layer by its index; indices after the last are layers of the MTP head, in a module of its own
    (`draft_module`) or the layer after the last (DeepSeek, GLM, MiniMax).
    """
    config, scheme, hidden = reading.config, reading.scheme, reading.hidden
    count = layers or config.layer_count()
    vocabulary = config.positive("vocab_size")
    lm_head = vocabulary_matrix(head_name, hidden, vocabulary, scheme.of_special(head_name))
    embedding = Matrix(
        name="embed_tokens", inputs=hidden, outputs=vocabulary, precision=scheme.of_special("embed_tokens")
    )
    draft = reading.builder(draft_module or f"layers.{count}")
    own = [layer(reading.builder(f"layers.{i}"), i) for i in range(count)]
    return Architecture(
        name=reading.name,
        family=reading.family,
        hidden=hidden,
        vocabulary=vocabulary,
        groups=grouped(own),
        expert_layers=tuple(i for i, each in enumerate(own) if each.experts is not None),
        embedding=embedding,
        lm_head=lm_head,
        tied_embedding=config.boolean("tie_word_embeddings", tied_default),
        kv_precision=kv_precision or scheme.kv or scheme.base,
        max_context=config.optional_integer("max_position_embeddings"),
        draft_head=_mtp_head(reading, [layer(draft, count + i) for i in range(draft_layers)], lm_head),
        vector_parameters=hidden if vector_parameters is None else vector_parameters,
        source=reading.source,
    )


def vocabulary_matrix(name: str, inputs: int, vocabulary: int, precision: Precision) -> Matrix:
    return Matrix(
        name=name,
        inputs=inputs,
        outputs=vocabulary,
        precision=precision,
        split=Split.COLUMNS,
        split_units=vocabulary,
    )


def _mtp_head(reading: Reading, layers: list[Layer], lm_head: Matrix) -> DraftHead | None:
    """The MTP head of a checkpoint: joins hidden state and embedding (2h -> h), its layers, the target's LM head."""
    if not layers:
        return None
    hidden = reading.hidden
    return DraftHead(
        name="mtp",
        groups=grouped(layers),
        fusion=(reading.builder(MTP_MODULE).whole("eh_proj", hidden, inputs=2 * hidden),),
        lm_head=lm_head,
        shares_lm_head=True,
        vector_parameters=3 * hidden,
        source=reading.source,
    )
