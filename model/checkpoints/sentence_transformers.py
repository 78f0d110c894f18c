"""A folder of sentence-transformers: what follows the transformer, and its authors' prompts.

`modules.json` lists modules and the folders of their settings. A folder without it is one
transformer. Dense modules become a head of ours. So does LogitScore, of a language model that
reranks: a score is the logit of one token after a sequence, such as "yes", less that of another.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from addnorm.model.checkpoints import fields, json_files, weights
from addnorm.model.checkpoints.family import HeadTable
from addnorm.model.checkpoints.reader import CheckpointError, Reader
from addnorm.model.config import Activation, Config, HeadConfig, Pick
from addnorm.model.transformer import Head
from addnorm.model.weight_files import FLAG_HEADS

ACTIVATIONS: dict[str, Activation] = {  # classes of torch.nn with their defaults
    "Identity": "identity",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Tanh": "tanh",
}
TANH = "torch.nn.modules.activation.Tanh"  # where config.json names none
INPUTS = {"token_embeddings": "token_vectors", "sentence_embedding": "pooled"}  # -> our output
SCORES = "scores"  # what a CrossEncoder answers with, by the name of a module's output
NORM_EPS = 1e-5  # of torch.nn.LayerNorm


@dataclass(frozen=True)
class Dense:
    """activation(x W^T + b)."""

    folder: Path
    output: str | None  # that it makes, "token_vectors" or "pooled"; None: config.json names none
    activation: Activation
    stored: weights.Weights
    makes_scores: bool = False  # of pooled vectors

    @property
    def weight(self) -> Tensor:
        """`[out, in]`."""
        return self.stored.tensors["linear.weight"]

    @property
    def bias(self) -> Tensor | None:
        return self.stored.tensors.get("linear.bias")


def read_dense(folder: Path) -> Dense:
    """CheckpointError if it is not one that a head of ours can be."""
    file = folder / "config.json"
    config = json_files.settings(file)
    name = config.get("activation_function", TANH)
    package, _, class_name = name.rpartition(".") if isinstance(name, str) else ("", "", "")
    if not package.startswith("torch.nn") or class_name not in ACTIVATIONS:
        choices = ", ".join(ACTIVATIONS)
        raise CheckpointError(f"{file}: activation_function is {name!r}, supported are {choices}")
    if config.get("use_residual"):
        raise CheckpointError(f"{file}: use_residual is true, which is not supported")
    read_from = config.get("module_input_name")
    if read_from not in (None, *INPUTS):
        choices = " or ".join(INPUTS)
        raise CheckpointError(f"{file}: module_input_name is {read_from!r}, supported is {choices}")
    output = INPUTS[read_from] if read_from else None
    written = config.get("module_output_name")
    makes_scores = written == SCORES and output != "token_vectors"
    if written not in (None, read_from) and not makes_scores:
        raise CheckpointError(
            f"{file}: module_output_name is {written!r}, supported is module_input_name's, and"
            f" {SCORES!r} of pooled vectors"
        )
    layer = Dense(folder, output, ACTIVATIONS[class_name], weights.read(folder), makes_scores)
    stored = layer.stored.tensors
    expected = {"linear.weight", "linear.bias"} if config.get("bias", True) else {"linear.weight"}
    if stored.keys() != expected:
        raise CheckpointError(
            f"{layer.folder}: weights do not fit: they are {', '.join(sorted(stored)) or 'none'},"
            f" expected are {', '.join(sorted(expected))}"
        )
    weight, bias = layer.weight, layer.bias
    if weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        shapes = ", ".join(f"{key} {list(tensor.shape)}" for key, tensor in stored.items())
        raise CheckpointError(f"{layer.folder}: weights do not fit each other: {shapes}")
    return layer


def read_flag_heads(folder: Path) -> dict[str, Dense]:
    """The heads that FlagEmbedding adds to bge-m3, by output (arXiv:2402.03216, section 3.2).
    CheckpointError if they are no linear layers."""
    heads = dict[str, Dense]()
    for name, output in FLAG_HEADS.items():
        file = folder / name
        if not file.is_file():
            continue
        tensors = weights.load(file)
        if tensors.keys() != {"weight", "bias"} or tensors["weight"].dim() != 2:
            raise CheckpointError(
                f"{file} is not a linear layer: it has {', '.join(sorted(tensors))}"
            )
        stored = {f"linear.{key}": tensor for key, tensor in tensors.items()}
        activation: Activation = "relu" if output == "token_weights" else "identity"
        heads[output] = Dense(file, output, activation, weights.Weights(stored, (file,)))
    return heads


@dataclass(frozen=True)
class Norm:
    """A LayerNorm of pooled vectors."""

    folder: Path
    stored: weights.Weights


def read_norm(folder: Path) -> Norm:
    """CheckpointError if its weights are not those of a LayerNorm."""
    norm = Norm(folder, weights.read(folder))
    shapes = {key: tuple(tensor.shape) for key, tensor in norm.stored.tensors.items()}
    if shapes.keys() != {"norm.weight", "norm.bias"}:
        raise CheckpointError(
            f"{folder}: weights do not fit: they are {', '.join(sorted(shapes)) or 'none'},"
            " expected are norm.bias, norm.weight"
        )
    return norm


Layer = Dense | Norm


def dense_head(layers: Sequence[Layer], pick: Pick) -> HeadConfig:
    """CheckpointError if they are more than a head of ours can hold."""
    first, *rest = layers
    has_norm = bool(rest) and isinstance(rest[0], Norm)
    behind = [layer for layer in rest[has_norm:] if isinstance(layer, Dense)]
    is_head = isinstance(first, Dense) and len(rest) == has_norm + len(behind)
    if not is_head or len(behind) > 1 or (behind and behind[0].activation != "identity"):
        names = ", ".join(layer.folder.name for layer in layers)
        raise CheckpointError(
            f"modules.json: {names} are not supported together: at most two Dense follow each"
            " other, the second with the activation Identity, and a LayerNorm follows the first"
        )
    assert isinstance(first, Dense)
    last = behind[0] if behind else None
    return HeadConfig(
        pick=pick,
        width=len((last or first).weight),
        dense=len(first.weight),
        dense_bias=first.bias is not None,
        activation=first.activation,
        norm=has_norm,
        norm_eps=NORM_EPS if has_norm else None,
        linear=last is not None,
        bias=last is not None and last.bias is not None,
    )


def fill_dense(head: Head, layers: Sequence[Layer]) -> None:
    """CheckpointError if a layer does not take what comes before it."""
    for name, layer in zip(head.steps, layers, strict=True):
        module = head.get_submodule(name)
        if isinstance(layer, Norm):
            for parameter, key in (("gamma", "norm.weight"), ("beta", "norm.bias")):
                _copy(module.get_parameter(parameter), layer, key)
            continue
        _copy(module.get_parameter("weight"), layer, "linear.weight")
        if layer.bias is not None:
            _copy(module.get_parameter("bias"), layer, "linear.bias")


def _copy(parameter: Tensor, layer: Layer, key: str) -> None:
    tensor = layer.stored.tensors[key]
    if parameter.shape != tensor.shape:
        sizes = f"{tensor.shape[-1]} numbers, {parameter.shape[-1]} come"
        raise CheckpointError(f"{layer.folder}: {key} takes {sizes}")
    parameter.copy_(tensor)


SCORED = "causal_logits"  # what the transformer's module calls the logits that this one reads


@dataclass(frozen=True)
class LogitScore:
    """Ids of tokens. no: None if its logit is not taken away."""

    folder: Path
    yes: int
    no: int | None

    def check(self, table: HeadTable | None, config: Config) -> None:
        """CheckpointError if the model has no logits of tokens, or not of these."""
        if table is None or not table.tied or table.dense or table.pick != "every":
            raise CheckpointError(f"{self.folder}: config.json names no language model to score by")
        for token in (self.yes, self.no):
            if token is not None and not 0 <= token < config.vocab_size:
                raise CheckpointError(
                    f"{self.folder}: token {token}: 0 to {config.vocab_size - 1} are in the"
                    " vocabulary"
                )

    def fill(self, head: Head, table: HeadTable, reader: Reader, config: Config) -> None:
        """One row of the language model's matrix less another."""
        shape = torch.Size([config.vocab_size, config.d_model])
        rows = reader.read(f"{table.linear}.weight", shape).float()
        score = rows[self.yes] if self.no is None else rows[self.yes] - rows[self.no]
        head.linear.weight.copy_(score[None])


