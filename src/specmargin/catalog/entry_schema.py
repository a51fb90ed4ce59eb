"""Schemas of the catalog's entries, one per kind; published as JSON Schema in docs/reference/schemas.

Bundled entries and the user's have the same fields. Unknown ones are refused. Descriptions are the comments of
`specmargin models --template` and part of the JSON Schema.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from specmargin.hardware.processor import Instructions
from specmargin.hardware.schema import DeviceTable
from specmargin.schema import StrictModel

Text = Annotated[str, Field(min_length=1)]
Probability = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, le=1)]
Ranks = Annotated[str, Field(pattern=r"^[1-9][0-9]*$")]
Point = tuple[PositiveFloat, PositiveFloat]
SOURCE = "Where the figures come from, shown with every answer: a document and its date or release."
_Shape = PositiveInt | None
_HEAD = ("intermediate_size", "num_attention_heads")
_BLOCK = (*_HEAD, "num_hidden_layers", "block_size", "target_layers")
_ASSISTANT = (*_HEAD, "num_hidden_layers", "hidden_size", "backbone_hidden_size", "layer_types", "vocab_size")
_NEEDED = {"eagle": _HEAD, "dflash": _BLOCK, "dspark": (*_BLOCK, "markov_rank"), "mtp": _ASSISTANT}


class ModelEntry(StrictModel):
    """A model: NAME.json in catalog/models or in a user's folder models."""

    hub_id: Text = Field(description="Hugging Face id, or the folder that the engine loads.")
    source: Text = Field(description=SOURCE)
    parameters: PositiveFloat | None = Field(
        None,
        description="Parameters as the publisher states them; `models --check` compares them with the configuration.",
    )
    config: dict[str, Any] = Field(
        description="Its Hugging Face config.json; keys that change no price may be left out."
    )


class DrafterEntry(StrictModel):
    """A draft head: a table [KIND."TARGET"] in catalog/heads.toml, or NAME.toml in a user's folder drafters.

    Shapes have the keys of the head's own config.json.
    """

    drafter: Literal["eagle", "dflash", "dspark", "mtp"] = Field(
        description="Kind: eagle, dflash, dspark, or mtp (an assistant that reads the target's keys and values)."
    )
    target: Text = Field(description="Model that it was trained for, by its name in the catalog.")
    checkpoint: str = Field("", description="Hugging Face id or folder of the head, for the engine's flags.")
    source: Text = Field(description=SOURCE)
    derived: bool = Field(False, description="True where no configuration was found: the shape is shown as assumed.")
    survival: tuple[Probability, ...] | None = Field(
        None,
        min_length=1,
        description="Measured survival by depth: the probability that the first d draft tokens are all accepted.",
    )
    survival_source: Text | None = Field(None, description="Who measured the survival, and on which text.")
    hidden_size: _Shape = Field(None, description="Width; the target's if left out.")
    intermediate_size: _Shape = Field(None, description="Width of its MLP.")
    num_hidden_layers: _Shape = Field(None, description="Layers; an EAGLE head has one.")
    num_attention_heads: _Shape = Field(None, description="Query heads.")
    num_key_value_heads: _Shape = Field(None, description="Key and value heads; as many as query heads if left out.")
    head_dim: _Shape = Field(None, description="Width of a head; hidden_size over heads if left out.")
    draft_vocab_size: _Shape = Field(None, description="EAGLE: tokens that its own LM head scores.")
    vocab_size: _Shape = Field(None, description="Vocabulary of the head's own LM head.")
    block_size: _Shape = Field(None, description="DFlash, DSpark: positions of one pass.")
    target_layers: _Shape = Field(None, description="DFlash, DSpark: hidden states of the target that it fuses.")
    markov_rank: _Shape = Field(None, description="DSpark: rank of the Markov head.")
    sample_from_anchor: bool = Field(True, description="DSpark: whether the first position drafts too.")
    convolution_outputs: _Shape = Field(None, description="DFlash 2: weights of its short convolutions per position.")
    selector_rank: _Shape = Field(None, description="DFlash 2: rank of the codebooks that score paths.")
    layer_types: tuple[Literal["full_attention", "sliding_attention"], ...] | None = Field(
        None, description="Attention by layer, where some have a window."
    )
    sliding_window: _Shape = Field(None, description="Tokens of the window.")
    backbone_hidden_size: _Shape = Field(None, description="mtp: width of the target.")
    num_global_key_value_heads: _Shape = Field(None, description="mtp: key and value heads of full attention.")
    global_head_dim: _Shape = Field(None, description="mtp: width of a head of full attention.")
    q_lora_rank: _Shape = Field(None, description="EAGLE with MLA: rank of the queries.")
    kv_lora_rank: _Shape = Field(None, description="EAGLE with MLA: rank of keys and values.")
    qk_nope_head_dim: _Shape = Field(None, description="EAGLE with MLA.")
    qk_rope_head_dim: _Shape = Field(None, description="EAGLE with MLA.")
    v_head_dim: _Shape = Field(None, description="EAGLE with MLA.")

    @model_validator(mode="after")
    def _complete(self) -> DrafterEntry:
        for name in _NEEDED[self.drafter]:
            if getattr(self, name) is None:
                raise ValueError(f"{name} is missing: a head of the kind {self.drafter} needs it")
        if (self.survival is None) != (self.survival_source is None):
            raise ValueError("survival and survival_source are given together")
        if self.survival and any(b > a for a, b in zip(self.survival, self.survival[1:], strict=False)):
            raise ValueError("survival must not rise with depth")
        return self

    @property
    def shape(self) -> dict[str, Any]:
        """The keys of the head's configuration that were given."""
        others = {"drafter", "target", "source", "derived", "survival", "survival_source"}
        return self.model_dump(exclude=others, exclude_none=True)


