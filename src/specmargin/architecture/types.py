"""The parts of a model.

Weights are matrices with their real shapes, so that parameter counts, bytes, FLOPs and the GEMM shapes
that measured kernels are looked up by all come from one description. Vectors (norms, biases, sinks)
are counted but never priced: together they are under 0.1% of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from specmargin.architecture.precision import BF16, Arithmetic, Precision
from specmargin.errors import ArchitectureError
from specmargin.sources import Source


class Split(StrEnum):
    """How tensor parallelism cuts a matrix."""

    COLUMNS = "columns"
    ROWS = "rows"
    NONE = "none"  # every rank holds it whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A weight matrix, or `copies` independent ones of the same shape (a block-diagonal projection)."""

    name: str
    inputs: int
    outputs: int
    precision: Precision
    split: Split = Split.NONE
    split_units: int = 1  # heads, groups or columns that can be on different ranks
    copies: int = 1
    biased: bool = False
    fused: str = ""  # matrices of one layer with the same label read the same input and run as one GEMM
    stage: str = ""  # GEMMs of one layer with the same label run at the same time, on parallel CUDA streams

    def __post_init__(self) -> None:
        if min(self.inputs, self.outputs, self.copies, self.split_units) < 1:
            raise ArchitectureError(f"matrix {self.name}: every dimension must be at least 1, got {self}")

    @property
    def parameters(self) -> int:
        return self.copies * (self.inputs * self.outputs + (self.outputs if self.biased else 0))

    def share(self, ranks: int) -> float:
        """Part of the matrix that one of `ranks` tensor-parallel ranks holds.

        KV projections of a model with fewer KV heads than ranks are replicated: a rank holds one head.
        """
        if self.split is Split.NONE:
            return 1.0
        return max(1.0 / ranks, 1.0 / self.split_units)

    def read_bytes(self, ranks: int = 1) -> float:
        return self.parameters * self.precision.bytes_per_parameter * self.share(ranks)

    def flops_per_position(self, ranks: int = 1) -> float:
        return 2.0 * self.copies * self.inputs * self.outputs * self.share(ranks)


def total_parameters(matrices: Iterable[Matrix]) -> int:
    return sum(matrix.parameters for matrix in matrices)


def total_bytes(matrices: Iterable[Matrix], ranks: int = 1) -> float:
    return sum(matrix.read_bytes(ranks) for matrix in matrices)


