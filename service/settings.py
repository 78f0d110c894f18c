"""Settings: frozen, passed down. Knows no environment: see environment.py."""

import logging
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator

from addnorm.service.cores import usable_cores, usable_memory

log = logging.getLogger("addnorm")
MIB = 2**20
RUN_SHARE = 4  # one sequence may hold this part of the memory, and all runs together twice as much
FORMS = {"default_models": "task=NAME", "aliases": "NAME=MODEL", "versions": "NAME=VERSION"}


class Settings(BaseModel):
    """Each description says what the setting is and when to change it.

    Only `read_settings` of environment.py reads the environment.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """Address to listen on. 0.0.0.0 to be reached from other machines, :: over IPv6 too."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on. 0 takes a free one."""
    socket: Path | None = None
    """Unix socket to listen on, in place of host and port; only this user may connect. Set it where
    all callers are programs of one desktop."""
    grpc_port: int | None = Field(None, ge=0, le=65535)
    """Port of the Open Inference Protocol over gRPC, which needs the extra `grpc`; 0 takes a free
    one. Set it for clients that speak nothing else, as KServe's gRPC router."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is logged. debug while looking for a fault."""
    provider: Literal["cpu", "cuda", "auto"] = "cpu"
    """Where sessions run. cuda refuses to start without a GPU; auto takes one if it is there."""
    worker_threads: int = Field(0, ge=0)
    """Concurrent session runs. 0: as many as the cores of the CPU quota, 2 on a GPU. Set it beside
    other busy processes."""
    run_timeout_s: float = Field(20.0, gt=0)
    """Longest session run; a worker that takes longer is replaced. A tenth of it is the longest
    known-answer test of a ready server, and all of it while other work proceeds. Raise for huge
    sequences."""
    token_budget: int = Field(0, ge=0)
    """Real tokens in one micro-batch. 0: found at warm-up. Set it where start-up is noisy."""
    timeout_s: float = Field(30.0, gt=0)
    """Deadline of a request that sends no x-request-timeout-ms. Match it to your clients'."""
    bulk_timeout_s: float = Field(600.0, gt=0)
    """Longest deadline of a bulk request, as one of more than 1,024 sequences or 65,536 tokens,
    that sends no x-request-timeout-ms; within it the deadline follows its size. Match it to your
    indexing clients'."""
    grace_s: float = Field(30.0, gt=0)
    """Longest drain after SIGTERM or SIGHUP; a second later the process has ended. Keep it below
    the orchestrator's own kill delay."""
    invariance_check_share: float = Field(0.001, ge=0, le=1)
    """Share of micro-batches computed again alone when idle, and compared. Raise on new hardware;
    0: none."""
    watch_s: float = Field(0.0, ge=0)
    """How often the bundle folder is looked at for versions to load or unload. 0: never."""
    idle_unload_s: float = Field(0.0, ge=0)
    """How long a model keeps its sessions while nobody asks for it; the next request waits until it
    is loaded again. Set it on a desktop; 0: always."""
    idle_exit_s: float = Field(0.0, ge=0)
    """The process ends after so long without a request, probes aside. Set it where the first caller
    starts the server; 0: never."""
    cache_bytes: int = Field(64 * MIB, ge=0)
    """Bytes of results held, so that a repeated sequence is not computed again. Raise where traffic
    repeats; 0: nothing is held, and equal sequences of one request are computed each."""
    max_sequences: int = Field(2048, ge=1)
    """Sequences in one request. Raise for clients that send more at once."""
    max_tokens: int = Field(300_000, ge=1)
    """Real tokens in one request. Raise for clients that send more at once."""
    max_padded_tokens: int = Field(300_000, ge=1)
    """Tokens, pads included, in one request. Raise for sparse grids."""
    max_body_bytes: int = Field(16 * MIB, ge=1)
    """Bytes of a request body. Raise for very wide grids."""
    max_json_bytes: int = Field(8 * MIB, ge=1)
    """Bytes of JSON in a body; parsing holds up other requests. Raise for indented grids."""
    max_response_bytes: int = Field(256 * MIB, ge=1)
    """Bytes of an answer, estimated before any work. Raise where memory allows."""
    max_queue_tokens: int = Field(65_536, ge=1)
    """Real tokens that may wait; one API key may hold 16/17 of them for one model. Raise for
    bursts."""
    max_pending_response_bytes: int = Field(512 * MIB, ge=1)
    """Bytes of all answers being made or sent, and of the rows that are kept for them; one API key
    may hold 8/9 of them. Lower where memory is short."""
    max_pending_body_bytes: int = Field(256 * MIB, ge=1)
    """Bytes of all bodies being received or read, of what is read of them, and of texts being
    tokenized; one API key may hold 8/9 of them. Lower where memory is short."""
    max_run_bytes: int = Field(0, ge=0)
    """Bytes that the run of one sequence may hold, of models served as their authors wrote them:
    longer ones are rejected. All runs together hold at most twice as much. 0: a quarter of the
    memory of the machine or container. Raise where long texts are rejected and memory is free."""
    max_connections: int = Field(1024, ge=1)
    """Connections answered; more get 503. gRPC has as many of its own. Lowered at start where
    `ulimit -n` is less than twice as many, with gRPC four times. Raise both for many callers."""
    keep_alive_s: int = Field(75, ge=1)
    """How long a connection without a request is kept. Set it above the idle timeout of a balancer
    in front (Amazon's 60, Google's 600), which else may send into a closed one."""
    body_timeout_s: float = Field(30.0, gt=0)
    """Longest a request's head may take to arrive, and its body. Raise for slow networks."""
    send_timeout_s: float = Field(60.0, gt=0)
    """Longest a caller may take to read an answer. Raise for slow networks."""
    api_keys_file: Path | None = None
    """File of API keys, a line each: `name scopes key [limit]`. Set it wherever callers are not all
    trusted."""
    api_keys: SecretStr | None = None
    """The same in place of a file, `;` between keys. For where only variables can be set."""
    cors_origins: str | None = None
    """Origins whose pages may call from a browser, commas between. Set it for a web page of
    yours."""
    tls_cert: Path | None = None
    """Certificate chain, PEM; read again when it changes. With tls_key, serves HTTPS where no proxy
    does."""
    tls_key: Path | None = None
    """Private key of tls_cert, PEM, without a passphrase."""
    admin: bool = False
    """Whether /v2/repository may load and unload models. Only where callers are trusted."""
    trusted_keys: str | None = None
    """Files of public keys and certificates, PEM, commas between. A bundle that is signed by none
    of them is refused. Set it where bundles come from elsewhere."""
    require_reference: bool = False
    """Whether bundles are refused unless they were compared with their authors' program, or with
    the module that their weights come from. Set it where others hand you bundles."""
    trust_token_ids: bool = False
    """Whether routes for texts take token ids that do not begin and end with the model's special
    tokens. Set it where every client sends ids of the model's own vocabulary."""
    truncate: bool | None = None
    """Whether texts that are too long are cut where the request does not say. By default as what a
    route is modelled on does. Set it to true for clients that send long texts to /v1/embeddings and
    have no field for it."""
    default_models: dict[str, str] = {}
    """Models of requests that name none, as rerank=NAME,embed=NAME. Set it where several models can
    do what a client without a model field asks for."""
    aliases: dict[str, str] = {}
    """Other names of models, as
    text-embedding-3-small=NAME,questions=NAME?prompt=query&precision=int8&dimensions=256. Set it
    where clients insist on names of their own."""
    versions: dict[str, str] = {}
    """What a model's bare name means, as NAME=1,OTHER=2; by default its latest version. Set it
    where a new folder must not answer at once."""
    answer_versions: bool = False
    """Whether answers have NAME/VERSION as their model. Set it where callers store vectors and do
    not keep the fingerprint."""
    default_precision: Literal["fp32", "fp16", "int8"] | None = None
    """Precision of requests that name none, of models that have it. Set it where clients cannot ask
    for int8; by default each bundle says."""

    @field_validator("trusted_keys")
    @classmethod
    def _names_a_file(cls, value: str | None) -> str | None:
        if value is not None and not value.replace(",", " ").strip():
            raise ValueError("it names no file")
        return value

    @field_validator("default_models", "aliases", "versions", mode="before")
    @classmethod
    def _by_name(cls, value: Any, info: ValidationInfo) -> Any:
        """Parses entries of the form that FORMS has for the setting, separated by commas."""
        if not isinstance(value, str):
            return value
        names: dict[str, str] = {}
        for entry in filter(None, map(str.strip, value.split(","))):
            key, _, name = map(str.strip, entry.partition("="))
            if not key or not name:
                form = FORMS[str(info.field_name)]
                raise ValueError(f"{entry!r} is not of the form {form}")
            if key in names:
                raise ValueError(f"{key} stands there twice")
            names[key] = name
        return names

    @field_validator("port", "grpc_port", mode="before")
    @classmethod
    def _ignore_service_link(cls, value: Any, info: ValidationInfo) -> Any:
        """Kubernetes injects ADDNORM_PORT=tcp://10.0.0.1:8000 for a service called addnorm, and
        ADDNORM_GRPC_PORT for one called addnorm-grpc."""
        if isinstance(value, str) and value.startswith("tcp://"):
            name = str(info.field_name)
            log.warning(
                "ADDNORM_%s=%s is a Kubernetes service link, not a port: ignored",
                name.upper(),
                value,
            )
            return cls.model_fields[name].default
        return value

    @field_validator("log_level", "provider", mode="before")
    @classmethod
    def _any_case(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @property
    def needs_keys(self) -> bool:
        """Callers need API keys."""
        return bool(self.api_keys or self.api_keys_file)

    @property
    def trusted_key_files(self) -> list[Path]:
        names = (self.trusted_keys or "").split(",")
        return [Path(name.strip()) for name in names if name.strip()]

    @property
    def num_cores(self) -> int:
        """Cores that the server may use: as many as worker threads, where these are set."""
        return self.worker_threads or usable_cores()

    @property
    def run_bytes(self) -> int:
        """`max_run_bytes`, or this machine's."""
        return self.max_run_bytes or usable_memory() // RUN_SHARE


def descriptions() -> dict[str, str]:
    """name -> the setting's description, in one line."""
    fields = Settings.model_fields.items()
    return {name: " ".join((field.description or "").split()) for name, field in fields}
