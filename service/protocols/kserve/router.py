"""All routes under /v2."""

from fastapi import APIRouter

from addnorm.service.protocols.kserve import (
    infer,
    metadata,
    repository_extension,
    statistics_extension,
)

router = APIRouter()
# statistics first: in /models/stats, `stats` is no model
for part in (statistics_extension, metadata, infer, repository_extension):
    router.include_router(part.router)
