"""The way a checkpoint folder's authors treat texts: its tokenizer, the number of tokens that they
cut to, and the text that a reranker's authors write around a query and a document, by the chat
template of their tokenizer: roles are query and document, as sentence-transformers and vLLM ask for
them."""

import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from addnorm.export.wishes import AS_WRITTEN, UsageError, Wishes
from addnorm.export.words import folder_tokenizer, sample_texts
from addnorm.export.words.folder_tokenizer import NoTexts
from addnorm.export.words.sample_texts import Unlike
from addnorm.export.words.sentencepieces import UnlikeError
from addnorm.model.checkpoints import CheckpointError, json_files, sentence_transformers
from addnorm.model.checkpoints.sentence_transformers import (
    INPUT_TYPES,
    Router,
    SentenceTransformers,
)
from addnorm.service.engine.bundle import TOKEN_WEIGHTS, TOKENIZER
from addnorm.service.engine.manifest import Clusters, InputRules, InputType
from addnorm.service.engine.tokenizer import Template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


SPECIAL_TOKENS = ("eos_token", "bos_token", "pad_token")
# settings of sentence-transformers' Transformer that change how texts become token ids
NOT_DONE = {
    "processing_kwargs": "which is not supported",
}
CHAT_TEMPLATE = "chat_template"  # its settings, of which alone processing_kwargs may speak
# of a text whose vectors are joined: their distances are a square, here of 32 MiB, and take 0.5 s
MOST_JOINED = 2048
UNWEIGHTED = ("cls_token", "eos_token", "pad_token", "unk_token")  # by FlagEmbedding
EXPANSIONS = ("fixed", "min")  # strategies of query_expansion
LENGTHS: dict[InputType, str] = {"query": "query_length", "document": "document_length"}
FIRST, SECOND = "zq4query7f", "zq4document7f"  # that no template has


@dataclass(frozen=True)
class Texts:
    """The way a folder's authors make token ids of texts."""

    tokenizer: bytes  # tokenizer.json
    max_text_tokens: int
    limited_by: str  # what says so
    num_special: int  # tokens around each text
    num_ids: int  # ids are below it
    has_types: bool  # whether transformers' tokenizer gives the second text of a pair its own type
    special_tokens: Mapping[str, str]  # those of SPECIAL_TOKENS that the authors name
    input_types: Mapping[InputType, InputRules]  # of a MultiVectorEncoder
    splits_special: bool  # whether special tokens that stand in texts are split
    read_by: str  # the class of transformers that made the tokenizer
    unlike_file: Unlike | None  # as it is written; None: there is none
    pair_template: Template | None = None  # of a reranker that reads a pair as one text
    unseen_token: int | None = None  # that fills queries, and that no other token of them sees
    left_out_ids: tuple[int, ...] | None = None  # as in the manifest
    default_input_type: InputType | None = "document"  # as in the manifest
    unweighted_ids: tuple[int, ...] = ()  # as in the manifest
    token_weights: NDArray[np.float32] | None = None  # by token id, of an inference-free input type

    def __str__(self) -> str:
        limits = [f"yes, up to {self.max_text_tokens} tokens ({self.limited_by})"]
        for input_type, rules in self.input_types.items():
            if rules.max_tokens:
                limits.append(f"{rules.max_tokens} as {input_type}")
        return ", ".join(limits)


def is_as_written(origin: Mapping[str, Any]) -> bool:
    """True if the manifest's `source` says that texts are read by the folder's file alone."""
    return AS_WRITTEN.items() <= origin.items()


def tokenizer_in_words(origin: Mapping[str, Any], words: Texts) -> str:
    """The tokenizer, and where it gives other token ids than the folder's file. origin: the
    manifest's `source`."""
    if is_as_written(origin):
        return "the folder's file as it is written"
    reader, unlike = f"{words.read_by} of transformers", words.unlike_file
    if unlike is None:
        return reader
    if not unlike.num:
        return f"{reader}, which reads {unlike.num_asked:,} texts as the folder's file does"
    return (
        f"{reader}, unlike the folder's file as it is written in {unlike}; to read texts by that"
        " file, export with --tokenizer-as-written"
    )


