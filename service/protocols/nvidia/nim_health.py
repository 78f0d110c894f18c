"""The health of a NIM, as NVIDIA's charts and clients ask for it. Source: NVIDIA's API reference of
its embedding NIM."""

from typing import Any

from fastapi import Request

from addnorm.service.protocols.dialect_errors import NVIDIA_ERRORS
from addnorm.service.protocols.route import FastApiRoute, parts_of


async def live(request: Request) -> dict[str, Any]:
    parts_of(request).readiness.check_alive()
    return {"object": "health.response", "message": "live", "live": True}


async def ready(request: Request) -> dict[str, Any]:
    await parts_of(request).readiness.check()
    return {"object": "health.response", "message": "ready", "ready": True}


ROUTES = tuple(
    FastApiRoute(f"/v1/health/{name}", answer, summary, NVIDIA_ERRORS.only(503), f"nim_{name}")
    for name, answer, summary in (
        ("live", live, "/livez, as a NIM answers"),
        ("ready", ready, "/readyz, as a NIM answers"),
    )
)
