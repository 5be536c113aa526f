"""Language models as shapes: parameters, weight bytes, KV bytes per token, read from `config.json`.

`load_llm` takes a preset, a file, a folder or a mapping and gives an `LlmSpec`, a sequence of layer groups (`layers`).
`hf_*` know how the world writes configuration files; a feature that is not modelled is refused by name. Knows no GPUs.
"""

from planner.llm.api_prices import ApiPrice, api_prices_of, listed_api_prices, llm_family, own_price
from planner.llm.attention import (
    GroupedQueryAttention,
    LatentAttention,
    LinearAttention,
    LinearMap,
    StateSpace,
)
from planner.llm.checkpoints import (
    SIXTEEN_BIT,
    Checkpoint,
    checkpoint_bytes,
    checkpoint_named,
    checkpoints_of,
    converted_from,
    format_words,
    main_format,
    narrower_precisions,
    offered_on,
    published_as,
)
from planner.llm.compressed_attention import HEAD_GROUP, INDEX_SCALE_BYTES, CompressedAttention
from planner.llm.drafts import (
    FUSED_LAYERS,
    DraftMethod,
    DraftSpec,
    acceptance_of_gain,
    draft_of,
    draft_parameters,
    draft_precision,
    draft_serves,
    geometric_acceptance,
    load_draft,
    measured_acceptance,
    wide_weights,
)
from planner.llm.feed_forward import DenseFeedForward, MoeFeedForward
from planner.llm.formats import ACTIVATIONS_OF, BYTES_PER_VALUE, Part, PartPrecision, Precision
from planner.llm.layers import Attention, FeedForward, LayerGroup, attentions, feed_forwards
from planner.llm.load import list_llms, load_from_hub, load_llm, packaged_llm
from planner.llm.names import architecture_name, preset_of
from planner.llm.sizes import (
    active_parameters,
    embedding_parameters,
    encoder_parameters,
    encoder_weight_bytes,
    index_bytes_per_token,
    kept_residuals,
    kv_bytes_per_token,
    layer_norms,
    linear_parameters,
    linear_parameters_by_part,
    lm_head_weights,
    parameters,
    residual_mixes,
    state_bytes,
    stream_mix_values,
    weight_bytes,
)
from planner.llm.spec import LlmSpec, PipelineStage, pipeline_stages, require_context
from planner.llm.vision import EncodedImage, EncoderMatrix, VisionEncoder
