#!/usr/bin/env bash
# Runs each fuzz target: test/fuzz.sh 20000x. Executions are counted, since a limit in seconds fails now and
# then at its end (https://go.dev/issue/75804, fixed in Go 1.27).
set -euo pipefail
cd "$(dirname "$0")/.."

git -c safe.directory='*' grep -l '^func Fuzz' -- '*_test.go' | while read -r file; do
	for target in $(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$file"); do
		echo "== $(dirname "$file") $target"
		${GOTEST:-go test} -run '^$' -fuzz "^$target\$" -fuzztime "$1" -fuzzminimizetime 100x "./$(dirname "$file")" </dev/null
	done
done
