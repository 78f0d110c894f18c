"""The models that are served, their versions and limits, and what was proved of them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, Field
from starlette.requests import Request

from addnorm.service.engine.device.processor import processor
from addnorm.service.engine.manifest import Limits, Pooling, Ranges, Task
from addnorm.service.engine.model import Model
from addnorm.service.engine.outputs import OUTPUTS
from addnorm.service.engine.registry import WORDS, Models
from addnorm.service.errors import NotFound
from addnorm.service.wire.codec.openapi import query
from addnorm.service.wire.dialect_errors import OPENAI_ERRORS
from addnorm.service.wire.route import PlainRoute, Protocol, parts_of


class ModelEntry(BaseModel):
    """OpenAI's model object, and what is ours."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="Unix time of the first version's export.")
    owned_by: Literal["addnorm"] = "addnorm"
    version: str = Field(description="Of which this entry tells: what the name means.")
    versions: list[str]
    config: dict[str, Any] = Field(description="The model's shape, in the exporter's words.")
    inputs: list[str] = Field(
        description="What requests may hold: `token_type_ids` where the model has token types,"
        " `texts` where the bundle has a tokenizer."
    )
    outputs: list[str]
    tasks: list[Task] = Field(
        description="What its heads are for. Requests that name no model go to the one model of"
        " their task."
    )
    aliases: list[str] = Field(
        description="Names under which its prompts are put before each text, for clients that can"
        " only name a model, and the other names that the operator gave it."
    )
    labels: list[str] | None = Field(
        description="Of the logits, in their order; null where they have no names."
    )
    limits: Limits
    longest: int = Field(
        description="Tokens of the longest sequence that this server takes: fewer than"
        " `max_positions` where ADDNORM_MAX_RUN_BYTES has no space for them."
    )
    peak_bytes: dict[int, int] = Field(
        description="Tokens of a sequence, and the bytes that its run holds, of a model that is"
        " served as its authors wrote it. Empty for others."
    )
    precisions: list[str]
    default_precision: str = Field(description="Of requests that name no precision.")
    prompts: dict[str, str] = Field(
        description="Name of each prompt, and what it puts before a text."
    )
    default_prompt_name: str | None = Field(description="Of requests that name no prompt.")
    windows: dict[str, int | str] | None = Field(
        description="How texts are read that are longer than the model takes: overlap and label."
    )
    pooling: Pooling
    normalize: bool = Field(
        description="Whether embeddings have length 1; /v1/infer does it only when asked."
    )
    vector_ranges: Ranges | None = Field(
        description="Lowest and highest value of each dimension, by which int8 and uint8 vectors"
        " are made. Null where there are none, and in the list of all models."
    )
    token_vector_ranges: Ranges | None = Field(
        description="The same of the vectors of documents' tokens, of models that have them."
    )
    fingerprint: dict[str, str] = Field(
        description="By precision: a digest of all that decides the bits of answers, beside tokens"
        " and options. Every answer has it in x-addnorm-fingerprint."
    )
    fingerprint_parts: dict[str, dict[str, str]] = Field(
        description="By precision: what the fingerprint is a digest of."
    )
    bits: dict[str, dict[str, str] | None] = Field(
        description="By precision: digests of known answers' bits (`answers`), of the tokens of"
        " some texts (`tokens`), and of the model's files and settings (`model`). A new version of"
        " a library may change the fingerprint and none of them. Null where no bits are promised:"
        " on a GPU, and where an older certificate records none."
    )
    processor: str = Field(
        description="Of this machine: system, architecture, and the instruction sets by which"
        " kernels are chosen."
    )
    reproduces_certificate: dict[str, bool | None] = Field(
        description="By precision: whether this machine gives the bits that the certificate"
        " records. Machines that do have one fingerprint. Null where they are not compared: on a"
        " GPU, and where an older certificate records none."
    )
    different_from_certificate: dict[str, list[str]] = Field(
        description="By precision: the known answers that have other bits here."
    )
    compared_with: dict[str, Any] = Field(
        description="What the certificate compares its answers with: `kind`, and of a program its"
        " `name` with the version, the outputs and the tasks."
    )
    recall: dict[str, Any] | None = Field(
        description="The share of the nearest texts that int8 finds as fp32 does, on which texts,"
        " and the matrices that stay fp32 for it. Null where it was not exported to keep one."
    )
    layout: Literal["packed", "padded"]
    source: dict[str, Any]
    files: dict[str, str] = Field(description="sha256 of each file of the bundle.")


class CohereModel(BaseModel):
    """Cohere's model object."""

    name: str
    endpoints: list[Task]
    description: str = Field(description="This and the next are for TypeSafe's clients.")
    release_date: str
    context_length: int = Field(description="Tokens that a text may have.")


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelEntry]
    models: list[CohereModel] = Field(description="The same, for Cohere's clients.")


async def predict(request: Request, name: str) -> None:
    # KServe's first protocol, which nobody should be told to ask by GET
    raise NotFound(
        f"POST /v1/models/{name[:200]}:predict is KServe's V1 protocol, which is not served"
        f" here: send the request to /v2/models/{name[:200]}/infer, as V2 has it"
    )