SCORE_HEAD = HeadConfig("last", 1, bias=False)


def read_score(folder: Path) -> LogitScore:
    """CheckpointError if its config.json is broken."""
    file = folder / "config.json"
    config = json_files.settings(file)
    if (read_from := config.get("module_input_name", SCORED)) != SCORED:
        raise CheckpointError(
            f"{file}: module_input_name is {read_from!r}, supported is {SCORED!r}"
        )
    yes, no = config.get("true_token_id"), config.get("false_token_id")
    for name, token in (("true_token_id", yes), ("false_token_id", no)):
        if type(token) is not int and (name == "true_token_id" or token is not None):
            raise CheckpointError(f"{file}: {name} is {token!r}: the id of a token is needed")
    return LogitScore(folder, yes, no)  # type: ignore[arg-type]


InputType = Literal["query", "document"]
INPUT_TYPES: tuple[InputType, ...] = ("query", "document")
MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
# settings of the transformer: the first that is not empty
SETTINGS = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# its arguments of classes of transformers -> their former names, which win
FORMER = {
    "processor_kwargs": "tokenizer_args",
    "model_kwargs": "model_args",
    "config_kwargs": "config_args",
}
HUB = ("cache_dir", "local_files_only", "revision", "subfolder", "token", "trust_remote_code")
OUTPUTS = ("last_hidden_state", "logits")  # of the transformer's forward, that the server has
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")  # of two vectors
PACKAGES = ("sentence_transformers", "pylate")  # whose modules are known by the names below
POOLINGS: dict[str, Pick] = {
    "mean": "mean",
    "cls": "first",
    "max": "max",
    "lasttoken": "last",
    "weightedmean": "weighted_mean",
    "mean_sqrt_len_tokens": "mean_sqrt",
}
FLAGS = {  # as releases before 5.4 wrote them
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
}
KINDS = (
    *("Transformer", "MLMTransformer", "Pooling", "Dense", "Dropout", "Normalize"),
    *("LayerNorm", "MultiVectorMask", "HierarchicalTokenPooling", "SpladePooling", "LogitScore"),
)
MODALITIES = "modality_config"
CROSS_ENCODER = "CrossEncoder"
PYLATES = "ColBERT"  # the model_type of PyLate's releases before 4
TOKEN_POOLING = "HierarchicalTokenPooling"
MEAN_MAX_SIM = "meanmaxsim"  # of the vectors of tokens; "maxsim" by default
STANFORDS, STANFORDS_CLASS = "artifact.metadata", "HF_ColBERT"
TRANSFORMERS = ("Transformer", "MLMTransformer")
STATIC = "StaticEmbedding"
ROUTER, ROUTES = "Router", ("router_config.json", "config.json")  # and its settings: the first
TOKEN_WEIGHTS = "SparseStaticEmbedding"
SPLADE = {  # of sparse vectors, the default first
    "pooling_strategy": ("max",),
    "activation_function": ("relu", "log1p_relu"),
}
NO_DENSE = "there is no Dense before it that makes vectors of tokens"
REFUSED = {  # modules -> why
    "CNN": "convolutions are not served",
    "LSTM": "recurrent layers are not served",
    "WeightedLayerPooling": "it needs the activations of every layer, and only the last are served",
    ROUTER: "it has one path of modules for queries and another for documents",
    "Asym": "it has one path of modules for queries and another for documents",
    "WordWeights": "it weights tokens by their ids",
    "WordEmbeddings": "there is no transformer",
    STATIC: "its vectors come from a table, without a transformer",
    "BoW": "there is no transformer",
    "CLIPModel": "it has a tower of images",
}


