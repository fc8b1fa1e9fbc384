#!/bin/sh
# Run from the repository's root: sh tests/test_greeting.sh
set -eu
grep -q 'def greet' greeting.py
echo "ok: there is a greeting"