class EngineTimeEntry(StrictModel):
    """Engine time beside the kernels: in catalog/engine_times.json, or NAME.toml in a user's folder engine-times."""

    engine: Literal["vllm", "sglang", "trtllm", "llamacpp", "mlx"] = Field(description="Engine that was timed.")
    prices: Literal["laws", "tables", "llamacpp"] | None = Field(
        None, description="Kernel prices beside which it was fitted; left out: it holds beside both."
    )
    step_seconds: Seconds = Field(description="Per step.")
    sequence_seconds: Seconds = Field(0.0, description="Per sequence of a step.")
    layer_seconds: Seconds = Field(0.0, description="Per layer of the target.")
    verify_step_seconds: Seconds = Field(0.0, description="More per step that verifies drafts.")
    verify_sequence_seconds: Seconds = Field(0.0, description="More per sequence that is verified.")
    verify_token_seconds: Seconds = Field(0.0, description="More per draft token that is verified.")
    first_pass_seconds: Seconds = Field(0.0, description="More for the drafter's first pass after a verify step.")
    draft_pass_seconds: Seconds = Field(0.0, description="Per pass of the drafter.")
    off_step_seconds: Seconds = Field(0.0, description="More per step while speculation is configured but off.")
    off_sequence_seconds: Seconds = Field(0.0, description="More per sequence while speculation is configured but off.")
    eager_layer_seconds: Seconds = Field(0.0, description="More per layer of a step without a CUDA graph.")
    floor_layer_seconds: Seconds = Field(0.0, description="Shortest step with piecewise graphs, per layer.")
    kernel_launch_seconds: Seconds = Field(0.0, description="Per kernel that the host launches outside a CUDA graph.")
    kind: Literal["measured", "silicon", "published", "assumed"] = Field(
        description="Evidence: measured by you, silicon (fitted to public measurements), published, or assumed."
    )
    source: Text = Field(description=SOURCE)


class FabricEntry(StrictModel):
    """Measured all-reduces over a link, which a device names, or a network between nodes, which --fabric names: a table
    in catalog/fabrics.toml, or NAME.toml in a user's folder fabrics.

    Points by number of GPUs (all_reduce_seconds); or seconds_per_gpu, link_share and gpus; or of a network its two.
    """

    title: Text = Field(description="What moves the bytes, and over what; shown with every price.")
    all_reduce_seconds: dict[Ranks, tuple[Point, ...]] | None = Field(
        None, min_length=1, description="By number of GPUs: [bytes, seconds] of measured all-reduces, bytes ascending."
    )
    measured_link_bytes_per_second: PositiveFloat | None = Field(
        None, description="Link of the GPUs that were measured; sizes are scaled to the link of the device."
    )
    seconds_per_gpu: Seconds | None = Field(None, description="Time of a small message per GPU that takes part.")
    link_share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Share of the link's bandwidth that large messages reach."
    )
    gpus: tuple[PositiveInt, ...] | None = Field(None, description="Numbers of GPUs for which the two hold.")
    network_bytes_per_second: PositiveFloat | None = Field(
        None, description="Of a network between nodes: what a GPU sends in large messages, as measured."
    )
    network_latency_seconds: Seconds | None = Field(None, description="Of the same: time of a small message.")
    spread: Annotated[float, Field(ge=0, le=2)] = Field(
        0.3, description="80% range, as a logarithm on each side: 0.3 is within 35%."
    )
    source: Text = Field(description=SOURCE)

    @model_validator(mode="after")
    def _one_form(self) -> FabricEntry:
        formula = (self.seconds_per_gpu, self.link_share, self.gpus)
        network = (self.network_bytes_per_second, self.network_latency_seconds)
        forms = (self.all_reduce_seconds is not None, None not in formula, None not in network)
        if sum(forms) != 1:
            raise ValueError(
                "give all_reduce_seconds, or seconds_per_gpu with link_share and gpus, or network_bytes_per_second "
                "with network_latency_seconds: one of these, not both"
            )
        for ranks, points in (self.all_reduce_seconds or {}).items():
            sizes = [size for size, _ in points]
            if len(points) < 2 or sizes != sorted(set(sizes)):
                raise ValueError(f"all_reduce_seconds.{ranks}: give two points or more, bytes ascending")
        return self