@dataclass(frozen=True)
class Mask:
    """The settings of a MultiVectorMask.

    skipped_words: tokens whose vectors are left out of texts of the types in skipped_in.
    """

    skipped_words: tuple[str, ...] = ()
    skipped_in: tuple[InputType, ...] = ("document",)


@dataclass(frozen=True)
class Router:
    """An inference-free sparse encoder: documents go through a masked language model, and the
    vector of a query has the weight of each of its tokens.

    query: the folder of these weights. document: the class and the folder of each module.
    default_route: of texts of no type; None: there is none.
    """

    query: Path
    document: tuple[tuple[str, Path], ...]
    default_route: InputType | None

    @cached_property
    def stored(self) -> weights.Weights:
        return weights.read(self.query)

    @cached_property
    def token_weights(self) -> Tensor:
        """The weight of each token id `[V]` float32. CheckpointError for other weights."""
        stored = self.stored.tensors
        weight = stored.get("weight")
        if {*stored} != {"weight"} or weight is None or weight.dim() != 1:
            shapes = ", ".join(f"{name} {[*x.shape]}" for name, x in stored.items())
            raise CheckpointError(f"{self.query}: weight [ids] is needed, there are {shapes}")
        if not weight.isfinite().all():
            raise CheckpointError(f"{self.query}: weight has NaN or infinity")
        return weight.float()


