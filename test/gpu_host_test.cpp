// The GPU kernels on the host adapter: the recorded cases, the rules the adapter holds kernels to, and that a barrier
// which is missing shows. (The twins of the kernels with the reference are in the *_kernels_test programs.)
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>

#include "error_of.h"
#include "golden.h"
#include "missing_barriers.h"
#include "samba/backends/gpu/platform.h"
#include "samba/kernels/extended_gradients.h"

namespace samba {
namespace {

// Everything with barriers, once; small enough for a tile, large enough for loops of several rounds.
Results run_kernels_with_barriers(Executor& executor) {
  Draws draws(31);
  const Index m = 70, n = 66, k = 300;
  const Values a = draws.values(m * k, Draw::normal), b = draws.values(n * k, Draw::normal);
  const Values dy = draws.values(m * k, Draw::normal), weight = draws.values(k, Draw::normal);
  Results r(8, Values(m * n));
  LinearKernels& linear = executor.linear();
  linear.gemm(Layout::nt, m, n, k, a.data(), b.data(), r[0].data());
  linear.gemm(Layout::nn, 3, n, k, a.data(), b.data(), r[1].data());
  linear.linear(*linear.prepare(n, k, b.data()), m, a.data(), r[2].data());
  r[3] = Values(m * k), r[4] = Values(m * k), r[5] = Values(k), r[6] = Values(m * k);
  executor.norm().rms_norm_forward(m, k, 1e-5F, false, a.data(), weight.data(), r[3].data(), nullptr, nullptr);
  executor.norm().rms_norm_backward(m, k, 1e-5F, a.data(), weight.data(), dy.data(), r[4].data(), r[5].data(), nullptr);
  executor.norm().layer_norm_block(m, k, 1e-5F, a.data(), weight.data(), nullptr, r[6].data(), nullptr);
  Values dx(m * k), d_weight(k);
  dynamic_cast<NormGradients&>(executor.norm())
      .layer_norm_block_backward(m, k, 1e-5F, a.data(), weight.data(), dy.data(), dx.data(), d_weight.data(), nullptr);
  r.insert(r.end(), {dx, d_weight});

  // Large tiles, and wide loads of a weight.
  const Index large = 130, wide = 512;
  const Values more = draws.values(wide * large, Draw::normal);
  r.emplace_back(large * large);
  linear.gemm(Layout::tn, large, large, 40, more.data(), more.data() + 1, r.back().data());
  r.emplace_back(2 * wide);
  linear.linear(*linear.prepare(wide, large, more.data()), 2, a.data(), r.back().data());
  const Weight packed = pack_one(ConstArray{DType::float32, {n, k}, b.data()}, WeightFormat::int8);
  r.emplace_back(3 * n);
  linear.linear(*linear.prepare(packed.packed()), 3, a.data(), r.back().data());

  // One product that is flushed, of elements that one thread each loads, in one leaf.
  const Index short_k = 100;
  Values tiny_a(m * short_k), tiny_b(n * short_k);
  for (Index i = 0; i < m * short_k; ++i) tiny_a[i] = i == 5 * short_k ? 0x1p-126F : 0.0F;
  for (Index i = 0; i < n * short_k; ++i) tiny_b[i] = i == 7 * short_k ? 0x1p-3F : 0.0F;
  linear.gemm(Layout::nt, m, n, short_k, tiny_a.data(), tiny_b.data(), r[7].data());

  // Leaves longer than a slice.
  const Index terms = kMaxLeaves * kLeaf + 1;
  const Values long_a = draws.values(terms, Draw::normal), long_b = draws.values(terms, Draw::normal);
  r.emplace_back(1);
  linear.gemm(Layout::nn, 1, 1, terms, long_a.data(), long_b.data(), r.back().data());

  Values logits = a, row_loss(m);  // the gradient takes the place of the logits
  const std::vector<std::int32_t> targets = draws.integers(m, k);
  executor.loss().cross_entropy({m, k, -100, 0.1F}, logits.data(), targets.data(), 3.0F, row_loss.data(), logits.data(),
                                {});
  r.push_back(logits);
  r.push_back(row_loss);

  AttentionShape shape;
  shape.batch = 1, shape.queries = 40, shape.n_heads = 2, shape.n_kv_heads = 1, shape.head_dim = 140;
  const Index width = shape.n_heads * shape.head_dim, kv_width = shape.head_dim;
  const Values q = draws.values(40 * width, Draw::normal), d_context = draws.values(40 * width, Draw::normal);
  const Values keys = draws.values(40 * kv_width, Draw::normal), values = draws.values(40 * kv_width, Draw::normal);
  KeyValueView view{keys.data(), values.data(), 40 * kv_width, shape.head_dim, kv_width, 0, 0};
  Values context(40 * width), dq(40 * width), dk(40 * kv_width), dv(40 * kv_width);
  executor.attention().attention_forward(shape, q.data(), view, context.data(), {});
  executor.attention().attention_backward(shape, q.data(), keys.data(), values.data(), d_context.data(), dq.data(),
                                          dk.data(), dv.data(), {});
  for (const Values& result : {context, dq, dk, dv}) r.push_back(result);

  // A step of decoding.
  AttentionShape step = shape;
  step.queries = 1, step.first_position = 299;
  const Values cache = draws.values(2 * 300 * kv_width, Draw::normal);
  KeyValueView cached{cache.data(), cache.data() + 300 * kv_width, 300 * kv_width, shape.head_dim, kv_width, 0, 0};
  Values token(width);
  executor.attention().attention_forward(step, q.data(), cached, token.data(), {});
  r.push_back(token);

  std::vector<std::int16_t> codes(static_cast<std::size_t>(40 * kv_width));
  std::vector<std::int32_t> exponents(40);
  executor.fixed15().quantize(40, kv_width, keys.data(), codes.data(), exponents.data());
  view.key_codes = codes.data();
  view.key_exponents = exponents.data();
  executor.attention().attention_forward(shape, q.data(), view, context.data(), {});
  r.push_back(context);
  r.emplace_back(m * n);
  executor.fixed15().linear(*executor.fixed15().prepare(n, k, b.data()), m, a.data(), r.back().data());
  return r;
}

const ExecutorOptions kSmallWarps = {2, "warp32"};
const ExecutorOptions kLargeWarps = {1, "warp64-seed9"};

SAMBA_KERNEL(64) half_of_a_block_waits() {
  if (gpu_host::thread_index() < 32) gpu_host::barrier();
}

SAMBA_KERNEL(64) part_of_a_warp_shuffles(float* out) {
  const float value = gpu_host::thread_index() < 40 ? gpu_host::shuffle_xor(1.0F, 1) : 0.0F;
  out[gpu_host::thread_index()] = value;
}

}  // namespace

TEST_CASE("the core cases have the recorded bits with warps of 32 and of 64 in a random order") {
  check_golden({{"core"}, 74}, "gpu-host", kSmallWarps);
  check_golden({{"core"}, 74}, "gpu-host", kLargeWarps);
}

TEST_CASE("the transformer cases have the recorded bits, forward, in steps and backward") {
  check_golden({{"attention"}, 139}, "gpu-host", kSmallWarps);
  check_golden({{"attention_backward"}, 62}, "gpu-host", kLargeWarps);
}

TEST_CASE("no order of blocks, warps and threads between barriers changes a bit") {
  const Results want = run_kernels_with_barriers(*make_executor("reference"));
  for (const char* warp : {"warp32", "warp64"}) {
    for (const char* seed : {"", "-seed1", "-seed2", "-seed3"}) {
      INFO(warp << seed);
      CHECK(same_bits(run_kernels_with_barriers(*make_executor("gpu-host", {2, std::string(warp) + seed})), want));
    }
  }
}

TEST_CASE("a kernel without one of its barriers gives other bits in some order") {
  CHECK(check_missing_barriers(run_kernels_with_barriers) >= 15);
}

TEST_CASE("threads of a block that part at a barrier or a shuffle are refused with the place") {
  gpu_host::Context context({1, "warp32"});
  const std::string barrier = error_of([&] { launch(context, gpu_host::Grid{2}, 64, half_of_a_block_waits); }).what();
  CHECK_THAT(barrier, Catch::Contains("gpu_host_test.cpp:") && Catch::Contains("finished"));
  DeviceArray<float> out(context.memory(), 64);
  const std::string shuffle =
      error_of([&] { launch(context, gpu_host::Grid{1}, 64, part_of_a_warp_shuffles, out.data()); }).what();
  CHECK_THAT(shuffle, Catch::Contains("part at the shuffle"));
}

TEST_CASE("device memory is closed to the host between calls, and holds NaN when it is new") {
  const auto executor = make_executor("gpu-host", {1, ""});
  DeviceArray<float> array(executor->memory(), 100);
  float host[100];
  array.download(host);
  for (const float value : host) CHECK(is_nan(value));
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);
    volatile float value = *array.data();
    _exit(value == 0.0F ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
}

TEST_CASE("options that the device does not have are refused") {
  CHECK_THAT(error_of([] {
               make_executor("gpu-host", {1, "warp16"});
             }).what(),
             Catch::Contains("accepted: warp32, warp64"));
  CHECK_THAT(error_of([] { make_executor("gpu-host", {1, "warp32-fast"}); }).what(), Catch::Contains("-seedN"));
  CHECK_THAT(error_of([] {
               make_executor("gpu-host", {1, "", NumericMode::fast});
             }).what(),
             Catch::Contains("numeric mode fast needs cuBLAS") && Catch::Contains("accepted: identical"));
  CHECK_THAT(error_of([] {
               make_executor("gpu-host", {1, "", NumericMode::deterministic});
             }).what(),
             Catch::Contains("accepted: identical, fast"));
}

TEST_CASE("a device that is not there is said in one line") {
  for (const char* device : {"cuda", "hip"}) {
    try {
      make_executor(device);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::resource);
      CHECK_THAT(error.what(), Catch::Contains(std::string("device '") + device + "' is not"));
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
    }
  }
}

}  // namespace samba