def read(folder: Path, max_positions: int, as_written: bool = False) -> Texts:
    """Reads what the folder says of texts. as_written: token ids are those of tokenizer.json alone.

    NoTexts if it has no tokenizer, or if its authors do something that the server does not.
    CheckpointError if one of its files is broken.
    """
    authors = sentence_transformers.read_words(folder)
    tokenizer = load_tokenizer(authors, as_written)
    _refuse_what_is_not_done(authors, tokenizer)
    fallback = max_positions, "the model's positions"
    limit, limited_by = _authors_limit(authors) or fallback
    num_special = tokenizer.num_special_tokens_to_add(pair=False)
    if limit <= num_special:
        cut = f"{limited_by} truncates them to {limit} tokens"
        raise NoTexts(f"{cut}, of which {num_special} are special tokens")
    # read once more, as whoever reads the bundle does: the library reads some scores of pieces one
    # step off, and only at the first time
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()  # the authors' programs say themselves where they cut and pad
    backend.no_padding()
    content = backend.to_str().encode()
    backend.encode_special_tokens = splits_special = bool(tokenizer.split_special_tokens)
    try:
        sample_texts.token_ids(backend, sample_texts.texts(backend))
    except sample_texts.CannotRead as error:
        raise CheckpointError(
            f"{folder}: the tokenizer cannot read every text: {error}. If it belongs to another"
            " model, put this model's tokenizer next to the weights; without a tokenizer, only"
            " token ids are served"
        ) from None
    unlike_file = None
    with suppress(UnlikeError, sample_texts.CannotRead):
        if file := folder_tokenizer.read_file(authors.transformer, tokenizer):
            unlike_file = sample_texts.compare_tokenizers(backend, file)
    has_types = "token_type_ids" in tokenizer.model_input_names
    tokens_by_name = {name: getattr(tokenizer, name) for name in SPECIAL_TOKENS}
    special = {name: str(token) for name, token in tokens_by_name.items() if token is not None}
    limit = min(limit, max_positions)
    num_ids = 1 + max(tokenizer.get_vocab().values(), default=-1)
    rules, unseen_token = _input_types(authors, tokenizer, max_positions, limit)
    template, facts = None, dict[str, Any]()
    if authors.fills_template:
        template = read_pair_template(tokenizer, *template_arguments(authors))
    if router := authors.router:
        rules = _routes(authors, router, content, limit, as_written)
        facts = {
            "default_input_type": router.default_route,
            "token_weights": router.token_weights.numpy(),
        }
    if authors.has_flag_heads:
        names = (getattr(tokenizer, name) for name in UNWEIGHTED)
        unweighted = {tokenizer.convert_tokens_to_ids(name) for name in names if name is not None}
        facts["unweighted_ids"] = tuple(sorted(unweighted))
    return Texts(
        content, limit, limited_by, num_special, num_ids, has_types, special, rules, splits_special,
        type(tokenizer).__name__, unlike_file, template, unseen_token, **facts,
    )  # fmt: skip


def read_for(
    folder: Path | None, vocab_size: int, max_positions: int, wishes: Wishes
) -> Texts | NoTexts:
    """The same for a model with so many token ids and positions, cut to the wished length.

    CheckpointError for ids without embeddings, UsageError for a max_length that does not fit.
    """
    words: Texts | NoTexts
    try:
        if folder is None:
            raise NoTexts("there is no tokenizer")
        words = read(folder, max_positions, wishes.tokenizer_as_written)
    except NoTexts as no_texts:
        words = no_texts
    if not isinstance(words, NoTexts):
        refuse_other_ids(folder, words, vocab_size)
    return cut(words, max_positions, wishes)


def refuse_other_ids(folder: Path | None, words: Texts, vocab_size: int) -> None:
    """CheckpointError for a tokenizer with ids that the model has no embeddings for, and for token
    weights of another vocabulary."""
    if words.token_weights is not None:
        num_weights = len(words.token_weights)
        if not words.num_ids <= num_weights <= vocab_size:
            raise CheckpointError(
                f"{folder}: queries have weights of {num_weights} token ids, the tokenizer has"
                f" {words.num_ids}, the model {vocab_size}"
            )
    if words.num_ids > vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has ids up to {words.num_ids - 1}, the model has embeddings"
            f" of ids below {vocab_size} (vocab_size in config.json): remove the tokens that were"
            " added to the tokenizer only, or resize the model's embeddings"
        )


