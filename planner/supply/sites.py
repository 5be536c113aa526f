"""Where a fleet is bought: at one provider in one region, since GPUs that serve together stand together.

KV caches travel within a data centre, so pools that hand them over are bought at one site; a fleet is planned at one
(`PricePolicy.providers_at_most`), and which, the plan decides: the program is solved for the sites that could be the
best one. GPUs of one's own, and prices of one's own, go with every site.

A replica has its GPUs, or a server of them, in one instance. Where a provider sells a SKU in several sizes, the small
ones are no use to large replicas, so a site offers what it has once for each size from which up instances are bought.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from hardware_db import ANYWHERE, GpuSku, HardwareDb, Instance, NetworkKind, Price, instance_of
from planner.core import InputError
from planner.supply.prices import best_prices, block_gpus, counts_only_a_part, offered_prices, usable_prices
from planner.supply.resources import Supply, build_supply
from planner.supply.types import FleetLimits, Granularity, OwnedGpus, PricePolicy, Site

OWN = "own"
"""Place of GPUs that are one's own or have a price of one's own."""
ROUNDING = 1e-6
"""Relative difference up to which two rates are the same."""
MOST_ASSORTMENTS = 2000
"""Combinations of sites that are looked at where several providers are allowed. A choice; more are refused."""


@dataclass(frozen=True)
class InstanceNetwork:
    """Network between the instances of a SKU at a provider.

    Attributes:
        provider: whose instances they are.
        name: as the provider writes it; empty where it says nothing.
        gpus: in one instance.
        bytes_per_s_per_gpu: of one GPU and direction; None: the provider does not state it.
        is_rdma: whether servers are said to reach each other's memory.
    """

    provider: str
    name: str
    gpus: int
    bytes_per_s_per_gpu: float | None
    is_rdma: bool

    def joins(self, sku: GpuSku) -> bool:
        """True if servers joined by it may hold one replica: step times rest on the reference server's network."""
        least = sku.node.nic_bytes_per_s_per_gpu.value * (1.0 - ROUNDING)
        return self.is_rdma and self.bytes_per_s_per_gpu is not None and self.bytes_per_s_per_gpu >= least


@dataclass(frozen=True)
class SiteSupply:
    """The offer of one site, or of several where that is allowed, as the integer program may buy it.

    Attributes:
        name: of the site or sites; empty where nothing is bought from a provider.
        supply: GPUs as resources.
        places: by SKU, where its GPUs stand: pools at one place may hand KV caches to one another.
        most_gpus: by SKU, most GPUs that a replica may have in one server; a SKU not named has no such limit.
        networks: by SKU, what its instances have between them; none of GPUs of one's own, which have that of the
            reference server.
        servers_at_least: of a fleet that is bought here, over which each of its pools is spread; more than one only
            where that is of a single SKU.
        is_alone: one of the SKUs of another site, for fleets of it alone.
    """

    name: str
    supply: Supply
    places: Mapping[str, str]
    most_gpus: Mapping[str, int]
    networks: Mapping[str, InstanceNetwork]
    servers_at_least: int = 1
    is_alone: bool = False

    def holds(self, sku: GpuSku, gpus: int) -> bool:
        """Can a replica of so many GPUs of a SKU be bought here, one of several servers joined by RDMA?"""
        if sku.id not in self.places or min(gpus, sku.node.gpus) > self.most_gpus.get(sku.id, sku.node.gpus):
            return False
        network = self.networks.get(sku.id)
        return network is None or gpus <= sku.node.gpus or not sku.leaves_by_network(gpus) or network.joins(sku)

    @property
    def usd_per_hour_at_least(self) -> float:
        """Cost of the GPUs that any fleet has here [USD/h]; 0 where that depends on the fleet."""
        if self.servers_at_least == 1:
            return 0.0
        least = {resource.name: resource.at_least for resource in self.supply.resources}
        return math.fsum(self.supply.cheapest[sku] * least[sku] for sku in self.places)

    @property
    def alone(self) -> tuple[SiteSupply, ...]:
        """By SKU the site for fleets of it alone; none where there is one SKU only."""
        if len(self.places) == 1:
            return ()
        return tuple(replace(self, places={sku: place}, is_alone=True) for sku, place in self.places.items())

    def spread(self, sku: GpuSku, servers: int) -> SiteSupply:
        """The site for fleets of a single SKU on so many whole servers of it at least."""
        fewest = float(servers * sku.node.gpus)
        resources = tuple(
            each.model_copy(update={"at_least": max(each.at_least, fewest)}) if each.name == sku.id else each
            for each in self.supply.resources
        )
        supply = replace(self.supply, resources=resources)
        return replace(self, supply=supply, places={sku.id: self.places[sku.id]}, servers_at_least=servers)


