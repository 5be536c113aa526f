"""The records of the hardware database: facts with their sources, prices with their dates, fits with their spread.

Facts (datasheet) and fits (calibration) never share a record. A number never travels alone: `Fact` carries
value, source, date and kind; the unit is the suffix of the field that holds it (``_bytes``, ``_bytes_per_s``,
``_flops_per_s``, ``_watts``). Peaks are dense. GB = 1e9 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from hardware_db.memory_rules import MemoryRule, release_of
from planner.core import Dtype, Frozen, InputError, SpareLayers

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Kind(StrEnum):
    """Where a number comes from."""

    DATASHEET = "datasheet"
    MEASURED = "measured"
    FITTED = "fitted"
    ASSUMED = "assumed"


class Confidence(StrEnum):
    """Agreement of independent sources on a record, from weakest to strongest."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Fact(Frozen):
    """One sourced value; its unit is the suffix of the field name that holds it."""

    value: Positive
    source: str = Field(min_length=8, description="URL or citation the value was read from")
    retrieved_on: date = Field(description="day the source was read")
    kind: Kind = Kind.DATASHEET
    note: str = ""


class Topology(StrEnum):
    """Wiring of the GPUs of a scale-up domain."""

    SWITCH = "switch"
    """Any pair can use the whole per-GPU bandwidth (NVSwitch; also a bridged pair)."""
    MESH = "mesh"
    """Point-to-point links to every peer: a pair gets 1/(domain-1) of the per-GPU total (AMD Infinity Fabric)."""
    TORUS = "torus"
    """Nearest-neighbour rings (TPU ICI, NeuronLink)."""
    HOST = "host"
    """No scale-up link: traffic goes over PCIe."""


class ScaleUp(Frozen):
    """The fast link between GPUs of one domain."""

    link: str = Field(description="name, e.g. NVLink4")
    topology: Topology
    domain_gpus: int = Field(ge=1, description="GPUs in the largest coherent domain; 1 = none")
    bandwidth_bytes_per_s: Fact = Field(description="per GPU and per direction, all links together")


class NodeSku(Frozen):
    """The server a GPU comes in."""

    gpus: int = Field(ge=1, description="GPUs in a typical server")
    pcie_bytes_per_s: Fact = Field(description="host link per GPU and direction")
    nic_bytes_per_s_per_gpu: Fact = Field(description="scale-out network per GPU and direction")


SEEN_SHARE = 79.18 / 80.0
"""Share of the datasheet's memory that a process sees where no driver's report is known: that of an H100 of 80 GiB
(`hardware_db/skus/h100-sxm.toml`). A named assumption (`ReplicaConfig.assumptions`)."""


class GpuSku(Frozen):
    """Datasheet facts of one accelerator."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", description="e.g. h100-sxm")
    name: str
    vendor: str
    architecture: str
    year: int
    peak_flops_per_s: Mapping[Dtype, Fact] = Field(description="dense matrix peak per compute format")
    hbm_capacity_bytes: Fact = Field(description="capacity of the datasheet, before the driver's reserve")
    memory_seen_bytes: Fact | None = Field(
        default=None, description="total memory as the driver reports it to a process; None: assumed, see `seen_bytes`"
    )
    hbm_bandwidth_bytes_per_s: Fact
    l2_bytes: Fact | None = None
    sm_count: int = Field(ge=1, description="processors that thread blocks are spread over: SMs, CUs, cores")
    scale_up: ScaleUp
    node: NodeSku
    tdp_watts: Fact | None = None
    confidence: Confidence = Field(description="high, medium or low: do sources agree?")
    note: str = ""

    @model_validator(mode="after")
    def _has_a_16_bit_peak(self) -> GpuSku:
        if not {Dtype.BF16, Dtype.FP16} & set(self.peak_flops_per_s):
            raise InputError("peak_flops_per_s", sorted(self.peak_flops_per_s), "needs a bf16 or fp16 peak")
        return self

    @property
    def short_name(self) -> str:
        """As its vendor calls it, without the vendor: ``MI300X``. People read it everywhere; files and commands take
        `id`.
        """
        return self.name.removeprefix(self.vendor).strip() or self.id

    @property
    def seen_bytes(self) -> float:
        """Total memory that a process sees: as reported, else `SEEN_SHARE` of the datasheet's [bytes]."""
        if self.memory_seen_bytes is not None:
            return self.memory_seen_bytes.value
        return SEEN_SHARE * self.hbm_capacity_bytes.value

    def leaves_by_network(self, gpus: int) -> bool:
        """True if a group of so many GPUs that is larger than a server is joined by the network between servers.

        It is not where one scale-up domain is larger than a server and holds the group.
        """
        return not gpus <= self.scale_up.domain_gpus > self.node.gpus

    def multiplies(self, dtype: Dtype) -> bool:
        """True if its matrix units multiply values of a format, scales included.

        Units that scale blocks of 32 values came with 4-bit ones (OCP Microscaling Formats 1.0; NVIDIA Blackwell, AMD
        CDNA 4). Blocks of 16 with FP8 scales, NVFP4, are NVIDIA's: AMD's take power-of-two scales per 32 values only
        (CDNA 4 instruction set architecture, V_MFMA_SCALE_F32).
        """
        if dtype is Dtype.NVFP4 and self.vendor != "NVIDIA":
            return False
        needed = {dtype.arithmetic, Dtype.FP4} if dtype is Dtype.MXFP8 else {dtype.arithmetic}
        return needed <= set(self.peak_flops_per_s)


