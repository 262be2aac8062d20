// The fuzzer's objects call this on every branch; only the fuzzer listens (fuzz/coverage.cpp).
extern "C" void __sanitizer_cov_trace_pc();
extern "C" void __sanitizer_cov_trace_pc() {}
