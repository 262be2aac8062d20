#!/bin/sh
# Runs a program that was built with sanitizers: the first finding ends it, with its stack.
export ASAN_OPTIONS="detect_stack_use_after_return=1:strict_string_checks=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
export UBSAN_OPTIONS="print_stacktrace=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}"
export TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1${TSAN_OPTIONS:+:$TSAN_OPTIONS}"
# The sanitizers of some compilers cannot live with how far some kernels randomise addresses.
if setarch -R true 2>/dev/null; then
  exec setarch -R "$@"
fi
exec "$@"
