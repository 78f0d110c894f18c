"""OpenAI's embeddings, with Azure's paths of them, and its completions for scoring."""

from addnorm.service.dialects.openai import completions, embeddings
from addnorm.service.wire.dialect_errors import OPENAI_ERRORS
from addnorm.service.wire.route import Protocol

PROTOCOL = Protocol(
    tag="inference",
    reference="https://platform.openai.com/docs/api-reference/embeddings",
    routes=(*embeddings.ROUTES, completions.ROUTE),
    errors=OPENAI_ERRORS,
)
AZURE = Protocol(
    tag="Azure",
    reference="https://learn.microsoft.com/azure/ai-services/openai/reference",
    routes=embeddings.OF_AZURE,
    errors=OPENAI_ERRORS,
)
