"""Folders that sentence-transformers and transformers save themselves, of every family, head and
pooling: how each is written, what is asked of a server of it, and what its authors' program says.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import PreTrainedTokenizerFast

from tests.support import web
from tests.support.families import family_of, made

WORDS = [  # no text has the first two: MPNet takes 1 for a pad whatever is said
    "[unused]", "<pad>", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "water", "is", "long", "who",
    "could", "##s", "people", ".", ",", "a", "b", "##b", "find", ":", "yes", "no",
]  # fmt: skip
TEXTS = ["the water is long.", "who could", "Peoples, find A ab ☃ the water"]
PAIRS = [("who could", text) for text in ("the water is long.", "people", "a b a b")]
# families whose tokenizers give the second text its type; two of them ignore it
TYPED = ("Bert", "Electra", "Albert", "DistilBert", "DebertaV2")
TEMPLATE = (
    "[CLS]{% for m in messages if m.role == 'query' %}find: {{ m.content }}{% endfor %}"
    "{% for m in messages if m.role == 'document' %}[SEP]{{ m.content }}{% endfor %}[SEP]"
)
FLOAT32 = {"model_kwargs": {"dtype": torch.float32}}


class Case(NamedTuple):
    """save: writes the folder. ask: a served model's answers; expected: the author's."""

    save: Callable[[Path], object]
    ask: Callable[[str, str], Any]
    expected: Callable[[Path], Any]


def tokenizer(family: str, template: str | None = None) -> PreTrainedTokenizerFast:
    words = Tokenizer(WordPiece({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    words.normalizer, words.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    if not template:
        around = [(word, WORDS.index(word)) for word in ("[CLS]", "[SEP]")]
        words.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=around
        )
    named = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "mask")}
    inputs = ["input_ids", *["token_type_ids"] * (family in TYPED), "attention_mask"]
    saved = PreTrainedTokenizerFast(
        tokenizer_object=words,
        model_max_length=24,
        model_input_names=inputs,
        pad_token="<pad>",
        **named,
    )
    saved.chat_template = template
    return saved


def plain(
    name: str, changed: dict[str, Any], as_bf16: bool = False, shard: str = "1GB"
) -> Callable[[Path], None]:
    """A folder as transformers saves a model with its tokenizer."""

    def save(folder: Path) -> None:
        model = made(name, **{"pad_token_id": 1, **changed})
        model = model.to(torch.bfloat16) if as_bf16 else model
        model.save_pretrained(folder, max_shard_size=shard)
        tokenizer(family_of(name)).save_pretrained(folder)

    return save


def embedder(
    name: str,
    *modules: Callable[[], nn.Module],
    as_bf16: bool = False,
    prompts: dict[str, str] | None = None,
    max_length: int = 24,
    **changed: Any,
) -> Case:
    """prompts: the first is the default; each is asked for."""
    names = (None, *list(prompts or ())[1:])

    def save(folder: Path) -> None:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.base.modules import Transformer

        base = folder.parent / "base"
        plain(name, changed, as_bf16)(base)
        parts = [Transformer(str(base)), *(make() for make in modules)]
        first = next(iter(prompts or ()), None)
        model = SentenceTransformer(
            modules=parts, device="cpu", prompts=prompts, default_prompt_name=first
        )
        model.max_seq_length = max_length
        model.save_pretrained(str(folder))

    def ask(url: str, model: str) -> Any:
        own = {"model": model, "input": TEXTS, "truncate": True}
        bodies = [{**own, **({"prompt_name": name} if name else {})} for name in names]
        entries = [
            entry for body in bodies for entry in posted(url, "/v1/embeddings", **body)["data"]
        ]
        return [entry["embedding"] for entry in entries]

    def expected(folder: Path) -> Any:
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(folder), device="cpu", **FLOAT32)
        return [model.encode([text], prompt_name=name)[0] for name in names for text in TEXTS]

    return Case(save, ask, expected)


def pooling(mode: str, width: int = 36) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from sentence_transformers.sentence_transformer.modules import Pooling

        return Pooling(width, pooling_mode=mode)

    return make


def normalize() -> nn.Module:
    from sentence_transformers.base.modules import Normalize

    return Normalize()


def dense(
    width: int, out: int, activation: nn.Module | None = None, **named: Any
) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from sentence_transformers.base.modules import Dense

        torch.manual_seed(out)
        return Dense(width, out, activation_function=activation or nn.Identity(), **named)

    return make


def pipeline(kind: str, folder: Path, **options: Any) -> Any:
    return transformers.pipeline(  # type: ignore[call-overload]
        kind, model=str(folder), tokenizer=str(folder), dtype=torch.float32, device="cpu", **options
    )


def classifier(name: str, **changed: Any) -> Case:
    def ask(url: str, model: str) -> Any:
        results = posted(url, "/v1/classify", model=model, texts=TEXTS)["results"]
        return [by_label(own) for own in results]

    def expected(folder: Path) -> Any:
        run = pipeline("text-classification", folder, top_k=None)
        return [by_label(run([text])[0]) for text in TEXTS]

    saved = {name: changed.pop(name) for name in ("as_bf16", "shard") if name in changed}
    return Case(plain(name, changed, **saved), ask, expected)


def zero_shot(name: str, **changed: Any) -> Case:
    candidates = ["water", "people", "a"]

    def ask(url: str, model: str) -> Any:
        body = {"model": model, "texts": TEXTS, "candidate_labels": candidates}
        return [by_label(own) for own in posted(url, "/v1/zero-shot", **body)["results"]]

    def expected(folder: Path) -> Any:
        run = pipeline("zero-shot-classification", folder)
        answers = [run(text, candidates) for text in TEXTS]
        return [
            [score for _, score in sorted(zip(f["labels"], f["scores"], strict=True))]
            for f in answers
        ]

    return Case(plain(name, changed), ask, expected)


def tagger(name: str, **changed: Any) -> Case:
    options = {"aggregation_strategy": "none", "ignore_labels": []}

    def ask(url: str, model: str) -> Any:
        results = posted(url, "/v1/tag", model=model, texts=TEXTS, **options)["results"]
        return [entry["score"] for own in results for entry in own]

    def expected(folder: Path) -> Any:
        run = pipeline("token-classification", folder, **options)
        return [one["score"] for text in TEXTS for one in run(text)]

    return Case(plain(name, changed), ask, expected)


def of_logits(name: str, as_bf16: bool = False, **changed: Any) -> Case:
    """Logits of every token, which callers make words, answers or probabilities of."""

    def ask(url: str, model: str) -> Any:
        options = {"logits": {"positions": "all"}}
        body = {"model": model, "texts": TEXTS, "outputs": ["logits"], **options}
        logits = posted(url, "/v1/infer", **body)["logits"]
        return np.concatenate([np.array(rows) for rows in logits])

    def expected(folder: Path) -> Any:
        model = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32).eval()
        words, logits = transformers.AutoTokenizer.from_pretrained(folder), []
        for text in TEXTS:
            with torch.no_grad():
                out = model(**words(text, return_tensors="pt"))
            both = "start_logits" in out
            rows = torch.stack([out.start_logits, out.end_logits], -1) if both else out.logits
            logits.append(rows[0].numpy())
        return np.concatenate(logits)

    return Case(plain(name, changed, as_bf16), ask, expected)


def reranker(
    name: str,
    activation: nn.Module | None = None,
    prompts: dict[str, str] | None = None,
    **changed: Any,
) -> Case:
    def save(folder: Path) -> None:
        from sentence_transformers import CrossEncoder

        base = folder.parent / "base"
        plain(name, {"num_labels": 1, **changed})(base)
        first = next(iter(prompts or ()), None)
        model = CrossEncoder(
            str(base), device="cpu", activation_fn=activation, prompts=prompts,
            default_prompt_name=first,
        )  # fmt: skip
        model.save_pretrained(str(folder))

    return Case(save, scores(raw=activation is not None), predicted)


def classes_of_pairs(name: str) -> Case:
    """A cross-encoder of three labels, with a prompt before each pair."""

    def ask(url: str, model: str) -> Any:
        body = {"model": model, "texts": [[*pair] for pair in PAIRS], "function_to_apply": "none"}
        return [by_label(own) for own in posted(url, "/v1/classify", **body)["results"]]

    return reranker(name, prompts={"question": "find: "}, num_labels=3)._replace(ask=ask)


def scores(raw: bool) -> Callable[[str, str], Any]:
    def ask(url: str, model: str) -> Any:
        query, documents = PAIRS[0][0], [document for _, document in PAIRS]
        body = {"model": model, "query": query, "documents": documents, "raw_scores": raw}
        results = sorted(posted(url, "/v1/rerank", **body)["results"], key=lambda one: one["index"])
        return [entry["relevance_score"] for entry in results]

    return ask


def predicted(folder: Path) -> Any:
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(folder), device="cpu", **FLOAT32)
    return [model.predict([pair])[0] for pair in PAIRS]


def scores_of_modules(name: str, *modules: Callable[[], nn.Module], **changed: Any) -> Case:
    """A cross-encoder around a body, whose last module makes the scores."""

    def save(folder: Path) -> None:
        from sentence_transformers import CrossEncoder
        from sentence_transformers.base.modules import Transformer

        base = folder.parent / "base"
        plain(name, changed)(base)
        parts = [Transformer(str(base)), *(make() for make in modules)]
        CrossEncoder(modules=parts, device="cpu").save_pretrained(str(folder))

    return Case(save, scores(raw=False), predicted)


def layer_norm(width: int) -> nn.Module:
    from sentence_transformers.sentence_transformer.modules import LayerNorm

    made_norm = LayerNorm(width)
    torch.manual_seed(width)
    for parameter in made_norm.parameters():
        nn.init.normal_(parameter, 1.0, 0.3)
    return made_norm


def by_words(family: str) -> Case:
    """A language model that answers "yes" or "no" to what its chat template says."""

    def save(folder: Path) -> None:
        from sentence_transformers import CrossEncoder
        from sentence_transformers.base.modules import Transformer
        from sentence_transformers.cross_encoder.modules import LogitScore

        base = folder.parent / "base"
        made(f"{family}ForCausalLM", tie_word_embeddings=True).save_pretrained(base)
        tokenizer(family, TEMPLATE).save_pretrained(base)
        modalities = {
            method: {"method": "forward", "method_output_name": "logits"} for method in ("text",)
        }
        modalities["message"] = {**modalities["text"], "format": "flat"}
        body = Transformer(
            str(base),
            transformer_task="text-generation",
            modality_config=modalities,
            module_output_name="causal_logits",
        )
        score = LogitScore(WORDS.index("yes"), WORDS.index("no"))
        CrossEncoder(modules=[body, score], device="cpu").save_pretrained(str(folder))

    return Case(save, scores(raw=False), predicted)


def sparse(name: str, activation: str = "relu") -> Case:
    def save(folder: Path) -> None:
        from sentence_transformers import SparseEncoder
        from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling

        base = folder.parent / "base"
        plain(name, {})(base)
        parts = [MLMTransformer(str(base)), SpladePooling(activation_function=activation)]
        SparseEncoder(modules=parts, device="cpu").save_pretrained(str(folder))

    def ask(url: str, model: str) -> Any:
        body = {"model": model, "texts": TEXTS, "outputs": ["sparse"]}
        rows = np.zeros((len(TEXTS), 99), np.float32)
        for row, own in zip(rows, posted(url, "/v1/infer", **body)["sparse"], strict=True):
            row[own["indices"]] = own["values"]
        return rows

    def expected(folder: Path) -> Any:
        from sentence_transformers import SparseEncoder

        model = SparseEncoder(str(folder), device="cpu", **FLOAT32)
        return [model.encode([text])[0].to_dense().numpy() for text in TEXTS]

    return Case(save, ask, expected)


def multi_vector(
    name: str,
    words: Sequence[str] = (),
    tasks: Sequence[str] = ("document",),
    prompts: dict[str, str] | None = None,
    **lengths: int,
) -> Case:
    """words: that are skipped in texts of these tasks."""

    def save(folder: Path) -> None:
        from sentence_transformers import MultiVectorEncoder
        from sentence_transformers.base.modules import Normalize, Transformer
        from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

        base = folder.parent / "base"
        plain(name, {})(base)
        token = {"module_input_name": "token_embeddings"}
        parts = [
            Transformer(str(base), **lengths), dense(36, 8, bias=False, **token)(),
            MultiVectorMask(skiplist_words=[*words], skiplist_tasks=[*tasks]), Normalize(**token),
        ]  # fmt: skip
        model = MultiVectorEncoder(modules=parts, device="cpu", prompts=prompts)
        model.save_pretrained(str(folder))

    def ask(url: str, model: str) -> Any:
        rows = []
        for kind in ("query", "document"):
            body = {"model": model, "texts": TEXTS, "outputs": ["token_vectors"]}
            answer = posted(
                url, "/v1/infer", **body, input_type=kind, normalize=True, truncate=True
            )
            rows += [np.array(own) for own in answer["token_vectors"]]
        return np.concatenate(rows)

    def expected(folder: Path) -> Any:
        from sentence_transformers import MultiVectorEncoder

        model, rows = MultiVectorEncoder(str(folder), device="cpu", **FLOAT32), []
        for encode in (model.encode_query, model.encode_document):
            rows += [np.asarray(encode([text])[0]) for text in TEXTS]
        return np.concatenate(rows)

    return Case(save, ask, expected)


def by_label(found: Sequence[Any]) -> list[float]:
    return [one["score"] for one in sorted(found, key=lambda one: one["label"])]


def posted(url: str, path: str, **body: Any) -> Any:
    answer = web.post(f"{url}{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


NLI = {"num_labels": 3, "id2label": {0: "contradiction", 1: "neutral", 2: "entailment"},
       "label2id": {"contradiction": 0, "neutral": 1, "entailment": 2}}  # fmt: skip
CASES = {
    "bert mean": embedder("BertModel", pooling("mean"), normalize),
    "roberta cls": embedder("RobertaModel", pooling("cls")),
    "xlm-roberta mean": embedder("XLMRobertaModel", pooling("mean"), normalize),
    "camembert max": embedder("CamembertModel", pooling("max")),
    "electra weighted": embedder("ElectraModel", pooling("weightedmean")),
    "mpnet mean": embedder("MPNetModel", pooling("mean"), normalize),
    "distilbert sqrt": embedder("DistilBertModel", pooling("mean_sqrt_len_tokens")),
    "albert dense": embedder("AlbertModel", pooling("cls"), dense(36, 10, nn.Tanh())),
    "gpt2 last": embedder("GPT2Model", pooling("lasttoken")),
    "opt weighted": embedder("OPTModel", pooling("weightedmean"), word_embed_proj_dim=36),
    "modernbert bf16": embedder("ModernBertModel", pooling("cls"), normalize, as_bf16=True),
    "nomic mean": embedder("NomicBertModel", pooling("mean"), normalize),
    "gte cls": embedder("GteModel", pooling("cls"), normalize),
    "jina mean": embedder("JinaEmbeddingsV3Model", pooling("mean")),
    "deberta mean": embedder("DebertaV2Model", pooling("mean")),
    "qwen3 last bf16": embedder("Qwen3Model", pooling("lasttoken"), normalize, as_bf16=True),
    "qwen2 mean of both sides": embedder(
        "Qwen2Model", pooling("mean"), normalize, is_causal=False
    ),
    "llama mean of both sides, bf16": embedder(
        "LlamaModel", pooling("mean"), as_bf16=True, is_causal=False
    ),
    "eurobert two dense": embedder(
        "EuroBertModel", pooling("mean"), dense(36, 20, nn.GELU()), dense(20, 8), normalize
    ),
    "bert labels": classifier("BertForSequenceClassification"),
    "roberta shards": classifier("RobertaForSequenceClassification", shard="20KB"),
    "distilbert several labels": classifier(
        "DistilBertForSequenceClassification", problem_type="multi_label_classification"
    ),
    "deberta regression": classifier(
        "DebertaV2ForSequenceClassification", num_labels=3, problem_type="regression"
    ),
    "gpt2 labels": classifier("GPT2ForSequenceClassification"),
    "albert bf16": classifier("AlbertForSequenceClassification", as_bf16=True),
    "xlm-roberta entailment": zero_shot("XLMRobertaForSequenceClassification", **NLI),
    "modernbert tags": tagger("ModernBertForTokenClassification"),
    "electra tags": tagger("ElectraForTokenClassification"),
    "camembert spans": of_logits("CamembertForQuestionAnswering"),
    "mpnet masks, tied": of_logits("MPNetForMaskedLM"),
    "eurobert masks": of_logits("EuroBertForMaskedLM"),
    "gpt2 words, tied": of_logits("GPT2LMHeadModel"),
    "opt words, tied bf16": of_logits("OPTForCausalLM", as_bf16=True, word_embed_proj_dim=36),
    "qwen3 words": of_logits("Qwen3ForCausalLM"),
    "bert pairs": reranker("BertForSequenceClassification"),
    "modernbert pairs, raw": reranker("ModernBertForSequenceClassification", nn.Identity()),
    "electra pairs, prompt": reranker(
        "ElectraForSequenceClassification", prompts={"question": "find: "}
    ),
    "roberta classes of pairs, prompt": classes_of_pairs("RobertaForSequenceClassification"),
    "qwen3 yes or no": by_words("Qwen3"),
    "qwen2 yes or no": by_words("Qwen2"),
    "modernbert scores of modules": scores_of_modules(
        "ModernBertModel", pooling("cls"), dense(36, 20, nn.GELU(), bias=False),
        partial(layer_norm, 20), dense(20, 1, module_output_name="scores"),
        norm_eps=1e-3, norm_bias=False,  # unlike the head's
    ),
    "llama scores of one module": scores_of_modules(
        "LlamaModel", pooling("lasttoken"), dense(36, 1, module_output_name="scores")
    ),
    "distilbert splade": sparse("DistilBertForMaskedLM"),
    "distilbert splade of two logarithms": sparse("DistilBertForMaskedLM", "log1p_relu"),
    "bert prompts": embedder(
        "BertModel", pooling("mean"), prompts={"query": "find: ", "document": "a b "}
    ),
    "roberta cut": embedder("RobertaModel", pooling("mean"), max_length=6),
    "bert colbert": multi_vector(
        "BertModel", [".", ","], query_length=6, document_length=8,
        prompts={"query": "find: ", "document": "a "},
    ),
    "electra colbert, skips both": multi_vector(
        "ElectraModel", [".", "the"], ["query", "document"]
    ),
    "distilbert colbert, skips none": multi_vector("DistilBertModel"),
}  # fmt: skip