class Price(Frozen):
    """Price of one GPU-hour of a SKU: place, commitment and day."""

    sku: str
    provider: str
    region: str
    commitment: str = Field(description="on_demand, spot, reserved_1yr, ...")
    usd_per_gpu_hour: Positive
    source_url: str = Field(min_length=8)
    retrieved_on: date
    instance_type: str = ""
    gpus_per_instance: int = Field(default=1, ge=1)
    gpus_at_once: int | None = Field(default=None, ge=1, description="fewest sold; None: one instance")
    gpus_together: int | None = Field(
        default=None, ge=1, description="most in one server at this price; None: as many as a server has"
    )
    confidence: Confidence = Confidence.MEDIUM
    source_kind: str = Field(default="", description="how it was read: price_api_snapshot, third_party_tracker, ...")
    note: str = ""

    @property
    def block_gpus(self) -> int:
        """GPUs bought at once: an instance, or more of them where fewer are not sold."""
        return max(self.gpus_per_instance, self.gpus_at_once or 1)


class NetworkKind(StrEnum):
    """Network between instances of a provider."""

    RDMA = "rdma"
    """Remote memory access: InfiniBand, RoCE, EFA."""
    GPUDIRECT_TCP = "gpudirect_tcp"
    """TCP that the network card writes to GPU memory (Google's TCPX and TCPXO)."""
    TCP = "tcp"
    """Plain TCP."""


class Instance(Frozen):
    """A size in which a provider sells a SKU, and the network it has: one row of ``prices/instances.csv``."""

    provider: str
    instance_type: str
    sku: str
    gpus: int = Field(ge=1, description="in one instance")
    gpus_at_once: int = Field(ge=1, description="fewest sold of this type")
    sold: str = Field(default="", description="in words: singly, whole node only, ...")
    network: NetworkKind
    network_bytes_per_s: Positive | None = Field(
        default=None, description="of an instance and direction; None: not stated"
    )
    network_name: str = Field(default="", description="as the provider writes it")
    source_url: str = Field(min_length=8)
    retrieved_on: date
    confidence: Confidence = Confidence.MEDIUM
    note: str = ""


class ProviderRegion(Frozen):
    """Where a region of a provider lies: one row of ``prices/regions.csv``."""

    provider: str
    region: str
    country: str = Field(default="", pattern="^([A-Z]{2})?$", description="ISO 3166; empty: not one country")
    continent: str
    skus: Annotated[tuple[str, ...], BeforeValidator(lambda text: text.split() if isinstance(text, str) else text)] = (
        Field(default=(), description="known to be there, whether or not a price names the region")
    )
    kg_co2_per_kwh: float | None = Field(default=None, ge=0, description="of its grid; None: not known")
    grid_of: str = Field(default="", description="region of Google that stands in the same grid, whose figure it is")
    pue: float | None = Field(default=None, ge=1, description="mean over the provider's buildings; None: not known")
    out_usd_per_gb: float | None = Field(default=None, ge=0, description="transfer to users; None: not known [USD/GB]")
    source: str = Field(min_length=8, description="where the provider says so")


