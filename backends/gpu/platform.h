// The one source of the GPU kernels, for three compilers.
//
// A kernel file (NAME.gpu.h) is compiled by nvcc (namespace samba::cuda), by hipcc (samba::hip) and by the host
// compiler (samba::gpu_host), where the host adapter carries out the grid (host/grid.h). It is written in the namespace
// samba::SAMBA_GPU and uses this header alone:
//
//   template <class Function>
//   SAMBA_KERNEL(256) apply(Index n, Function f) {           // at most 256 threads a block
//     SAMBA_SHARED(float, tile, 1024);                       // shared memory of a block: float* tile
//     for (Index i = global_thread(); i < n; i += global_threads()) f(i);
//     barrier();                                             // all threads of the block
//     float other = shuffle_xor(value, 1);                   // of the lane whose number differs in these bits (< 32)
//   }
//   launch(context, Grid{blocks}, 256, apply<Function>, n, f);
//
// SAMBA_KERNEL_BLOCKS(256, 3): the same, for 3 blocks side by side on a multiprocessor of CUDA, where the compiler
// would rather spill registers than have so few.
//
// Arguments of a launch are copied; pointers point to device memory. Launches of a context run in order.
#pragma once

#if defined(__HIP__)
#include <hip/hip_runtime.h>
#define SAMBA_GPU hip
#define SAMBA_RUNTIME(name) hip##name
#define SAMBA_DEVICE_PROPERTIES hipDeviceProp_t
#elif defined(__CUDACC__)
#include <cuda_runtime.h>
#define SAMBA_GPU cuda
#define SAMBA_RUNTIME(name) cuda##name
#define SAMBA_DEVICE_PROPERTIES cudaDeviceProp
#else
#define SAMBA_GPU gpu_host
#endif

#include "samba/core/array.h"
#include "samba/numerics/elementary.h"
#include "samba/numerics/float32.h"
#include "samba/numerics/fold.h"

#if defined(__HIP__) || defined(__CUDACC__)

#include "samba/backends/gpu/device_context.h"

#define SAMBA_KERNEL(most_threads) static __global__ void __launch_bounds__(most_threads)
#if defined(__HIP__)
#define SAMBA_KERNEL_BLOCKS(most_threads, blocks) SAMBA_KERNEL(most_threads)
#else
#define SAMBA_KERNEL_BLOCKS(most_threads, blocks) static __global__ void __launch_bounds__(most_threads, blocks)
#endif
#define SAMBA_DEVICE __device__ inline
#define SAMBA_SHARED(type, name, count) alignas(16) __shared__ type name[count]
#define SAMBA_UNROLL _Pragma("unroll")

namespace samba::SAMBA_GPU {

__device__ inline unsigned thread_index() { return threadIdx.x; }
__device__ inline unsigned block_threads() { return blockDim.x; }
__device__ inline unsigned block_x() { return blockIdx.x; }
__device__ inline unsigned block_y() { return blockIdx.y; }
__device__ inline unsigned block_z() { return blockIdx.z; }
__device__ inline unsigned grid_x() { return gridDim.x; }
__device__ inline void barrier() { __syncthreads(); }

#if defined(__HIP__)
__device__ inline std::uint32_t shuffle_xor(std::uint32_t value, int mask) {
  return static_cast<std::uint32_t>(__shfl_xor(static_cast<int>(value), mask, 32));
}
#else
__device__ inline std::uint32_t shuffle_xor(std::uint32_t value, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFU, value, mask);
}
#endif

// Copies one float to shared memory, asynchronously from sm_80 on. It is there for this thread after wait_copies(), for
// the block after the barrier behind that.
__device__ inline void copy_async(float* shared, const float* global) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
               :
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))), "l"(global)
               : "memory");
#else
  *shared = *global;
#endif
}
__device__ inline void wait_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" : : : "memory");
#endif
}

// Order-independent: minima and maxima only, never a sum of floats.
__device__ inline void atomic_min(int* cell, int value) { atomicMin(cell, value); }
__device__ inline void atomic_max(int* cell, int value) { atomicMax(cell, value); }
__device__ inline void atomic_min(std::uint64_t* cell, std::uint64_t value) {
  atomicMin(reinterpret_cast<unsigned long long*>(cell), static_cast<unsigned long long>(value));
}

template <class... P, class... A>
void launch(Context& context, const Grid& grid, int threads, void (*kernel)(P...), A... arguments) {
  if (LaunchList* kept = context.step().list()) return keep_launch(*kept, grid, threads, kernel, nullptr, arguments...);
  kernel<<<dim3(grid.x, grid.y, grid.z), dim3(static_cast<unsigned>(threads)), 0, context.stream()>>>(
      static_cast<P>(arguments)...);
  context.launched();
}

}  // namespace samba::SAMBA_GPU

