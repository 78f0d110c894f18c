"""Builds every object of the service, and hands each what it needs."""

from dataclasses import dataclass
from typing import Protocol

from fastapi import APIRouter
from opentelemetry.trace import Tracer

from addnorm.service.inference.pipeline import Pipeline
from addnorm.service.inference.sequence_cache import SequenceCache
from addnorm.service.models.readiness import Readiness
from addnorm.service.models.registry import Models
from addnorm.service.models.repository import Repository
from addnorm.service.protocols.body_route import body_router
from addnorm.service.protocols.codec.bodies import BodyReader
from addnorm.service.protocols.codec.decoding import Tools
from addnorm.service.protocols.cohere import cohere_embed
from addnorm.service.protocols.cohere import cohere_rerank as cohere
from addnorm.service.protocols.huggingface import inference_client as huggingface
from addnorm.service.protocols.inference_route import inference_router
from addnorm.service.protocols.kserve import infer as kserve
from addnorm.service.protocols.kserve.metadata import MetadataRoutes
from addnorm.service.protocols.kserve.repository_extension import RepositoryRoutes
from addnorm.service.protocols.kserve.statistics_extension import StatisticsRoutes
from addnorm.service.protocols.models.model_list import ModelListRoutes
from addnorm.service.protocols.native import native_infer as native
from addnorm.service.protocols.native import text_routes
from addnorm.service.protocols.openai import completions
from addnorm.service.protocols.openai import embeddings as openai
from addnorm.service.protocols.operations.pages import PageRoutes
from addnorm.service.protocols.operations.probes import OperationsRoutes
from addnorm.service.protocols.tei import shared_paths, tei_tokens
from addnorm.service.protocols.tei import tei_tasks as tei
from addnorm.service.protocols.tei.tei_about import TeiAboutRoutes
from addnorm.service.protocols.texts.texts import TextReader
from addnorm.service.protocols.tokenization import tokenization
from addnorm.service.protocols.vllm import vllm_tokens
from addnorm.service.protocols.vllm.vllm_tokens import TokenizerInfoRoutes
from addnorm.service.scheduling.byte_budget import ByteBudget
from addnorm.service.scheduling.cooperative import CooperativePool
from addnorm.service.scheduling.scheduler import Scheduler
from addnorm.service.server.app import create_app
from addnorm.service.server.auth import Keys
from addnorm.service.server.middleware import RequestMiddleware
from addnorm.service.settings import Settings
from addnorm.service.telemetry.exposition import Exposition
from addnorm.service.telemetry.invariance import InvarianceCheck
from addnorm.service.telemetry.metrics import Metrics
from addnorm.service.telemetry.report import Reporter

# Worker threads of a GPU: while one hands out what a run gave, the GPU has the next. Not measured
# yet: `python -m benchmarks gpu --only lanes` does.
GPU_WORKERS = 2


class Closable(Protocol):
    def close(self) -> None: ...


@dataclass(frozen=True)
class Service:
    """Can be asked over HTTP through `app`, or directly through its parts."""

    settings: Settings
    app: RequestMiddleware
    models: Models
    repository: Repository
    tools: Tools
    pipeline: Pipeline
    scheduler: Scheduler
    readiness: Readiness
    keys: Keys
    metrics: Metrics
    to_close: tuple[Closable, ...]

    def close(self) -> None:
        """Ends all threads. What is queued is computed first."""
        for part in self.to_close:
            part.close()