class UserArea(Frozen):
    """Where users are, and the cloud region that stands for them: one row of ``network/areas.csv``."""

    name: str = Field(min_length=1)
    utc_offset_hours: float = Field(ge=-12, le=14, description="of its clocks, daylight saving left out")
    stands_at: str = Field(description="region of the table of round trips")
    latitude: float = Field(ge=-90, le=90, description="of that region [degrees north]")
    longitude: float = Field(ge=-180, le=180, description="of that region [degrees east]")
    countries: tuple[str, ...] = Field(default=(), description="in it, by code (ISO 3166) and by name")


class RegionDistance(Frozen):
    """How far users are from a region of a provider: one row of ``network/round_trips.csv``."""

    provider: str
    region: str
    stands_at: str = Field(description="region of the table of round trips")
    how: str = Field(description="itself, same place, nearest, or same country (no nearer place is stated)")
    latitude: float = Field(ge=-90, le=90, description="of that region [degrees north]")
    longitude: float = Field(ge=-180, le=180, description="of that region [degrees east]")
    round_trips_s: Mapping[str, Annotated[float, Field(ge=0)]] = Field(description="by area of users [s]")


class Coefficient(Frozen):
    """A fitted number with its 90 % interval."""

    value: float
    low: float
    high: float

    @model_validator(mode="after")
    def _ordered(self) -> Coefficient:
        if not self.low <= self.value <= self.high:
            raise InputError("coefficient", self.value, f"must lie in its interval [{self.low:g}, {self.high:g}]")
        return self


class Correction(Frozen):
    """Measured error of a kernel form: log(measured / form), tabulated over two sizes of the kernel.

    Between the knots it is interpolated, beyond them it stays at its edge. Which sizes, the form says.
    """

    first_log2: tuple[float, ...] = Field(min_length=1, description="knots of the first size, log2, rising")
    second_log2: tuple[float, ...] = Field(min_length=1, description="knots of the second size, log2, rising")
    log_factor: tuple[tuple[float, ...], ...] = Field(description="one row per knot of the first size")

    @model_validator(mode="after")
    def _shaped(self) -> Correction:
        for name in ("first_log2", "second_log2"):
            knots = getattr(self, name)
            if any(b <= a for a, b in pairwise(knots)):
                raise InputError(name, knots, "knots must rise", "sort them and drop repeats")
        shape = [len(row) for row in self.log_factor]
        if shape != [len(self.second_log2)] * len(self.first_log2):
            wanted = f"needs {len(self.first_log2)} rows of {len(self.second_log2)} values"
            raise InputError("log_factor", shape, wanted, "give one value for every pair of knots")
        return self


class MeasuredShapes(Frozen):
    """Error of a kernel form and its correction at the very shapes that were measured: log(measured / form).

    A curve over one size for every shape, interpolated between the knots and constant beyond them. Which sizes make a
    shape, the form says.
    """

    size_log2: tuple[float, ...] = Field(min_length=1, description="knots of the size, log2, rising")
    shapes: tuple[tuple[Positive, ...], ...] = Field(min_length=1, description="sizes of each measured shape")
    log_factor: tuple[tuple[float, ...], ...] = Field(description="one curve per shape")

    @model_validator(mode="after")
    def _shaped(self) -> MeasuredShapes:
        if any(b <= a for a, b in pairwise(self.size_log2)):
            raise InputError("size_log2", self.size_log2, "knots must rise", "sort them and drop repeats")
        if [len(curve) for curve in self.log_factor] != [len(self.size_log2)] * len(self.shapes):
            wanted = f"needs {len(self.shapes)} curves of {len(self.size_log2)} values"
            raise InputError("log_factor", len(self.log_factor), wanted, "give one value for every shape and knot")
        if len({len(shape) for shape in self.shapes}) > 1 or len(set(self.shapes)) < len(self.shapes):
            raise InputError("shapes", len(self.shapes), "must have the same sizes and differ", "drop repeats")
        return self


