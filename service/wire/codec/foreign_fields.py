"""Fields that clients of other servers and of gateways send, and that are none of a body's own: one
list for all dialects.

A field whose value changes no answer is left out, and the log names it once a minute. Any other
value is rejected by name. A name in no list is rejected too, as it may be a misspelt field.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from addnorm.service.errors import InvalidInput
from addnorm.service.wire.codec.shown import shown

log = logging.getLogger("addnorm")
TOLD_EVERY_S = 60.0
NO_WORD: tuple[Any, ...] = ("", [], {})  # say nothing, whatever the field
BOOLEANS = {"true": True, "false": False}  # as text, as some clients write them

GENERATES = "this server scores, it does not generate"
TEXTS_ONLY = "only texts are embedded here"
NOT_OFFERED = "this is not offered here, and the answer would be another"


class Foreign(NamedTuple):
    """values: that change no answer; None: all. why: another value is rejected, for its sender."""

    values: tuple[Any, ...] | None = None
    why: str = NOT_OFFERED


# of the caller, the connection and the gateway: litellm, OpenRouter, Portkey, OpenAI, RAGFlow
GATEWAY = (
    "additional_drop_params", "allowed_openai_params", "api_base", "api_key", "api_type",
    "api_version", "base_url", "cache", "caching", "custom_llm_provider", "drop_params",
    "extra_headers", "fallbacks", "headers", "max_retries", "metadata", "no-log", "num_retries",
    "organization", "prompt_cache_key", "prompt_cache_retention", "provider", "request_id",
    "request_timeout", "route", "safety_identifier", "service_tier", "session_id", "store",
    "stream_timeout", "tags", "timeout", "trace_id", "usage", "user", "user_id",
)  # fmt: skip
# of other servers: how they hold a model, and what they do with texts that they split
SERVERS = (
    "cache_salt",  # vLLM
    "keep_alive",  # Ollama
    "max_chunks_per_doc",  # Cohere and SiliconFlow: documents are one chunk here
    "options",  # Ollama and Hugging Face
    "overlap_tokens",  # SiliconFlow: of chunks
    "priority",  # vLLM and Cohere
    "return_len",  # Xinference
    "seed",  # nothing is drawn by chance
    "use_cache",  # Hugging Face
    "verbose",  # Ollama
    "wait_for_model",  # Hugging Face
)
LITELLM = "litellm_"  # how the names of its other fields begin
FOREIGN: Mapping[str, Foreign] = {
    **dict.fromkeys((*GATEWAY, *SERVERS), Foreign()),
    # of generation, and of completions that only score
    **{
        name: Foreign(values, GENERATES)
        for name, values in {
            "best_of": (1,),
            "frequency_penalty": (0,),
            "logit_bias": (),
            "n": (1,),
            "presence_penalty": (0,),
            "stop": (),
            "stream": (False,),
            "stream_options": (),
            "suffix": (),
            "top_p": (1,),
        }.items()
    },
    f"{LITELLM}*": Foreign(),
    "models": Foreign(()),  # OpenRouter: others that may answer
    "plugins": Foreign(()),
    "tools": Foreign(()),
    "transforms": Foreign(()),
    # of texts and vectors
    "add_special_tokens": Foreign((True,), "texts always have them; what has none are token ids"),
    "audio": Foreign((), TEXTS_ONLY),
    "encoding_format": Foreign(("float",)),
    "image": Foreign((), TEXTS_ONLY),
    "images": Foreign((), TEXTS_ONLY),
    "instruct": Foreign(()),
    "instruction": Foreign(()),
    "late_chunking": Foreign((False,), "spans of /v1/infer has vectors of ranges of a text"),
    "modality": Foreign(("text", ["text"]), TEXTS_ONLY),
    "rank_fields": Foreign((["text"],), "the text of a document is scored"),
    "return_colbert_vecs": Foreign((False,), "token_vectors of /v1/infer has them"),
    "return_dense": Foreign((True,)),
    "return_embeddings": Foreign((False,)),
    "return_multivector": Foreign((False,), "token_vectors of /v1/infer has them"),
    "return_sparse": Foreign((False,), "sparse of /v1/infer has them"),
    "return_token_ids": Foreign((False,)),
    "return_tokens_as_token_ids": Foreign((False,)),
    "truncation_direction": Foreign(("right", "Right"), "texts are cut at their end"),
    "use_activation": Foreign((True,)),  # vLLM
    "video": Foreign((), TEXTS_ONLY),
}


def listed(name: str) -> str | None:
    """How the list calls a field that is none of the body's own; None: it is not there."""
    if name in FOREIGN:
        return name
    return f"{LITELLM}*" if name.startswith(LITELLM) else None


def check(name: str, value: Any, place: str) -> None:
    """InvalidInput if a field of the list has a value that changes answers. place: its path."""
    known = FOREIGN[name]
    if known.values is None or value in NO_WORD:
        return
    if isinstance(value, str):
        value = BOOLEANS.get(value.lower(), value)
    if value not in known.values:
        raise InvalidInput(
            f"{place} is {shown(value)}: {known.why}; leave {name} out",
            param=place.partition("[")[0],
        )


class IgnoredFields:
    """Tells the log which fields had no effect, at most once a minute: all since the last line."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # several threads read bodies; a name that one of them loses comes again
        self._names, self._next = set[str](), 0.0

    def add(self, name: str) -> None:
        """name: as the list has it. What callers choose is not written to logs."""
        self._names.add(name)
        if (now := self._clock()) < self._next:
            return
        self._next = now + TOLD_EVERY_S
        names, self._names = self._names, set()
        log.info(
            "ignored fields of requests that have no effect here: %s", ", ".join(sorted(names))
        )