def cut(words: Texts | NoTexts, max_positions: int, wishes: Wishes) -> Texts | NoTexts:
    """The same, with texts cut to max_length tokens, if that is wished. UsageError for a length
    that does not fit."""
    num_special, reason, max_length = 0, "", wishes.max_length
    if max_length is None:
        return words
    option = wishes.option("max_length")
    if not isinstance(words, NoTexts):
        num_special = words.num_special
        reason = f", whose texts have {num_special} special tokens"
    if not num_special < max_length <= max_positions:
        raise UsageError(
            f"{option} is {max_length}, but must be {num_special + 1} to {max_positions} for"
            f" this model{reason}"
        )
    if isinstance(words, NoTexts):
        return words
    for input_type, rules in words.input_types.items():
        if rules.min_tokens and rules.min_tokens > max_length:
            raise UsageError(
                f"{option} is {max_length}, but the model fills a {input_type} up to"
                f" {rules.min_tokens} tokens: set at least that"
            )
    return shortened(words, max_length, option)


def shortened(words: Texts, max_text_tokens: int, limited_by: str) -> Texts:
    """The same, with texts of every type cut to so many tokens."""
    return replace(
        words,
        max_text_tokens=max_text_tokens,
        limited_by=limited_by,
        input_types={
            input_type: rules.model_copy(
                update={"max_tokens": rules.max_tokens and min(rules.max_tokens, max_text_tokens)}
            )
            for input_type, rules in words.input_types.items()
        },
    )


def facts_of(words: Texts | NoTexts) -> dict[str, Any]:
    """The manifest's fields of texts."""
    if isinstance(words, NoTexts):
        return {"texts_have_types": True, "special_tokens": {}}
    return {
        "texts_have_types": words.has_types,
        "special_tokens": dict(words.special_tokens),
        "pair_template": words.pair_template,
        "split_special_tokens": words.splits_special,
        "left_out_ids": words.left_out_ids,
        "unweighted_ids": words.unweighted_ids,
        "input_types": dict(words.input_types),
        "default_input_type": words.default_input_type,
    }


def write(words: Texts, folder: Path, vocab_size: int) -> None:
    """The tokenizer, and the weights of queries' tokens, 0 for ids that no text has."""
    (folder / TOKENIZER).write_bytes(words.tokenizer)
    if words.token_weights is not None:
        np.save(folder / TOKEN_WEIGHTS, padded_weights(words.token_weights, vocab_size))


def padded_weights(token_weights: NDArray[np.float32], vocab_size: int) -> NDArray[np.float32]:
    """`[vocab_size]`, 0 for ids that no text has."""
    return np.pad(token_weights, (0, vocab_size - len(token_weights)))


def load_tokenizer(
    authors: SentenceTransformers, as_written: bool = False
) -> "PreTrainedTokenizerBase":
    """NoTexts if there is none. CheckpointError if one of its files is broken."""
    arguments = authors.arguments("processor_kwargs")  # as sentence-transformers has them
    tokenizer = folder_tokenizer.load(authors.transformer, arguments, as_written)
    if authors.settings.get("do_lower_case"):
        folder_tokenizer.lower(tokenizer)
    return tokenizer


def template_arguments(authors: SentenceTransformers) -> tuple[str, Mapping[str, Any]]:
    """The instruction and the settings with which sentence-transformers fills a chat template."""
    instruction = authors.prompts.get(authors.default_prompt_name or "", "")
    processing = authors.settings.get("processing_kwargs") or {}
    return instruction, processing.get(CHAT_TEMPLATE) or {}


def _refuse_what_is_not_done(
    authors: SentenceTransformers, tokenizer: "PreTrainedTokenizerBase"
) -> None:
    """NoTexts if the server's vectors would differ from the authors'."""
    if tokenizer.truncation_side != "right":
        raise NoTexts(
            f"{folder_tokenizer.CONFIG} truncates them on the left, which is not supported"
        )
    for name, reason in NOT_DONE.items():
        setting = authors.settings.get(name)
        if setting and not (name == "processing_kwargs" and {*setting} == {CHAT_TEMPLATE}):
            raise NoTexts(f"{authors.settings_file} has {name}: {reason}")
    for name in LENGTHS.values():
        if authors.settings.get(name) and authors.mask is None:
            subject = f"{authors.settings_file} has {name}"
            raise NoTexts(f"{subject}, which is supported only with a MultiVectorMask")
    if authors.is_embedder and authors.fills_template and tokenizer.chat_template:
        raise NoTexts(
            f"{authors.settings_file} has modality_config.message, which applies the chat"
            " template to every text. Here it is applied to pairs only; remove the field to serve"
            " texts without the template"
        )