class KernelFit(Frozen):
    """One kernel form fitted to measurements: coefficients, and how well they predict what was held out.

    Errors are |fitted / measured - 1|. `spread` is the standard deviation of log(measured / fitted) over the held-out
    measurements: it is what predictions carry as their interval.
    """

    parameters: Mapping[str, Coefficient] = Field(min_length=1, description="of a form of planner.roofline.kernels")
    correction: Correction | None = Field(default=None, description="of the form's time, never below its roofline")
    measured_shapes: MeasuredShapes | None = Field(default=None, description="of both, at the shapes measured")
    samples: int = Field(ge=1, description="measurements the fit used")
    held_out: int = Field(ge=0, description="measurements it was judged on")
    median_error: float = Field(ge=0, description="held-out median")
    p90_error: float = Field(ge=0, description="held-out 90th percentile")
    measured_shape_error: float | None = Field(
        default=None, ge=0, description="held-out median at measured shapes, every other size left out"
    )
    interpolation_error: float | None = Field(default=None, description="held-out median of log-log interpolation")
    spread: float = Field(ge=0, description="standard deviation of log(measured / fitted)")
    measured_on: str = Field(default="", description="SKU whose shares of peak stand in; empty: measured on its own")
    form_of: str = Field(default="", description="SKU whose form few rows were fitted in; empty: its own")
    note: str = ""

    @model_validator(mode="after")
    def _below_peak(self) -> KernelFit:
        for name, coefficient in self.parameters.items():
            if "efficiency" in name and not 0.0 < coefficient.value <= 1.0:
                raise InputError(f"parameters.{name}", coefficient.value, "an efficiency lies in (0, 1]", "refit")
        return self


class Calibration(Frozen):
    """Fits for one (SKU, software stack, date). Without one a prediction runs at efficiency 1 and says so.

    Keys of `kernels` are ``<operator>/<variant>``, e.g. ``gemm/fp8``, ``attention_decode/bf16``, ``all_reduce/8``.
    """

    schema_version: Literal[2] = 2
    sku: str
    stack: str = Field(description="engine and versions, e.g. vllm 0.24.0")
    engine: str = Field(default="", description="id of the engine whose kernels were measured, if any")
    fitted_on: date
    kernels: Mapping[str, KernelFit]
    source: str = Field(min_length=8)
    note: str = ""

    @property
    def lenders(self) -> tuple[str, ...]:
        """SKUs whose shares of peak stand in for kernels that were not measured on its own."""
        return tuple(sorted({fit.measured_on for fit in self.kernels.values() if fit.measured_on}))