class HostEntry(StrictModel):
    """Times of a host: a table in catalog/hosts.toml, or server.toml in a user's folder hosts, in its place."""

    title: Text = Field(description="What kind of host it is.")
    sync_step_seconds: Seconds = Field(description="Wait of a step for the host under synchronous scheduling.")
    waiting_step_seconds: Seconds = Field(description="Wait of a round that is scheduled ahead but needs its result.")
    sync_sequence_seconds: Seconds = Field(description="More per sequence under synchronous scheduling.")
    wait_spread: Annotated[float, Field(ge=0, le=2)] = Field(
        description="80% range of these waits, as a logarithm on each side."
    )
    source: Text = Field(description=SOURCE)
    kernel_launch_seconds: Seconds = Field(description="Per kernel that the host launches outside a CUDA graph.")
    kernel_launch_spread: Annotated[float, Field(ge=0, le=2)] = Field(description="80% range of that time, likewise.")
    kernel_launch_source: Text = Field(description="Where the time per launch comes from.")


class ProcessorEntry(StrictModel):
    """A processor with its main memory: a table in catalog/processors.toml, NAME.toml in a user's folder processors, or
    --cpu FILE.toml (--gpu FILE.toml for a machine without a GPU)."""

    title: Text = Field(description="Shown in tables and reports.")
    aliases: list[str] = Field(
        default_factory=list, description="Other names. Bundled processors only: a user's is named by its file."
    )
    cores: PositiveInt = Field(description="Physical cores that the engine uses; of hybrid ones the performance cores.")
    base_clock_hz: Annotated[float, Field(ge=1e8, le=1e10)] = Field(description="Base clock: 4.3e9 is 4.3 GHz.")
    boost_clock_hz: Annotated[float, Field(ge=1e8, le=1e10)] = Field(
        description="Boost clock. All cores are taken to run between the two."
    )
    instructions: Instructions = Field(
        description="Widest integer instructions: avx2, avx-vnni, avx512, avx512-vnni, amx, neon-dotprod or i8mm."
    )
    memory_channels: PositiveInt = Field(description="Memory channels of 64 bits, all sockets together.")
    memory_transfers_per_second: Annotated[float, Field(ge=1e8, le=1e11)] = Field(
        description="Transfers per channel and second: DDR5-5600 is 5600e6."
    )
    memory_bytes: Annotated[float, Field(ge=1e8, le=1e14)] = Field(description="Main memory installed: 64e9 is 64 GB.")
    pcie_generation: Annotated[int, Field(ge=3, le=5)] = Field(description="PCIe generation of its graphics slots.")
    measured_bytes_per_second: Annotated[float, Field(ge=1e8, le=1e14)] | None = Field(
        None, description="What a test such as STREAM reads on all cores; left out: a share of the channels' bandwidth."
    )
    source: Text = Field(description=SOURCE)

    @model_validator(mode="after")
    def _ordered_clocks(self) -> ProcessorEntry:
        if self.boost_clock_hz < self.base_clock_hz:
            raise ValueError("boost_clock_hz is below base_clock_hz; exchange them")
        return self


SCHEMAS: dict[str, type[StrictModel]] = {
    "model": ModelEntry,
    "gpu": DeviceTable,
    "drafter": DrafterEntry,
    "engine-time": EngineTimeEntry,
    "fabric": FabricEntry,
    "host": HostEntry,
    "processor": ProcessorEntry,
}


def json_schema(kind: str) -> dict[str, Any]:
    """What docs/reference/schemas/KIND.schema.json holds."""
    schema = SCHEMAS[kind].model_json_schema()
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"Specmargin catalog: {kind}"}
    return head | {key: value for key, value in schema.items() if key != "title"}
