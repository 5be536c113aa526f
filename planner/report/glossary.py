"""Terms on the page: unit, definition and provenance of every number.

A *term* is looked up by the heading of a column, the name of a row or the label of a figure, units in brackets aside.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache


@dataclass(frozen=True)
class Term:
    """A quantity in words.

    Attributes:
        name: as headings write it, without its unit.
        unit: of it, or empty.
        meaning: its definition, in a sentence.
        provenance: measured, fitted, simulated, predicted, listed, given, assumed, counted.
    """

    name: str
    unit: str
    meaning: str
    provenance: str

    @property
    def hint(self) -> str:
        """All of it in one text, for a hover."""
        unit = f" [{self.unit}]" if self.unit else ""
        return f"{self.name}{unit}: {self.meaning} ({self.provenance})"


_FLEET = (
    Term("$ per hour", "USD/h", "Price of all GPUs of the fleet for an hour.", "listed prices times GPUs"),
    Term("$ per month", "USD/month", "The same for a month of 730 hours.", "listed prices times GPUs"),
    Term("Fleet", "", "GPUs that serve the traffic, by SKU.", "counted, from the integer program"),
    Term("Per month", "USD/month", "Price of all GPUs of the fleet for 730 hours.", "listed prices times GPUs"),
    Term(
        "Per million output tokens",
        "USD",
        "Share of the cost for answers over the tokens written at the planned load; in a disaggregated fleet, the "
        "decode pool's.",
        "listed prices over given traffic",
    ),
    Term(
        "Headroom",
        "%",
        "Growth of the demand up to which this fleet keeps its targets with the confidence asked for.",
        "predicted by theory",
    ),
    Term("pool", "", "Identical replicas in one role: prefill, decode or mixed.", "chosen by the integer program"),
    Term("mixed", "", "A pool whose replicas run prompts and answers in the same steps.", "chosen"),
    Term("prefill", "", "A pool that processes prompts up to the first output token.", "chosen"),
    Term("decode", "", "A pool that makes the output tokens after the first.", "chosen"),
    Term("SKU", "", "One accelerator as one can rent or buy it.", "hardware database"),
    Term("TP", "GPUs", "Tensor parallelism: GPUs over which every layer of a replica is split.", "chosen"),
    Term("PP", "stages", "Pipeline parallelism: stages that each hold consecutive layers of a replica.", "chosen"),
    Term(
        "DP", "ranks", "Attention data parallelism: ranks of a replica that each attend for their requests.", "chosen"
    ),
    Term("EP", "GPUs", "Expert parallelism: GPUs over which whole experts are spread.", "chosen"),
    Term("split", "", "How a replica is split: TP, PP, DP and EP; degrees of 1 are left out, save TP.", "chosen"),
    Term("GPUs each", "GPUs", "GPUs of one replica: TP x PP x DP.", "counted"),
    Term("weights", "", "Number format of most weights.", "chosen"),
    Term("KV", "", "Number format of the KV cache.", "chosen"),
    Term("served by", "", "The engine that every replica runs.", "chosen"),
    Term("replicas", "", "Copies of the weights that each run an engine of their own.", "counted"),
    Term("GPUs", "", "GPUs used by the replicas.", "counted"),
    Term(
        "servers",
        "",
        "Servers filled, no replica straddling two unless it is larger; the total counts shared ones once.",
        "counted",
    ),
    Term("max running requests", "requests", "Most requests that decode at once on a replica.", "chosen"),
    Term("chunk budget", "tokens", "Most tokens in one step of the engine.", "chosen"),
    Term("requests/s", "1/s", "Mean arrivals served.", "given, and routed by the integer program"),
    Term("USD/hour", "USD/h", "Cost of these GPUs for an hour.", "listed prices times GPUs"),
    Term("what", "", "The quantity in this row.", "name"),
    Term("value", "", "Its value; the row says its unit and where it comes from.", "see the row"),
)
_MONEY = (
    Term("$ per million input tokens", "USD", "What prompts cost; see the next row.", "listed prices over traffic"),
    Term(
        "$ per million output tokens",
        "USD",
        "What answers cost. Both share the cost of a mixed pool by what they take from its largest rate; a prefill "
        "pool is all input, a decode pool all output.",
        "listed prices over given traffic",
    ),
    Term("$ per million tokens", "USD", "Cost of the fleet over all tokens, of prompts and answers.", "listed prices"),
    Term("$ per user and month", "USD", "Cost of a month over the users of the service.", "listed prices, given users"),
    Term("$ per thousand requests", "USD", "Cost of the fleet over the requests it serves.", "listed prices"),
    Term("goodput", "1/s", "Requests per second that meet every target of their SLO at once.", "simulated"),
    Term("goodput per dollar", "requests/USD", "Goodput over the cost of the fleet.", "simulated, listed prices"),
    Term("bought", "", "Way the GPUs are had: on demand, reserved, spot, owned.", "chosen among those allowed"),
    Term("USD/GPU-hour", "USD/h", "Price of one GPU for an hour.", "listed, or given"),
    Term("provider", "", "Who sells at this price.", "listed"),
    Term("region", "", "Where the price holds.", "listed"),
    Term("read on", "date", "Day on which the price was read.", "listed"),
    Term("confidence", "", "How far the price can be trusted: high, medium or low.", "hardware database"),
    Term("cost", "USD/h", "Cost of the fleet for an hour.", "listed prices times GPUs"),
    Term("price", "USD/GPU-h", "Least price of one GPU for an hour that applies now.", "listed, or given"),
)
_LATENCY = (
    Term("metric", "", "Which time: TTFT, TPOT, E2E or ITL.", "name"),
    Term("TTFT", "ms", "Time to first token: from a request's arrival to its first token at the client.", "see from"),
    Term("TPOT", "ms", "Time per output token: (E2E - TTFT) / (output tokens - 1) of one request.", "see from"),
    Term("E2E", "s", "From a request's arrival to its last token at the client.", "see from"),
    Term("ITL", "ms", "One gap between two output tokens, over all gaps of all requests.", "see from"),
    Term("from", "", "Predicted by queueing theory, or simulated request by request.", "name"),
    Term("mean", "as the row", "Mean over requests (of ITL over gaps).", "see from"),
    Term("target", "as the row", "A metric and the percentile of it that must stay within a threshold.", "given"),
    Term("at most", "as the row", "The threshold of the target.", "given"),
    Term("predicted", "as the row", "By queueing theory on the step times of the roofline and its fits.", "predicted"),
    Term("simulated", "as the row", "From serving the traffic request by request on the same step times.", "simulated"),
    Term("wanted share", "%", "Share of requests that must stay within the threshold.", "given"),
    Term("simulated share", "%", "Share of simulated requests within the threshold.", "simulated"),
    Term(
        "met",
        "",
        "Simulated within the threshold, by the lower end of the sampling error; predicted where not simulated.",
        "judged",
    ),
    Term("difference", "as the row", "How far the two differ; of costs this less the plan's.", "computed"),
    Term("difference %", "%", "The same as a share of the plan's cost.", "computed"),
    Term("class", "", "Kind of request in the mix.", "given"),
    Term("own targets met", "%", "Share of the class's requests within all its own targets.", "simulated or predicted"),
)
_LOAD = (
    Term(
        "utilisation", "%", "Offered over largest stable rate (predicted); share of time busy (simulated).", "see from"
    ),
    Term(
        "gives out first",
        "",
        "What the pool runs out of first as the rate grows, if no target is missed before.",
        "see from",
    ),
    Term("bound", "", "Resource that most of the step time waits for: compute, memory, link, overhead.", "roofline"),
    Term("running requests", "requests", "Requests that decode at once on a replica, time average.", "see from"),
    Term("step", "ms", "Mean duration of one step of the engine.", "roofline, fitted where calibrated"),
    Term("KV held", "%", "Mean share of the KV capacity that requests hold.", "see from"),
    Term("KV waste", "%", "Share of the KV memory set aside for requests that held no token of theirs.", "simulated"),
    Term("preemptions per request", "", "How often a request lost its KV cache and started again.", "simulated"),
    Term("prefix hits", "%", "Share of the input tokens found in the prefix cache.", "see from"),
)
_CONFIDENCE = (
    Term("threshold", "s", "Most that the latency may be.", "given"),
    Term("as estimated", "s", "Latency with step times as estimated.", "simulated"),
    Term("if slow", "s", "Latency with every step as slow as the fleet was planned for (`confidence`).", "simulated"),
    Term("share within it if slow", "%", "Share of requests within the threshold then.", "simulated"),
)
_LOSSES = (
    Term("loss of", "", "What fails: one replica, or the replicas of a pool that are on one server.", "counted"),
    Term("a replica", "", "One replica of any pool fails.", "counted"),
    Term("a server", "", "All replicas of any pool that one server holds fail.", "counted"),
    Term(
        "survives",
        "",
        "Whether every target holds with what is left: yes with the confidence of the plan, or as estimated only.",
        "predicted by queueing theory",
    ),
    Term("worst: without", "", "The replicas whose loss hurts most.", "predicted by queueing theory"),
    Term("nearest target", "", "The target that is nearest to its threshold, or furthest beyond it.", "predicted"),
    Term(
        "to survive it", "", "The setting that plans a fleet that survives it with the confidence of the plan.", "given"
    ),
)
_REPLAYS = (
    Term("replay", "", "The replicas through which the recording was sent.", "chosen"),
    Term("requests", "", "Requests of the recording that were measured.", "counted"),
    Term("minutes", "min", "From the first to the last of them.", "measured"),
    Term("share", "%", "Share of the requests within the threshold.", "simulated"),
    Term("worst minute", "min", "Minute after the first request in which that share is smallest.", "simulated"),
    Term("share in it", "%", "Share of the requests sent in that minute within the threshold.", "simulated"),
)
_SEARCH = (
    Term("only", "", "The one SKU or mode that the fleet is restricted to.", "chosen"),
    Term("best fleet", "", "n x SKU TPk: n replicas of k GPUs each, the cheapest that holds every target.", "theory"),
    Term("why it is not the plan", "", "Of a fleet that costs no more than the plan, what the search knows.", "search"),
    Term("mode", "", "Mixed, or disaggregated: prefill and decode in pools of their own.", "given"),
    Term("why nothing is offered", "", "The nearest reason why no configuration holds the targets.", "predicted"),
    Term("relax by", "factor", "Factor on that target from which something is offered; -: none helps.", "predicted"),
    Term("part of the traffic", "", "Model, class or length range that is routed as one.", "given"),
    Term("goes to", "", "Pools that serve it.", "chosen by the integer program"),
    Term("period", "", "Part of the day or week.", "given"),
    Term("demand", "1/s", "Arrivals to be served.", "given"),
    Term("served", "1/s", "Requests served, those that may wait included.", "integer program"),
    Term("replicas on", "", "Replicas that run in this period.", "integer program"),
    Term("GPUs held", "", "GPUs paid for in this period.", "integer program"),
    Term("model", "", "The language model, and its number of parameters.", "its published config.json"),
    Term("precision", "", "Number formats of weights, activations and KV cache.", "given"),
    Term("traffic", "1/s", "Mean arrivals, and their SCV: variance / mean^2 of the gaps, 1 is Poisson.", "given"),
    Term("lengths", "tokens", "Input and output tokens of a request.", "given, or measured in a trace"),
    Term("targets", "", "What must hold: a percentile of a latency within a threshold.", "given"),
    Term("objective", "", "What the best fleet is: least cost, most served, or most served per dollar.", "given"),
    Term("limits", "", "What may not be exceeded: budget, GPUs, power, ...", "given"),
    Term("searched", "", "Configurations looked at: SKU, mode, TP, batch limit, chunk budget.", "counted"),
    Term("planned in", "s", "Wall time of planning.", "measured"),
)
_PROGRAM = (
    Term("constraint", "", "A limit of the integer program, by its name in docs/explanation/optimizer.md.", "name"),
    Term("of", "", "What the limit is on.", "name"),
    Term("used and limit", "as the limit", "What the plan uses of the limit, and the limit.", "integer program"),
    Term("slack", "as the limit", "What is left of the limit.", "integer program"),
    Term("dual", "objective per unit", "Change of the objective per unit of the limit.", "linear relaxation"),
    Term("binding", "", "Whether the limit is used up.", "integer program"),
    Term("serve_demand", "1/s", "All that arrives is served.", "given"),
    Term("cap_at_demand", "1/s", "No more is served than arrives.", "given"),
    Term("serve_minimum", "1/s", "At least this much is served.", "given"),
    Term("within_resource", "GPUs, kW, kg", "No more of a resource is used than is allowed.", "given"),
    Term("pin_resource", "GPUs", "At least so much of a resource is used.", "given"),
    Term("within_purchase", "GPUs", "No more is bought in one way than can be had (a quota, GPUs owned).", "given"),
    Term("within_groups", "SKUs", "No more different SKUs than allowed.", "given"),
    Term("within_budget", "USD/h", "The fleet costs no more than the budget.", "given"),
)
_WHY = (
    Term("asked", "as the row", "The value in the request.", "given"),
    Term("instead", "as the row", "The value tried.", "computed"),
    Term("gain", "as the objective", "How much better the plan gets; negative: worse.", "planned again by theory"),
    Term("requirement", "", "A target, limit or rule of the request.", "given"),
    Term("costs", "as the objective", "What the plan gains without the requirement.", "planned again by theory"),
    Term("without it", "USD/h", "Cost of the plan without the requirement.", "planned again by theory"),
    Term("fleet without it", "", "The plan without the requirement.", "planned again by theory"),
    Term("budget", "USD/h", "Most the fleet may cost.", "given"),
    Term("power", "kW", "Most power all GPUs may draw, PUE included.", "given"),
    Term("CO2", "kg/h", "Most CO2 the fleet's power may cause.", "given"),
    Term("most SKUs", "", "Most different SKUs in the fleet.", "given"),
    Term("fewest replicas of a pool", "", "Replicas that every pool has at least.", "given"),
    Term("spare replicas", "", "Replicas of every pool that may fail without a target being missed.", "given"),
    Term("a server may fail", "", "The targets hold with the replicas of any one server gone.", "given"),
    Term("forbidden SKUs", "", "SKUs that may not be used.", "given"),
    Term("whole servers", "", "GPUs are bought by the server, not by the instance.", "given"),
    Term("one provider", "", "Only prices of one provider apply.", "given"),
    Term("one region", "", "Only prices of one region apply.", "given"),
    Term("input", "", "What is moved, one thing at a time.", "given or fitted"),
    Term("moved", "", "How far; kernels to an end of the middle 90 % of their measurements.", "assumed, or fitted"),
    Term("planned anew", "USD/h", "Cost of the plan made for the moved input.", "planned again by theory"),
    Term("kept: holds", "", "Whether this same fleet still holds its targets.", "predicted by theory"),
    Term("serves", "1/s", "Largest demand that this same fleet serves within the targets.", "predicted by theory"),
    Term("speed of kernels", "", "All fitted kernels faster or slower together.", "spread of held-out measurements"),
    Term("input lengths", "tokens", "Input tokens of every request.", "given"),
    Term("output lengths", "tokens", "Output tokens of every request.", "given"),
    Term("shared prefixes", "tokens", "Tokens at the start that requests have in common.", "given"),
    Term("GPUs now", "", "GPUs of this SKU in the plan.", "counted"),
    Term("plan changes at", "USD/GPU-h", "Price at which the plan takes more or fewer of this SKU.", "planned again"),
    Term("becomes", "", "The plan at that price.", "planned again by theory"),
    Term("API", "", "Provider that sells the same model by the token.", "listed"),
    Term("input, cached, output", "USD per million tokens", "Prices of the API.", "listed"),
    Term("own input, output", "USD per million tokens", "What this fleet's tokens cost.", "listed prices over traffic"),
    Term("own", "USD/h", "Cost of this fleet.", "listed prices times GPUs"),
    Term("pays from", "1/s", "Rate from which this fleet costs less than the API.", "computed"),
    Term("load", "%", "That rate over the planned one.", "computed"),
    Term("without", "", "The choice of the plan that is ruled out here.", "chosen"),
    Term("against the plan", "as the objective", "How much better; negative: worse.", "planned again by theory"),
    Term("held back by", "", "The target nearest to its threshold, and where most step time goes.", "predicted"),
    Term("feasible from", "as the row", "Nearest value from which a fleet exists.", "planned again by theory"),
    Term("step times", "", "As estimated, or so slow that targets hold with that probability.", "fitted"),
    Term("exact estimates", "", "Every step as long as estimated: 50 % confidence.", "fitted"),
    Term("against exact", "as the objective", "How much better than with exact estimates.", "planned again by theory"),
    Term("with engine", "", "Serving engine that it would be measured with.", "given"),
    Term("measuring is worth", "USD/month", "Mean gain of planning after a measurement.", "planned again by theory"),
    Term("changes the plan", "", "Probability that a measurement changes the fleet.", "planned again by theory"),
    Term("kernels off by", "%", "Standard deviation of step times, by kernels and what was not measured.", "measured"),
    Term("model off by", "%", "Standard deviation of step times, by what a model adds.", "fitted to serving runs"),
    Term("settled by", "", "Measurement of what is more uncertain: kernels, or a benchmark of the model.", "computed"),
    Term("setting", "", "Field of the scenario and its new value.", "given"),
    Term("before", "as the row", "The plan as asked.", "predicted by theory"),
    Term("after", "as the row", "The plan with the changes.", "predicted by theory"),
    Term("binding limits", "", "Limits of the integer program that are used up.", "integer program"),
    Term("most step time", "", "Pool and resource where most of the step time goes.", "roofline"),
)
_BUYING = (
    Term("way of buying", "", "Terms under which all GPUs are bought, as price lists name them.", "listed"),
    Term("USD/month", "USD", "Cost over 730 hours, of an API for the mean traffic of the plan.", "listed prices"),
    Term("cost against the plan", "%", "Cost over that of the plan as it is bought now.", "counted"),
    Term("cheapest fleet", "", "GPUs of the cheapest fleet under these terms, or why there is none.", "by theory"),
    Term("no price for", "", "SKUs without a usable price under these terms; the fleet does without them.", "listed"),
    Term("input tokens", "USD per million tokens", "Price of input tokens that no cache holds.", "listed"),
    Term("cached tokens", "USD per million tokens", "Price of those in the prompt cache of the provider.", "listed"),
    Term("output tokens", "USD per million tokens", "Price of output tokens.", "listed"),
    Term("cheaper", "", "Which of the two costs less at the planned demand.", "computed"),
    Term(
        "fleet pays from",
        "1/s",
        "Mean demand from which this fleet, paid whether used or not, costs less than the API.",
        "cost of the fleet / (3600 x price of a request)",
    ),
    Term("of planned", "%", "That demand over the planned one; above 100 % the API is cheaper.", "computed"),
    Term("source", "", "Page on which the price was read.", "listed"),
)
_COMPARE = (
    Term("system", "", "A way of serving, as a paper or an engine describes it.", "see described by"),
    Term("what it is", "", "The system in a sentence.", "its description"),
    Term("described by", "", "Where the system is described.", "cited"),
    Term("theory", "", "Whether theory covers the system, or simulation alone.", "docs/how-to/compare-systems.md"),
    Term("within targets, predicted", "%", "Share of requests within all targets at once.", "predicted"),
    Term("within targets, simulated", "%", "The same, counted.", "simulated"),
    Term("output tokens/s", "1/s", "Output tokens made each second.", "simulated, or predicted"),
    Term("sustains", "1/s", "Largest arrival rate at which every target holds.", "predicted by theory"),
    Term("keeps up", "", "Whether all that arrives is served in the long run.", "predicted, or simulated"),
    Term("$ per M output tokens", "USD", "All GPUs over the output tokens, prompts included.", "listed prices"),
    Term("$ per M input and output tokens", "USD", "All GPUs over all tokens.", "listed prices"),
    Term("at the sustained rate: $ per M output tokens", "USD", "The same at the largest rate.", "listed prices"),
    Term("at the sustained rate: $ per M of both", "USD", "The same at the largest rate, all tokens.", "listed prices"),
)
TERMS: tuple[Term, ...] = (
    *_FLEET,
    *_MONEY,
    *_LATENCY,
    *_LOAD,
    *_CONFIDENCE,
    *_LOSSES,
    *_REPLAYS,
    *_SEARCH,
    *_PROGRAM,
    *_WHY,
    *_BUYING,
    *_COMPARE,
)
"""Every term; names differ in more than case."""

_METRIC = r"(ttft|tpot|e2e|itl)"
_FAMILIES: tuple[tuple[str, Term], ...] = (
    (
        rf"(?:.*: )?p[\d.]+ {_METRIC}",
        Term(
            "", "", "Time that this percentile of requests stays within (of ITL: of gaps).", "predicted, or simulated"
        ),
    ),
    (r"\d+ (?:mixed|prefill|decode)", Term("", "", "Pool of the deployment of this number.", "chosen")),
    (rf"mean {_METRIC}", Term("", "", "Mean over requests.", "predicted and simulated")),
    (
        rf"{_METRIC} p[\d.]+|(?:predicted |simulated )?p[\d.]+",
        Term("", "as the row", "So many percent of requests (of ITL: of gaps) stay within it.", "see from"),
    ),
    (r"[\d.]+ % of p[\d.]+", Term("", "", "Where the percentile lies with that confidence.", "simulated, batch means")),
    (r"within [\d.]+ %", Term("", "", "Whether theory and simulation differ by no more than this.", "computed")),
    (r"most .+", Term("", "GPUs", "Most GPUs of this SKU that may be used.", "given")),
    (r"fewest .+", Term("", "GPUs", "GPUs of this SKU that must be used.", "given")),
    (r"quota of .+", Term("", "GPUs", "Most GPUs that can be had there.", "given")),
    (r"price of .+", Term("", "USD/GPU-h", "Price of one GPU of this SKU for an hour.", "listed, or given")),
    (r"[\d.]+ % confidence.*", Term("", "", "Every target holds with this probability.", "fitted")),
    (r"[\d.,]+/s", Term("", "%", "Share of requests within all targets at this arrival rate.", "simulated")),
)
"""Terms of labels that hold a number or a name, by what the label looks like."""


@cache
def _by_name() -> dict[str, Term]:
    return {_plain(term.name): term for term in TERMS}


def _plain(label: str) -> str:
    return re.sub(r"\s*\[[^\]]*\]\s*", " ", label).strip().lower()


def term(label: str) -> Term | None:
    """The term of a heading, row or label; None where there is none.

    >>> term("$ per hour").unit
    'USD/h'
    >>> term("p99 TTFT [ms]").name
    'p99 TTFT [ms]'
    """
    name = _plain(label)
    if name in _by_name():
        return _by_name()[name]
    families = (family for pattern, family in _FAMILIES if re.fullmatch(pattern, name))
    family = next(families, None)
    return None if family is None else replace(family, name=label)


def hint(label: str) -> str:
    """Text of the hover on a heading, row or label; empty where there is no term."""
    known = term(label)
    return known.hint if known else ""
