"""KServe's open inference protocol (V2) with Triton's extensions.

Source: the KServe Open Inference Protocol and Triton's HTTP server. `over_grpc/` has it over gRPC.
"""

from addnorm.service.protocols.dialect_errors import V2_ERRORS
from addnorm.service.protocols.kserve import infer
from addnorm.service.protocols.kserve.metadata import MetadataRoutes
from addnorm.service.protocols.kserve.repository_extension import RepositoryRoutes
from addnorm.service.protocols.kserve.statistics_extension import StatisticsRoutes
from addnorm.service.protocols.protocol import OtherRoutes, Protocol
from addnorm.service.protocols.routes.inference_route import Inferring

PROTOCOL = Protocol(
    tag="KServe V2",
    reference="https://github.com/kserve/open-inference-protocol",
    routes=(
        OtherRoutes(StatisticsRoutes),  # before the metadata: in /models/stats, `stats` is no model
        OtherRoutes(MetadataRoutes),
        Inferring(*infer.ENDPOINTS),
        OtherRoutes(RepositoryRoutes),
    ),
    errors=V2_ERRORS,
    scopes={
        "/v2/health/*": None,
        "/v2/repository/*": "admin",
        "/v2/repository/index": "infer",  # Triton's clients ask for it before they infer
    },
    health=("/v2/health/",),
)
