"""Two servers of one bundle, cache on and cache off, sent the same requests one after the other."""

from dataclasses import asdict, dataclass, field
from math import isnan, nan

from tqdm import tqdm

from addnorm.load.bench.check import Reference
from addnorm.load.bench.run import Load, Result, measure
from addnorm.load.bench.stream import Stream
from addnorm.load.servers import CacheCounts, Server

PATIENCE_S = 600.0  # a part that takes longer is cut off


@dataclass(frozen=True)
class Pair:
    """The same requests, answered by both servers."""

    on: Result
    off: Result
    counts: CacheCounts | None  # of the server with the cache, during this pair

    def ratio(self, metric: str) -> float:
        """Cache on over cache off. Not a number if one of them was not measured, or is 0: no answer
        was right, or the run was too short. metric: a field of Result."""
        on, off = getattr(self.on, metric), getattr(self.off, metric)
        return float(on / off) if on and off else nan

    @property
    def hit_rate(self) -> float | None:
        """Sequences that were held, of those that were looked up."""
        if not self.counts or not (looked_up := self.counts.hits + self.counts.misses):
            return None
        return self.counts.hits / looked_up


@dataclass
class Traffic:
    """Parts of one stream, a pair for each. The cache keeps what earlier parts brought."""

    name: str
    parts: list[Stream]
    pairs: list[Pair] = field(default_factory=list)

    def ratios(self, metric: str) -> list[float]:
        """Of the pairs in which both were measured: a short run may take less CPU time than the
        kernel's clock shows."""
        return [ratio for pair in self.pairs if not isnan(ratio := pair.ratio(metric))]

    def facts(self) -> list[dict[str, object]]:
        """A JSON object for each pair."""
        return [{**asdict(pair), "hit_rate": pair.hit_rate} for pair in self.pairs]


def run(traffic: Traffic, on: Server, off: Server, reference: Reference, concurrency: int) -> None:
    """Measures every part on both. Whoever was asked last in one pair is asked first in the next.

    All answers of both are compared; a share of the sequences is computed alone before.
    """
    load = Load(concurrency, PATIENCE_S, warm_up_s=0.0)
    bar = tqdm(traffic.parts, traffic.name, unit="pair")
    for number, part in enumerate(bar):
        reference.learn(part.requests, traffic.name)
        before, results = on.cache_counts(), {}
        for server in (off, on) if number % 2 else (on, off):
            results[server] = measure(server, part, reference, load, progress=False)
        after = on.cache_counts()
        counts = after.since(before) if before and after else None
        traffic.pairs.append(pair := Pair(results[on], results[off], counts))
        bar.set_postfix_str(f"tokens/s {pair.ratio('tokens_per_s'):.2f} x")
