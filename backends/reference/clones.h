// SAMBA_FMA_CLONES before a function compiles it twice, with and without the processor's fused multiply-add (x86-64-v3:
// AVX2 and FMA), and the loader takes the one this machine can run. std::fma has one rounding in both; without the
// instruction it is a call into the C library and slow. Put it on the functions that hold the hot loops: free functions
// that are not inline. GCC's `flatten` pulls the callees in (lambdas, elementary functions), so that they use it too.
#pragma once

// A sanitizer is not there yet when the loader asks which one.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__FMA__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#if defined(__clang__)
#define SAMBA_FMA_CLONES __attribute__((target_clones("fma", "default")))
#else
#define SAMBA_FMA_CLONES __attribute__((target_clones("arch=x86-64-v3", "default"), flatten))
#endif
#else
#define SAMBA_FMA_CLONES
#endif
