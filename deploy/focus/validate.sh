#!/bin/sh
# Validates an export against FOCUS 1.2 with the FinOps Foundation's focus-validator:
#
#   deploy/focus/validate.sh [EXPORT.csv]
#
# Without a file it takes the one that the tests compare every export with. The
# validator is installed from PyPI into .cache/focus once; the validation itself
# needs no network. It wants Python 3.12 or newer: name it by PYTHON.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
file=${1:-$root/tenancy/chargeback/testdata/export-2026-03.csv}
case $file in /*) ;; *) file=$PWD/$file ;; esac
[ -r "$file" ] || { echo "validate: cannot read $file" >&2; exit 2; }

venv=$root/.cache/focus
if [ ! -x "$venv/bin/focus-validator" ]; then
	python=${PYTHON:-python3}
	"$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' || {
		echo "validate: focus-validator needs Python 3.12 or newer; name one by PYTHON" >&2
		exit 2
	}
	"$python" -m venv "$venv"
	# The validator holds numpy below 2 and says nothing of pyarrow, whose newer
	# releases want numpy 2.
	"$venv/bin/pip" --quiet install 'focus-validator==2.2.1' 'pyarrow<18'
fi

# What of the specification applies: there are no zones, regions, reservations,
# commitments, public price lists or second currencies.
criteria=ACCOUNT_NAMING_SUPPORTED,NEGOTIATED_PRICING_SUPPORTED,USAGE_MEASUREMENT_SUPPORTED
criteria=$criteria,UNIT_PRICING_SUPPORTED,SUB_ACCOUNT_SUPPORTED,RESOURCE_TYPE_ASSIGNMENT_SUPPORTED,TAGGING_SUPPORTED

report=$(mktemp)
trap 'rm -f "$report"' EXIT
# It looks for its list of currencies below the working directory.
cd "$("$venv/bin/python" -c 'import focus_validator, os; print(os.path.dirname(os.path.dirname(focus_validator.__file__)))')"
"$venv/bin/focus-validator" --data-file "$file" --validate-version 1.2 --block-download \
	--focus-dataset CostAndUsage --applicability-criteria "$criteria" >"$report" 2>&1 || {
	cat "$report"
	echo "validate: the validator failed" >&2
	exit 2
}
grep '^Total:' "$report" || { cat "$report"; exit 2; }

# The validator ends with 0 whatever it finds. One rule fails in any file: of "null
# when there is no invoice" and "not null when there is one" it checks both, for all
# lines, and is content with either.
failed=$(grep ': FAIL ' "$report" | grep -v ' InvoiceId-C-00[45]-C: ' || true)
if [ -n "$failed" ]; then
	echo "$failed"
	exit 1
fi
echo "$file: FOCUS 1.2"
