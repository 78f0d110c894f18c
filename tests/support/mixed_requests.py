"""Requests of every inference route, drawn by a seed: mixed, and with repeats.

Texts and token ids are new, or come from small pools, a few of them often (Zipf). So routes ask for
the same sequences, in other company, under other paddings and for other outputs.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from safetensors.numpy import save

from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.outputs import OUTPUTS
from addnorm.service.wire.codec.safetensors_body import SAFETENSORS
from tests.support.texts import WORDS

PLAIN = [word for word in WORDS if word.isalpha()]
POOL_SIZE, MAX_LENGTH, MAX_WORDS = 40, 30, 12
NEW = 0.2  # share of sequences that are in no pool
Drawn = TypeVar("Drawn")
GPT_TEXT = 39  # characters, each at most a token, and one more is made
POOLINGS = ("mean", "max", "first", "last", "mean_sqrt", "weighted_mean")
SMALL = ("int8", "uint8", "binary", "ubinary")
EMBEDDERS = ("embedder", "embedder:query", "reranker", "masked-lm")
LENGTH_HEADER = "inference-header-content-length"


class Sent(NamedTuple):
    route: str
    path: str
    content: bytes
    headers: Mapping[str, str]


class Draws:
    """What requests are made of. The same seed draws the same."""

    def __init__(self, seed: int, bundles: Mapping[str, Bundle]) -> None:
        self.random, self.bundles = random.Random(seed), bundles
        self._zipf = [1 / rank for rank in range(1, POOL_SIZE + 1)]
        self._texts = [self._new_text() for _ in range(POOL_SIZE)]
        self._tokens = [self._new_tokens() for _ in range(POOL_SIZE)]

    def _new_text(self) -> str:
        return " ".join(self.random.choices(PLAIN, k=self.random.randint(0, MAX_WORDS)))

    def _new_tokens(self) -> list[int]:
        """They are cut to what a model takes."""
        return [self.random.randrange(10**9) for _ in range(self.random.randint(1, MAX_LENGTH))]

    def one_of(self, *options: Any) -> Any:
        return self.random.choice(options)

    def maybe(self, **options: Any) -> dict[str, Any]:
        """Each of them, or not. A function is called for the value."""
        drawn = {name: value for name, value in options.items() if self.random.random() < 0.5}
        return {name: value() if callable(value) else value for name, value in drawn.items()}

    def _drawn(self, pool: Sequence[Drawn], new: Callable[[], Drawn]) -> Drawn:
        if self.random.random() < NEW:
            return new()
        return self.random.choices(pool, self._zipf)[0]

    def text(self) -> str:
        return self._drawn(self._texts, self._new_text)

    def texts(self) -> list[str]:
        return [self.text() for _ in range(self.random.randint(1, 5))]

    def pairs(self) -> list[list[str]]:
        return [[self.text(), text] for text in self.texts()]

    def texts_and_pairs(self) -> list[Any]:
        return [self.one_of(text, [text, self.text()]) for text in self.texts()]

    def tokens(self, model: str) -> list[list[int]]:
        limits = self.bundles[model].manifest.limits
        few = [
            self._drawn(self._tokens, self._new_tokens) for _ in range(self.random.randint(1, 5))
        ]
        return [
            [token % limits.vocab_size for token in entry[: limits.max_positions]] for entry in few
        ]

    def types(self, model: str, sequences: list[list[int]]) -> list[list[int]] | None:
        """Token types of a few kinds, so that they repeat too."""
        if self.bundles[model].manifest.limits.type_vocab_size == 1:
            return None
        kinds: list[Callable[[int], list[int]]] = [
            lambda length: [0] * length,
            lambda length: [0] * (length // 2) + [1] * (length - length // 2),
            lambda length: [1] * length,
        ]
        return self.one_of(None, [self.one_of(*kinds)(len(sequence)) for sequence in sequences])  # type: ignore[no-any-return]


class Grid(NamedTuple):
    """Each `[batch, seq]`."""

    input_ids: np.ndarray
    attention_mask: np.ndarray
    token_type_ids: np.ndarray | None


def grid(draws: Draws, model: str) -> Grid:
    """Sequences padded on the right, on the left, or with holes; sometimes a row of pads only."""
    sequences = draws.tokens(model)
    types = draws.types(model, sequences)
    width = max(map(len, sequences)) + draws.one_of(0, 1, 7)
    num_rows = len(sequences) + draws.one_of(0, 0, 1)
    cells = np.zeros((3, num_rows, width), np.int64)
    for row, tokens in enumerate(sequences):
        where = {
            "right": range(len(tokens)),
            "left": range(width - len(tokens), width),
            "holes": sorted(draws.random.sample(range(width), len(tokens))),
        }[draws.one_of("right", "left", "holes")]
        cells[0, row, where], cells[1, row, where] = tokens, 1
        cells[2, row, where] = types[row] if types else 0
    return Grid(cells[0], cells[1], cells[2] if types else None)


def _outputs(draws: Draws, bundle: Bundle) -> dict[str, Any]:
    """Some outputs of the model, with options that fit."""
    every_name = [*OUTPUTS.of(bundle)]
    names = draws.random.sample(every_name, draws.random.randint(1, len(every_name)))
    body: dict[str, Any] = {"outputs": names}
    if "pooled" in names:
        body |= draws.maybe(normalize=True, pooling=draws.one_of(*POOLINGS))
    body |= draws.maybe(dtype="float16", precision=draws.one_of(*bundle.manifest.precisions))
    if names == ["pooled"] and draws.one_of(True, False):
        body["dtype"] = draws.one_of("binary", "ubinary")
    logits, is_large = bundle.manifest.heads.get("logits"), bundle.manifest.limits.vocab_size > 100
    if "logits" in names and logits:
        few = {"top_k": min(2, logits.width)}
        options = (few if is_large else draws.maybe(**few)) | (
            draws.maybe(positions=draws.one_of("last", "all")) if logits.pick == "every" else {}
        )
        body |= {"logits": options} if options else {}
    if "sparse" in names:  # untrained models with many words have too many entries for all
        body |= {"sparse": {"top_k": 5}} if is_large else draws.maybe(sparse={"top_k": 5})
    return body


def _json(route: str, body: Any, path: str | None = None) -> Sent:
    headers = {"content-type": "application/json"}
    return Sent(route, path or route, json.dumps(body).encode(), headers)


def _infer(draws: Draws) -> Sent:
    model = draws.one_of(*draws.bundles)
    body: dict[str, Any] = {"model": model, **_outputs(draws, draws.bundles[model])}
    if draws.one_of(True, False):
        body["input_ids"] = draws.tokens(model)
        if types := draws.types(model, body["input_ids"]):
            body["token_type_ids"] = types
        return _json("/v1/infer ragged", body, "/v1/infer")
    for name, cells in grid(draws, model)._asdict().items():
        if cells is not None:
            body[name] = cells.tolist()
    return _json("/v1/infer grid", body, "/v1/infer")


def _infer_texts(draws: Draws) -> Sent:
    model = draws.one_of("embedder", "reranker", "classifier", "masked-lm", "tagger", "topics")
    body = {"model": model, "texts": draws.texts_and_pairs(), "truncate": True}
    if draws.one_of(True, False):
        body |= _outputs(draws, draws.bundles[model])
    elif model == "embedder":
        body |= {"outputs": ["pooled"], "dtype": draws.one_of(*SMALL)}
    return _json("/v1/infer texts", body, "/v1/infer")


def _infer_spans(draws: Draws) -> Sent:
    model = draws.one_of("embedder", "masked-lm")
    sequences = draws.tokens(model)
    spans = [sorted(draws.random.sample(range(len(tokens) + 1), 2)) for tokens in sequences]
    body = {"model": model, "input_ids": sequences, "spans": [[span] for span in spans]}
    body |= {"outputs": ["pooled"]} | draws.maybe(pooling=lambda: draws.one_of(*POOLINGS))
    return _json("/v1/infer spans", body | draws.maybe(normalize=True), "/v1/infer")


def _infer_token_vectors(draws: Draws) -> Sent:
    body = {"model": "colbert", "texts": draws.texts(), "truncate": True}
    body |= {"outputs": draws.one_of(["token_vectors"], ["pooled", "token_vectors"])}
    body |= draws.maybe(input_type=draws.one_of("query", "document"), normalize=True)
    return _json("/v1/infer token_vectors", body, "/v1/infer")


def _safetensors(draws: Draws) -> Sent:
    model = draws.one_of(*draws.bundles)
    request = {"model": model, **_outputs(draws, draws.bundles[model])}
    if draws.one_of(True, False):
        arrays = {
            name: one for name, one in grid(draws, model)._asdict().items() if one is not None
        }
    else:
        sequences = draws.tokens(model)
        arrays = {
            "input_ids": np.concatenate(sequences).astype(np.int64),
            "lengths": np.array([len(tokens) for tokens in sequences]),
        }
    headers = {"content-type": SAFETENSORS} | draws.maybe(accept=SAFETENSORS)
    content = save(arrays, {"request": json.dumps(request)})
    return Sent("/v1/infer safetensors", "/v1/infer", content, headers)


def _v2_tensors(draws: Draws, model: str) -> tuple[Grid, list[dict[str, Any]]]:
    bundle = draws.bundles[model]
    names = [*bundle.manifest.heads, "activations", "pooled", "norm_mean", "norm_rstd"]
    wanted = draws.random.sample(sorted(set(names)), 2)
    return grid(draws, model), [{"name": name} for name in wanted]


def _v2(draws: Draws) -> Sent:
    model = draws.one_of(*draws.bundles)
    cells, outputs = _v2_tensors(draws, model)
    inputs = [
        {"name": name, "shape": one.shape, "datatype": "INT64", "data": one.ravel().tolist()}
        for name, one in cells._asdict().items()
        if one is not None
    ]
    return _json("V2 JSON", {"inputs": inputs, "outputs": outputs}, f"/v2/models/{model}/infer")


def _v2_binary(draws: Draws) -> Sent:
    model = draws.one_of(*draws.bundles)
    cells, outputs = _v2_tensors(draws, model)
    arrays = {name: one for name, one in cells._asdict().items() if one is not None}
    inputs = [
        {"name": name, "shape": one.shape, "datatype": "INT64",
         "parameters": {"binary_data_size": one.nbytes}}
        for name, one in arrays.items()
    ]  # fmt: skip
    body = {"inputs": inputs, "outputs": outputs, "parameters": {"binary_data_output": True}}
    head = json.dumps(body).encode()
    content = head + b"".join(array.tobytes() for array in arrays.values())
    headers = {LENGTH_HEADER: str(len(head))}
    return Sent("V2 binary", f"/v2/models/{model}/infer", content, headers)


def _embeddings(draws: Draws) -> Sent:
    model = draws.one_of(*EMBEDDERS)
    body = {"model": model, "input": draws.one_of(draws.text(), draws.texts()), "truncate": True}
    if ":" not in model and draws.one_of(True, False):
        # between [CLS] and [SEP], as the tokenizer of these models puts them
        body |= {"input": [[2, *ids[2:], 3] for ids in draws.tokens(model)]}
        del body["truncate"]
    body |= draws.maybe(encoding_format=draws.one_of("base64", "float"), dimensions=5)
    return _json("/v1/embeddings", body | draws.maybe(dtype="binary"))


def _completions(draws: Draws) -> Sent:
    model = draws.one_of("gpt", "gpt", "notebook")
    texts = [text[:GPT_TEXT] or "a" for text in draws.texts()]
    prompt = draws.tokens(model) if model == "notebook" else draws.one_of(texts, texts[0])
    body = {"model": model, "prompt": prompt, "temperature": 0}
    body |= draws.one_of({"max_tokens": 1}, {"max_tokens": 0, "echo": True, "logprobs": 2})
    body |= draws.maybe(echo=True, logprobs=draws.one_of(0, 1, 5))
    return _json("/v1/completions", body)


def _rerank(path: str) -> Callable[[Draws], Sent]:
    def make(draws: Draws) -> Sent:
        body = {"model": "reranker", "query": draws.text(), "documents": draws.texts()}
        return _json(path, body | draws.maybe(top_n=2, return_documents=True, raw_scores=True))

    return make


def _cohere_embed(path: str) -> Callable[[Draws], Sent]:
    def make(draws: Draws) -> Sent:
        body = {"model": "embedder", "texts": draws.texts()}
        types = ["float", "base64", *SMALL]
        body |= draws.maybe(input_type=draws.one_of("search_query", "search_document"))
        kinds = draws.random.sample(types, 2)
        if not {"int8", "uint8"} & set(kinds):
            body |= draws.maybe(output_dimension=7)
        return _json(path, body | {"embedding_types": kinds})

    return make


def _classify(draws: Draws) -> Sent:
    body = {"model": draws.one_of("classifier", "topics", "reranker"), "truncate": True}
    body |= {"texts": draws.texts_and_pairs()} | draws.maybe(top_k=1)
    return _json("/v1/classify", body | draws.maybe(function_to_apply="none"))


def _tag(draws: Draws) -> Sent:
    strategy = draws.one_of("none", "simple", "first", "average", "max")
    body = {"texts": draws.texts(), "truncate": True, "aggregation_strategy": strategy}
    return _json("/v1/tag", body | {"ignore_labels": []})


def _masked(draws: Draws) -> str:
    return f"{draws.text()} [MASK] {draws.one_of('', 'the [MASK]')}"


def _fill_mask(draws: Draws) -> Sent:
    texts = [_masked(draws) for _ in range(draws.random.randint(1, 3))]
    return _json("/v1/fill-mask", {"texts": texts, "truncate": True} | draws.maybe(top_k=2))


def _zero_shot(draws: Draws) -> Sent:
    body = {"model": "classifier", "texts": draws.texts(), "truncate": True}
    body |= {"candidate_labels": draws.one_of(["a", "the text"], ["a", "padding", "the text"])}
    return _json("/v1/zero-shot", body | draws.maybe(multi_label=True))


def _tei_embed(path: str) -> Callable[[Draws], Sent]:
    def make(draws: Draws) -> Sent:
        body = {"inputs": draws.one_of(draws.text() or "a", draws.texts())}
        if path == "/embed":
            body |= draws.maybe(normalize=False, dimensions=5, prompt_name="query")
        return _json(path, body)

    return make


def _tei_rerank(draws: Draws) -> Sent:
    body = {"query": draws.text(), "texts": draws.texts()}
    return _json("/rerank texts", body | draws.maybe(raw_scores=True, return_text=True), "/rerank")


def _tei_predict(draws: Draws) -> Sent:
    inputs = draws.one_of(draws.text(), [[text] for text in draws.texts()], draws.pairs())
    return _json("/predict", {"inputs": inputs} | draws.maybe(raw_scores=True))


def _similarity(draws: Draws) -> Sent:
    sentences = {"source_sentence": draws.text(), "sentences": draws.texts()}
    return _json("/similarity", {"inputs": sentences})


def _hugging_face(draws: Draws) -> Sent:
    model, body = draws.one_of(
        ("embedder", {"inputs": draws.texts()} | draws.maybe(normalize=True)),
        ("embedder", {"inputs": {"source_sentence": draws.text(), "sentences": draws.texts()}}),
        ("classifier", {"inputs": draws.text(), "parameters": {"top_k": 2}}),
        ("classifier", {"inputs": draws.text(), "parameters": {"candidate_labels": ["a", "b"]}}),
        ("tagger", {"inputs": draws.text(), "parameters": {"ignore_labels": []}}),
        ("masked-lm", {"inputs": _masked(draws), "parameters": {}}),
        ("reranker", {"inputs": draws.text(), "normalize": False, "encoding_format": "base64"}),
    )
    return _json("/hf", body | {"truncate": True}, f"/hf/{model}")


MAKERS: tuple[Callable[[Draws], Sent], ...] = (
    _infer, _infer, _infer, _infer_texts, _infer_spans, _infer_token_vectors, _safetensors, _v2,
    _v2_binary, _embeddings, _completions, _rerank("/v1/rerank"), _rerank("/v2/rerank"),
    _rerank("/rerank"), _cohere_embed("/v1/embed"), _cohere_embed("/v2/embed"), _classify, _tag,
    _fill_mask, _zero_shot, _tei_embed("/embed"), _tei_embed("/embed_all"),
    _tei_embed("/embed_sparse"), _tei_rerank, _tei_predict, _similarity, _hugging_face,
)  # fmt: skip


def requests(seed: int, bundles: Mapping[str, Bundle], number: int) -> Iterator[Sent]:
    """Requests of each route, about equally many. Each has an id, so that responses with ids can be
    equal."""
    draws = Draws(seed, bundles)
    for index in range(number):
        sent = MAKERS[index % len(MAKERS)](draws)
        yield sent._replace(headers={**sent.headers, "x-request-id": f"request-{index}"})