class EngineCosts(Frozen):
    """Costs that an engine adds to its kernels, fitted to serving results. All 0 and 1: nothing is known or added.

    The host launches kernels ahead of the GPU, so that a step takes as long as the slower of the two:

        max(stretch * kernels + gap_s * launches + latent_s * latent layers,
            launch_s * launched + latent_launch_s * latent layers)
        + step_s + sequence_s * sequences, and draft_s + draft_sequence_s * sequences where they speculate

    and never less than the rooflines of its kernels: a negative gap says that a kernel starts before the last one has
    ended. `launched` is what the host launches one by one: nothing in a step that is one captured graph, attention and
    the graphs between it in one that was captured in pieces, every kernel in any other (`CapturedGraphs`). In steps
    with prompts `prompt_stretch` stands in the place of `stretch`.

    A process of its own turns tokens into text and sends them while the next step runs. It takes step after step,
    `stream_s` for every sequence in it, so that what steps make faster than that reaches the client late.

    A request reaches the scheduler `request_s` after it was sent, requests one by one `admission_s` apart, and is
    looked at `lag_steps` step boundaries later, because engines prepare a step while the one before it runs. The first
    wave of a benchmark on a server that was just started waits `fresh_s` more, while kernels are compiled and loaded.
    Where prefill and decode have pools of their own, every KV transfer takes `transfer_request_s` beside what its bytes
    and pages take on the link and what it waits for the decode server's steps: a second server is reached, addresses
    are exchanged. Behind Dynamo 0.12 s, fitted to lightly loaded runs (0.12 s of SGLang, 0.16 and 0.12 s of
    TensorRT-LLM on B200 and GB200). Of vLLM 0.03 s, reported: 197 ms from server to server are 29 of transfer, 58 of a
    step and 87 of waiting for steps (github.com/vllm-project/vllm pull request 51919), and Mooncake's first tokens of
    128-token prompts come after 46 ms in all (vllm-v1-pd-performance.md).
    `memory_more_bytes` is no time and counts without a calibration, too.
    """

    step_s: float = Field(default=0.0, ge=0, description="host time of a step that is not hidden")
    sequence_s: float = Field(default=0.0, ge=0, description="host time per running sequence and step")
    stream_s: float = Field(default=0.0, ge=0, description="beside the steps: text of a sequence's new tokens, sent")
    gap_s: float = Field(default=0.0, ge=-6e-6, description="on the GPU, per kernel: until the next one starts")
    launch_s: float = Field(default=0.0, ge=0, description="host time of launching one kernel or graph")
    latent_s: float = Field(
        default=0.0,
        ge=0,
        description="on the GPU, per layer of latent attention fitted kernel by kernel",
    )
    latent_launch_s: float = Field(
        default=0.0, ge=0, description="host time of such a layer that is launched kernel by kernel, beside its kernels"
    )
    draft_s: float = Field(default=0.0, ge=0, description="more host time of a step that checks drafts")
    draft_sequence_s: float = Field(default=0.0, ge=0, description="the same for every sequence in it")
    request_s: float = Field(default=0.0, ge=0, description="HTTP, tokenisation and hand-over of a request")
    fresh_s: float = Field(
        default=0.0,
        ge=0,
        description="until a fresh server takes up its first requests; served traffic does not see it",
    )
    admission_s: float = Field(default=0.0, ge=0, description="time between two requests that arrive together")
    transfer_request_s: float = Field(default=0.0, ge=0, description="per KV transfer: router, descriptors, take-over")
    lag_steps: int = Field(default=0, ge=0, le=8, description="steps already prepared when a request arrives")
    stretch: float = Field(default=1.0, ge=1.0, description="kernels in a serving step over the same kernels alone")
    prompt_stretch: float = Field(default=1.0, ge=1.0, description="the same in a step with prompts")
    memory_more_bytes: float = Field(
        default=0.0,
        description="memory of one GPU that a start-up log shows beyond what is predicted (negative: less)",
    )
    fitted_on: tuple[str, ...] = Field(default=(), description="groups of measurements it was fitted to")
    source: str = Field(default="none: kernels only", min_length=8)


class StateReuse(StrEnum):
    """At which lengths of a prompt an engine keeps recurrent state for prompts that begin alike: elsewhere none is."""

    NONE = "none"
    CHUNK_ENDS = "chunk_ends"
    """At the last whole block of every chunk of a prompt; a block of keys and values is as large as a layer's state."""
    BRANCHES = "branches"
    """Where prompts have parted before, at multiples of so many tokens."""


class EngineFeature(StrEnum):
    """Features that an engine may lack for a family of models."""

    SERVING = "serving"
    PIPELINE = "pipeline parallelism"
    RANKS = "attention data parallelism"
    DECODE_CONTEXT = "decode context parallelism"
    PROMPT_CONTEXT = "context parallelism of prompts"
    EXPERT_GROUPS = "expert parallelism"
    SOME_EXPERT_GROUPS = "expert parallelism over some GPUs of a stage"
    PREFIX_CACHE = "a prefix cache"
    SPECULATION = "speculation"
    OWN_DRAFTS = "drafts by the model's own module"
    DISAGGREGATION = "prefill and decode on pools of their own"
    ENCODERS = "a pool of encoders"
    HOST_KV = "a KV tier in host memory"
    SSD_KV = "a KV tier on local drives"
    SHARED_KV = "a KV tier in a shared store"


