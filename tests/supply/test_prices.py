"""GPU-hour prices against published totals, recounted price lists, tampered ones and scipy's binomial distribution."""

from __future__ import annotations

import csv
import itertools
import re
from datetime import date, timedelta
from pathlib import Path

import pytest
from scipy.stats import binom

from hardware_db import Price, is_cited, select_price
from hardware_db.loader import _read_prices
from planner.core import HOURS_PER_MONTH, InputError
from planner.supply import OwnedGpus, SpotTerms, build_supply, commitment_notes, is_committed, offered_prices
from planner.supply.availability import least_spot_instances, spot_availability, spot_usable_share
from planner.supply.prices import HOURS_PER_YEAR, PriceProblem, owned_usd_per_gpu_hour, price_notes
from tests.markets import DAY, DB, db_with, limits, make_price, only, policy

H100 = DB.skus["h100-sxm"]
SPOT = SpotTerms(interruptions_per_hour=1.0, recovery_s=400.0, probability=0.95)  # up 90 % of the time


@pytest.mark.parametrize(("rent_usd", "hours"), [(98.32, 8556), (77.43, 10_890), (53.95, 15_710)])
def test_owning_breaks_even_with_renting_after_the_published_hours(rent_usd: float, hours: float) -> None:
    """Lenovo Press LP2225 (2025): a server of 8 H100 for 833,806 USD that costs 0.87 USD/h to run, against p5.48xlarge.

    Break-even hours for on demand, 1 and 3 years reserved as in
    https://github.com/alpha-one-index/ai-infra-index/blob/main/specs/buy-vs-rent-decision-framework.md, section 5.
    A server that lives just that long costs per hour what the rented one does.
    """
    server = OwnedGpus(
        capex_usd_per_gpu=833_806 / 8, years=hours / HOURS_PER_YEAR, usd_per_kwh=0.0, other_usd_per_gpu_hour=0.87 / 8
    )
    assert 8 * owned_usd_per_gpu_hour(server, H100) == pytest.approx(rent_usd, rel=2e-4)


@pytest.mark.parametrize(
    ("sku", "card_usd", "total_musd"),
    [("h100-sxm", 30_000, 32.83), ("b200-sxm", 40_000, 43.97)],
)
def test_five_years_of_1024_gpus_cost_what_is_published(sku: str, card_usd: float, total_musd: float) -> None:
    """https://www.aiinframap.com/tools/chips/h100-vs-h200-vs-b200-tco: acquisition and power of three generations.

    It assumes TDP at 70 % utilisation, PUE 1.2, 0.08 USD/kWh, years of 8760 h. The TDPs are those of the database.
    """
    tdp = DB.skus[sku].tdp_watts
    assert tdp is not None
    owned = OwnedGpus(capex_usd_per_gpu=card_usd, years=5, watts=0.7 * tdp.value, pue=1.2, usd_per_kwh=0.08)
    assert 1024 * owned_usd_per_gpu_hour(owned, DB.skus[sku]) * 5 * 8760 / 1e6 == pytest.approx(total_musd, rel=1e-3)


@pytest.mark.parametrize(("capex_usd", "usd_per_hour"), [(50_000, 2.3), (70_000, 3.2)])
def test_all_in_estimates_of_gpu_hours(capex_usd: float, usd_per_hour: float) -> None:
    """Paid back in 3 years with 20 % of it for operation: 2.3 USD per H100-hour, 3.2 per GB200 chip-hour.

    https://www.greaterwrong.com/posts/NBEmGx3djmSXawp3H/no77e-s-shortform/comment/5QKKfBJSbAykKegWo
    """
    operation = 0.2 * capex_usd / (3 * HOURS_PER_YEAR)
    owned = OwnedGpus(capex_usd_per_gpu=capex_usd, years=3, usd_per_kwh=0.0, other_usd_per_gpu_hour=operation)
    assert owned_usd_per_gpu_hour(owned, H100) == pytest.approx(usd_per_hour, abs=0.05)


