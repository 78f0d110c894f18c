# Three images from one file:
#   docker build -t addnorm .
#       serves; without PyTorch, 145 MB on top of python:3.11-slim
#   docker build -t addnorm-cuda --target serve-cuda .
#       serves on an NVIDIA GPU; with CUDA 13 and cuDNN 9, gigabytes: docs/cuda.md
#   docker build -t addnorm-export --target export .
#       exports: docker run -v ./bundles:/bundles addnorm-export --preset gpt --out /bundles
#
# Build arguments (--build-arg NAME=VALUE):
#   PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS
#       where pip looks; it ignores empty ones
#   TORCH_INDEX_URL
#       asked besides for PyTorch. By default PyTorch brings gigabytes of CUDA, which an export does
#       not need: name the index of CPU builds that its installation page gives. What is served is
#       the same.
#   EXTRAS
#       of pyproject.toml, besides what serving needs: `trace` for OpenTelemetry's SDK, `signing` for
#       ADDNORM_TRUSTED_KEYS (38 MB), `grpc` for ADDNORM_GRPC_PORT; EXTRAS="trace signing" for two

# ---- requirements: pyproject's, as lists ----
# The next stages see only the lists, so a change of the sources or of the tools' settings installs
# nothing again.
FROM python:3.11-slim AS requirements
ARG EXTRAS
COPY pyproject.toml deploy/requirements.py ./
RUN python requirements.py $EXTRAS > /serve.txt \
 && python requirements.py $EXTRAS export > /export.txt

# ---- packages: a virtual environment with what serving needs ----
FROM python:3.11-slim AS packages
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
    PIP_PYTHON=/opt/venv/bin/python
# onnxruntime reports to its makers by default, from 1.29 on. The working folder is not searched for
# modules: it may be a checkpoint.
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/app PYTHONSAFEPATH=1 ORT_DISABLE_TELEMETRY=1
RUN python -m venv --without-pip /opt/venv
COPY --from=requirements /serve.txt /
RUN pip install --no-compile -r /serve.txt
WORKDIR /app

# ---- export: the same environment, PyTorch and sentence-transformers ----
# So the certificate is of the very onnxruntime that will serve.
FROM packages AS export
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS TORCH_INDEX_URL
RUN pip freeze > /served.txt
RUN pip install -c /served.txt ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} \
    torch==2.13.0
COPY --from=requirements /export.txt /
RUN pip install -c /served.txt torch==2.13.0 -r /export.txt
COPY addnorm/__init__.py addnorm/__main__.py addnorm/
COPY service addnorm/service
COPY model addnorm/model
COPY export addnorm/export
COPY corpus/__init__.py corpus/comparison.py addnorm/corpus/
RUN python -m addnorm export --preset notebook --out /bundles
ENTRYPOINT ["python", "-m", "addnorm", "export"]

# ---- lean: what serving opens, and nothing else ----
# Dropped: tests, onnxruntime's library for C programs and its tools, tokenizers' downloader.
# Kept: byte code of the modules that serving imports, the standard library's too. It takes 0.9 s
# off the start, and four fifths off a health check.
FROM packages AS lean
RUN pip uninstall --yes huggingface-hub hf-xet \
 && cd /opt/venv/lib/python3.11/site-packages \
 && cd onnxruntime && rm -rf capi/libonnxruntime.so* transformers quantization tools datasets \
 && cd .. && find . -type d -name tests -prune -exec rm -r {} +
COPY addnorm/__init__.py addnorm/__main__.py addnorm/
COPY service addnorm/service
RUN python -X pycache_prefix=/opt/pycache -c "import addnorm.__main__, addnorm.service.command, \
tokenizers, addnorm.service.server.healthcheck, uvicorn.lifespan.on, uvicorn.loops.uvloop, \
uvicorn.protocols.http.httptools_impl"

# ---- lean-cuda: onnxruntime-gpu in the place of onnxruntime ----
# It is released later, so it may be an older version than the export's. The extras are NVIDIA's
# libraries from PyPI: CUDA 13 (cuBLAS, cuRAND, cuFFT, NVRTC, the runtime) and cuDNN 9. The driver
# comes from the host.
FROM lean AS lean-cuda
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS
RUN pip uninstall --yes onnxruntime \
 && pip install --no-compile "onnxruntime-gpu[cuda,cudnn]>=1.31,<2" \
 && cd /opt/venv/lib/python3.11/site-packages/onnxruntime \
 && rm -rf capi/libonnxruntime.so* capi/*tensorrt* transformers quantization tools datasets

# ---- served: what both servers have in common ----
FROM python:3.11-slim AS served
LABEL org.opencontainers.image.title="Addnorm" \
      org.opencontainers.image.description="Batch-invariant inference server for transformers" \
      org.opencontainers.image.licenses="Apache-2.0"
# nothing is written at run time: the root file system may be read-only
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/app PYTHONSAFEPATH=1 \
    PYTHONPYCACHEPREFIX=/opt/pycache PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 ORT_DISABLE_TELEMETRY=1 ADDNORM_HOST=0.0.0.0
WORKDIR /app
USER 10001:10001
EXPOSE 8000
# Loading, checking and warming many bundles takes a while: failures count from the third minute on.
HEALTHCHECK --interval=5s --timeout=4s --start-period=120s --retries=3 \
    CMD ["python", "-S", "-m", "addnorm.service.server.healthcheck"]
CMD ["python", "-m", "addnorm", "serve", "--bundles", "/bundles"]

# ---- serve-cuda: on an NVIDIA GPU, and only there ----
FROM served AS serve-cuda
# onnxruntime finds CUDA where pip put it; NVIDIA's container toolkit mounts the driver for these
ENV ADDNORM_PROVIDER=cuda NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    LD_LIBRARY_PATH=/opt/venv/lib/python3.11/site-packages/nvidia/cu13/lib:/opt/venv/lib/python3.11/site-packages/nvidia/cudnn/lib
COPY --from=lean-cuda /opt/venv /opt/venv
COPY --from=export /bundles /bundles
COPY --from=lean /opt/pycache /opt/pycache
COPY --from=lean /app /app

# ---- serve: the default ----
FROM served AS serve
COPY --from=lean /opt/venv /opt/venv
COPY --from=export /bundles /bundles
COPY --from=lean /opt/pycache /opt/pycache
COPY --from=lean /app /app
