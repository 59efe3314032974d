# Everything a person does with this repository, one target each: `make help`.

SHELL := /bin/bash -o pipefail
.DEFAULT_GOAL := help

VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
BINARIES := directx-advertiser directx-nri containerd-shim-directx-v1 dxctl
PLATFORMS := linux-amd64 linux-arm64 windows-amd64 windows-arm64

export CGO_ENABLED = 0
# The version is git's, by VERSION; Go's own stamp fails where git does not trust
# the checkout. Without gRPC's tracing pages there is no web server in it.
GOBUILD := go build -trimpath -buildvcs=false -tags grpcnotrace -ldflags "-s -w -X main.version=$(VERSION)"

# How long each fuzz target runs, for `make fuzz`, and each benchmark.
FUZZTIME ?= 10s
BENCHTIME ?= 1s

.PHONY: help
help: ## say what there is to make
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

.PHONY: test
test: ## run the unit tests (no root, no network), and vet
	go vet ./...
	go test ./...

.PHONY: test-race
test-race: ## run the unit tests with the race detector (needs a C compiler)
	CGO_ENABLED=1 go test -race ./...

.PHONY: fuzz
fuzz: ## run each fuzz target for FUZZTIME
	test/fuzz.sh $(FUZZTIME)

.PHONY: demo
demo: bin ## show the main job on this machine: no root, no GPU, no Windows, no containerd
	go run ./test/demo --bin bin

.PHONY: parts
parts: ## build the real containerd and kubelet for the end-to-end suite, into .parts/
	test/parts/build.sh

.PHONY: e2e
e2e: bin ## run the end-to-end suites: real kubelet, containerd 1.6, 1.7 and 2.x, and runc (root)
	test/parts/build.sh linux versions
	go test -tags e2e -count=1 -timeout 40m -p 1 ./test/e2e ./test/runtimeconfig ./test/uninstall ./test/doctor

.PHONY: parts-windows
parts-windows: ## build the real containerd.exe and runhcs shims, and install Wine, for the Windows suite
	test/parts/build.sh windows

.PHONY: e2e-windows
e2e-windows: build-windows-amd64 parts-windows ## run the suite for Windows nodes: containerd.exe and runhcs under Wine (root)
	go test -tags e2e -count=1 -timeout 40m -parallel 8 -bench Discovery -benchtime 1x ./test/windows

.PHONY: generate
generate: ## write the generated files anew: the calls of Windows' DLLs, the configuration's reference and dxctl's pages in docs/
	go generate ./...

.PHONY: lint
lint: ## run golangci-lint, at the version that tools/go.mod names
	go tool -modfile=tools/go.mod golangci-lint run ./...
	GOOS=windows $$(go tool -modfile=tools/go.mod -n golangci-lint) run ./internal/... ./discovery/... ./cmd/... ./nri/shim/...
	GOOS=windows go vet ./...

.PHONY: bench
bench: bin ## print the benchmarks; as root also whole container starts on real parts
	go test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) ./advertiser ./nri/... ./ocispec ./discovery/... ./internal/... ./cmd/...
	@if [ "$$(id -u)" = 0 ]; then test/parts/build.sh && go test -tags e2e -count=1 -v -timeout 20m ./test/bench; \
	else echo "bench: whole container starts are measured as root only"; fi

.PHONY: clean
clean: ## remove what was built, the parts of the end-to-end suite included
	rm -rf bin .parts out