#else

#include <atomic>

#include "samba/backends/gpu/host/context.h"

// The whole kernel is compiled for the processor's fused multiply-add: std::fma is then one instruction.
#if defined(__x86_64__)
#define SAMBA_KERNEL(most_threads) __attribute__((target("avx2,fma"), flatten)) static void
#else
#define SAMBA_KERNEL(most_threads) __attribute__((flatten)) static void
#endif
#define SAMBA_KERNEL_BLOCKS(most_threads, blocks) SAMBA_KERNEL(most_threads)
#define SAMBA_DEVICE inline
#define SAMBA_SHARED(type, name, count) type* const name = samba::gpu_host::shared_array<type, count>([] {})
#define SAMBA_UNROLL

namespace samba::gpu_host {

inline unsigned thread_index() { return place.thread; }
inline unsigned block_threads() { return place.block_threads; }
inline unsigned block_x() { return place.block.x; }
inline unsigned block_y() { return place.block.y; }
inline unsigned block_z() { return place.block.z; }
inline unsigned grid_x() { return place.grid.x; }
inline void barrier(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { block->barrier({file, line}); }

inline std::uint32_t shuffle_xor(std::uint32_t value, int mask, const char* file = __builtin_FILE(),
                                 int line = __builtin_LINE()) {
  const unsigned lane = thread_index() % place.warp;
  return block->exchange(value, lane ^ static_cast<unsigned>(mask), {file, line});
}

inline void copy_async(float* shared, const float* global) { *shared = *global; }
inline void wait_copies() {}

template <class T>
void atomic_min(T* cell, T value) {
  const std::atomic_ref<T> shared(*cell);
  T seen = shared.load(std::memory_order_relaxed);
  while (value < seen && !shared.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}
template <class T>
void atomic_max(T* cell, T value) {
  const std::atomic_ref<T> shared(*cell);
  T seen = shared.load(std::memory_order_relaxed);
  while (value > seen && !shared.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

template <class... P, std::size_t... I>
void call_with(void (*kernel)(P...), void* const* arguments, std::index_sequence<I...>) {
  kernel(*static_cast<const P*>(arguments[I])...);
}
template <class... P>
void call_kept(const void* kernel, void* const* arguments) {
  call_with(reinterpret_cast<void (*)(P...)>(const_cast<void*>(kernel)), arguments, std::index_sequence_for<P...>{});
}

template <class... P, class... A>
void launch(Context& context, const Grid& grid, int threads, void (*kernel)(P...), A... arguments) {
  if (LaunchList* kept = context.step().list()) {
    return keep_launch(*kept, grid, threads, kernel, call_kept<P...>, arguments...);
  }
  context.run(grid, threads, [&] { kernel(static_cast<P>(arguments)...); });
}

}  // namespace samba::gpu_host

#endif

namespace samba::SAMBA_GPU {

SAMBA_DEVICE Index global_thread() {
  return static_cast<Index>(block_x()) * static_cast<Index>(block_threads()) + static_cast<Index>(thread_index());
}
SAMBA_DEVICE Index global_threads() { return static_cast<Index>(grid_x()) * static_cast<Index>(block_threads()); }
SAMBA_DEVICE float shuffle_xor(float value, int mask) { return from_bits(shuffle_xor(to_bits(value), mask)); }

// Neighbouring floats that are loaded at once.
template <int kCount>
struct alignas(sizeof(float) * kCount) FloatRun {
  float values[kCount];
};

inline constexpr int kMapThreads = 256;

template <class Function>
SAMBA_KERNEL(kMapThreads)
apply(Index n, Function function) {
  for (Index i = global_thread(); i < n; i += global_threads()) function(i);
}

// function(i) for every i in [0, n), each on its own. A function is a struct with a const call operator
// (SAMBA_DEVICE), whose members are the arguments.
template <class Function>
void for_each(Context& context, Index n, const Function& function) {
  if (n <= 0) return;
  const Index threads = n < context.most_threads() ? n : context.most_threads();
  const Index blocks = (threads + kMapThreads - 1) / kMapThreads;
  const int size = static_cast<int>(threads < kMapThreads ? (threads + 31) / 32 * 32 : kMapThreads);
  launch(context, Grid{static_cast<unsigned>(blocks)}, size, apply<Function>, n, function);
}

}  // namespace samba::SAMBA_GPU