@dataclass(frozen=True)
class _Assortment:
    """Prices of one size and up, by SKU, each SKU at one site."""

    sites: Mapping[str, Site]
    prices: Mapping[str, tuple[Price, ...]]
    most_gpus: Mapping[str, int]
    networks: Mapping[str, InstanceNetwork]

    @property
    def name(self) -> str:
        return " + ".join(dict.fromkeys(site.name for site in self.sites.values()))


def site_supplies(
    skus: Iterable[str],
    policy: PricePolicy,
    limits: FleetLimits,
    hardware: HardwareDb,
    *,
    spot_shares: Mapping[str, float] | None = None,
) -> tuple[SiteSupply, ...]:
    """Offers of every site for these SKUs that could be the best place for some fleet, in the order of their names.

    A site that another one replaces is left out: every price of it is matched by one that is no higher, of the same
    commitment, in blocks that divide its own, and the network between its instances does no less. Arguments and errors
    are those of `build_supply`.

    >>> from datetime import date
    >>> from hardware_db import load_hardware
    >>> policy = PricePolicy(provider="AWS", granularity="instance", as_of=date(2026, 11, 21))
    >>> sites = site_supplies(["h100-sxm"], policy, FleetLimits(), load_hardware())
    >>> [(site.name, site.most_gpus["h100-sxm"]) for site in sites]  # p5.4xlarge has 1 GPU, p5.48xlarge 8
    [('AWS us-east-1', 1), ('AWS us-east-1', 8)]
    """
    wanted = [sku for sku in dict.fromkeys(skus) if sku not in limits.forbidden]
    own = [sku for sku in wanted if sku in policy.usd_per_gpu_hour]
    listed = {sku: usable_prices(sku, policy, hardware) for sku in wanted if sku not in own}
    single = [
        assortment
        for site in _sites(price for prices in listed.values() for price in prices)
        for assortment in _assortments(site, listed, policy, limits, hardware)
    ]
    if not any(counts_only_a_part(quota) for quota in limits.quotas):
        single = _undominated(single, policy, hardware)
    offers = [*single, *_combined(single, policy)] or [_Assortment({}, {}, {}, {})]
    supplies = []
    for offer in offers:
        prices = {sku: offered_prices(sku, policy, hardware) for sku in own} | dict(offer.prices)
        supply = build_supply(wanted, policy, limits, hardware, spot_shares=spot_shares, offered=prices)
        if all(sku in supply.cheapest for sku, count in limits.pinned.items() if count):
            places = {sku: _place(sku, supply, offer) for sku in supply.cheapest}
            supplies.append(SiteSupply(offer.name, supply, places, offer.most_gpus, offer.networks))
    if not supplies:
        pinned = ", ".join(sku for sku, count in limits.pinned.items() if count)
        several = policy.providers_at_most > 1
        bound = f"no {policy.providers_at_most} providers sell" if several else "no one provider and region sells"
        raise InputError("limits.pinned", pinned, f"{bound} all of these", "raise prices.providers_at_most")
    return tuple(supplies)


def _network(
    sku: GpuSku, provider: str, prices: Iterable[Price], gpus: int, policy: PricePolicy, hardware: HardwareDb
) -> InstanceNetwork:
    """The slowest network of the instances offered of a SKU, each holding so many GPUs at least."""
    given_gbps = policy.rdma_gbps_per_gpu.get(provider)
    if given_gbps is not None:
        name = f"RDMA of {given_gbps:g} Gbit/s, as given"
        return InstanceNetwork(provider, name, gpus, given_gbps * 1e9 / 8.0, is_rdma=True)
    found = [_network_of(provider, instance_of(hardware, price), gpus) for price in prices]
    slowest = min(found, key=lambda one: one.bytes_per_s_per_gpu or 0.0)
    return replace(slowest, is_rdma=all(one.is_rdma for one in found))


def _network_of(provider: str, instance: Instance | None, gpus: int) -> InstanceNetwork:
    if instance is None:
        return InstanceNetwork(provider, "", gpus, None, is_rdma=False)
    rate = instance.network_bytes_per_s
    own = None if rate is None else rate / instance.gpus
    return InstanceNetwork(provider, instance.network_name, gpus, own, instance.network is NetworkKind.RDMA)


def _sites(prices: Iterable[Price]) -> list[Site]:
    """Every provider in each of its regions; prices that hold in all of them are a site where there is no other."""
    regions: dict[str, set[str]] = {}
    for price in prices:
        regions.setdefault(price.provider, set()).add(price.region)
    return [
        Site(provider=provider, region=region)
        for provider, named in sorted(regions.items())
        for region in sorted(named - ANYWHERE or {min(named)})
    ]


