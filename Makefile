# Two jobs; each sets up .venv first, on a fresh machine too.
#   make fuzz   the main job: two minutes of fuzzing, results in fuzz-results/
#   make test   the whole test suite on every core
# PYTHON=... names the interpreter (3.11 to 3.13) if the first suitable one is not the right one.

SHELL := bash
VENV := .venv
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
SUITABLE := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

.PHONY: fuzz test
fuzz: $(VENV)/.installed
	@status=0; $(VENV)/bin/python -m fuzz run --max-time 2m --out fuzz-results || status=$$?; \
	echo "make fuzz: results are in fuzz-results/ (summary.json, failures/)"; exit $$status

test: $(VENV)/.installed
	$(VENV)/bin/python -m pytest -n auto

# PyPI's torch for Linux is a CUDA build of several GB. Without a GPU its CPU build is taken where pip is set up to find
# one: PyTorch's page "Start Locally" names the index for PIP_EXTRA_INDEX_URL. Otherwise whatever PyPI has.
$(VENV)/.installed: pyproject.toml constraints.txt
	@set -e; \
	if [ ! -x $(VENV)/bin/python ]; then \
	    for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	        if "$$python" -c '$(SUITABLE)' 2>/dev/null; then found=$$python; break; fi; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo "no Python 3.11 to 3.13 with venv found (tried $(or $(PYTHON),python3, python3.13, python3.12, python3.11));" \
	            "name one: make PYTHON=/path/to/python3.12" >&2; exit 2; \
	    fi; \
	    echo "creating $(VENV) with $$("$$found" --version)"; "$$found" -m venv $(VENV); \
	fi; \
	pip="$(VENV)/bin/python -m pip --disable-pip-version-check -q"; \
	if nvidia-smi -L >/dev/null 2>&1; then \
	    echo "NVIDIA GPU found: installing torch $(TORCH) with CUDA"; \
	    $$pip install torch==$(TORCH) -c constraints.txt; \
	else \
	    echo "no NVIDIA GPU: installing the CPU build of torch $(TORCH)"; \
	    $$pip install --no-deps torch==$(TORCH)+cpu 2>/dev/null \
	    || { echo "pip finds no CPU build: taking the default one, of several GB unless PIP_EXTRA_INDEX_URL names" \
	             "PyTorch's CPU index"; $$pip install torch==$(TORCH) -c constraints.txt; }; \
	fi; \
	$$pip install -e '.[dev]' -c constraints.txt; \
	touch $@
