"""Settings: frozen, passed down. Knows no environment: see environment.py."""

import logging
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator

from addnorm.service.cores import usable_cores, usable_memory

log = logging.getLogger("addnorm")
MIB = 2**20
RUN_SHARE = 4  # one sequence may hold this part of the memory, and all runs together twice as much
FORMS = {
    "default_models": "task=NAME", "aliases": "NAME=MODEL", "versions": "NAME=VERSION",
    "default_precision": "int8 or NAME=int8",
}  # fmt: skip
EVERY = "*"  # as a name: all models


class Settings(BaseModel):
    """Each description says what the setting is and when to change it.

    Only `read_settings` of environment.py reads the environment.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """Address to listen on. 0.0.0.0 to be reached from other machines, :: over IPv6 too."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on. 0 chooses a free one."""
    socket: Path | None = None
    """Unix socket to listen on, instead of host and port; only this user can connect. Set it if all
    callers are programs on the same desktop."""
    grpc_port: int | None = Field(None, ge=0, le=65535)
    """Port of the Open Inference Protocol over gRPC, which needs the extra `grpc`; 0 chooses a free
    one. Set it for clients that need gRPC, such as KServe's gRPC router."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest severity that is logged. Set it to debug to investigate a fault."""
    log_format: Literal["auto", "json", "text"] = "auto"
    """Form of the log. auto: on a terminal text, of warnings unless log_level is set; elsewhere
    JSON, one object a line. Set it to json if a program reads the terminal."""
    provider: Literal["cpu", "cuda", "auto"] = "cpu"
    """Device that runs the sessions. cuda does not start without a GPU; auto uses one if there is
    one."""
    worker_threads: int = Field(0, ge=0)
    """Concurrent session runs. 0: as many as the cores of the CPU quota, 2 on a GPU. Set it if
    other processes on the machine are busy."""
    run_timeout_s: float = Field(20.0, gt=0)
    """Longest session run; a worker that takes longer is replaced. A ready server's known-answer
    test may take a tenth of it, or all of it while other work proceeds. Raise it for huge
    sequences."""
    token_budget: int = Field(0, ge=0)
    """Real tokens in one micro-batch. 0: measured at warm-up. Set it if start-up timing is
    noisy."""
    timeout_s: float = Field(30.0, gt=0)
    """Deadline of a request without the header x-request-timeout-ms. Match it to the timeout of
    your clients."""
    bulk_timeout_s: float = Field(600.0, gt=0)
    """Longest deadline of a bulk request (more than 1,024 sequences or 65,536 tokens) without the
    header x-request-timeout-ms; up to it, the deadline grows with the size. Match it to the timeout
    of your indexing clients."""
    grace_s: float = Field(30.0, gt=0)
    """Longest drain after SIGTERM or SIGHUP; the process ends at most a second later. Keep it below
    the orchestrator's kill delay."""
    invariance_check_share: float = Field(0.001, ge=0, le=1)
    """Share of micro-batches whose sequences are computed again alone and compared, while the
    server is idle. Raise it on new hardware; 0: none."""
    watch_s: float = Field(0.0, ge=0)
    """Seconds between checks of the bundle folder for versions to load or unload. 0: never."""
    idle_unload_s: float = Field(0.0, ge=0)
    """Time without requests after which a model's sessions are unloaded; the next request waits
    until they are loaded again. Set it on a desktop; 0: never."""
    idle_exit_s: float = Field(0.0, ge=0)
    """Time without requests after which the process ends; probes do not count. Set it if the first
    caller starts the server; 0: never."""
    cache_bytes: int = Field(64 * MIB, ge=0)
    """Bytes of cached results, so that a repeated sequence is not computed again. Raise it if
    traffic repeats; 0: no cache, and equal sequences in one request are each computed."""
    max_sequences: int = Field(2048, ge=1)
    """Largest number of sequences in one request. Raise it for clients that send more at once."""
    max_windows: int = Field(64, ge=1)
    """Largest number of windows that one text is read in; texts that need more are rejected. Raise
    it for longer texts."""
    max_tokens: int = Field(300_000, ge=1)
    """Largest number of real tokens in one request. Raise it for clients that send more at once."""
    max_padded_tokens: int = Field(300_000, ge=1)
    """Largest number of tokens in one request, padding included. Raise it for sparse grids."""
    max_body_bytes: int = Field(16 * MIB, ge=1)
    """Largest request body in bytes. Raise it for very wide grids."""
    max_json_bytes: int = Field(8 * MIB, ge=1)
    """Largest JSON in a body, in bytes; parsing delays other requests. Raise it for indented
    grids."""
    max_response_bytes: int = Field(256 * MIB, ge=1)
    """Largest answer in bytes, estimated before any work. Raise it if there is enough memory."""
    max_queue_tokens: int = Field(65_536, ge=1)
    """Real tokens that may wait in the queue; one API key may use 16/17 of them for one model.
    Raise it for bursts."""
    max_pending_response_bytes: int = Field(512 * MIB, ge=1)
    """Bytes of all answers being computed or sent, including their rows; one API key may use 8/9 of
    them. Lower it if memory is short."""
    max_pending_body_bytes: int = Field(256 * MIB, ge=1)
    """Bytes of all bodies being received or parsed, of the parsed values, and of texts being
    tokenized; one API key may use 8/9 of them. Lower it if memory is short."""
    max_run_bytes: int = Field(0, ge=0)
    """Bytes that the run of one sequence may use, for models served as their authors wrote them:
    longer sequences are rejected. All runs together use at most twice as much. 0: a quarter of the
    memory of the machine or container. Raise it if long texts are rejected and memory is free."""
    max_connections: int = Field(1024, ge=1)
    """Open connections; more get 503. gRPC has the same limit again. It is lowered at start if
    `ulimit -n` is less than twice as high, or four times with gRPC. Raise both for many callers."""
    keep_alive_s: int = Field(75, ge=1)
    """Seconds until a connection without a request is closed. Set it above the idle timeout of a
    load balancer in front (Amazon 60, Google 600), which may otherwise send into a closed
    connection."""
    body_timeout_s: float = Field(30.0, gt=0)
    """Time limit for the arrival of a request's head, and of its body. Raise it for slow
    networks."""
    send_timeout_s: float = Field(60.0, gt=0)
    """Time limit for a caller to read an answer. Raise it for slow networks."""
    api_keys_file: Path | None = None
    """File of API keys, one per line: `name scopes key [limit]`. Set it unless you trust all
    callers."""
    api_keys: SecretStr | None = None
    """API keys as in api_keys_file, separated by `;`. Use it if you can set only variables."""
    cors_origins: str | None = None
    """Origins whose pages may call from a browser, separated by commas. Set it for your own web
    pages."""
    tls_cert: Path | None = None
    """Certificate chain, PEM; read again when it changes. Set it with tls_key to serve HTTPS
    without a proxy."""
    tls_key: Path | None = None
    """Private key of tls_cert, PEM, without a passphrase."""
    admin: bool = False
    """Whether /v2/repository may load and unload models. Set it only if you trust all callers."""
    trusted_keys: str | None = None
    """Files of public keys and certificates, PEM, separated by commas. Bundles that are not signed
    by one of them are refused. Set it if your bundles come from elsewhere."""
    require_reference: bool = False
    """Whether bundles are refused unless they were compared with their authors' program, or with
    the module that their weights come from. Set it if you get bundles from others."""
    trust_token_ids: bool = False
    """Whether routes for texts accept token ids that do not begin and end with the model's special
    tokens. Set it if every client sends ids of the model's vocabulary."""
    truncate: bool | None = None
    """Whether texts that are too long are truncated if the request does not set it. By default each
    route does as the API that it follows. Set it to true for clients that send long texts to
    /v1/embeddings and have no field for it."""
    default_models: dict[str, str] = {}
    """Models of requests without a model, as rerank=NAME,embed=NAME. Set it if several models can
    do the task of a client without a model field."""
    aliases: dict[str, str] = {}
    """Other names of models, as
    text-embedding-3-small=NAME,questions=NAME?prompt=query&precision=int8&dimensions=256. Set it
    for clients with fixed model names."""
    any_model_name: bool = False
    """Whether a request with a model name that is not served gets the model of requests without
    one, which the header x-addnorm-model then tells. Set it for applications whose model name
    cannot be changed."""
    versions: dict[str, str] = {}
    """Versions of models that are requested without one, as NAME=1,OTHER=2; by default the latest.
    Set it if a new version must not be used at once."""
    answer_versions: bool = False
    """Whether answers have NAME/VERSION as their model. Set it if callers store vectors without the
    fingerprint."""
    default_precision: dict[str, Literal["fp32", "fp16", "int8"]] = {}
    """Precision of requests without one, for all models that have it, or as NAME=int8 for one; by
    default each bundle's default. Set it if clients cannot request int8."""

    @field_validator("trusted_keys")
    @classmethod
    def _names_a_file(cls, value: str | None) -> str | None:
        if value is not None and not value.replace(",", " ").strip():
            raise ValueError("it must contain a file")
        return value

    @field_validator("default_models", "aliases", "versions", "default_precision", mode="before")
    @classmethod
    def _by_name(cls, value: Any, info: ValidationInfo) -> Any:
        """Parses entries of the form that FORMS has for the setting, separated by commas."""
        if not isinstance(value, str):
            return value
        names: dict[str, str] = {}
        for entry in filter(None, map(str.strip, value.split(","))):
            if info.field_name == "default_precision" and "=" not in entry:
                entry = f"{EVERY}={entry}"
            key, _, name = map(str.strip, entry.partition("="))
            if not key or not name:
                form = FORMS[str(info.field_name)]
                raise ValueError(f"{entry!r} is not of the form {form}")
            if key in names:
                raise ValueError(f"{key} occurs twice")
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

    @field_validator("log_level", "log_format", "provider", mode="before")
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
