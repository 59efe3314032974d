SHELL := /bin/bash -o pipefail
.DEFAULT_GOAL := help

VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
BINARIES := directx-advertiser directx-labeler directx-nri containerd-shim-directx-v1 dxctl
PLATFORMS := linux-amd64 linux-arm64 windows-amd64 windows-arm64

export CGO_ENABLED = 0
# Settings of the machine's Go that would change the programs are set here. The version comes from git and not
# from Go's own stamp, which fails where git does not trust the checkout.
GOBUILD := GOFLAGS="-trimpath -tags=grpcnotrace" GOAMD64=v1 GOARM64=v8.0 go build -buildvcs=false -ldflags "-s -w -X main.version=$(VERSION)"

# Where releases are, for owner/name of the module's path: the image, its name without a tag, and the charts.
OWNER_NAME := $(patsubst github.com/%,%,$(shell go list -m))
IMAGE ?= ghcr.io/$(OWNER_NAME)
CHARTS ?= ghcr.io/$(dir $(OWNER_NAME))charts
IMAGE_PLATFORMS ?= linux-amd64 linux-arm64 windows-amd64
# The time of everything in archives: https://reproducible-builds.org/specs/source-date-epoch/
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null)$(if $(shell git status --porcelain 2>/dev/null | head -n 1),-dirty)
SOURCE_URL ?= https://github.com/$(OWNER_NAME)
comma := ,
# release runs the tool: $(call release,COMMAND,PLATFORMS)
release = rm -rf out/$(1) && GOOS= GOARCH= go -C tools/release run . -platforms $(subst $() ,$(comma),$(strip $(2))) \
	-bin "$(CURDIR)/bin" -out "$(CURDIR)/out/$(1)" -version "$(VERSION)" -revision "$(REVISION)" -source "$(SOURCE_URL)" \
	-created "$(SOURCE_DATE_EPOCH)" -image "$(IMAGE)" $(1)

# How often each fuzz target runs, and how long each benchmark.
FUZZTIME ?= 100000x
BENCHTIME ?= 1s

HELM = $(or $(DIRECTX_NRI_PARTS),.parts/bin)/helm
LINT = $(shell go tool -modfile=$(CURDIR)/tools/go.mod -n golangci-lint)

# What runs tests: CI uses gotestsum.
export GOTEST ?= go test

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: $(PLATFORMS:%=build-%) bin ## build static binaries for linux and windows, amd64 and arm64, into bin/

.PHONY: $(PLATFORMS:%=build-%)
$(PLATFORMS:%=build-%): build-%:
	@mkdir -p bin/$*
	GOOS=$(word 1,$(subst -, ,$*)) GOARCH=$(word 2,$(subst -, ,$*)) $(GOBUILD) -o bin/$*/ $(BINARIES:%=./cmd/%)

.PHONY: bin
bin: ## build for this machine alone, into bin/
	@mkdir -p bin
	$(GOBUILD) -o bin/ $(BINARIES:%=./cmd/%)

.PHONY: images
images: $(IMAGE_PLATFORMS:%=build-%) ## write image archives into out/images/; IMAGE_PLATFORMS=linux-amd64 for one alone
	$(call release,images,$(IMAGE_PLATFORMS))

.PHONY: documents
documents: $(IMAGE_PLATFORMS:%=build-%) ## write licenses, notices and SBOMs into out/documents/, for the Dockerfiles
	$(call release,documents,$(IMAGE_PLATFORMS))

.PHONY: release
release: $(PLATFORMS:%=build-%) bin ## write everything that is released into out/release/: make release VERSION=v0.2.0
	rm -rf out/help && mkdir -p out/help/completions
	TZ=UTC $(GOTEST) -count=1 -run '^TestManPages$$' ./cmd/dxctl -man $(CURDIR)/out/help/man
	for shell in bash fish powershell zsh; do bin/dxctl completion $$shell >out/help/completions/dxctl.$$shell || exit; done
	$(call release,documents,$(PLATFORMS))
	$(call release,images,$(IMAGE_PLATFORMS))
	tools/release/archives.sh "$(VERSION)" $(PLATFORMS)