def read_router(folder: Path) -> Router:
    """CheckpointError for one whose queries go another way."""
    file = next((folder / name for name in ROUTES if (folder / name).exists()), folder / ROUTES[0])
    settings = json_files.settings(file)
    kinds, routes = settings.get("types"), settings.get("structure")
    options = settings.get("parameters") or {}
    try:
        listed = {
            route: [_module(folder, kinds[path], path, file) for path in paths]  # type: ignore[index]
            for route, paths in routes.items()  # type: ignore[union-attr]
        }
        default, mappings = options.get("default_route"), options.get("route_mappings")
    except (TypeError, KeyError, AttributeError):
        raise CheckpointError(
            f"{file} is broken: it has no types, structure and parameters"
        ) from None
    names = {route: [kind for kind, _ in modules] for route, modules in listed.items()}
    is_served = (
        {*listed} == {"query", "document"}
        and names["query"] == [TOKEN_WEIGHTS]
        and names["document"][:1] in ([kind] for kind in TRANSFORMERS)
        and names["document"][1:] == ["SpladePooling"]
    )
    if not is_served or mappings:
        routes_in_words = "; ".join(f"{name}: {', '.join(kinds)}" for name, kinds in names.items())
        raise refusal(
            ROUTER,
            f"it has {routes_in_words}{'; route_mappings' if mappings else ''}, and served are"
            f" query: {TOKEN_WEIGHTS}; document: {TRANSFORMERS[0]}, SpladePooling",
        )
    if default is None and options.get("allow_empty_key", True):
        default = next(iter(listed))
    if default not in (None, *INPUT_TYPES):
        raise CheckpointError(f"{file}: default_route is {default!r}, there are query and document")
    return Router(listed["query"][0][1], tuple(listed["document"]), default)


def read_mask(folder: Path) -> Mask:
    """CheckpointError if it does more than leave words out."""
    file = folder / "config.json"
    config = json_files.settings(file)
    if config.get("keep_only_token_ids"):
        raise CheckpointError(f"{file}: keep_only_token_ids is for images, which are not served")
    words, tasks = config.get("skiplist_words") or [], config.get("skiplist_tasks")
    tasks = ["document"] if tasks is None else [tasks] if isinstance(tasks, str) else tasks
    if not all(isinstance(word, str) for word in words):
        raise CheckpointError(f"{file} is broken: skiplist_words must be words")
    if unknown := [task for task in tasks if task not in INPUT_TYPES]:
        choices = ", ".join(INPUT_TYPES)
        raise CheckpointError(f"{file}: skiplist_tasks has {unknown[0]!r}, supported are {choices}")
    return Mask(tuple(words), tuple(kind for kind in INPUT_TYPES if kind in tasks))


@dataclass(frozen=True)
class TokenPooling:
    """The settings of a HierarchicalTokenPooling. joined_in: types of texts whose vectors are
    joined."""

    factor: float
    num_protected: int
    normalize: bool
    joined_in: tuple[InputType, ...]