def test_reference_table_of_owning_agrees(shared: Path) -> None:
    """Lenovo's 0.87 USD/h at 0.15 USD/kWh lie between the server's 8 cards at TDP and twice that (host, cooling)."""
    with (shared / "reference" / "tco.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["item"], row["sku"]): float(row["value"]) for row in csv.DictReader(file)}
    cards = OwnedGpus(capex_usd_per_gpu=0.0, pue=1.0, usd_per_kwh=0.15)
    running = 8 * owned_usd_per_gpu_hour(cards, DB.skus["h100-nvl"])
    assert running < rows["server_operating_cost", "H100-NVL"] < 2 * running
    for sku, name in (("b200-sxm", "B200-SXM"), ("b300-sxm", "B300-SXM"), ("h200-sxm", "H200-SXM")):
        (price,) = offered_prices(sku, policy(commitments=("reserved_1yr",)), DB)
        assert 8 * 12 * HOURS_PER_MONTH * price.usd_per_gpu_hour == pytest.approx(
            rows["annual_bare_metal_rent", name], rel=1e-4
        )


def test_owned_cost_adds_up_and_rises_with_every_part() -> None:
    """By hand: 35,064 USD over 4 years of 8766 h is 1 USD/h; 500 W x 1.4 x 0.10 USD/kWh is 0.07; 0.25 on top."""
    base = OwnedGpus(capex_usd_per_gpu=35_064.0, watts=500.0, other_usd_per_gpu_hour=0.25)
    usd = owned_usd_per_gpu_hour(base, H100)
    with pytest.raises(InputError, match=r"^prices\.owned\.trainium2\.watts = None: no power of trainium2"):
        owned_usd_per_gpu_hour(OwnedGpus(capex_usd_per_gpu=1.0), DB.skus["trainium2"])
    assert usd == pytest.approx(1.32, rel=1e-12)
    for change in ({"capex_usd_per_gpu": 4e4}, {"years": 3.0}, {"watts": 600.0}, {"pue": 1.5}, {"usd_per_kwh": 0.2}):
        assert owned_usd_per_gpu_hour(base.model_copy(update=change), H100) > usd


def test_what_is_offered_is_what_select_price_finds() -> None:
    """Over the whole database: with GPUs bought singly and no quota the offer of each commitment is one price."""
    ways = ("on_demand", "spot", "reserved_1yr")
    for sku, least in itertools.product(DB.skus, ("low", "medium", "high")):
        rule = policy(commitments=ways, spot=SPOT, min_confidence=least)
        young = [
            select_price(DB, sku, commitment=way, min_confidence=least, not_before=DAY - timedelta(days=180))
            or select_price(DB, sku, commitment=way, min_confidence=least)
            for way in ways
        ]
        assert offered_prices(sku, rule, DB) == tuple(price for price in young if price is not None)


def test_own_price_replaces_every_listed_one() -> None:
    rule = policy(usd_per_gpu_hour={"h100-sxm": 1.75}, commitments=("on_demand", "reserved"))
    (price,) = offered_prices("h100-sxm", rule, DB)
    assert (price.usd_per_gpu_hour, price.provider, price.commitment) == (1.75, "own price", "on_demand")
    assert price.retrieved_on == DAY
    assert price_notes(["h100-sxm"], rule, DB) == ()


def test_stale_prices_are_used_only_when_nothing_younger_is_listed() -> None:
    old = make_price(usd_per_gpu_hour=1.0, retrieved_on=DAY - timedelta(days=181), provider="Old")
    limit = make_price(usd_per_gpu_hour=2.0, retrieved_on=DAY - timedelta(days=180), provider="Limit")
    assert offered_prices("h100-sxm", policy(), db_with(old, limit)) == (limit,)
    assert offered_prices("h100-sxm", policy(), db_with(old)) == (old,)
    (ignored,) = price_notes(["h100-sxm"], policy(), db_with(old, limit))
    assert (ignored.problem, ignored.provider, ignored.is_used) == (PriceProblem.STALE, "Old", False)
    (used,) = price_notes(["h100-sxm"], policy(), db_with(old))
    assert str(used) == ("h100-sxm, on_demand: price is stale (Old, read 2026-05-24): 181 days old, no younger one")
    assert used.is_used


def test_a_price_without_source_date_or_value_is_never_used_and_is_named() -> None:
    """The schema refuses such rows; here they are forced past it."""
    good = make_price(usd_per_gpu_hour=9.0, provider="Good")
    blank = make_price(source_url=" " * 8, provider="Blank")
    undated = good.model_copy(update={"retrieved_on": None, "provider": "Undated"})
    free = good.model_copy(update={"usd_per_gpu_hour": 0.0, "provider": "Free"})
    assert [is_cited(price) for price in (good, blank, undated)] == [True, False, False]
    for bad, problem in ((blank, PriceProblem.UNCITED), (free, PriceProblem.ZERO)):
        database = db_with(good).model_copy(update={"prices": (good, bad)})
        assert offered_prices("h100-sxm", policy(), database) == (good,)
        (note,) = price_notes(["h100-sxm"], policy(), database)
        assert (note.problem, note.provider, note.is_used) == (problem, bad.provider, False)
        alone = db_with().model_copy(update={"prices": (bad,)})
        assert offered_prices("h100-sxm", policy(), alone) == ()
        assert [n.problem for n in price_notes(["h100-sxm"], policy(), alone)] == [problem, PriceProblem.MISSING]


def test_missing_prices_say_what_there_is() -> None:
    notes = price_notes(["mi250x", "trainium2", "l4"], policy(commitments=("on_demand",), provider="GCP"), DB)
    missing = {note.sku: str(note) for note in notes if note.problem is PriceProblem.MISSING}
    assert missing == {
        "mi250x": "mi250x, on_demand: price is missing: nothing listed",
        "trainium2": "trainium2, on_demand: price is missing: 1 listed, none from GCP with confidence medium or above",
    }


def test_every_stale_or_missing_price_of_the_database_is_named() -> None:
    """Recounted row by row, on a day on which two thirds of the list are stale."""
    day = date(2027, 3, 1)
    notes = price_notes(DB.skus, policy(as_of=day), DB)
    newest: dict[tuple[str, ...], Price] = {}
    for price in sorted(DB.prices, key=lambda p: p.retrieved_on):
        if price.commitment == "on_demand":
            newest[price.sku, price.provider, price.region, price.instance_type] = price
    stale = {p for p in newest.values() if (day - p.retrieved_on).days > 180 and p.confidence != "low"}
    found = [note for note in notes if note.problem is PriceProblem.STALE]
    assert sorted((n.sku, n.provider, n.retrieved_on) for n in found if n.retrieved_on) == sorted(
        (p.sku, p.provider, p.retrieved_on) for p in stale
    )
    priced = {p.sku for p in newest.values() if p.confidence != "low"}
    assert {n.sku for n in notes if n.problem is PriceProblem.MISSING} == set(DB.skus) - priced
    free = policy(
        owned={"l4": OwnedGpus(capex_usd_per_gpu=0.0, usd_per_kwh=0.0), "a10": OwnedGpus(capex_usd_per_gpu=0.0)}
    )
    (zero,) = (note for note in price_notes(["l4", "a10"], free, DB) if note.problem is PriceProblem.ZERO)
    assert (zero.sku, zero.commitment) == ("l4", "owned")


def test_instance_prices_in_the_wrong_column_are_doubted() -> None:
    """An 8-GPU price taken for a GPU's is named; nothing in the packaged list is, and neither are cheap small ones."""
    fair = [make_price(provider=name, usd_per_gpu_hour=usd) for name, usd in zip("ABC", (2.0, 3.0, 6.0), strict=True)]
    whole = make_price(provider="Whole", usd_per_gpu_hour=8 * 3.0, gpus_per_instance=8)
    shared_twice = make_price(provider="Twice", usd_per_gpu_hour=3.0 / 8, gpus_per_instance=8)
    notes = price_notes(["h100-sxm"], policy(), db_with(*fair, whole, shared_twice))
    assert {(n.problem, n.provider) for n in notes} == {(PriceProblem.UNIT, "Whole"), (PriceProblem.UNIT, "Twice")}
    pair = make_price(provider="Pair", usd_per_gpu_hour=0.61 * 3.0, gpus_per_instance=2)
    assert not [note for note in price_notes(["h100-sxm"], policy(), db_with(*fair, pair)) if note.provider == "Pair"]
    ways = sorted({price.commitment for price in DB.prices})
    everything = price_notes(DB.skus, policy(commitments=ways, spot=SPOT, min_confidence="low"), DB)
    assert [str(note) for note in everything if note.problem is PriceProblem.UNIT] == []


@pytest.mark.parametrize(
    ("column", "fix"),
    [
        ("currency", "convert to USD, write usd_per_gpu_hour and drop this column"),
        ("usd_per_instance_hour", "divide by gpus_per_instance, write usd_per_gpu_hour"),
        ("usd_per_gpu_month", "divide by the hours (730 a month, 8760 a year), write usd_per_gpu_hour"),
    ],
)
def test_money_in_other_units_is_refused_with_an_instruction(tmp_path: Path, column: str, fix: str) -> None:
    header = f"sku,provider,region,commitment,usd_per_gpu_hour,retrieved_on,source_url,{column}"
    (tmp_path / "own.csv").write_text(f"{header}\nh100-sxm,P,any,on_demand,2.5,2026-11-21,https://x.com,1\n")
    with pytest.raises(InputError, match=re.escape(f"column = {column!r}: prices are in USD per GPU-hour. Fix: {fix}")):
        next(_read_prices(tmp_path / "own.csv"))


def test_reserved_terms_are_committed_and_others_are_not() -> None:
    """Over every commitment that price lists use here."""
    found = {name: is_committed(name) for name in {price.commitment for price in DB.prices}}
    assert {name for name, committed in found.items() if committed} == {
        "reserved",
        "reserved_1yr",
        "reserved_3yr",
        "reserved_7_30d",
    }
    supply = build_supply(["h200-sxm"], policy(commitments=("on_demand", "reserved_1yr")), limits(), DB)
    assert {p.name: p.committed for p in only(supply, "h200-sxm").purchases} == {
        "reserved_1yr": True,
        "on_demand": False,
    }


def test_spot_share_holds_with_the_probability_asked_for() -> None:
    """scipy's binomial distribution: what is counted on is up often enough, and one instance more is not."""
    for rate, recovery_s, probability in itertools.product((0.02, 0.5, 3.0), (60.0, 600.0), (0.9, 0.99, 0.9999)):
        terms = SpotTerms(interruptions_per_hour=rate, recovery_s=recovery_s, probability=probability)
        up = 3600.0 / (3600.0 + rate * recovery_s)
        assert spot_availability(terms) == pytest.approx(up, rel=1e-12)
        assert binom.sf(0, least_spot_instances(terms), up) >= probability
        for bought in (1, 2, 7, 40):
            sure = round(bought * spot_usable_share(terms, bought))
            assert binom.sf(sure - 1, bought, up) >= probability
            assert sure == bought or binom.sf(sure, bought, up) < probability


def test_share_of_large_spot_fleets_tends_to_the_availability() -> None:
    shares = [spot_usable_share(SPOT, bought) for bought in (2, 10, 100, 1000, 100_000)]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(spot_usable_share(SPOT, None), rel=5e-3)
    assert spot_usable_share(SPOT, None) == pytest.approx(0.9)
    assert (spot_usable_share(SPOT, 1), least_spot_instances(SPOT)) == (0.0, 2)


def test_spot_needs_terms() -> None:
    with pytest.raises(InputError, match=r"^prices\.spot = None: spot capacity goes away.*Fix: give interruptions"):
        offered_prices("h100-sxm", policy(commitments=("spot",)), DB)


def test_a_reservation_without_a_term_is_named_where_a_term_is_asked_for() -> None:
    vague = make_price(provider="Hyperstack", commitment="reserved", usd_per_gpu_hour=2.72)
    market = db_with(vague, make_price(provider="Lambda", commitment="reserved_1yr", usd_per_gpu_hour=3.0))
    asked = policy(commitments=("reserved_1yr",))
    assert vague not in offered_prices("h100-sxm", asked, market)
    (note,) = commitment_notes(["h100-sxm"], asked, market)
    assert note.startswith("h100-sxm reserved at 2.72 USD/h (Hyperstack) is left out") and "takes reserved" in note
    taken = policy(commitments=("reserved_1yr", "reserved"))
    assert vague in offered_prices("h100-sxm", taken, market)
    assert commitment_notes(["h100-sxm"], taken, market) == commitment_notes(["h100-sxm"], policy(), market) == ()
