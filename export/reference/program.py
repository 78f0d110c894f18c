"""The program that a person would run without Addnorm: on the files of a folder, a class of
sentence-transformers or the class of transformers that config.json names; of a model in memory,
that model. It knows nothing of how Addnorm reads these files.

It computes in float32, whatever the weights are stored in, and gets one text or one sequence at a
time: in batches, left padding and `is_causal` in encoders change its own answers.
"""

import json
import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol, get_args
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from addnorm.export.reference import flag_heads
from addnorm.export.reference.original import Answers, OriginalError, as_found
from addnorm.export.wishes import Text, Wishes
from addnorm.export.words import folder_tokenizer
from addnorm.model.checkpoints import architectures, json_files
from addnorm.model.checkpoints.families import FAMILIES, name_of
from addnorm.model.checkpoints.sentence_transformers import TOKEN_POOLING
from addnorm.model.weight_files import FLAG_HEADS
from addnorm.service.asking.tasks.tagging import Aggregation

Array = NDArray[Any]
MODULES, SETTINGS = "modules.json", "config_sentence_transformers.json"
ROUTER = "router_config.json"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
LOGITS = ("logits", "prediction_logits")  # as classes of transformers name them
LANGUAGE_MODELS = ("ForMaskedLM", "ForCausalLM", "LMHeadModel")  # ends of such classes
# in names of tasks, before that of the prompt, of the pipeline's aggregation_strategy, or of the
# input type
PROMPTED, JOINED, TYPED = " with the prompt ", " joined by ", " as "
NO_JOINING: dict[str, Any] = {"pool_factor": 1.0, "normalize_embeddings": False}
JOINS = get_args(Aggregation)[1:]  # without "none"
CANDIDATES = ("water", "people", "time")  # labels that a zero-shot classifier is asked for
# what transformers calls a head -> the Auto class that finds it, where config.json names no class
AUTO = {
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForQuestionAnswering": "AutoModelForQuestionAnswering",
}


class ProgramError(Exception):
    """The program cannot be run. The message says why, and what to do."""


class Ids(NamedTuple):
    """Token ids of a text or a pair, with the types of its tokens."""

    tokens: list[int]
    types: list[int]


class Answer(NamedTuple):
    """To one text: the ids that the program made of it, and what it answers."""

    ids: Ids
    value: Array


