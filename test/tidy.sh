#!/usr/bin/env bash
# Fails when a module is not tidy or a generated file is not current.
set -euo pipefail
cd "$(dirname "$0")/.."

files() { git -c safe.directory='*' ls-files --cached --others --exclude-standard "$@"; }
sums() { files | sort | while read -r file; do [ ! -f "$file" ] || sha256sum "$file"; done; }

for module in $(files '*go.mod'); do
	[ ! -f "$module" ] || GOTOOLCHAIN=auto go -C "$(dirname "$module")" mod tidy -diff
done
before=$(sums)
make generate
diff <(echo "$before") <(sums) || { echo "tidy: generated files were not current: commit what 'make generate' writes" >&2; exit 1; }
