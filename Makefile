# Two commands do everything: `make demo` and `make test`. A second call reuses .venv.
PYTHON ?= python3
TORCH  ?= torch==2.13.0
BIN    := .venv/bin
# Tests run side by side, as many as this at once: of those that start programs, one waits while another computes.
WORKERS ?= 4
# pip runs only when what it would install changed.
STAMP  := .venv/.installed-$(shell cat pyproject.toml Makefile | cksum | cut -d' ' -f1)

.PHONY: demo test lint tests test-long test-gpu attack soak test-versions field findings knobs schemas pictures claims runtime-reference docs install clean

demo: install
	$(BIN)/dynotune demo

test: install
	@$(MAKE) --no-print-directory --jobs 2 lint tests

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

tests:
	$(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal

# What takes long, programs with faults among it: before a release, and before a draw of programs.
test-long: install
	$(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal -m long

# On a machine with an NVIDIA GPU and a torch that can use it.
test-gpu:
	$(PYTHON) -m pytest -m gpu

# The standing attack, two hours at most, and the page of it.
attack: install
	$(BIN)/python -m tests.attack --out benchmarks/results/attack_cpu.json \
		--soak benchmarks/results/soak_cpu.json --page docs/reference/robustness.md

# An hour of the soak, which goes on where the last hour ended: eight of them are the whole.
soak: install
	$(BIN)/python -m tests.attack.soak --out benchmarks/results/soak_cpu.json

# The tests that start programs, and those of the agent, on other versions of Python and torch; then the page of them.
test-versions: install
	WORKERS=$(WORKERS) $(BIN)/python tools/versions.py; status=$$?; \
	$(BIN)/python tools/versions.py --page > docs/reference/versions.md; exit $$status

# The page of the field, from its results: `python -m benchmarks.field` says how these are measured.
field: install
	$(BIN)/python -m benchmarks.field page > docs/reference/field.md

# The page of findings is made from the rules.
findings: install
	$(BIN)/python tools/findings_page.py > docs/reference/findings.md

# So are the pages of knobs and of settings from elsewhere, from the catalogue, and the schemas of documents, from their structs.
knobs: install
	$(BIN)/python tools/knobs_page.py > docs/reference/knobs.md
	$(BIN)/python tools/from_elsewhere_page.py > docs/reference/from-elsewhere.md

schemas: install
	$(BIN)/python tools/schemas.py docs/reference/schemas

# The picture of the README, and charts and tables of the docs, from kept results.
pictures: install
	$(BIN)/python tools/pictures.py
	$(BIN)/python tools/result_charts.py
	$(BIN)/python tools/result_tables.py

# The pages of claims are made from the claims and the bundles among the results.
claims: install
	$(BIN)/python tools/claims_page.py > docs/reference/claims.md
	$(BIN)/python tools/claims_page.py --html > docs/reference/claims-filter.html

# The runtime's reference is made from its docstrings.
runtime-reference: install
	$(BIN)/python tools/runtime_page.py > docs/reference/runtime.md

# The site in .site, strict: a dead link or anchor fails, and a search that misses what people type. Only pip needs the
# network.
docs:
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet 'mkdocs>=1.6,<2' 'mkdocs-material>=9.7,<10'
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict
	@if command -v node > /dev/null; then .venv-docs/bin/python tools/site_search.py .site; fi

install: $(STAMP)

# torch is the user's: named here, never among the package's dependencies. The environment that runs
# the tests also holds two programs that dynotune was not written for, and two decoders. Python compiles what is
# imported, which is a tenth of what pip would compile.
$(STAMP):
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile '$(TORCH)' numpy
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[demo,dev]' lightning accelerate transformers \
		opencv-python-headless simplejpeg
	@rm -f .venv/.installed-*
	@touch $@

clean:
	rm -rf .venv .versions .venv-docs .site