class AnswersTexts(Protocol):
    """A program from text to answer: `Program`, or a module's."""

    name: str
    labels: list[str]  # of its logits, in order
    mask_token: str | None
    tasks: dict[str, Callable[[Text], Any]]

    def answer(self, task: str, text: Text) -> Answer:
        """Its answer to a text or a pair, cut to its limit. task: one of `tasks`."""

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text, whole and behind no prompt."""


class Forward(nn.Module):
    """Token ids `[B, S]` without padding, and their types where the model reads them -> what a
    program answers, by our names of outputs: what people's calls run, and what an export follows.

    Scaling is left out, as the server scales where a request asks for it. is_split: of a language
    model also the rows that its last layer reads, by the name "activations".
    """

    def __init__(self, runs: nn.Module, model: nn.Module) -> None:
        """runs: a class of transformers, or modules of sentence-transformers around that model."""
        super().__init__()
        self.runs = runs
        self.is_split = False
        # an id, and the token that it stands for in places that no other sees
        self.unseen: tuple[int, int] | None = None
        self._model: tuple[Any] = (model,)  # no submodule of its own
        self._is_model = model is runs
        # of a Router, those of documents
        self.modules_of_texts = [*(route_of(runs, "document") or runs).children()]
        self._is_sparse = type(runs).__qualname__ == "SparseEncoder"

    def forward(self, tokens: Tensor, types: Tensor | None = None) -> dict[str, Tensor]:
        mask = torch.ones_like(tokens)
        if self.unseen:
            unseen_id, token_id = self.unseen
            mask = (tokens != unseen_id).long()
            tokens = torch.where(tokens == unseen_id, token_id, tokens)
        inputs = {"input_ids": tokens, "attention_mask": mask}
        if types is not None:
            inputs["token_type_ids"] = types
        if self.is_split:
            return self._split(inputs)
        if self._is_model:
            return self._of_model(self.runs(**inputs))
        features: dict[str, Any] = inputs
        for module in self.modules_of_texts:
            if type(module).__qualname__ != "Normalize":
                features = module(features)
        outputs_by_field = {"sentence_embedding": "pooled"}
        if "scores" in features:  # pooled vectors are then a step on the way
            outputs_by_field = {"scores": "logits"}
        if self._is_sparse:  # its embeddings are of words: `sparse` compares what is pooled of them
            outputs_by_field = {"token_embeddings": "logits"}
        return {
            output: features[field]
            for field, output in outputs_by_field.items()
            if field in features
        }

    @property
    def last_layer(self) -> nn.Module | None:
        """From rows to logits of a language model's vocabulary; None for other models."""
        (model,) = self._model
        is_one = type(model).__qualname__.endswith(LANGUAGE_MODELS)
        is_one &= self._is_model or self._is_sparse
        layer: nn.Module | None = model.get_output_embeddings() if is_one else None
        return layer

    def _split(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        (model,), layer, rows = self._model, self.last_layer, list[Tensor]()
        assert layer is not None
        listening = layer.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0]))
        try:
            logits = self._of_model(model(**inputs))["logits"]
        finally:
            listening.remove()
        return {"activations": rows[-1], "logits": logits}

    def _of_model(self, answer: Any) -> dict[str, Tensor]:
        if "start_logits" in answer:
            return {"logits": torch.stack([answer["start_logits"], answer["end_logits"]], -1)}
        name = type(self.runs).__qualname__
        logits = next((answer[key] for key in LOGITS if key in answer), None)
        if logits is not None and logits.dim() == 2 and name.endswith("ForPreTraining"):
            logits = logits[..., None]  # a number for each token
        return {} if logits is None else {"logits": logits}