def read_token_pooling(folder: Path) -> TokenPooling:
    """CheckpointError for settings that no such module has."""
    file = folder / "config.json"
    config = json_files.settings(file)
    factor, num = config.get("pool_factor", 1.0), config.get("num_protected_tokens", 1)
    if type(factor) not in (int, float) or not 1 <= factor < math.inf:
        raise CheckpointError(f"{file}: pool_factor is {factor!r}: a number of 1 or more is needed")
    if type(num) is not int or num < 0:
        raise CheckpointError(f"{file}: num_protected_tokens is {num!r}: 0 or more is needed")
    tasks = config.get("tasks")
    tasks = ["document"] if tasks is None else [tasks] if isinstance(tasks, str) else tasks
    normalize = bool(config.get("normalize_embeddings", False))
    return TokenPooling(
        factor, num, normalize, tuple(kind for kind in INPUT_TYPES if kind in tasks)
    )


@dataclass(frozen=True)
class SentenceTransformers:
    """The settings in the folder's files.

    transformer: the folder of config.json, weights and tokenizer. dense: layers, by the output that
    they make. mask, token_pooling: of a MultiVectorEncoder. settings: of the transformer module,
    from `settings_file`. is_embedder: whether modules.json lists a pooling. score: of a language
    model that reranks. fills_template: whether texts go through the tokenizer's chat template.
    similarity: of two vectors. mean_max_sim: whether MaxSim is divided by the number of a query's
    vectors. has_flag_heads: whether FlagEmbedding's stand beside the weights. activation: what
    scores of pairs are made with, where it is named. sparse_activation: of logits, before
    log(1 + x) makes sparse vectors of them. router: the first module, whose documents' modules
    stand for it here. unread: fields, with their files.
    """

    transformer: Path
    pooling: Pick = "mean"
    normalize: bool = False
    dense: Mapping[str, tuple[Layer, ...]] = field(default_factory=dict)
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    mask: Mask | None = None
    token_pooling: TokenPooling | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    settings_file: str = SETTINGS[0]
    is_embedder: bool = False
    score: LogitScore | None = None
    fills_template: bool = True
    similarity: str = SIMILARITIES[0]
    mean_max_sim: bool = False
    has_flag_heads: bool = False
    activation: str | None = None
    sparse_activation: str = "relu"
    router: Router | None = None
    unread: tuple[str, ...] = ()

    @property
    def stored(self) -> list[weights.Weights]:
        """The weights beside the transformer's."""
        parts = [layer.stored for layers in self.dense.values() for layer in layers]
        return [*parts, self.router.stored] if self.router else parts

    def arguments(self, name: str) -> Mapping[str, Any]:
        """Settings for a class of transformers. name: of FORMER. CheckpointError if they are no
        object."""
        there = FORMER[name] if FORMER[name] in self.settings else name
        arguments = self.settings.get(there) or {}
        if not isinstance(arguments, dict):
            raise CheckpointError(
                f"{self.settings_file}: {there} is {arguments!r}: an object is needed"
            )
        return {key: value for key, value in arguments.items() if key not in HUB}


def is_older_multi_vector(folder: Path) -> bool:
    """True for a folder of PyLate's releases before 4, or of Stanford's ColBERT."""
    program = json_files.settings(folder / PROMPTS)
    classes = json_files.settings(folder / "config.json").get("architectures") or ()
    return (
        program.get("model_type") == PYLATES
        or not program.keys().isdisjoint(fields.PYLATE)
        or (folder / STANFORDS).is_file()
        or STANFORDS_CLASS in classes
    )


