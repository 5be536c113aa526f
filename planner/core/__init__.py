"""Tools that every package shares.

Errors that name field, value, bound and fix (`errors`), frozen records (`record`), records as JSON and back
(`documents`), versions of files (`versions`), text and tables (`tables`), number formats, latency metrics and units
(`formats`), places of packaged data (`presets`), files that are written whole (`whole_files`), functions that numba
compiles (`compiled`, `vectorized`, `interpolation`) and the code kept of it (`kept_code`), curves and roots (`curves`),
and names for arrays in signatures (`arrays`).
"""

from planner.core.arrays import BoolArray, Constants, FloatArray, IntArray
from planner.core.compiled import compiled
from planner.core.curves import monotone_curve, root_between
from planner.core.documents import Reader, json_schema, json_text, plain
from planner.core.errors import (
    MISSING_FIELD,
    InputError,
    PlannerError,
    UnknownNameError,
    UnsupportedFeatureError,
    from_validation_error,
    shorten,
)
from planner.core.formats import GIB, HOURS_PER_MONTH, Dtype, Metric, SpareLayers
from planner.core.interpolation import (
    cell_of,
    interpolated,
    interpolated_at,
    knot_below,
    last_knot,
    value_in,
    with_knots,
)
from planner.core.presets import (
    ENGINE_LIMITS,
    engine_limit_names,
    preset,
    preset_rows,
    table_facts,
    table_names,
    template_environment,
)
from planner.core.record import Day, Frozen, Keyed, Record, checked_once, made_later, rebuilt
from planner.core.tables import (
    MOST_TYPED_TOKENS,
    Columns,
    Report,
    Table,
    change,
    columns_of,
    duration,
    markdown_table,
    markdown_text,
    money,
    number_of,
    one_line,
    percent,
    rough_share,
    share_with_error,
    significant,
    typed_count,
    typed_gpus,
    typed_lengths,
    typed_seconds,
    typed_share,
    typed_token_time_s,
    unit,
    with_unit,
)
from planner.core.vectorized import Vectorized, vectorized
from planner.core.versions import CALIBRATION, PLAN, SCENARIO, VERSION_KEY
from planner.core.whole_files import require_writable, write_all_whole, write_text, write_texts, write_whole, written_on
