"""KServe's open inference protocol (V2) with Triton's extensions: the same straight line under other names.

Source: the KServe Open Inference Protocol and Triton's HTTP server. gRPC is not offered.
"""

from fastapi import APIRouter

from addnorm.service.protocols.kserve import infer, metadata
from addnorm.service.protocols.kserve import repository_extension as repository
from addnorm.service.protocols.kserve import statistics_extension as statistics

router = APIRouter()
for part in (
    statistics,
    metadata,
    infer,
    repository,
):  # statistics first: in /models/stats, `stats` is no model
    router.include_router(part.router)