def _assortments(
    site: Site,
    listed: Mapping[str, Sequence[Price]],
    policy: PricePolicy,
    limits: FleetLimits,
    hardware: HardwareDb,
) -> list[_Assortment]:
    """The offer of a site, once for each size from which up instances are bought."""
    here = {sku: [price for price in prices if site.sells(price)] for sku, prices in listed.items()}
    here = {sku: prices for sku, prices in here.items() if prices}
    by_instance = policy.granularity is Granularity.INSTANCE
    sizes = sorted({_together(price) for prices in here.values() for price in prices}) if by_instance else [1.0]
    found: list[_Assortment] = []
    for size in sizes:
        prices, most, networks = {}, {}, {}
        for sku, sold in here.items():
            enough = min(size, max(_together(price) for price in sold))
            kept = [price for price in sold if not by_instance or _together(price) >= enough]
            smallest = min(_together(price) for price in kept)
            if by_instance and math.isfinite(smallest):
                most[sku] = int(smallest)
            prices[sku] = best_prices(kept, hardware.skus[sku], policy, limits.quotas)
            gpus = most.get(sku, hardware.skus[sku].node.gpus)
            networks[sku] = _network(hardware.skus[sku], site.provider, prices[sku], gpus, policy, hardware)
        assortment = _Assortment(dict.fromkeys(prices, site), prices, most, networks)
        if assortment not in found:
            found.append(assortment)
    return found


def _together(price: Price) -> float:
    """Most GPUs in one server at this price."""
    return math.inf if price.gpus_together is None else price.gpus_together


def _undominated(offers: Sequence[_Assortment], policy: PricePolicy, hardware: HardwareDb) -> list[_Assortment]:
    """Those that no other replaces; of two that replace each other the first."""
    kept: list[_Assortment] = []
    for offer in offers:
        if any(_covers(other, offer, policy, hardware) for other in kept):
            continue
        kept = [other for other in kept if not _covers(offer, other, policy, hardware)]
        kept.append(offer)
    return kept


def _covers(one: _Assortment, other: _Assortment, policy: PricePolicy, hardware: HardwareDb) -> bool:
    """Whatever can be bought of the other can be bought of this one for no more."""
    for sku, prices in other.prices.items():
        gpu = hardware.skus[sku]
        if one.most_gpus.get(sku, math.inf) < other.most_gpus.get(sku, math.inf):
            return False
        if not _does_no_less(one.networks.get(sku), other.networks[sku], gpu):
            return False
        for price in prices:
            if not any(
                mine.commitment == price.commitment
                and mine.usd_per_gpu_hour <= price.usd_per_gpu_hour
                and block_gpus(price, gpu, policy.granularity) % block_gpus(mine, gpu, policy.granularity) == 0
                for mine in one.prices.get(sku, ())
            ):
                return False
    return True


def _does_no_less(one: InstanceNetwork | None, other: InstanceNetwork, sku: GpuSku) -> bool:
    """True if a network joins servers where another one does, and is as fast, up to what the reference server has."""
    if one is None:
        return False
    enough = min(other.bytes_per_s_per_gpu or 0.0, sku.node.nic_bytes_per_s_per_gpu.value)
    return (one.bytes_per_s_per_gpu or 0.0) >= enough and (one.joins(sku) or not other.joins(sku))


def _combined(single: Sequence[_Assortment], policy: PricePolicy) -> list[_Assortment]:
    """Each SKU at one of several sites: at that of the first that sells it, or at the cheapest of them.

    Raises InputError for more combinations than `MOST_ASSORTMENTS`.
    """
    found: list[_Assortment] = []
    for count in range(2, policy.providers_at_most + 1):
        for group in combinations(single, count):
            orders = [group[place:] + group[:place] for place in range(count)]
            skus = list(dict.fromkeys(sku for one in group for sku in one.prices))
            choices = [{sku: next(one for one in order if sku in one.prices) for sku in skus} for order in orders]
            choices.append({sku: _cheapest_of(sku, group) for sku in skus})
            for choice in choices:
                offer = _Assortment(
                    {sku: one.sites[sku] for sku, one in choice.items()},
                    {sku: one.prices[sku] for sku, one in choice.items()},
                    {sku: one.most_gpus[sku] for sku, one in choice.items() if sku in one.most_gpus},
                    {sku: one.networks[sku] for sku, one in choice.items() if sku in one.networks},
                )
                if len(set(offer.name.split(" + "))) > 1 and offer not in found:
                    found.append(offer)
        if len(found) > MOST_ASSORTMENTS:
            bound = f"more than {MOST_ASSORTMENTS:,} combinations of sites"
            raise InputError(
                "prices.providers_at_most", policy.providers_at_most, bound, "allow fewer providers or SKUs"
            )
    return found


def _cheapest_of(sku: str, group: Iterable[_Assortment]) -> _Assortment:
    selling = [one for one in group if sku in one.prices]
    return min(selling, key=lambda one: min(price.usd_per_gpu_hour for price in one.prices[sku]))


def _place(sku: str, supply: Supply, offer: _Assortment) -> str:
    """Where the GPUs of a SKU stand; those of one's own and those at a price of one's own may be apart."""
    origins = [origin for (name, _), origin in supply.prices.items() if name == sku]
    if sku in offer.sites:
        return offer.sites[sku].name
    return OWN if all(isinstance(origin, OwnedGpus) for origin in origins) else f"{OWN} price"