class KvTierKind(StrEnum):
    """Where a KV tier behind the GPU keeps its blocks."""

    HOST = "host"
    """Memory of the server."""
    SSD = "ssd"
    """Drives of the server."""
    SHARED = "shared"
    """A store over the network that all servers of a pool share, each with its part of it."""

    @property
    def feature(self) -> EngineFeature:
        """The feature that an engine needs for it."""
        return EngineFeature[f"{self.name}_KV"]


class KvTierFacts(Frozen):
    """Read speed of a tier by one GPU, where none is given: one table of ``kv_tiers.toml``."""

    link_share: Fact | None = Field(default=None, description="of the host link (host) or the NIC (shared) of the SKU")
    read_bytes_per_s: Fact | None = Field(default=None, description="per GPU, where no link of the SKU says it")
    latency_s: Fact = Field(description="fixed time of a read")

    @model_validator(mode="after")
    def _one_bandwidth(self) -> KvTierFacts:
        if (self.link_share is None) == (self.read_bytes_per_s is None):
            raise InputError("link_share", self.link_share, "goes without read_bytes_per_s", "give one of the two")
        return self


class EngineSupport(Frozen):
    """Support of a feature by an engine, for some models: one row of ``engines/support.csv``."""

    engine: str
    feature: EngineFeature
    supported: bool
    families: tuple[str, ...] = Field(default=(), description="model_type of the models; empty: all")
    kinds: tuple[str, ...] = Field(default=(), description="kinds of layers of which a model has one; empty: all")
    beside: tuple[EngineFeature, ...] = Field(default=(), description="features that are used as well; empty: any")
    architectures: tuple[str, ...] = Field(default=(), description="of GPUs, by the start of their names; empty: all")
    since: str = Field(default="", description="first version that has it, where known")
    reason: str = Field(default="", description="what a refusal says")
    source: str = Field(min_length=8)
    retrieved_on: date

    @model_validator(mode="after")
    def _refusals_say_why(self) -> EngineSupport:
        if not self.supported and not self.reason:
            raise InputError("reason", "", "a feature that is not supported needs one", "say what is missing")
        return self


class MeasuredGroup(Frozen):
    """What serving runs of a model on a SKU took over what the engine's constants say: ``engines/measured.csv``.

    The constants are those of all models together. What is left, releases and kernels that no table has, is alike in
    the runs of one model, weight format and SKU, and more so of one split (docs/explanation/how-wrong.md).
    """

    engine: str
    sku: str
    llm: str = Field(description="id of a preset; models of the same layers count as the same")
    weights: Dtype
    split: str = Field(default="", description="parallelism of a replica, as `Parallelism.label`; empty: any other")
    decode: float = Field(gt=0.25, lt=4, description="factor on steps of decodes")
    prompt: float = Field(gt=0.25, lt=4, description="factor on steps with prompts")
    runs: int = Field(ge=1)


class CapturedGraphs(Frozen):
    """Steps that an engine captures as graphs when it starts, by default.

    A step of decodes is one graph. One with prompts, of at most `prompt_tokens`, is a row of graphs, between which the
    attention of each layer is launched. Every larger step is launched kernel by kernel. Smaller ones run padded to the
    next captured size, which is no more than 16 sequences away: not modelled (docs/explanation/formulas.md says why).
    """

    most: int = Field(ge=1, description="largest batch captured, of one attention rank")
    counts_tokens: bool = Field(
        default=False, description="`most` is of tokens, drafts and prompts included; false: of sequences that decode"
    )
    small: tuple[CapturedOnSmallGpu, ...] = Field(default=(), description="GPUs on which it is less, by their memory")
    prompt_tokens: int = Field(default=0, ge=0, description="most tokens of a rank in a captured step with prompts")
    latent_prompt_tokens: int = Field(default=0, ge=0, description="the same of models with latent attention")
    prompts_since: str = Field(default="", description="first release that captures steps with prompts; empty: all")
    prompts_not_on: tuple[str, ...] = Field(default=(), description="GPUs on which none does, by their architecture")
    source: str = Field(min_length=8)

    def most_on(self, hbm_bytes: float, gpus: int) -> int:
        """The largest batch captured on so many GPUs of one stage, each with so much memory."""
        for one in self.small:
            if hbm_bytes < one.below_gib * 2**30:
                return one.most if gpus < one.many_gpus else one.most_on_many
        return self.most

    def prompt_tokens_on(self, architecture: str, latent: bool) -> int:
        """Most tokens in a captured step with prompts of the newest release, on GPUs of an architecture."""
        if architecture.startswith(self.prompts_not_on):
            return 0
        return self.latent_prompt_tokens if latent else self.prompt_tokens

    def captures_prompts(self, version: str) -> bool:
        """Whether a release captures steps with prompts at all. Raises InputError for what is no release."""
        return not self.prompts_since or release_of(version) >= release_of(self.prompts_since)


