"""Names that no body here has, in the dialects of others.

A name that is not known is left out: the answer's header names it, and the log does once. A name of
`FOREIGN` changes answers where it was made, and is rejected, but for the values that change
nothing. So a new field of a client that changes answers belongs there. Our own routes reject all
that no body has.
"""

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from addnorm.service.errors import InvalidInput
from addnorm.service.wire.codec.shown import shown

log = logging.getLogger("addnorm")
NO_WORD: tuple[Any, ...] = ("", [], {})  # say nothing, whatever the field
BOOLEANS = {"true": True, "false": False}  # as text, as some clients write them
# Names are the caller's own words: so many of an answer and of the log are told, of so many
# characters, and of these no other that a header may not have
MAX_TOLD, MAX_LOGGED, MAX_CHARACTERS = 16, 256, 40
UNTELLABLE = re.compile(r"[^A-Za-z0-9_.-]")
Ignored = Callable[[str], None]  # is told the place of a field that was left out

GENERATES = "this server scores, it does not generate"
TEXTS_ONLY = "only texts are embedded here"
NOT_OFFERED = "this is not supported, and the answer would differ"


class Foreign(NamedTuple):
    """values: that change no answer, beside empty ones. reason: another is rejected, for its
    sender."""

    values: tuple[Any, ...] = ()
    reason: str = NOT_OFFERED


FOREIGN: Mapping[str, Foreign] = {
    # of generation, and of completions that only score
    **{
        name: Foreign(values, GENERATES)
        for name, values in {
            "allowed_token_ids": (),
            "bad_words": (),
            "best_of": (1,),
            "frequency_penalty": (0,),
            "guided_choice": (),
            "guided_grammar": (),
            "guided_json": (),
            "guided_regex": (),
            "logit_bias": (),
            "logits_processors": (),
            "min_tokens": (0,),
            "n": (1,),
            "presence_penalty": (0,),
            "prompt_logprobs": (),
            "repetition_penalty": (1,),
            "response_format": ({"type": "text"},),
            "stop": (),
            "stop_token_ids": (),
            "stream": (False,),
            "stream_options": (),
            "structured_outputs": (),
            "suffix": (),
            "top_p": (1,),
            "use_beam_search": (False,),
        }.items()
    },
    # of gateways
    "extra_body": Foreign((), "its fields belong into the body itself"),
    "models": Foreign(()),  # OpenRouter: others that may answer
    "parameters": Foreign((), "its fields belong into the body itself"),
    "plugins": Foreign(()),
    "tools": Foreign(()),
    "transforms": Foreign(()),
    # of texts
    "add_special_tokens": Foreign(
        (True,), "texts always have them; to leave them out, send token ids"
    ),
    "audio": Foreign((), TEXTS_ONLY),
    "chat_template": Foreign(()),  # vLLM
    "chat_template_kwargs": Foreign(()),
    "image": Foreign((), TEXTS_ONLY),
    "images": Foreign((), TEXTS_ONLY),
    "input_type": Foreign(()),
    "instruct": Foreign(()),
    "instruction": Foreign(()),
    "max_length": Foreign(()),
    "messages": Foreign((), TEXTS_ONLY),
    "mm_processor_kwargs": Foreign((), TEXTS_ONLY),
    "modality": Foreign(("text", ["text"]), TEXTS_ONLY),
    "prompt": Foreign(()),
    "prompt_name": Foreign(()),
    "rank_fields": Foreign((["text"],), "the text of a document is scored"),
    "task": Foreign(()),
    "task_type": Foreign(()),  # Google
    "text_type": Foreign(("document",)),  # DashScope
    "truncate": Foreign((True, "END", "end")),
    "truncate_prompt_tokens": Foreign((-1,)),
    "truncation": Foreign((True,)),
    "truncation_direction": Foreign(("right", "Right"), "texts are truncated at their end"),
    "truncation_side": Foreign(("right",), "texts are truncated at their end"),  # vLLM
    "video": Foreign((), TEXTS_ONLY),
    "windows": Foreign((), "/v1/embeddings has them, and routes of labels and of rankings"),
    # of vectors
    "dimension": Foreign((), "the field is called dimensions"),  # DashScope
    "dimensions": Foreign(()),
    "dtype": Foreign(("float32", "float")),
    "embed_dtype": Foreign(("float32",)),  # vLLM
    "embedding_type": Foreign(("float", ["float"])),
    "embedding_types": Foreign((["float"],)),
    "encoding_format": Foreign(("float",)),
    "endianness": Foreign(("native", "little")),  # vLLM
    "late_chunking": Foreign((False,), "/v1/embeddings has it, and /v1/infer has spans"),
    "normalize": Foreign(()),
    "normalized": Foreign(()),
    "output_dimension": Foreign(()),
    "output_dimensionality": Foreign(()),  # Google
    "output_dtype": Foreign(("float",)),
    "outputs": Foreign((), "/v1/infer has them"),
    "pooling": Foreign(()),
    "pooling_type": Foreign(()),
    "precision": Foreign(()),
    "return_colbert_vecs": Foreign((False,), "token_vectors of /v1/infer has them"),
    "return_dense": Foreign((True,)),
    "return_multivector": Foreign((False,), "token_vectors of /v1/infer has them"),
    "return_sparse": Foreign((False,), "sparse of /v1/infer has them"),
    "sparse": Foreign((), "/v1/infer has them"),
    "spans": Foreign((), "/v1/infer has them"),
    "return_token_ids": Foreign((False,)),
    "return_tokens_as_token_ids": Foreign((False,)),
    # of scores
    "activation": Foreign((True,)),  # vLLM
    "function_to_apply": Foreign(()),
    "max_time_ms": Foreign((), "only reranking has a time limit"),
    "raw_scores": Foreign((False,)),
    "return_documents": Foreign((False,)),
    "return_embeddings": Foreign((False,)),
    "return_text": Foreign((False,)),
    "score_threshold": Foreign((0,)),
    "softmax": Foreign((True,)),  # vLLM
    "top_k": Foreign((0, -1)),
    "top_n": Foreign((0,)),
    "use_activation": Foreign((True,)),  # vLLM
}


def check(name: str, value: Any, place: str) -> None:
    """InvalidInput if a field of the list has a value that changes answers. place: its path."""
    foreign = FOREIGN[name]
    if value in NO_WORD:
        return
    if isinstance(value, str):
        value = BOOLEANS.get(value.lower(), value)
    # True is no 1
    if not any(value == same and type(value) in (type(same), float) for same in foreign.values):
        raise InvalidInput(
            f"{place} is {shown(value)}: {foreign.reason}; leave {name} out",
            param=place.partition("[")[0],
        )


class IgnoredFields:
    """Tells of fields that were left out."""

    def __init__(self) -> None:
        # several threads read bodies: at worst a name is logged twice
        self._logged = set[str]()

    def note(self, names: list[str], place: str) -> None:
        """names: of one request, for its answer."""
        name = UNTELLABLE.sub("?", place)[:MAX_CHARACTERS]
        if name in names:
            return
        if len(names) <= MAX_TOLD:  # one more says that there are more
            names.append(name)
        if name not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add(name)
            log.info("ignored an unknown field, and will not report it again: %s", name)


def header_value(names: list[str]) -> str:
    """The names as a header has them."""
    return ", ".join([*names[:MAX_TOLD], *(["..."] if len(names) > MAX_TOLD else [])])
