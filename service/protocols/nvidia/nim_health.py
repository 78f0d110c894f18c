"""The health of a NIM, as NVIDIA's charts and clients ask for it. Source: NVIDIA's API reference of
its embedding NIM."""

from dataclasses import dataclass
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from addnorm.service.protocols.codec.openapi import by_name
from addnorm.service.protocols.dialect_errors import NVIDIA_ERRORS
from addnorm.service.protocols.protocol import Parts


class Live(BaseModel):
    object: Literal["health.response"] = "health.response"
    message: str = "live"
    live: bool = True


class Ready(BaseModel):
    object: Literal["health.response"] = "health.response"
    message: str = "ready"
    ready: bool = True


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

    async def live(self) -> Live:
        self.parts.readiness.check_alive()
        return Live()

    async def ready(self) -> Ready:
        await self.parts.readiness.check()
        return Ready()