class CapturedOnSmallGpu(Frozen):
    """The largest batch captured on GPUs of less memory."""

    below_gib: float = Field(gt=0)
    most: int = Field(ge=1, description="on fewer than `many_gpus` GPUs")
    most_on_many: int = Field(ge=1)
    many_gpus: int = Field(default=4, ge=1)


class _Fused(Frozen):
    """What an engine does in the kernel before or after, from a release on."""

    since: str = Field(default="0", description="first release that does so by default")
    source: str = Field(min_length=8)

    def is_in(self, version: str | None) -> bool:
        """Whether a release has it by default; None: the newest. Raises InputError for what is no release."""
        return version is None or release_of(version) >= release_of(self.since)


class FusedQuantisation(_Fused):
    """Norms and gates that write activations in 8 bits with a scale known before, or one for each token."""

    vendors: tuple[str, ...] = Field(min_length=1, description="of the GPUs it does so on")


class FusedNorm(_Fused):
    """All-reduces whose kernel adds the residual and takes the norm that follows, up to a size of the buffer."""

    gpus: tuple[str, ...] = Field(default=(), description="by the start of their id; empty: all")
    families: tuple[str, ...] = Field(default=(), description="of models, by LlmSpec.family; empty: all")
    above_hidden: int = Field(default=0, ge=0, description="only of models with more hidden channels")
    most_bytes: Mapping[int, float] = Field(description="largest buffer [bytes], by GPUs")

    def serves(self, sku: GpuSku, family: str, hidden: int) -> bool:
        """Whether it is for a GPU and a model of a family with so many hidden channels."""
        on_gpu = not self.gpus or sku.id.startswith(self.gpus)
        return on_gpu and hidden > self.above_hidden and (not self.families or family in self.families)