.PHONY: publish
publish: helm ## push the image and the chart of out/release/, which must not exist yet: make publish VERSION=v0.2.0
	tools/release/publish.sh "$(VERSION)" "$(IMAGE)" "$(CHARTS)"

.PHONY: release-test
release-test: helm ## make a release twice, compare the two, and look into all of it
	cd tools/release && $(GOTEST) -tags e2e -count=1 -timeout 20m ./...

.PHONY: examples
examples: ## build the example programs for Windows into out/examples (needs mingw-w64)
	deployments/examples/programs/build.sh

.PHONY: test
test: ## run the unit tests (no root, no network), and vet
	go vet ./...
	$(GOTEST) ./...

.PHONY: test-race
test-race: ## run the unit tests with the race detector (needs a C compiler)
	CGO_ENABLED=1 $(GOTEST) -race ./...

.PHONY: fuzz
fuzz: ## run each fuzz target FUZZTIME times
	test/fuzz.sh $(FUZZTIME)

DEMO ?= out/demo

.PHONY: build-demo
build-demo:
	@mkdir -p $(DEMO)
	go build -buildvcs=false -tags grpcnotrace -ldflags "-s -w" -o $(DEMO)/ ./test/demo/... ./cmd/directx-advertiser ./cmd/directx-nri

.PHONY: demo
demo: build-demo ## show the main job on this machine: no root, no GPU, no Windows, no containerd
	@$(DEMO)/demo

.PHONY: parts
parts: ## build all the real programs that the end-to-end suites run, into .parts/ (root installs Debian packages)
	test/parts/build.sh all

.PHONY: e2e
e2e: bin ## run the end-to-end suites: real kubelet, containerd and runc (root)
	test/parts/build.sh linux docker versions
	$(GOTEST) -tags e2e -count=1 -timeout 40m ./test/e2e ./test/dxg

.PHONY: e2e-cluster
e2e-cluster: ## run the suite on a whole Kubernetes cluster of one node: the chart installed, changed and removed (root)
	test/parts/build.sh cluster
	$(GOTEST) -tags e2e -count=1 -timeout 20m ./test/cluster

.PHONY: faults
faults: bin ## run random pods and faults on real parts and check each container, for 3 minutes or DIRECTX_NRI_FAULTS_TIME (root)
	test/parts/build.sh cluster versions
	$(GOTEST) -tags e2e -count=1 -v -timeout 24h ./test/faults

.PHONY: e2e-windows
e2e-windows: build-windows-amd64 ## run the suite for Windows nodes: containerd.exe and runhcs under Wine (root)
	test/parts/build.sh windows
	test/windows/wine.sh

.PHONY: generate
generate: helm ## write the generated files
	go generate ./...
	deployments/helm/render.sh $(HELM)

.PHONY: tidy
tidy: ## check that modules are tidy and generated files current
	test/tidy.sh

.PHONY: helm
helm:
	test/parts/build.sh helm >&2

.PHONY: chart
chart: helm ## check the Helm chart: lint, what it refuses, and that what is rendered from it is current
	$(GOTEST) -tags chart -count=1 ./deployments/...

.PHONY: lint
lint: ## run golangci-lint at the version in tools/go.mod, for Linux and Windows, and actionlint
	go tool -modfile=tools/actionlint/go.mod actionlint
	$(LINT) run ./...
	GOOS=windows $(LINT) run ./...
	GOOS=windows go vet ./...
	cd tools/release && $(LINT) run --config ../../.golangci.yaml ./...
	cd test/dxg/double && $(LINT) run --config ../../../.golangci.yaml ./...

.PHONY: bench
bench: bin ## print the benchmarks; as root also whole container starts on real parts
	$(GOTEST) -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) ./advertiser/... ./cmd/... ./decision/... ./discovery/... ./internal/... ./nri/... ./ocispec/... ./shim/...
ifeq ($(shell id -u),0)
	test/parts/build.sh
	$(GOTEST) -tags e2e -count=1 -v -timeout 20m ./test/bench
endif

.PHONY: clean
clean: ## remove everything that was built
	rm -rf bin .parts out
