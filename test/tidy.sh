#!/usr/bin/env bash
# Fails, with a diff, when a module is not as its sources say, or a generated file
# not as what it is generated from.
set -euo pipefail
cd "$(dirname "$0")/.."

find . \( -path ./.parts -o -path ./out \) -prune -o -name go.mod -printf '%h\n' | sort | while read -r module; do
	(cd "$module" && go mod tidy -diff) || {
		echo "tidy: run 'go mod tidy' in $module" >&2
		exit 1
	}
done

# sums prints a checksum of each file that a person or `make generate` has written.
sums() { find . \( -path ./.git -o -path ./.parts -o -path ./bin -o -path ./out \) -prune -o -type f -print0 | sort -z | xargs -0 sha256sum; }

before=$(sums)
make generate
after=$(sums)
diff <(echo "$before") <(echo "$after") || {
	echo "tidy: 'make generate' changes these files: run it" >&2
	exit 1
}