class EngineProfile(Frozen):
    """A serving engine: its defaults, costs and support, with their sources."""

    id: str = Field(description="e.g. vllm")
    name: str
    version: str
    kv_block_tokens: int = Field(ge=1, description="tokens per KV block")
    memory: tuple[MemoryRule, ...] = Field(min_length=1, description="how it lays out memory, from old to new")
    vendors: tuple[str, ...] = Field(default=(), description="of the GPUs it runs on; empty: not limited")
    mixed_steps: bool = Field(default=True, description="by default a step may hold prompts and decodes together")
    whole_prompts: bool = Field(default=False, description="by default prompts are not split over steps")
    reserves_outputs: bool = Field(
        default=True, description="KV blocks for all output tokens are kept from admission on"
    )
    requires_longest_fits: bool = Field(
        default=True,
        description="starts only where one request of the longest length it is told to take fits in the KV cache; "
        "false: lowers that length to what fits",
    )
    spare_layers: SpareLayers = Field(
        default=SpareLayers.BEFORE_LAST, description="stages with a layer more than others"
    )
    state_reuse: StateReuse = Field(default=StateReuse.NONE, description="of recurrent layers, by a prefix cache")
    state_reuse_tokens: int = Field(default=1, ge=1, description="lengths at branches are multiples of this")
    layerwise_kv_tiers: tuple[KvTierKind, ...] = Field(
        default=(), description="KV tiers of which a layer is loaded while the one before it is computed"
    )
    chunkwise_kv_transfer: bool = Field(
        default=False,
        description="by default a prefill server sends the KV cache of a chunk when its step ends; "
        "false: that of the whole prompt in one piece when the prompt ends",
    )
    paged_kv_transfer: bool = Field(
        default=False,
        description="a KV transfer posts every page of every layer by itself; false: runs of pages, or a buffer",
    )
    early_prefix_transfer: bool = Field(
        default=False,
        description="beside `chunkwise_kv_transfer`: what a prefix cache holds of a prompt is sent when its first step "
        "begins; false: with its first chunk",
    )
    overlaps_batches: bool = Field(
        default=False, description="can run two halves of a step alternately, one exchanging while the other computes"
    )
    graphs: CapturedGraphs | None = Field(default=None, description="captured by default; none: any batch that may run")
    fused_quantisation: FusedQuantisation | None = Field(
        default=None, description="8-bit activations written by the kernel before the product; None: by one of its own"
    )
    fused_norms: tuple[FusedNorm, ...] = Field(default=(), description="all-reduces that take the norm after them")
    costs: EngineCosts = EngineCosts()
    costs_by_architecture: Mapping[str, EngineCosts] = Field(
        default_factory=dict, description="by the start of GpuSku.architecture; what they leave out is as in `costs`"
    )
    measured: tuple[MeasuredGroup, ...] = Field(default=(), description="what models were measured to take on SKUs")
    support: tuple[EngineSupport, ...] = Field(default=(), description="what it is known to do for which models")
    source: str = Field(min_length=8)
    retrieved_on: date
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def _costs_of_architectures_are_those_of_the_engine_but(cls, given: object) -> object:
        if not isinstance(given, dict) or not isinstance(costs := given.get("costs"), dict):
            return given
        own = given.get("costs_by_architecture", {})
        return given | {"costs_by_architecture": {name: {**costs, **dict(differ)} for name, differ in own.items()}}

    def memory_rule(self, version: str | None = None, *, dense: bool = True) -> MemoryRule:
        """The memory rule of a release.

        Args:
            version: of the engine; None: the newest rule.
            dense: the model has neither experts nor recurrent layers.

        Raises:
            InputError: the version has no number, or is older than all rules.
        """
        rules = [rule for rule in self.memory if dense or not rule.dense_only]
        if version is None:
            return rules[-1]
        asked = release_of(version)
        found = next((rule for rule in reversed(rules) if release_of(rule.since) <= asked), None)
        if found is None:
            bound = f"how {self.name} laid out memory before {rules[0].since} is not modelled"
            raise InputError("engine_version", version, bound, f"give {rules[0].since} or later, or leave it out")
        return found

    def with_costs(self, costs: EngineCosts) -> EngineProfile:
        """The engine with other costs, the same on every GPU and for every model."""
        return self.model_copy(update={"costs": costs, "costs_by_architecture": {}, "measured": ()})

    def costs_on(self, sku: GpuSku) -> EngineCosts:
        """The costs on a GPU: those of its architecture (by the start of its name), else the engine's."""
        for architecture, costs in self.costs_by_architecture.items():
            if sku.architecture.startswith(architecture):
                return costs
        return self.costs


class OwnHardware(Frozen):
    """SKUs and calibrations that a user brings along: they stand beside those of the database, or in their place."""

    skus: tuple[GpuSku, ...] = ()
    calibrations: tuple[Calibration, ...] = ()
    prices: tuple[Price, ...] = Field(default=(), description="in place of all listed ones of their SKUs")


class HardwareDb(Frozen):
    """Everything `load_hardware()` read, validated and frozen."""

    skus: Mapping[str, GpuSku]
    prices: tuple[Price, ...]
    engines: Mapping[str, EngineProfile]
    calibrations: tuple[Calibration, ...] = ()
    instances: tuple[Instance, ...] = Field(default=(), description="sizes in which GPUs are sold, and their network")
    regions: tuple[ProviderRegion, ...] = Field(default=(), description="where regions of providers lie")
    areas: tuple[UserArea, ...] = Field(default=(), description="where users are")
    distances: tuple[RegionDistance, ...] = Field(default=(), description="round trips from there to regions")
    own: OwnHardware = Field(default=OwnHardware(), description="what of it a user brought along")

    @model_validator(mode="after")
    def _prices_have_skus(self) -> HardwareDb:
        unknown = {price.sku for price in self.prices} - set(self.skus)
        if unknown:
            raise InputError("prices.sku", sorted(unknown), "prices name SKUs that have no record", "add the SKU file")
        return self