def build(models: Models, settings: Settings, tracer: Tracer | None = None) -> Service:
    """StartupError if the API keys cannot be read."""
    keys = Keys(settings)
    scheduler = Scheduler(
        num_workers(models, settings), settings.max_queue_tokens, settings.run_timeout_s
    )
    readiness = Readiness(models, scheduler, settings.known_answer_timeout_s)
    repository = Repository(models, settings)
    bodies = ByteBudget("bodies", settings.max_pending_body_bytes)
    responses = ByteBudget("responses", settings.max_pending_response_bytes)
    # heads run there, and compete with the workers for the cores
    encoders = CooperativePool(settings.num_cores, "encode")
    # apart from these, because their steps are longer
    lens_threads = CooperativePool(settings.num_cores, "lens")
    tokenizers = CooperativePool(settings.num_cores, "tokenize")
    # one thread each: reading holds the interpreter's lock, and more would keep it from the event
    # loop
    readers = CooperativePool(1, "read", pauses=True)
    large_readers = CooperativePool(1, "read-large", pauses=True)
    body_reader = BodyReader(settings, bodies, readers, large_readers)
    tools = Tools(models, body_reader, TextReader(settings, bodies, tokenizers))
    metrics, cache = Metrics(), SequenceCache(settings.cache_bytes)
    pipeline = Pipeline(
        settings, scheduler, responses, encoders, lens_threads, cache, metrics.looked_up
    )
    exposition = Exposition(
        metrics, models, settings.provider, scheduler, (responses, bodies), cache
    )
    invariance_check = InvarianceCheck(
        settings.invariance_check_share, scheduler.is_idle, metrics.invariance_checked
    )
    operations = OperationsRoutes(readiness, exposition, readers)
    routers = _routers(settings, repository, readiness, pipeline, tools, readers, operations)
    app = create_app(routers, settings, keys, readiness, Reporter(metrics, tracer))
    scheduler.start((metrics, invariance_check))
    return Service(
        settings=settings,
        app=app,
        models=models,
        repository=repository,
        tools=tools,
        pipeline=pipeline,
        scheduler=scheduler,
        readiness=readiness,
        keys=keys,
        metrics=metrics,
        to_close=(
            repository,
            invariance_check,
            scheduler,
            encoders,
            lens_threads,
            tokenizers,
            readers,
            large_readers,
        ),
    )


def num_workers(models: Models, settings: Settings) -> int:
    """Session runs at once: one for each core, and GPU_WORKERS where there is a GPU."""
    engines = (engine for model in models.all() for engine in model.engines.values())
    if not settings.worker_threads and any(engine.provider == "cuda" for engine in engines):
        return GPU_WORKERS
    return settings.num_cores


def _routers(
    settings: Settings,
    repository: Repository,
    readiness: Readiness,
    pipeline: Pipeline,
    tools: Tools,
    readers: CooperativePool,
    operations: OperationsRoutes,
) -> dict[str, list[APIRouter]]:
    """In the order of the documentation, by tag."""
    models = tools.models
    needs_key = bool(settings.api_keys or settings.api_keys_file)
    return {
        "inference": [
            inference_router(
                pipeline,
                tools,
                (native.ENDPOINT, *text_routes.ENDPOINTS, openai.ENDPOINT, completions.ENDPOINT),
            ),
            body_router(tools, settings.timeout_s, (tokenization.ENDPOINT,)),
        ],
        "Cohere": [inference_router(pipeline, tools, (*cohere.ENDPOINTS, *cohere_embed.ENDPOINTS))],
        "text-embeddings-inference": [
            inference_router(pipeline, tools, (*tei.ENDPOINTS, shared_paths.RERANK_ENDPOINT)),
            body_router(
                tools, settings.timeout_s, (shared_paths.TOKENIZE_ENDPOINT, tei_tokens.ENDPOINT)
            ),
            TeiAboutRoutes(models, readiness, settings).router(),
        ],
        "vLLM": [
            body_router(tools, settings.timeout_s, (vllm_tokens.ENDPOINT,)),
            TokenizerInfoRoutes(models).router(),
        ],
        "Hugging Face": [
            inference_router(pipeline, tools, huggingface.ENDPOINTS),
            huggingface.HealthRoutes(models).router(),
        ],
        "models": [ModelListRoutes(models).router()],
        "KServe V2": [
            # before MetadataRoutes: in /models/stats, `stats` is no model
            StatisticsRoutes(models, readers).router(),
            MetadataRoutes(models, readiness, settings).router(),
            inference_router(pipeline, tools, kserve.ENDPOINTS),
            RepositoryRoutes(models, repository, tools.bodies, settings).router(),
        ],
        "operations": [operations.router(), PageRoutes(models, needs_key).router()],
    }
