# One command equals CI: `just ci`. The others are its parts, in the environment that is active.

# All that is checked, in a fresh virtual environment.
ci:
    bash .ci/run

# The tests; arguments go to pytest.
test *arguments:
    python -m pytest {{arguments}}

# The tests on each CPython from 3.11 on that is installed, each in an environment of its own.
versions *arguments:
    bash .ci/versions {{arguments}}

# What the tests leave out, and their large numbers: thousands of jobs and documents under load, elections, programs of the
# docs, the rest of large families, a thousand random lives of jobs, fifty random schedules, a month. CI runs it after the
# tests.
full *arguments:
    MONQUE_TEST_FULL=1 python -m pytest -m "full or larger_in_full" {{arguments}}

# What is too slow to run always: a thousand random lives of jobs and as many schedules, every guard out, all of the
# protocol, all games of the nurseries, an hour of kills and elections under workflows and trees of jobs, each way to lose a primary thrice, what the judge must find where majorities or
# dates are wrong, and more random examples of what is compared with a plain oracle, a month of long runs, a value of
# every BSON type in each field, and wall clocks that step for minutes.
thorough: full
    MONQUE_TEST_THOROUGH=1 python -m pytest tests/model tests/protocol tests/faults/test_seeded_schedules.py tests/faults/test_elections.py tests/faults/test_clocks_under_load.py tests/faults/test_frozen_server.py tests/faults/test_claims_through_elections.py tests/store/test_claim_cost.py tests/store/test_document_settling_statements.py tests/store/test_settling_statements.py tests/store/test_decoding.py tests/client/test_pages.py tests/client/test_bulk.py tests/scheduler/claiming/test_stale_windows.py tests/scheduler/broken/test_malformed_documents.py tests/scheduler/broken/test_malformed_instances.py tests/claims/test_malformed_locks.py tests/faults/test_stepped_clocks.py tests/faults/test_nurseries_under_load.py tests/testing/test_a_month.py

# Kills, freezes and a broken network, on a real server; MONQUE_TEST_SEED draws other faults.
faults *arguments:
    python -m pytest tests/faults {{arguments}}

# What is measured, beside raw floors in the same run; arguments go to the benchmarks: `just bench --quick --only T,E`.
bench *arguments:
    python -m benchmarks {{arguments}}

# Style and format.
lint:
    python -m ruff check
    python -m ruff format --check

# Types: the package and its tests, then the programs beside them.
types:
    python -m mypy
    python -m mypy examples docs/conf.py
    python -m pyright --level error

# The documentation, any warning an error.
docs:
    python -m sphinx -W --keep-going -b html docs docs/_build/html

# See it work.
demo:
    python -m trio_monque demo