def read_words(folder: Path) -> SentenceTransformers:
    """The files' settings of texts and vectors around the modules, whatever those compute: limits,
    prompts, templates, words without vectors. Fields of modules keep their defaults.

    CheckpointError if a file is broken, or if texts are treated in a way that is not served."""
    modules = list_modules(folder)
    transformer = next((path for kind, path in modules if kind in TRANSFORMERS), folder)
    joins = (read_token_pooling(path) for kind, path in modules if kind == TOKEN_POOLING)
    mask = next((read_mask(path) for kind, path in modules if kind == "MultiVectorMask"), None)
    (file, settings), (prompts, default) = _settings(transformer), _prompts(folder / PROMPTS)
    program = json_files.settings(folder / PROMPTS)
    fields.PROGRAM.refuse(PROMPTS, program)
    if is_older_multi_vector(folder):
        raise CheckpointError(f"{folder} is of PyLate or of Stanford's ColBERT: {fields.PYLATES}")
    similarity, router = program.get("similarity_fn_name"), router_of(folder)
    has_flag_heads = any((folder / name).is_file() for name in FLAG_HEADS)
    if router and default:
        raise CheckpointError(
            f"{PROMPTS}: default_prompt_name is {default!r}, which is not served of a {ROUTER}: its"
            " queries and documents have prompts of their own"
        )
    return SentenceTransformers(
        transformer=transformer,
        normalize=any(kind == "Normalize" for kind, _ in modules),
        prompts=prompts,
        default_prompt_name=default,
        mask=mask,
        token_pooling=next(joins, None),
        settings=settings,
        settings_file=file.name,
        is_embedder=any(kind == "Pooling" for kind, _ in modules),
        # without modules.json, sentence-transformers fills whatever template there is
        fills_template=not modules or "message" in (settings.get(MODALITIES) or ()),
        similarity=similarity if similarity in SIMILARITIES else SIMILARITIES[0],
        mean_max_sim=has_flag_heads or similarity == MEAN_MAX_SIM,
        has_flag_heads=has_flag_heads,
        activation=program.get("activation_fn"),
        router=router,
    )


def read(folder: Path) -> SentenceTransformers:
    """CheckpointError if a file is broken, or names what is not supported."""
    modules = _Modules()
    for kind, path in list_modules(folder):
        modules.add(kind, path)
    words = read_words(folder)
    file = words.transformer / words.settings_file
    _check_outputs(file, words.settings, modules)
    program = json_files.settings(folder / PROMPTS)
    if "logits" in modules.dense and program.get("model_type") != CROSS_ENCODER:
        raise CheckpointError(
            f"{MODULES}: a Dense makes {SCORES!r}, and {PROMPTS} has the model_type"
            f" {program.get('model_type')!r}, which answers without them: {CROSS_ENCODER!r} is"
            " needed"
        )
    unread = [
        f"{file_name}: {name}"
        for file_name, names in {
            **modules.unread,
            file.name: fields.SETTINGS.list_unread(words.settings),
            PROMPTS: fields.PROGRAM.list_unread(program),
        }.items()
        for name in names
    ]
    authors = replace(
        words,
        pooling=modules.pooling or "mean",
        normalize=modules.normalize,
        dense={
            **{output: (layer,) for output, layer in read_flag_heads(folder).items()},
            **{output: tuple(layers) for output, layers in modules.dense.items()},
        },
        mask=modules.mask,
        score=modules.score,
        sparse_activation=modules.sparse_activation,
        unread=tuple(unread),
    )
    for name in authors.arguments("model_kwargs"):
        if fields.MODEL_ARGUMENTS.list_unread([name]):
            raise CheckpointError(
                f"{file}: model_kwargs has {name}, which is not supported: {fields.SAVE_AGAIN}"
            )
    return authors


def transformer_of(folder: Path) -> Path:
    """The folder of config.json. CheckpointError if a module is not supported."""
    listed = list_modules(folder)
    for kind, _ in listed:
        if kind not in KINDS:
            raise refusal(kind, REFUSED.get(kind, f"known are {', '.join(KINDS)}"))
    return listed[0][1] if listed else folder


def _settings(transformer: Path) -> tuple[Path, dict[str, Any]]:
    """The settings of the transformer's module, and their file."""
    for name in SETTINGS:
        if settings := json_files.settings(transformer / name):
            fields.SETTINGS.refuse(name, settings)
            return transformer / name, settings
    return transformer / SETTINGS[0], {}


