"""KServe's open inference protocol (V2) with Triton's extensions: the same straight line under other names.

Source: the KServe Open Inference Protocol and Triton's HTTP server. gRPC is not offered.
"""

from fastapi import APIRouter

from service.routes.kserve import infer, metadata, repository, statistics

router = APIRouter(prefix="/v2")
router.include_router(metadata.router)
router.include_router(statistics.router)  # before /models/{model}: `stats` is no model
router.include_router(infer.router)
router.include_router(repository.router)
