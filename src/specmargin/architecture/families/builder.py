"""Helpers shared by all families: matrices with their precision, and the usual blocks of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from specmargin.architecture.config import Config
from specmargin.architecture.precision import Precision
from specmargin.architecture.quantization import QuantizationScheme
from specmargin.architecture.types import (
    Architecture,
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
    config: Config
    scheme: QuantizationScheme
    source: Source


FamilyReader = Callable[[Reading], Architecture]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBuilder:
    """Makes the matrices of one layer; `prefix` is its module name, for the quantisation patterns."""

    prefix: str
    scheme: QuantizationScheme
    hidden: int

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
        precision = self.scheme.of_experts(f"{self.prefix}.{name}")
        size = width or self.hidden

        def matrix(part: str, inputs: int, outputs: int, split: Split) -> Matrix:
            return Matrix(
                name=f"{name}.{part}",
                inputs=inputs,
                outputs=outputs,
                precision=precision,
                split=split,
                split_units=intermediate,
                biased=biased,
            )

        first = matrix("gate_up_proj" if gated else "up_proj", size, (1 + gated) * intermediate, Split.COLUMNS)
        return first, matrix("down_proj", intermediate, size, Split.ROWS)

    def experts(
        self,
        pool: ExpertPool,
        *,
        name: str,
        router: str,
        intermediate: int,
        shared: tuple[Matrix, ...] = (),
        router_biased: bool = False,
        expert: tuple[Matrix, ...] | None = None,
        hash_routed: bool = False,
    ) -> ExpertBlock:
        return ExpertBlock(
            pool=pool,
            expert=expert or self.expert(name, intermediate),
            router=(self.router(router, pool.experts, biased=router_biased),),
            always_on=shared,
            hash_routed=hash_routed,
        )

    # --- attention blocks ---

    def grouped_projections(
        self,
        attention: GroupedAttention,
        *,
        name: str = "self_attn",
        biased: bool = False,
        output_biased: bool = False,
        gated: bool = False,
        shared_key_value: bool = False,
        inputs: int | None = None,
    ) -> tuple[Matrix, ...]:
        """q, k, v and o. `gated`: q carries an output gate as wide as itself (Qwen3-Next and later)."""
        heads, kv_heads = attention.heads, attention.kv_heads

        def project(part: str, outputs: int, units: int) -> Matrix:
            return self.columns(f"{name}.{part}", outputs, units=units, biased=biased, inputs=inputs, fused="qkv")

        queries = project("q_proj", (1 + gated) * heads * attention.key_dim, heads)
        keys = project("k_proj", kv_heads * attention.key_dim, kv_heads)
        values = project("v_proj", kv_heads * attention.value_dim, kv_heads)
        output = self.rows(f"{name}.o_proj", heads * attention.value_dim, units=heads, biased=output_biased)
        return (queries, keys, output) if shared_key_value else (queries, keys, values, output)


def builder(reading: Reading, index: int, hidden: int) -> LayerBuilder:
    return LayerBuilder(prefix=f"layers.{index}", scheme=reading.scheme, hidden=hidden)


def mtp_builder(reading: Reading, hidden: int, *, index: int | None = None) -> LayerBuilder:
    """The MTP layer: a module of its own, or (DeepSeek, GLM, MiniMax) the layer after the last."""
    prefix = "mtp.layers.0" if index is None else f"layers.{index}"
    return LayerBuilder(prefix=prefix, scheme=reading.scheme, hidden=hidden)


def mtp_head(reading: Reading, *, hidden: int, layers: Iterable[Layer], lm_head: Matrix) -> DraftHead:
    """The MTP head of a checkpoint: joins hidden state and embedding (2h -> h), one layer, the target's LM head."""
    fusion = mtp_builder(reading, hidden).whole("eh_proj", hidden, inputs=2 * hidden)
    return DraftHead(
        name="mtp",
        groups=grouped(layers),
        fusion=(fusion,),
        lm_head=lm_head,
        shares_lm_head=True,
        vector_parameters=3 * hidden,
        source=reading.source,
    )


def model(
    reading: Reading,
    *,
    family: str,
    hidden: int,
    layers: Iterable[Layer],
    tied_default: bool,
    draft_layers: Iterable[Layer] = (),
    head_name: str = "lm_head",
    vector_parameters: int | None = None,
    kv_precision: Precision | None = None,
    notes: tuple[str, ...] = (),
) -> Architecture:
    """Embedding, layers and LM head, which are the same in every decoder."""
    config, scheme = reading.config, reading.scheme
    vocabulary = config.positive("vocab_size")
    tied = config.boolean("tie_word_embeddings", tied_default)
    lm_head = Matrix(
        name=head_name,
        inputs=hidden,
        outputs=vocabulary,
        precision=scheme.of_special(head_name),
        split=Split.COLUMNS,
        split_units=vocabulary,
    )
    embedding = Matrix(
        name="embed_tokens", inputs=hidden, outputs=vocabulary, precision=scheme.of_special("embed_tokens")
    )
    mtp = tuple(draft_layers)
    return Architecture(
        name=reading.name,
        family=family,
        hidden=hidden,
        vocabulary=vocabulary,
        groups=grouped(layers),
        embedding=embedding,
        lm_head=lm_head,
        tied_embedding=tied,
        kv_precision=kv_precision or scheme.kv or scheme.base,
        max_context=config.optional_integer("max_position_embeddings"),
        draft_head=mtp_head(reading, hidden=hidden, layers=mtp, lm_head=lm_head) if mtp else None,
        vector_parameters=hidden if vector_parameters is None else vector_parameters,
        notes=notes,
        source=reading.source,
    )