# --- attention: a closed union; prices match on it and mypy checks that the match is exhaustive ---------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSelection:
    """Block-sparse attention (MiniMax M3, Qwen3.8-Flash-Next): each query reads the best blocks of an indexer."""

    index_heads: int
    index_dim: int
    block_tokens: int
    top_blocks: int
    key_tokens: int = 1  # tokens that one key of the indexer stands for


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSelection:
    """DSA: an indexer scores every cached entry, each query reads its own top-k of them."""

    index_heads: int
    index_dim: int
    top_k: int
    owns_indexer: bool = True  # False: this layer reuses the selection of an earlier one (GLM-5.2)
    key_tokens: int = 1  # tokens that one key of the indexer stands for (GLM-5.3-Flash)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedAttention:
    """Multi-head or grouped-query attention, over everything or over a window."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    selection: BlockSelection | None = None
    sinks: bool = False  # a learned logit per head, which some kernels lack

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ArchitectureError(f"{self.heads} attention heads do not divide into {self.kv_heads} KV heads")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """MLA, absorbed: all heads read one shared latent (latent_dim + rope_dim) per token.

    `key_dim` and `value_dim` are the heads' own sizes, in which prompts are computed (not absorbed).
    """

    heads: int
    latent_dim: int
    rope_dim: int
    key_dim: int = 192
    value_dim: int = 128
    selection: TokenSelection | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention:
    """DeepSeek V4: one shared KV head, a sliding window, and a compressed history beside it.

    ratio 0: window alone. ratio 4 with a selection: CSA. ratio 128 without: HCA. ratio 1 or 2 with a selection: V4.1.
    """

    heads: int
    head_dim: int
    rope_dim: int
    window: int
    ratio: int
    selection: TokenSelection | None = None
    owns_history: bool = True  # False: this layer reads the compressed history of an earlier one (V4.1)

    def __post_init__(self) -> None:
        if self.selection is not None and self.ratio == 0:
            raise ArchitectureError("a window without a compressed history has nothing to select from")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention:
    """GatedDeltaNet or Mamba-2: a recurrent state per sequence instead of a KV cache."""

    kind: str
    heads: int
    state_elements: int
    convolution_elements: int
    state_precision: Precision
    flops_per_position: float


Attention = GroupedAttention | LatentAttention | CompressedAttention | LinearAttention


# --- feed-forward --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertPool:
    experts: int
    experts_per_token: int
    shared_experts: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.experts_per_token <= self.experts:
            raise ArchitectureError(f"experts_per_token={self.experts_per_token} is not in 1..{self.experts}")
        if self.shared_experts < 0:
            raise ArchitectureError(f"shared_experts={self.shared_experts} is negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertBlock:
    pool: ExpertPool
    expert: tuple[Matrix, ...]  # the matrices of one expert
    router: tuple[Matrix, ...]
    always_on: tuple[Matrix, ...] = ()  # shared experts, their gate, latent projections


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    attention: Attention | None
    projections: tuple[Matrix, ...] = ()
    dense: tuple[Matrix, ...] = ()
    experts: ExpertBlock | None = None
    vector_parameters: int = 0

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """Everything that every position reads: all but the routed experts."""
        router = self.experts.router + self.experts.always_on if self.experts else ()
        return self.projections + self.dense + router

    @property
    def stored(self) -> tuple[tuple[Matrix, int], ...]:
        """Every matrix of the layer, the experts included, and how many there are of it."""
        block = self.experts
        routed = tuple((matrix, block.pool.experts) for matrix in block.expert) if block else ()
        return (*((matrix, 1) for matrix in self.matrices), *routed)

    @property
    def parameters(self) -> int:
        block = self.experts
        routed = block.pool.experts * total_parameters(block.expert) if block else 0
        return total_parameters(self.matrices) + routed + self.vector_parameters

    @property
    def active_parameters(self) -> int:
        block = self.experts
        routed = block.pool.experts_per_token * total_parameters(block.expert) if block else 0
        return total_parameters(self.matrices) + routed + self.vector_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Identical layers, and their number."""

    layer: Layer
    count: int


