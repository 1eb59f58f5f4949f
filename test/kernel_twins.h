// Twins: what the cpu executor computes, on every instruction set of this machine and with 1, 2 and 3 threads, and what
// the GPU kernels compute on the host adapter, with both warp sizes and random orders, against the reference executor.
// Inputs hold what breaks kernels: subnormals, zeros of both signs, wide exponents, and arrays that are not aligned.
#pragma once

#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bits.h"
#include "samba/backends/registry.h"
#include "samba/numerics/float32.h"
#include "samba/numerics/philox.h"

namespace samba {

// A run of floats that starts `offset` floats after an aligned address.
class Values {
 public:
  explicit Values(Index size, Index offset = 1)
      : storage_(static_cast<std::size_t>(size + offset), kQuietNan), offset_(static_cast<std::size_t>(offset)) {}

  float* data() { return storage_.data() + offset_; }
  const float* data() const { return storage_.data() + offset_; }
  Index size() const { return static_cast<Index>(storage_.size() - offset_); }
  float& operator[](Index i) { return data()[i]; }
  float operator[](Index i) const { return data()[i]; }
  operator std::span<const float>() const {  // NOLINT(google-explicit-constructor): for bits_equal
    return {data(), storage_.size() - offset_};
  }

 private:
  std::vector<float> storage_;
  std::size_t offset_;
};

enum class Draw {
  normal,  // ordinary values
  mixed,   // ordinary, tiny, subnormal, zeros of both signs, wide exponents
  small,   // their squares are around the smallest normal number
  tiny,    // around the smallest normal number
  bits,    // any bit pattern
};

// Draws that depend on the seed of the test alone.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : seed_(seed) {}

  std::uint32_t word() { return stream_word(seed_, 1, next_++); }
  Index below(Index limit) { return static_cast<Index>(word()) % limit; }

  float value(Draw kind) {
    const float ordinary = stream_normal(seed_, 2, next_++, 0.0F, 1.0F);
    switch (kind) {
      case Draw::normal:
        return ordinary;
      case Draw::small:
        return ordinary * 0x1p-63F;
      case Draw::tiny:
        return ordinary * 0x1p-125F;
      case Draw::bits:
        return from_bits(word());
      case Draw::mixed:
        break;
    }
    switch (below(10)) {
      case 0:
        return 0.0F;
      case 1:
        return -0.0F;
      case 2:
        return from_bits(word() & (kSignBit | kMantissaMask));
      case 3:
        return ordinary * 0x1p-125F;
      case 4:
        return ordinary * 0x1p-63F;
      case 5:
        return ordinary * 0x1p30F;
      default:
        return ordinary;
    }
  }

  Values values(Index size, Draw kind) {
    Values result(size, below(4));
    for (Index i = 0; i < size; ++i) result[i] = value(kind);
    return result;
  }

  std::vector<std::int32_t> integers(Index size, Index limit) {
    std::vector<std::int32_t> result;
    for (Index i = 0; i < size; ++i) result.push_back(static_cast<std::int32_t>(below(limit)));
    return result;
  }

 private:
  std::uint64_t seed_;
  std::uint64_t next_ = 0;
};

// Executors are made once: a test program uses them one after the other.
inline const std::vector<std::unique_ptr<Executor>>& twin_executors() {
  static const auto executors = [] {
    std::vector<std::unique_ptr<Executor>> made;
    for (const std::string& set : instruction_sets()) {
      for (const int threads : {1, 2, 3}) made.push_back(make_executor("cpu", {threads, set}));
    }
#if !defined(SAMBA_CPU_TWINS_ONLY)
    const std::vector<std::string> devices = compiled_devices();
    if (std::find(devices.begin(), devices.end(), "gpu-host") != devices.end()) {
      made.push_back(make_executor("gpu-host", {2, "warp32"}));
      made.push_back(make_executor("gpu-host", {1, "warp64-seed5"}));
    }
#endif
    return made;
  }();
  return executors;
}

// Calls compute(executor), which returns all its results, on the reference and on every other executor.
using Results = std::vector<Values>;
inline void check_twins(const std::function<Results(Executor&)>& compute) {
  static const std::unique_ptr<Executor> reference = make_executor("reference");
  const Results want = compute(*reference);
  for (const auto& executor : twin_executors()) {
    INFO(executor->name() << " " << executor->instruction_set() << ", " << executor->threads() << " threads");
    const Results got = compute(*executor);
    REQUIRE(got.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      INFO("result " << i);
      CHECK(bits_equal(got[i], want[i]));
    }
  }
}

// An array that a kernel is to fill: none of its values is left at this one by accident.
inline Values unwritten(Index size) { return Values(size, 3); }

// What a block hands from kernel to kernel: values that are flushed.
inline Values flushed(Draws& draws, Index size, Draw kind) {
  Values values = draws.values(size, kind);
  for (Index i = 0; i < size; ++i) values[i] = flush(values[i]);
  return values;
}

}  // namespace samba
