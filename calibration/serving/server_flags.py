"""Settings of a measured run read from the flags its server was started with.

Some tables hold no settings of each point but the launch command of each configuration: ``NAME_settings.csv`` beside
``NAME_points.csv``, rows matched by `MATCHED`, flags in the column ``server_flags``. They are those of the newest
script; older runs may have had others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

MATCHED = ("sku", "precision", "engine", "speculative", "checkpoint")
"""Columns by which a configuration belongs to a point."""
NO_GRAPHS = "none"
"""Cell of the column ``cuda_graph`` where no step is captured."""
SETTING_OF_FLAG = {
    "--chunked-prefill-size": "max_num_tokens",
    "--max-num-batched-tokens": "max_num_tokens",
    "--max-running-requests": "max_num_seqs",
    "--max-num-seqs": "max_num_seqs",
    "--kv-cache-dtype": "kv_cache_dtype",
    "--mem-fraction-static": "kv_memory_fraction",
    "--gpu-memory-utilization": "kv_memory_fraction",
    "--scheduler-recv-interval": "other_settings",
    "--speculative-num-steps": "speculative_tokens",
    "--cuda-graph-max-bs": "cuda_graph",
}
"""Flags of vLLM and SGLang -> column of ``serving_settings.csv``."""
EAGER = re.compile(r"--(?:enforce-eager|disable-(?:decode-)?cuda-graph)(?![\w-])")
"""Flags of vLLM and SGLang by which no step of decodes is captured."""
WORD_BEFORE = {"--scheduler-recv-interval": "scheduler-recv-interval ", "--cuda-graph-max-bs": "up to batch "}
INFERENCEX_SCRIPTS = "benchmarks/single_node/"
INFERENCEX_RANGE_RATIO = "0.8"
"""Shortest over longest length that InferenceX's client draws in every run of its fixed-length scripts (its
``full-sweep-tmpl.yml``); the launch script does not say it."""

Row = Mapping[str, str]


def settings_of_flags(row: Row, configurations: Sequence[Row]) -> dict[str, str]:
    """Settings of a point, as ``serving_settings.csv`` words them, of the one configuration that matches it; else none.

    A flag whose value is a variable of the script has that of ``script_variables``; the number of users is the point's.
    What neither knows is left out.

    >>> flags = {"server_flags": "--chunked-prefill-size=131072 --kv-cache-dtype fp8_e4m3 --tp $TP", "script": ""}
    >>> settings_of_flags({}, [flags])["max_num_tokens"], settings_of_flags({}, [flags])["kv_cache_dtype"]
    ('131072', 'fp8_e4m3')
    """
    matching = [found for found in configurations if all(found.get(name) == row.get(name) for name in MATCHED)]
    if len(matching) != 1:
        return {}
    found = matching[0]
    settings = {name: found[name] for name in ("client_requests", "checkpoint") if found.get(name)}
    if found.get("script", "").startswith(INFERENCEX_SCRIPTS):
        settings["client_range_ratio"] = INFERENCEX_RANGE_RATIO
    flags = _with_values(found.get("server_flags", ""), found.get("script_variables", ""), row)
    for flag, value in re.findall(r"(--[a-z_-]+)[= ]\"?([\w.]+)", flags):
        setting = SETTING_OF_FLAG.get(flag.replace("_", "-"))
        if setting is not None:
            settings[setting] = WORD_BEFORE.get(flag, "") + value
    if EAGER.search(flags):
        settings["cuda_graph"] = NO_GRAPHS
    return settings


def _with_values(flags: str, variables: str, row: Row) -> str:
    """Flags with the values of the script's variables in place of their names.

    >>> _with_values("--chunked-prefill-size=$PREFILL_SIZE", "PREFILL_SIZE=196608;PREFILL_SIZE=32768", {})
    '--chunked-prefill-size=196608'
    """
    values = {"CONC": [row["concurrency"]]} if row.get("concurrency") else {}
    for name, value in re.findall(r'(\w+)="?(?:\$\{\w+:-)?(\$?[\w.]+)', variables):
        values.setdefault(name, []).append(value)

    def value_of(name: str) -> str:
        if name not in values:
            return f"${name}"
        known = values[name]
        return value_of(known[0][1:]) if known[0].startswith("$") else known[-1 if _is_long_and_busy(row) else 0]

    return re.sub(r"\$\{?(\w+)\}?", lambda found: value_of(found.group(1)), flags)


def _is_long_and_busy(row: Row) -> bool:
    """Where scripts that set a variable twice mean the second: 8192 in and 1024 out with more than 32 users.

    The one condition there is: PREFILL_SIZE of ``dsr1_fp4_mi355x.sh`` (SemiAnalysisAI/InferenceX at 1d3f38d).
    """
    lengths, users = (row.get("input_tokens"), row.get("output_tokens")), row.get("concurrency", "")
    return lengths == ("8192", "1024") and users.isdigit() and int(users) > 32