def grouped(layers: Iterable[Layer]) -> tuple[LayerGroup, ...]:
    """Group equal layers, in order of first appearance. The order of layers does not change a price."""
    counts: dict[Layer, int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(LayerGroup(layer=layer, count=count) for layer, count in counts.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftHead:
    """A head trained for one target: MTP and EAGLE (one pass per token), DFlash and DSpark (one pass per block)."""

    name: str
    groups: tuple[LayerGroup, ...]
    fusion: tuple[Matrix, ...]  # joins the target's hidden states with the token embedding
    lm_head: Matrix
    shares_lm_head: bool
    block: int | None = None  # positions of a block pass; None for an autoregressive head
    anchored: bool = False  # the block's first position, the last committed token's, drafts too
    serial: tuple[Matrix, ...] = ()  # read once more for every token of a block, one token after another
    lookups: tuple[Matrix, ...] = ()  # embeddings of its own: memory, but few rows are read
    shares_kv: bool = False  # reads the target's keys and values, and stores none (Gemma 4's assistants)
    checkpoint: str = ""  # hub id, where it is not part of the target's checkpoint
    vector_parameters: int = 0
    source: Source

    @property
    def parameters(self) -> int:
        own_head = 0 if self.shares_lm_head else self.lm_head.parameters
        layers = sum(group.count * group.layer.parameters for group in self.groups)
        own = self.fusion + self.serial + self.lookups
        return layers + total_parameters(own) + own_head + self.vector_parameters

    @property
    def block_depth(self) -> int | None:
        """Draft tokens of a block; None for an autoregressive head."""
        return None if self.block is None else self.block - (0 if self.anchored else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCounts:
    """Layers by what the host has to launch for them."""

    layers: int
    moe_layers: int = 0
    recurrent_layers: int = 0
    latent_layers: int = 0  # MLA and what derives from it
    # Layers whose products of that part are computed in FP8, so that activations are quantised before.
    fp8_attention_layers: int = 0
    fp8_latent_layers: int = 0
    fp8_moe_layers: int = 0
    fp8_shared_layers: int = 0  # shared experts
    all_reduces: int = 0

    def over(self, ranks: int) -> LayerCounts:
        """On tensor-parallel ranks, with an all-reduce after attention and one after the feed-forward part."""
        return replace(self, all_reduces=2 * self.layers if ranks > 1 else 0)


def layer_counts(groups: tuple[LayerGroup, ...]) -> LayerCounts:
    def count(chosen: Callable[[Layer], bool]) -> int:
        return sum(group.count for group in groups if chosen(group.layer))

    return LayerCounts(
        layers=sum(group.count for group in groups),
        moe_layers=count(lambda layer: layer.experts is not None),
        recurrent_layers=count(lambda layer: isinstance(layer.attention, LinearAttention)),
        latent_layers=count(_is_latent),
        fp8_attention_layers=count(lambda layer: layer.attention is not None and _in_fp8(layer.projections)),
        fp8_latent_layers=count(lambda layer: _is_latent(layer) and _in_fp8(layer.projections)),
        fp8_moe_layers=count(lambda layer: layer.experts is not None and _in_fp8(layer.experts.expert)),
        fp8_shared_layers=count(lambda layer: layer.experts is not None and _in_fp8(layer.experts.always_on)),
    )


def _is_latent(layer: Layer) -> bool:
    return isinstance(layer.attention, LatentAttention | CompressedAttention)


def _in_fp8(matrices: tuple[Matrix, ...]) -> bool:
    return any(matrix.precision.arithmetic is Arithmetic.FP8 for matrix in matrices)


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A text model. Vision and audio towers are not priced."""

    name: str
    family: str
    hidden: int
    vocabulary: int
    groups: tuple[LayerGroup, ...]
    embedding: Matrix
    lm_head: Matrix
    tied_embedding: bool
    kv_precision: Precision = BF16
    max_context: int | None = None
    expert_layers: tuple[int, ...] = ()  # indices of the layers with routed experts
    draft_head: DraftHead | None = None  # the MTP head, in the checkpoint or published beside it
    block_head: DraftHead | None = None  # the DSpark head in the checkpoint
    vector_parameters: int = 0
    assumptions: tuple[str, ...] = ()  # of the general reader, about a family without one of its own
    source: Source

    @property
    def layers(self) -> int:
        return sum(group.count for group in self.groups)

    @cached_property
    def layer_counts(self) -> LayerCounts:
        return layer_counts(self.groups)

    @cached_property
    def expert_groups(self) -> tuple[tuple[LayerGroup, ExpertBlock], ...]:
        """The groups with routed experts; distinct experts are given in this order."""
        return tuple((group, group.layer.experts) for group in self.groups if group.layer.experts is not None)

    @property
    def is_moe(self) -> bool:
        return bool(self.expert_groups)

    @property
    def pools(self) -> tuple[ExpertPool, ...]:
        return tuple(block.pool for _, block in self.expert_groups)

    @property
    def parameters(self) -> int:
        """All parameters of the text model, without the MTP head, a tied embedding counted once."""
        layers = sum(group.count * group.layer.parameters for group in self.groups)
        head = 0 if self.tied_embedding else self.lm_head.parameters
        return layers + self.embedding.parameters + head + self.vector_parameters

    def active_parameters(self, *, count_embedding: bool) -> int:
        """Parameters that one token uses. Publishers differ on the input embedding, so say which."""
        layers = sum(group.count * group.layer.active_parameters for group in self.groups)
        embedding = self.embedding.parameters if count_embedding and not self.tied_embedding else 0
        return layers + embedding + self.lm_head.parameters + self.vector_parameters

    @property
    def weight_precisions(self) -> tuple[str, ...]:
        """Precisions of the layers' weights, most bytes first, without those under 1% of them."""
        size: dict[str, float] = {}
        for group in self.groups:
            for matrix, number in group.layer.stored:
                name = matrix.precision.name
                size[name] = size.get(name, 0.0) + group.count * number * matrix.read_bytes()
        total = sum(size.values())
        return tuple(name for name in sorted(size, key=lambda n: -size[n]) if size[name] > 0.01 * total)

    def sourced(self, source: Source) -> Architecture:
        """The same model, its heads included, under another source."""
        head, block = (head and replace(head, source=source) for head in (self.draft_head, self.block_head))
        return replace(self, source=source, draft_head=head, block_head=block)

    @property
    def attention_heads(self) -> int:
        """The fewest heads of any attention layer: what tensor parallelism must divide."""
        heads = [g.layer.attention.heads for g in self.groups if g.layer.attention is not None]
        return min(heads, default=1)
