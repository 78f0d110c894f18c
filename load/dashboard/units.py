"""Values as Grafana shows them: https://grafana.com/docs/grafana, standard options, unit."""

from collections.abc import Sequence

SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
THOUSANDS = ((1e9, " Bil"), (1e6, " Mil"), (1e3, " K"), (1.0, ""))
BYTES = ((2.0**30, " GiB"), (2.0**20, " MiB"), (2.0**10, " KiB"), (1.0, " B"))
UNITS = ("none", "short", "reqps", "s", "percentunit", "bytes")


def shown(value: float, unit: str, decimals: int | None = None) -> str:
    """ValueError if the unit is none that is known here: it may be misspelt."""
    if unit.startswith("suffix:"):
        return _number(value, decimals) + " " + unit.removeprefix("suffix:").strip()
    match unit:
        case "none":
            return _number(value, decimals)
        case "short":
            return _scaled(value, THOUSANDS, decimals)
        case "reqps":
            return _scaled(value, THOUSANDS, decimals) + " req/s"
        case "s":
            return _scaled(value, SECONDS, decimals, " ")
        case "percentunit":
            return _number(100 * value, decimals) + "%"
        case "bytes":
            return _scaled(value, BYTES, decimals)
    raise ValueError(f"unit {unit!r} is not among {UNITS}")


def _scaled(
    value: float, scale: Sequence[tuple[float, str]], decimals: int | None, between: str = ""
) -> str:
    """By the largest factor that leaves one digit before the point."""
    if not value:
        return _number(0.0, decimals) + between + next(name for one, name in scale if one == 1)
    factor, name = next((each for each in scale if abs(value) >= each[0]), scale[-1])
    return _number(value / factor, decimals) + between + name


def _number(value: float, decimals: int | None) -> str:
    """Three digits, unless the panel says how many stand behind the point."""
    if decimals is None:
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,.{decimals}f}"