def _input_types(
    authors: SentenceTransformers,
    tokenizer: "PreTrainedTokenizerBase",
    max_positions: int,
    limit: int,
) -> tuple[dict[InputType, InputRules], int | None]:
    """The way MultiVectorEncoder's encode_query and encode_document treat texts; {} for other
    models. And the token that fills queries, if no other token sees it. limit: of texts of no
    type. NoTexts if a limit leaves no room for a text, or too much."""
    if authors.has_flag_heads:  # FlagEmbedding has no vector of the first token, <s>
        return dict.fromkeys(INPUT_TYPES, InputRules(skips_first=True)), None
    if authors.mask is None:
        return {}, None
    # ids of those words that are tokens, ascending
    vocabulary = tokenizer.get_vocab()
    skipped_ids = tuple(
        sorted({vocabulary[word] for word in authors.mask.skipped_words if word in vocabulary})
    )
    num_special, rules = tokenizer.num_special_tokens_to_add(pair=False), {}
    for input_type, setting in LENGTHS.items():
        length = authors.settings.get(setting)
        if length is not None and length <= num_special:
            raise NoTexts(f"{authors.settings_file} has {setting} {length}, all special tokens")
        rules[input_type] = InputRules(
            prompt_name=input_type if input_type in authors.prompts else None,
            max_tokens=None if length is None else min(length, max_positions),
            skipped_ids=skipped_ids if input_type in authors.mask.skipped_in else (),
        )
    if joins := authors.token_pooling:
        clusters = Clusters(
            factor=joins.factor, num_protected=joins.num_protected, normalize=joins.normalize
        )
        for input_type in joins.joined_in:
            rule = rules[input_type]
            if (rule.max_tokens or limit) > MOST_JOINED:
                raise NoTexts(
                    f"its authors join the vectors of a {input_type}, which has up to"
                    f" {rule.max_tokens or limit} tokens, and the limit is {MOST_JOINED}: set"
                    f" {LENGTHS[input_type]} in {authors.settings_file}"
                )
            rules[input_type] = rule.model_copy(update={"clusters": clusters})
    expansion = authors.settings.get("query_expansion")
    if not expansion:
        return rules, None
    fill_id = _fill_id(authors, tokenizer, expansion)
    length, query_limit = int(expansion["length"]), rules["query"].max_tokens
    if not num_special < length <= max_positions:
        raise NoTexts(
            f"{authors.settings_file} fills queries up to {length} tokens: {num_special + 1} to"
            f" {max_positions} are possible"
        )
    if expansion["strategy"] == "fixed":
        query_limit = length
    elif query_limit is not None:
        query_limit = max(query_limit, length)
    filled = {"max_tokens": query_limit, "min_tokens": length, "fill_id": fill_id}
    rules["query"] = rules["query"].model_copy(update=filled)
    return rules, None if expansion.get("attend") else fill_id


def _fill_id(
    authors: SentenceTransformers,
    tokenizer: "PreTrainedTokenizerBase",
    expansion: Mapping[str, Any],
) -> int:
    """The token that fills queries. NoTexts if the server fills them in another way."""
    problem = None
    if tokenizer.padding_side != "right":
        problem = "fills queries on the left"
    elif expansion.get("strategy") not in EXPANSIONS:
        problem = f"fills queries by the strategy {expansion.get('strategy')!r}"
    if problem:
        raise NoTexts(f"{authors.settings_file} {problem}, which is not supported")
    name = expansion.get("token") or tokenizer.mask_token or tokenizer.eos_token
    vocabulary: Mapping[str, int] = tokenizer.get_vocab()
    if name not in vocabulary:
        raise NoTexts(f"{authors.settings_file} fills queries with {name!r}, which is no token")
    return vocabulary[name]


