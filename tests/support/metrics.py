"""Values of metrics, from the registry and from the text of /metrics."""

from prometheus_client.parser import text_string_to_metric_families

from addnorm.service.wire.telemetry.metrics import Metrics


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(metrics: Metrics, name: str) -> float:
    """The sum of a metric over all its labels."""
    families = metrics.registry.collect()
    return sum(
        sample.value for family in families for sample in family.samples if sample.name == name
    )
