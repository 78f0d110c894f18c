"""The health of a NIM, as NVIDIA's charts and clients ask for it. Source: NVIDIA's API reference of
its embedding NIM."""

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter

from addnorm.service.protocols.codec.openapi import by_name
from addnorm.service.protocols.dialect_errors import NVIDIA_ERRORS
from addnorm.service.protocols.protocol import Parts


@dataclass(frozen=True)
class NimHealthRoutes:
    parts: Parts

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/health", generate_unique_id_function=by_name)
        failing = NVIDIA_ERRORS.only(503)
        router.get("/live", name="nim_live", summary="/livez, as a NIM answers", responses=failing)(
            self.live
        )
        router.get(
            "/ready", name="nim_ready", summary="/readyz, as a NIM answers", responses=failing
        )(self.ready)
        return router

    async def live(self) -> dict[str, Any]:
        self.parts.readiness.check_alive()
        return {"object": "health.response", "message": "live", "live": True}

    async def ready(self) -> dict[str, Any]:
        await self.parts.readiness.check()
        return {"object": "health.response", "message": "ready", "ready": True}
