"""KServe's open inference protocol (V2) with Triton's extensions.

Source: the KServe Open Inference Protocol and Triton's HTTP server. `over_grpc/` has it over gRPC.
"""

from addnorm.service.dialects.kserve import infer, metadata, repository_extension
from addnorm.service.wire.dialect_errors import V2_ERRORS
from addnorm.service.wire.route import Protocol

PROTOCOL = Protocol(
    tag="KServe V2",
    reference="https://github.com/kserve/open-inference-protocol",
    routes=(
        *metadata.STATISTICS,  # first: in /models/stats, `stats` is no model
        *metadata.ROUTES,
        *infer.ROUTES,
        *repository_extension.ROUTES,
    ),
    errors=V2_ERRORS,
    scopes={
        "/v2/health/*": None,
        "/v2/repository/*": "admin",
        "/v2/repository/index": "infer",  # Triton's clients ask for it before they infer
    },
    health=("/v2/health/",),
)