async def list_models(request: Request) -> ModelList:
    models, endpoint = parts_of(request).models, request.query_params.get("endpoint")
    short = {"vector_ranges": None, "token_vector_ranges": None}  # they are long
    entries = [
        _entry(models, model.name, models.versions(model.name), model)
        for model in models.defaults()
    ]
    alias_names = [name for name, alias in models.aliases.items() if models.get(alias.ref)]
    entries += [_named_entry(models, name) for name in alias_names]
    matches = [entry for entry in entries if endpoint in (None, *entry.tasks)]
    return ModelList(
        data=[entry.model_copy(update=short) for entry in matches],
        models=[
            CohereModel(
                name=entry.id,
                endpoints=entry.tasks,
                description=", ".join(WORDS[task] for task in entry.tasks),
                release_date=datetime.fromtimestamp(entry.created, UTC).date().isoformat(),
                context_length=entry.limits.max_text_tokens,
            )
            for entry in matches
        ],
    )


async def show_model(request: Request, name: str) -> ModelEntry:
    """Shows a model, which may be named by an alias."""
    return _named_entry(parts_of(request).models, name)


async def show_version(request: Request, name: str, version: str) -> ModelEntry:
    return _named_entry(parts_of(request).models, f"{name}/{version}")


def _named_entry(models: Models, name: str) -> ModelEntry:
    meaning = models.meant(name)
    model, prompt = meaning.model, meaning.prompt_name
    entry = _entry(models, meaning.name, models.versions(model.name), model)
    changes: dict[str, Any] = {
        "id": name,
        "default_precision": meaning.alias.precision or entry.default_precision,
    }
    if rule := meaning.alias.windows:
        changes["windows"] = rule.model_dump(exclude_none=True)
    if prompt and name in models.aliases:
        changes["default_prompt_name"] = prompt
    return entry.model_copy(update=changes)


async def show_certificate(request: Request, name: str) -> dict[str, Any]:
    return _certificate(parts_of(request).models, name)


async def show_version_certificate(request: Request, name: str, version: str) -> dict[str, Any]:
    return _certificate(parts_of(request).models, f"{name}/{version}")


def _certificate(models: Models, ref: str) -> dict[str, Any]:
    certificate = models.find(ref).bundle.certificate
    assert certificate
    return certificate


def _entry(models: Models, ref: str, versions: Mapping[int, Model], model: Model) -> ModelEntry:
    """The entry of one version. It has the numbers of all versions."""
    manifest, limits = model.bundle.manifest, model.bundle.manifest.limits
    types = ["token_type_ids"] if limits.type_vocab_size > 1 else []
    tokens = "inputs" if limits.input_width else "input_ids"
    return ModelEntry(
        id=ref,
        created=min(int(version.bundle.created_s) for version in versions.values()),
        version=str(manifest.version),
        versions=[str(version) for version in sorted(versions)],
        config=manifest.config,
        inputs=[tokens, "attention_mask", *types, *(["texts"] if model.tokenizer else [])],
        outputs=[*OUTPUTS.of(model.bundle)],
        tasks=list(model.bundle.tasks),
        aliases=[
            *(f"{ref}:{prompt}" for prompt in manifest.prompts),
            *(name for name, alias in models.aliases.items() if models.get(alias.ref) is model),
        ],
        labels=None if manifest.labels is None else list(manifest.labels),
        limits=manifest.limits,
        longest=model.longest,
        peak_bytes=model.bundle.peak_bytes,
        precisions=list(manifest.precisions),
        default_precision=model.default_precision,
        prompts=manifest.prompts,
        default_prompt_name=manifest.default_prompt_name,
        windows=manifest.windows and manifest.windows.model_dump(exclude_none=True),
        pooling=manifest.pooling,
        normalize=manifest.normalize,
        vector_ranges=manifest.vector_ranges,
        token_vector_ranges=manifest.token_vector_ranges,
        fingerprint={name: engine.fingerprint.digest for name, engine in model.engines.items()},
        fingerprint_parts={
            name: engine.fingerprint.parts() for name, engine in model.engines.items()
        },
        bits={
            name: None if (bits := engine.fingerprint.bits) is None else dict(bits)
            for name, engine in model.engines.items()
        },
        processor=processor().kind,
        reproduces_certificate={
            name: reproduction.is_equal for name, reproduction in model.reproductions.items()
        },
        different_from_certificate={
            name: list(reproduction.different) for name, reproduction in model.reproductions.items()
        },
        compared_with=model.bundle.compared_with,
        recall=model.bundle.recall,
        layout=manifest.layout,
        source=manifest.source,
        files={name: file.sha256 for name, file in manifest.files.items()},
    )


ONE_ERRORS = OPENAI_ERRORS.only(404, 503)
PROTOCOL = Protocol(
    tag="models",
    routes=(
        PlainRoute(
            "/v1/models",
            list_models,
            "The models served here, in OpenAI's list shape",
            OPENAI_ERRORS.only(503),
            "list_models",
            documented=query("endpoint", "Only models of this task, as Cohere's clients ask."),
        ),
        *(
            PlainRoute(f"/v1/models/{path}", answer, summary, ONE_ERRORS, answer.__name__)
            for path, answer, summary in (
                ("{name}", show_model, "One model, by the version that its name means"),
                (
                    "{name}/certificate",
                    show_certificate,
                    "What was proved of the version that the model's name means",
                ),
                (
                    "{name}/{version}/certificate",
                    show_version_certificate,
                    "What was proved of one version",
                ),
                # after the certificate: no version has its name
                ("{name}/{version}", show_version, "One version of a model"),
            )
        ),
        PlainRoute("/v1/models/{name:path}", show_model),  # a name with slashes
        PlainRoute("/v1/models/{name:path}:predict", predict, method="POST"),
    ),
    errors=OPENAI_ERRORS,
)