def _check_outputs(file: Path, settings: Mapping[str, Any], modules: "_Modules") -> None:
    """CheckpointError if the modules get another output of the transformer than the server has."""
    modalities = settings.get(MODALITIES)
    if modalities is None:
        return  # sentence-transformers takes its defaults, whatever module_output_name says
    if not isinstance(modalities, dict) or not all(
        isinstance(modality, dict) for modality in modalities.values()
    ):
        raise CheckpointError(f"{file}: {MODALITIES} is {modalities!r}: an object is needed")
    for kind, modality in modalities.items():
        output = modality.get("method_output_name", OUTPUTS[0])
        if kind in ("text", "message") and output not in OUTPUTS:
            raise CheckpointError(
                f"{file}: {MODALITIES} has method_output_name {output!r} for {kind}, supported are"
                f" {' and '.join(map(repr, OUTPUTS))}"
            )
    outputs = (SCORED,) if modules.score else (None, "token_embeddings", "scores")
    if (output := settings.get("module_output_name")) not in outputs:
        raise CheckpointError(
            f"{file}: module_output_name is {output!r}, supported is {outputs[-1]!r}"
        )


def list_modules(folder: Path) -> list[tuple[str, Path]]:
    """The class and the folder of each module, in order. Of a Router the modules of its documents
    stand here."""
    listed = _listed(folder)
    if router := router_of(folder):
        if rest := listed[1:]:
            raise refusal(rest[0][0], f"it comes after a {ROUTER}")
        return [*router.document]
    if listed and listed[0][0] not in (*TRANSFORMERS, STATIC):
        raise refusal(listed[0][0], "the first module must be Transformer")
    return listed


def router_of(folder: Path) -> Router | None:
    """The Router that modules.json begins with. CheckpointError if it is not served."""
    (kind, path), *_ = _listed(folder) or [("", folder)]
    return read_router(path) if kind == ROUTER else None


def _listed(folder: Path) -> list[tuple[str, Path]]:
    """The class and the folder of each entry."""
    file = folder / MODULES
    entries = json_files.read(file) if file.exists() else []
    if not isinstance(entries, list):
        raise CheckpointError(f"{file} is broken: it holds no list of modules")
    listed = list[tuple[str, Path]]()
    for entry in entries:
        try:
            listed.append(_module(folder, entry["type"], entry["path"], file))
        except (TypeError, KeyError):
            raise CheckpointError(f"{file} is broken: {entry!r} has no type and path") from None
    return listed


def _module(folder: Path, kind: Any, path: Any, file: Path) -> tuple[str, Path]:
    """The class and the folder of a module that a file lists. CheckpointError for one of another
    package, or outside of the folder. TypeError if these are no names."""
    if not isinstance(kind, str) or not isinstance(path, str) or "." not in kind:
        raise TypeError(kind)
    if kind.partition(".")[0] not in PACKAGES:
        raise CheckpointError(f"{file}: {kind} is code that is not run")
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise CheckpointError(f"{file}: the path {path!r} leads out of {folder}")
    return kind.rpartition(".")[2], folder / path