def with_unseen(words: Texts, unseen_id: int) -> Texts:
    """The same, whose queries are filled with the id that stands for an unseen token."""
    rules = dict(words.input_types)
    for input_type, rule in words.input_types.items():
        skipped_ids = rule.skipped_ids
        if words.unseen_token in skipped_ids:
            skipped_ids = (*skipped_ids, unseen_id)
        fill_id = None if rule.fill_id is None else unseen_id
        rules[input_type] = rule.model_copy(update={"fill_id": fill_id, "skipped_ids": skipped_ids})
    return replace(words, input_types=rules)


def _routes(
    authors: SentenceTransformers, router: Router, tokenizer: bytes, limit: int, as_written: bool
) -> dict[InputType, InputRules]:
    """The way an inference-free encoder's encode_query and encode_document treat texts. tokenizer:
    of documents, cut to so many tokens. CheckpointError if queries have another."""
    of_queries = folder_tokenizer.load(router.query, {}, as_written)
    backend = Tokenizer.from_str(of_queries.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    if backend.to_str().encode() != tokenizer:
        raise CheckpointError(
            f"{router.query}: its tokenizer is not that of {authors.transformer}: queries and"
            " documents need the same"
        )
    max_tokens = int(min(of_queries.model_max_length, limit))
    prompts = {kind: kind if kind in authors.prompts else None for kind in INPUT_TYPES}
    return {
        "query": InputRules(
            prompt_name=prompts["query"],
            max_tokens=max_tokens if max_tokens < limit else None,
            inference_free=True,
        ),
        "document": InputRules(prompt_name=prompts["document"]),
    }


def _authors_limit(authors: SentenceTransformers) -> tuple[int, str] | None:
    """The limit that sentence-transformers and transformers find, and the file that says so."""
    name, config = authors.settings_file, authors.transformer / folder_tokenizer.CONFIG
    settings = json_files.settings(config)
    for limit, file in (
        (authors.arguments("processor_kwargs").get("model_max_length"), name),
        (authors.settings.get("max_seq_length"), name),
        (settings.get("model_max_length", settings.get("max_len")), folder_tokenizer.CONFIG),
    ):
        if limit is not None:
            # transformers writes 1e30 where there is no limit
            if isinstance(limit, bool) or not isinstance(limit, int | float) or math.isnan(limit):
                raise CheckpointError(
                    f"{file}: the limit of texts (max_seq_length or model_max_length) is"
                    f" {limit!r}, but must be a number of tokens"
                )
            return int(min(limit, sys.maxsize)), file
    return None


def read_pair_template(
    tokenizer: "PreTrainedTokenizerBase", instruction: str, settings: Mapping[str, Any]
) -> Template | None:
    """None if the tokenizer has no template for a query and a document.

    instruction: of the default prompt, "" for the template's own. settings: of the template.
    NoTexts if it does not keep texts as they are, or if the tokenizer adds special tokens to it.
    """
    if not tokenizer.chat_template:
        return None
    try:
        text = render_pair(tokenizer, instruction, FIRST, SECOND, settings)
    except Exception:  # a chat's template fails by any error of its own for other roles
        return None
    before, first, rest = text.partition(FIRST)
    between, second, behind = rest.partition(SECOND)
    if not (first and second):
        return None
    template = before, between, behind
    for texts in ((" a\n", "\n b "), ("", "")):
        expected = f"{before}{texts[0]}{between}{texts[1]}{behind}"
        if render_pair(tokenizer, instruction, *texts, settings) != expected:
            raise NoTexts("its chat template changes a query or a document, which is not supported")
    if tokenizer.num_special_tokens_to_add(pair=False):
        raise NoTexts("its tokenizer adds special tokens to its chat template: not supported")
    return template


def render_pair(
    tokenizer: "PreTrainedTokenizerBase",
    instruction: str,
    query: str,
    document: str,
    settings: Mapping[str, Any],
) -> str:
    """The whole text, by the authors' template."""
    messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
    if instruction:
        messages.insert(0, {"role": "system", "content": instruction})
    text = tokenizer.apply_chat_template(messages, tokenize=False, **settings)
    assert isinstance(text, str)
    return text
