#!/usr/bin/env bash
# Runs each fuzz target of the module for the given time: test/fuzz.sh 10s.
set -euo pipefail
cd "$(dirname "$0")/.."

# fuzz runs one target. Go now and then takes the end of the time for a failure
# (https://github.com/golang/go/issues/75804): without an input that fails, such a
# run is made again, once.
fuzz() {
	local package=$1 target=$2 log
	log=$(mktemp)
	for try in first second; do
		# shellcheck disable=SC2086 # a command
		if ${GOTEST:-go test} -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$package" 2>&1 | tee "$log"; then
			rm "$log"
			return
		fi
		if [ "$try" = second ] || grep -q 'Failing input' "$log" || ! grep -q '^    context deadline exceeded$' "$log"; then
			rm "$log"
			return 1
		fi
		echo "fuzz: $target ended with its time and nothing else: once more"
	done
}

time=${1:?how long each target runs, such as 10s}
tests='{{$p := .ImportPath}}{{range .TestGoFiles}}{{$.Dir}}/{{.}} {{$p}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$.Dir}}/{{.}} {{$p}}{{"\n"}}{{end}}'
go list -f "$tests" ./... | while read -r file package; do
	for target in $(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$file"); do
		echo "== $package $target"
		fuzz "$package" "$target" </dev/null
	done
done