class Program:
    """A model of transformers, alone or within a class of sentence-transformers. What it was asked
    once it knows, also when it was closed."""

    def __init__(self, runs: nn.Module, tokenizer: Any = None, limit: int | None = None) -> None:
        """runs: the object that a person would call. tokenizer: of the texts that it gets; None:
        it brings its own, or takes none. limit: tokens that they are cut to where it says none."""
        self.name = name_in_words(runs)
        self.advice = ""  # at the end of a failure's message, if a model can go without it
        self.runs: Any = runs
        from transformers import PreTrainedModel

        models = (part for part in runs.modules() if isinstance(part, PreTrainedModel))
        self.model: Any = next(models, None)
        if self.model is None:
            raise ProgramError(
                f"{type(runs).__qualname__} does not contain a model of transformers"
            )
        self.forward: Any = Forward(runs, self.model)
        self._limit = limit
        if tokenizer is not None and limit:  # which some pipelines cut to, and to nothing else
            tokenizer.model_max_length = min(tokenizer.model_max_length, limit)
        self._tokenizer: Any = tokenizer or getattr(runs, "tokenizer", None)
        self._heard: dict[str, Any] = {}
        self.outputs = Answers(self.name, self._call, runs)  # of token ids
        self._answers: dict[tuple[str, Text], Answer] = {}
        self._token_ids: dict[str, list[int]] = {}
        self.mask_token: str | None = getattr(self._tokenizer, "mask_token", None)
        self.tasks = self._tasks() if self._tokenizer else {}
        label_tasks = {"classify", "tag"} & self.tasks.keys()
        model: Any = self.model
        labels = sorted(model.config.id2label.items()) if label_tasks else []
        self.labels = [name for _, name in labels]  # of its logits, in their order
        self._listen()

    def answer(self, task: str, text: Text) -> Answer:
        """Its answer to a text or a pair, cut to its limit. task: one of `tasks`."""
        if (task, text) not in self._answers:
            try:
                with as_found(self.runs), silence_libraries():
                    value = self.tasks[task](text)
            except Exception as error:  # of any class, as it is not our code
                raise self._failure(f"{text!r:.60} ({task})", error) from error
            tokens = self._heard["input_ids"][0]
            mask = self._heard.get("attention_mask")
            types = self._heard.get("token_type_ids")
            real = torch.ones_like(tokens) if mask is None else mask[0]
            if self.forward.unseen:
                unseen_id, token_id = self.forward.unseen
                is_fill = (real == 0) & (tokens == token_id)
                tokens, real = torch.where(is_fill, unseen_id, tokens), real + is_fill
            types = torch.zeros_like(tokens) if types is None else types[0]
            self._answers[task, text] = Answer(
                Ids(tokens[real != 0].tolist(), types[real != 0].tolist()),
                np.asarray(value, np.float32),
            )
        return self._answers[task, text]

    def rows(self, ids: Sequence[int], types: Sequence[int] | None) -> Mapping[str, Array]:
        """Its outputs for one sequence without pads, by our names of outputs: "activations"
        `[S, d]`, and where it makes them "logits" or "pooled", which is not normalized."""
        inputs = (np.array(row, np.int64) for row in (ids, types) if row is not None)
        try:
            return self.outputs.tensors(*inputs)
        except OriginalError as error:
            raise ProgramError(f"{error}{self.advice}") from error

    def hidden_states(self, text: Text) -> tuple[Tensor, Tensor]:
        """The ids `[S]` of a text, and the hidden states `[S, d]` that its answer is made of."""
        self.runs.encode([text])
        return self._heard["input_ids"][0], self._heard["activations"][0]

    def cut_to(self, limit: int) -> None:
        """Texts are cut to so many tokens from now on."""
        self._limit = limit
        if hasattr(self.runs, "max_seq_length"):
            self.runs.max_seq_length = limit
        if self._tokenizer is not None:
            self._tokenizer.model_max_length = min(self._tokenizer.model_max_length, limit)

    def _call(self, *inputs: Tensor) -> dict[str, Tensor]:
        tensors = {**self.forward(*inputs), "activations": self._heard["activations"]}
        return {name: rows.reshape(-1, rows.shape[-1]) for name, rows in tensors.items()}

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text, whole and behind no prompt."""
        if unknown := [text for text in texts if text not in self._token_ids]:
            encodings = self._tokenizer(unknown, truncation=False, padding=False, verbose=False)
            self._token_ids.update(zip(unknown, encodings["input_ids"], strict=True))
        return [self._token_ids[text] for text in texts]

    def record(self, outputs: Sequence[str]) -> dict[str, Any]:
        """For the certificate: what was compared. outputs: of token ids."""
        comparison = {"outputs": [*outputs], "texts": [*self.tasks]}
        return {"kind": "program", "name": self.name, **comparison}

    def close(self) -> None:
        """Lets go of the model, which is as it was before."""
        for module in [*_heard_modules(self.model), *_queries(self.runs)] if self.model else ():
            module.__dict__.pop("forward", None)
        self.outputs.close()
        self.runs = self.model = self.forward = self._tokenizer = None

    def _failure(self, request: str, error: Exception) -> ProgramError:
        first = str(error).strip().partition("\n")[0]
        return ProgramError(
            f"{self.name} fails on {request}: {type(error).__name__}: {first}{self.advice}"
        )

    def _listen(self) -> None:
        """Notes what the transformer gets and what its body gives. sentence-transformers calls
        `forward` itself, so that PyTorch's hooks hear nothing."""
        heard, model, body = self._heard, self.model, _body(self.model)
        last = getattr(body, "project_out", None)  # which our heads have

        def wrap(module: nn.Module) -> Callable[..., Any]:
            forward = module.forward

            @wraps(forward)
            def call(*arguments: Any, **options: Any) -> Any:
                if module is model or module in queries:
                    heard.clear()
                    heard.update(options or arguments[0])
                answer = forward(*arguments, **options)
                if module is last:
                    heard["activations"] = arguments[0]
                elif module is body and last is None:
                    heard["activations"] = answer[0]
                return answer

            return call

        queries = _queries(self.runs)
        for module in [*_heard_modules(model), *queries]:
            module.forward = wrap(module)

    def _tasks(self) -> dict[str, Callable[[Text], Any]]:
        runs: Any = self.runs
        if hasattr(runs, "predict"):
            scores = {
                "rerank": lambda pair: runs.predict([pair], activation_fn=nn.Identity()),
                # /v1/rerank answers so, whatever activation a folder names
                "relevance": lambda pair: runs.predict([pair], activation_fn=nn.Sigmoid()),
            }
            return (scores if runs.num_labels == 1 else {}) | self._pipelines()
        if type(runs).__qualname__ == "SparseEncoder":
            if route_of(runs, "query") is None:
                return {"sparse": lambda text: runs.encode([text])[0].to_dense()}
            return {
                "sparse": lambda text: runs.encode_document([text])[0].to_dense(),
                f"sparse{TYPED}query": lambda text: runs.encode_query([text])[0].to_dense(),
            }
        if type(runs).__qualname__ == "MultiVectorEncoder":
            return {
                "query": partial(self._embed_tokens, runs.encode_query),
                "document": partial(self._embed_tokens, runs.encode_document),
            }
        if hasattr(runs, "encode"):
            return {
                "embed": lambda text: runs.encode([text])[0],
                **{
                    f"embed{PROMPTED}{name}": partial(self._embed_with_prompt, name)
                    for name, prompt in runs.prompts.items()
                    if prompt
                },
            }
        return self._pipelines() or {"read": self._read}

    def _embed_tokens(self, encode: Callable[[list[Text]], Any], text: Text) -> Any:
        """Vectors before a HierarchicalTokenPooling joins some: which ones may depend on the last
        bits of their distances."""
        joining = [module for module in self.runs if type(module).__qualname__ == TOKEN_POOLING]
        with ExitStack() as stack:
            for module in joining:
                stack.enter_context(patch.multiple(module, **NO_JOINING))
            return encode([text])[0]

    def _embed_with_prompt(self, name: str, text: Text) -> Any:
        return self.runs.encode([text], prompt_name=name)[0]

    def _pipelines(self) -> dict[str, Callable[[Text], Any]]:
        """Pipelines of transformers, with their own last steps."""
        import transformers

        model: Any = self.model
        pipeline: Any = transformers.pipeline

        def cut() -> dict[str, Any]:
            return {"truncation": True, "max_length": self._limit}

        def make(kind: str, **options: Any) -> Any:
            return pipeline(kind, model=model, tokenizer=self._tokenizer, device="cpu", **options)

        def classify(text: Text) -> Any:
            classifier = make("text-classification", top_k=None)
            if isinstance(text, str):
                (entries,) = classifier([text], **cut())
            elif hasattr(self.runs, "predict"):  # which puts a prompt before a pair, and a score
                logits = self.runs.predict([text], activation_fn=nn.Identity())
                outputs = {"logits": torch.tensor(logits).reshape(1, -1)}
                entries = classifier.postprocess(outputs, top_k=None)
            else:
                pair = dict(zip(("text", "text_pair"), text, strict=True))
                (entries,) = classifier([pair], **cut())
            scores = {entry["label"]: entry["score"] for entry in entries}
            return [scores[name] for _, name in sorted(model.config.id2label.items())]

        def zero_shot(text: Text) -> Any:
            answer = make("zero-shot-classification")(text, list(CANDIDATES))
            return [answer["scores"][answer["labels"].index(name)] for name in CANDIDATES]

        def tag(text: Text, strategy: str = "none") -> Any:
            labels = [name for _, name in sorted(model.config.id2label.items())]
            options = {"aggregation_strategy": strategy, "ignore_labels": []}
            return entity_rows(make("token-classification", **options)(text), labels)

        def fill_mask(text: Text) -> Any:
            targets = mask_targets(self._tokenizer.get_vocab())
            predictions = make("fill-mask")(text, targets=targets, top_k=len(targets))
            masks = predictions if isinstance(predictions[0], list) else [predictions]
            return [
                logarithms((candidate["token"], candidate["score"]) for candidate in candidates)
                for candidates in masks
            ]

        if type(model).__qualname__.endswith("ForSequenceClassification"):
            # the zero-shot pipeline reads label2id, and fails where there is none
            names = [name.lower() for name in model.config.label2id or ()]
            is_nli = len(names) > 1 and any(name.startswith("entail") for name in names)
            return {"classify": classify} | ({"zero_shot": zero_shot} if is_nli else {})
        if type(model).__qualname__.endswith("ForTokenClassification"):
            return {"tag": tag} | {
                f"tag{JOINED}{name}": partial(tag, strategy=name) for name in JOINS
            }
        if type(model).__qualname__.endswith("ForMaskedLM") and self.mask_token:
            return {"fill_mask": fill_mask, "read": self._read}
        return {}

    def _read(self, text: Text) -> Any:
        """Hidden states `[S, d]`; what a head makes of them is compared by `rows`."""
        texts = [[text]] if isinstance(text, str) else [[part] for part in text]
        tokenizer: Any = self._tokenizer
        cut = tokenizer(*texts, truncation=True, max_length=self._limit, return_tensors="pt")
        has_types = getattr(self.model.config, "type_vocab_size", 0) > 1
        inputs = INPUTS if has_types else INPUTS[:-1]
        self.model(**{name: cut[name] for name in inputs if name in cut})
        return self._heard["activations"][0]