class _Modules:
    """Adds one module after the other; refuses an order that is not supported."""

    def __init__(self) -> None:
        self.transformer: Path | None = None
        self.pooling: Pick | None = None
        self.dense: dict[str, list[Layer]] = {}
        self.normalize = False
        self.mask: Mask | None = None
        self.score: LogitScore | None = None
        self.sparse_activation = "relu"
        self.unread: dict[str, list[str]] = {}  # fields, by the file

    def add(self, kind: str, folder: Path) -> None:
        file = folder / "config.json"
        if kind in fields.MODULES:
            unread = fields.MODULES[kind].list_unread(json_files.settings(file))
            self.unread[f"{folder.name}/{file.name}"] = unread
        if kind in TRANSFORMERS and self.transformer is None:
            self.transformer = folder
        elif kind == "Pooling" and self.pooling is None:
            if "token_vectors" in self.dense:
                raise refusal(kind, "it pools what a Dense makes of every token")
            self.pooling = _pooling(file)
        elif kind == "Dense":
            # one that names no input takes what the modules before it made last
            layer = read_dense(folder)
            is_pooled = self.pooling or layer.makes_scores
            output = layer.output or ("pooled" if is_pooled else "token_vectors")
            self._add_layer(layer, output)
            if layer.makes_scores:
                self.dense["logits"] = self.dense.pop("pooled")
        elif kind == "LayerNorm":
            self._add_layer(read_norm(folder), "pooled")
        elif kind == "Normalize":
            self._add_normalize(file)
        elif kind == "MultiVectorMask" and not self.mask:
            if "token_vectors" not in self.dense:
                raise refusal(kind, NO_DENSE)
            self.mask = read_mask(folder)
        elif kind == TOKEN_POOLING and self.mask:
            if not self.normalize:
                raise refusal(kind, "it comes before Normalize")
        elif kind == "LogitScore" and not (self.score or self.pooling or self.dense):
            self.score = read_score(folder)
        elif kind == "SpladePooling":
            config = json_files.settings(file)
            for name, served in SPLADE.items():
                if (value := config.get(name, served[0])) not in served:
                    supported = " and ".join(map(repr, served))
                    raise CheckpointError(f"{file}: {name} is {value!r}, supported is {supported}")
            self.sparse_activation = config.get("activation_function", "relu")
        elif kind != "Dropout":  # which does nothing outside training
            twice = "it is listed twice" if kind in KINDS else f"known are {', '.join(KINDS)}"
            raise refusal(kind, REFUSED.get(kind, twice))

    def _add_layer(self, layer: Layer, output: str) -> None:
        name = layer.folder.name
        if "logits" in self.dense:
            raise refusal(name, f"it follows the module that makes {SCORES!r}")
        if self.normalize or (output == "pooled" and not self.pooling):
            vectors = "vectors of tokens" if output == "token_vectors" else "pooled vectors"
            place = "after Normalize" if self.normalize else "before Pooling"
            raise refusal(name, f"a {type(layer).__name__} of {vectors} comes {place}")
        self.dense.setdefault(output, []).append(layer)

    def _add_normalize(self, file: Path) -> None:
        """Nothing is done to vectors that are not there."""
        config = json_files.settings(file)
        read = config.get("module_input_name") or "sentence_embedding"
        written = config.get("module_output_name") or read
        there = ["token_embeddings"] + ["sentence_embedding"] * (self.pooling is not None)
        if read not in there or written not in ("token_embeddings", "sentence_embedding"):
            return
        if read != written:
            raise CheckpointError(
                f"{file}: module_output_name is {written!r}, supported is {read!r}"
            )
        if read == "token_embeddings" and "token_vectors" not in self.dense:
            raise refusal("Normalize", NO_DENSE)
        self.normalize = True


def refusal(module: str, reason: str) -> CheckpointError:
    return CheckpointError(f"{MODULES}: {module} is not supported: {reason}")


def _pooling(file: Path) -> Pick:
    """Reads the pooling in the present spelling or in the former one."""
    config = json_files.settings(file)
    modes = config.get("pooling_mode")
    if modes is None:
        on = [name for name in config if name.startswith("pooling_mode_") and config[name]]
        modes = [FLAGS.get(name, name) for name in on] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if len(modes) > 1:
        listed = ", ".join(modes)
        raise CheckpointError(f"{file}: one pooling at a time is supported, these are {listed}")
    if (mode := modes[0]) not in POOLINGS:
        raise CheckpointError(
            f"{file}: the pooling {mode!r} is not supported, known are {', '.join(POOLINGS)}"
        )
    if config.get("include_prompt") is False:
        raise CheckpointError(
            f"{file}: include_prompt is false, and every token of a text is pooled, those of its"
            " prompt too"
        )
    return POOLINGS[mode]


def _prompts(file: Path) -> tuple[dict[str, str], str | None]:
    """Prompts by name, and the name of the default one. Empty prompts are left out."""
    config = json_files.settings(file)
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(
        isinstance(prompt, str | None) for prompt in prompts.values()
    ):
        raise CheckpointError(f"{file} is broken: prompts must be texts by name")
    if default is not None and default not in prompts:
        names = ", ".join(prompts) or "none"
        raise CheckpointError(f"{file}: default_prompt_name is {default!r}, prompts are {names}")
    nonempty = {name: prompt for name, prompt in prompts.items() if prompt}
    return nonempty, default if default in nonempty else None