def mask_targets(vocabulary: Mapping[str, int]) -> list[str]:
    """Tokens whose scores are compared in place of a mask. The likeliest ones may be equally so."""
    words = sorted(token for token in vocabulary if token.strip())
    return words[:: max(1, len(words) // 8)]


def logarithms(scores: Iterable[tuple[int, float]]) -> list[float]:
    """The scores of tokens, which are small numbers, in the order of their ids."""
    return [math.log(max(score, 1e-30)) for _, score in sorted(scores)]


def entity_rows(entities: Iterable[Mapping[str, Any]], labels: Sequence[str]) -> list[list[float]]:
    """Tagged tokens or joined entities, as pipelines and our routes have them: for each the number
    of its label, its first and last character, and its score. labels: of the logits, in order."""
    groups = sorted({label.split("-", 1)[-1] for label in labels})  # names of joined entities
    rows = []
    for entity in entities:
        group = entity.get("entity_group")
        number = labels.index(entity["entity"]) if group is None else groups.index(group)
        rows.append([number, entity["start"], entity["end"], entity["score"]])
    return rows


def split_task(task: str) -> tuple[str, dict[str, str]]:
    """The beginning of a task's name, and the option that it names."""
    for mark, option in (
        (PROMPTED, "prompt_name"), (JOINED, "aggregation_strategy"), (TYPED, "input_type")
    ):  # fmt: skip
        name, separator, value = task.partition(mark)
        if separator:
            return name, {option: value}
    return task, {}


def _body(model: Any) -> Any:
    """Makes the hidden states. Some heads call the decoder within it, and not the body."""
    return getattr(model.base_model, "decoder", model.base_model)


def _heard_modules(model: Any) -> list[Any]:
    body = _body(model)
    modules = [model, body, getattr(body, "project_out", None)]
    return [*{id(module): module for module in modules if module is not None}.values()]


def route_of(runs: nn.Module, name: str) -> nn.Module | None:
    """The modules of a Router's route; None where the first module is no Router."""
    first: Any = next(runs.children(), None)
    is_router = type(first).__qualname__ == "Router"
    return first.sub_modules[name] if is_router else None


def _queries(runs: nn.Module) -> list[nn.Module]:
    """The module of an inference-free encoder's queries, which has no model of transformers."""
    route = route_of(runs, "query")
    return [] if route is None else [*route.children()][:1]


def name_in_words(runs: nn.Module) -> str:
    """The class and the version of its package."""
    package = type(runs).__module__.partition(".")[0]
    if package not in ("transformers", "sentence_transformers"):
        return type(runs).__qualname__
    return f"{package}.{type(runs).__qualname__} {metadata.version(package.replace('_', '-'))}"


def load(
    folder: Path,
    limit: int | None,
    wishes: Wishes,
    head: str | None = None,
    num_labels: int | None = None,
    is_cut: bool = True,
) -> Program:
    """The program of a folder, in float32.

    limit: of its texts, in tokens; None: it takes none. head: what its class of transformers ends
    in, where config.json names none; None: it has no head. num_labels: of the head, where
    config.json names none. is_cut: whether a person set the limit, whatever the files say.
    ProgramError if there is no such program.
    """
    runs_code = wishes.runs_code
    if not runs_code:
        # no classes of the folder's own code, which transformers does not have
        for file in _configs(folder):
            fields = json_files.read(file)
            auto_map = fields.get("auto_map") if isinstance(fields, dict) else None
            for name in (auto_map or {}).values():
                if isinstance(name, str):
                    _class_of_transformers(name.rpartition(".")[2], "auto_map")
    with TemporaryDirectory() as place, silence_libraries():
        program_folder = _respell(folder, Path(place), num_labels, wishes.tokenizer_as_written)
        runs, tokenizer = _load_objects(program_folder, runs_code, head, limit is not None)
    if is_cut and limit and hasattr(runs, "max_seq_length"):
        runs.max_seq_length = limit  # type: ignore[assignment]
    encoder: Any = tokenizer or getattr(runs, "tokenizer", None)
    if (
        encoder is not None and encoder.pad_token is None
    ):  # needed to pad one text, to its own length
        encoder.pad_token = encoder.eos_token or encoder.convert_ids_to_tokens(0)
    program = Program(runs, tokenizer, limit)
    if any((folder / name).is_file() for name in FLAG_HEADS):
        num_ids = program.model.get_input_embeddings().num_embeddings
        program.tasks |= flag_heads.tasks(folder, program.hidden_states, encoder, num_ids)
    return program


def _configs(folder: Path) -> list[Path]:
    """The files config.json that are read: in the root, and in the modules'. Others are of other
    formats, such as onnx/config.json."""
    entries = json_files.read(folder / MODULES) if (folder / MODULES).exists() else []
    paths = {entry.get("path") or "" for entry in entries if isinstance(entry, dict)} | {""}
    paths |= {*json_files.settings(folder / ROUTER).get("types", ())}
    return [file for path in sorted(paths) if (file := folder / path / "config.json").is_file()]


def _respell(folder: Path, place: Path, num_labels: int | None, as_written: bool) -> Path:
    """The folder; or if a config.json in it has fields that only code of the hub knows, or does not
    say how many labels there are, a folder of links in which they are spelled as transformers reads
    them. It would take its own defaults. as_written: there, no class changes the tokenizer."""
    fields_by_file: dict[Path, Any] = {}
    for file in _configs(folder):
        fields = json_files.read(file)
        family = FAMILIES.get(name_of(fields) or "") if isinstance(fields, dict) else None
        new_fields = {**family.spell_for_transformers(fields)} if family else fields
        if num_labels and family and not (fields.get("id2label") or fields.get("num_labels")):
            new_fields["num_labels"] = num_labels
        if new_fields != fields:
            fields_by_file[file] = new_fields
    if not fields_by_file and not as_written:
        return folder
    for file in folder.rglob("*"):
        link = place / file.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        if file.is_file() and file not in fields_by_file:
            link.symlink_to(file.resolve())
    for file, fields in fields_by_file.items():
        (place / file.relative_to(folder)).write_text(json.dumps(fields))
    tokenizers = [file for name in folder_tokenizer.FILES for file in folder.rglob(name)]
    for source_folder in {file.parent for file in tokenizers} if as_written else ():
        tokenizer = folder_tokenizer.load(source_folder, {})
        folder_tokenizer.write_plain(
            source_folder, tokenizer, place / source_folder.relative_to(folder)
        )
    return place


def _load_objects(
    folder: Path, runs_code: bool, head: str | None, has_texts: bool
) -> tuple[nn.Module, Any]:
    """The object to be called, and the tokenizer that it does not bring itself."""
    settings = json_files.settings(folder / SETTINGS)
    if (folder / MODULES).exists():
        return load_sentence_transformers(folder, runs_code, settings.get("model_type")), None
    import transformers

    config = json_files.settings(folder / "config.json")
    class_names = architectures(config)
    auto = AUTO.get(head or "", "AutoModel")
    name = class_names[0] if class_names else auto
    if runs_code and auto in (config.get("auto_map") or {}):
        kind = getattr(transformers, auto)
    else:
        kind = _class_of_transformers(name, "architectures")
    if (
        has_texts
        and name.endswith("ForSequenceClassification")
        and int(config.get("num_labels") or len(config.get("id2label") or (0, 1))) == 1
    ):
        return load_sentence_transformers(folder, runs_code, "CrossEncoder"), None
    if has_texts and name.endswith("Model") and not name.endswith("LMHeadModel"):
        return load_sentence_transformers(folder, runs_code, "SentenceTransformer"), None
    model = _from_files(runs_code, kind, folder, dtype=torch.float32).eval()
    tokenizer = _from_files(runs_code, transformers.AutoTokenizer, folder) if has_texts else None
    return model, tokenizer


def load_sentence_transformers(folder: Path, runs_code: bool, kind: str | None) -> nn.Module:
    """A folder's modules in float32. kind: the name of their class. ProgramError if it cannot load
    them."""
    kind = kind or "SentenceTransformer"
    try:
        import sentence_transformers
    except ImportError:
        raise ProgramError(
            f"the folder needs {kind} of sentence-transformers, which is not installed: pip"
            " install sentence-transformers"
        ) from None
    program_class = getattr(sentence_transformers, kind, None)
    if program_class is None:
        raise ProgramError(
            f"{SETTINGS}: model_type is {kind!r}, which sentence-transformers"
            f" {sentence_transformers.__version__} does not have"
        )
    in_float32 = {"model_kwargs": {"dtype": torch.float32}}
    modules: nn.Module = _from_files(
        runs_code, program_class, str(folder), device="cpu", **in_float32
    )
    return modules


def _from_files(runs_code: bool, kind: Any, *arguments: Any, **options: Any) -> Any:
    make = getattr(kind, "from_pretrained", kind)
    # code may lie in another repository, which auto_map names
    access = {"local_files_only": not runs_code, "trust_remote_code": runs_code}
    try:
        return make(*arguments, **access, **options)
    except Exception as error:  # of any class, for any file that is not as it expects
        first = str(error).strip().partition("\n")[0]
        raise ProgramError(f"{kind.__name__} cannot load it: {first}") from error


@contextmanager
def silence_libraries() -> Iterator[None]:
    """Without the progress bars and warnings of transformers and sentence-transformers."""
    from transformers.utils import logging as library

    level, has_bars = library.get_verbosity(), library.is_progress_bar_enabled()
    logger = logging.getLogger("sentence_transformers")
    logger_level = logger.level
    library.set_verbosity_error()
    library.disable_progress_bar()
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(logger_level)
        library.set_verbosity(level)
        if has_bars:
            library.enable_progress_bar()


def _class_of_transformers(name: str, field: str) -> Any:
    import transformers

    if (program_class := getattr(transformers, name, None)) is None:
        raise ProgramError(
            f"config.json: {field} names {name}, which transformers {transformers.__version__}"
            " does not have. If the folder has this code and you trust it, --trust-remote-code"
            " runs it for this comparison only"
        )
    return program_class
