// The products of numeric_profile fixed15_v1 (spec 20 section 10): the sum is exact, so that nothing of its order
// shows.
#pragma once

#include "samba/backends/gpu/families.h"
#include "samba/numerics/fixed15.h"

namespace samba::SAMBA_GPU {

namespace {

inline constexpr int kCodeLanes = 32;  // that share a row
inline constexpr int kCodeThreads = 128;
inline constexpr int kCodeRows = kCodeThreads / kCodeLanes;  // of a block

SAMBA_DEVICE std::int64_t meet_lanes(std::int64_t value) {
  for (int h = kCodeLanes / 2; h >= 1; h /= 2) {
    const auto bits = static_cast<std::uint64_t>(value);
    const std::uint64_t low = shuffle_xor(static_cast<std::uint32_t>(bits), h);
    const std::uint64_t high = shuffle_xor(static_cast<std::uint32_t>(bits >> 32), h);
    value += static_cast<std::int64_t>(high << 32 | low);
  }
  return value;
}

SAMBA_KERNEL(kCodeThreads)
quantize_rows(Index rows, Index k, const float* x, std::int16_t* codes, std::int32_t* exponents) {
  const Index i = static_cast<Index>(block_x()) * kCodeRows + thread_index() / kCodeLanes;
  const Index lane = thread_index() % kCodeLanes, width = i < rows ? k : 0;
  std::uint32_t largest = 0;
  for (Index p = lane; p < width; p += kCodeLanes) {
    const std::uint32_t magnitude = fixed15_magnitude(x[i * k + p]);
    largest = magnitude > largest ? magnitude : largest;
  }
  for (int h = kCodeLanes / 2; h >= 1; h /= 2) {
    const std::uint32_t other = shuffle_xor(largest, h);
    largest = other > largest ? other : largest;
  }
  const std::int32_t exponent = fixed15_exponent(largest);
  const float inverse = power_of_two(-exponent);
  for (Index p = lane; p < width; p += kCodeLanes) codes[i * k + p] = fixed15_code(x[i * k + p], inverse);
  if (width > 0 && lane == 0) exponents[i] = exponent;
}

struct CodeProduct {
  Index m, n, k;
  const std::int16_t* x;
  const std::int32_t* x_exponents;
  const std::int16_t* w;
  const std::int32_t* w_exponents;
  float* y;
};

SAMBA_DEVICE void store_cell(const CodeProduct& g, Index i, Index j, std::int64_t sum) {
  g.y[i * g.n + j] = fixed15_cell(sum, g.x_exponents[i], g.w_exponents[j]);
}

// Few rows of x: the lanes of an output go along its row of codes.
SAMBA_KERNEL(kCodeThreads)
code_rows(CodeProduct g) {
  const Index j = static_cast<Index>(block_x()) * kCodeRows + thread_index() / kCodeLanes;
  const Index lane = thread_index() % kCodeLanes, width = j < g.n ? g.k : 0;
  for (Index i = 0; i < g.m; ++i) {
    std::int64_t sum = 0;
    for (Index p = lane; p < width; p += kCodeLanes) {
      sum += static_cast<std::int32_t>(g.x[i * g.k + p]) * static_cast<std::int32_t>(g.w[j * g.k + p]);
    }
    sum = meet_lanes(sum);
    if (width > 0 && lane == 0) store_cell(g, i, j, sum);
  }
}

// Tiles of kCodeTile x kCodeTile outputs, kCodeCells x kCodeCells a thread.
inline constexpr int kCodeTile = 64;
inline constexpr int kCodeCells = 4;
inline constexpr int kCodeTileThreads = kCodeTile * kCodeTile / (kCodeCells * kCodeCells);
inline constexpr int kCodeDepth = 32;
inline constexpr int kCodePitch = kCodeTile + 2;
inline constexpr int kShortSum = 4;  // terms whose sum fits into 32 bits: |code| < 2^14

SAMBA_KERNEL(kCodeTileThreads)
code_tiles(CodeProduct g) {
  SAMBA_SHARED(std::int16_t, x_slice, kCodeDepth * kCodePitch);
  SAMBA_SHARED(std::int16_t, w_slice, kCodeDepth * kCodePitch);
  constexpr int kAcross = kCodeTile / kCodeCells;
  const auto thread = static_cast<int>(thread_index());
  const Index first_row = static_cast<Index>(block_y()) * kCodeTile;
  const Index first_column = static_cast<Index>(block_x()) * kCodeTile;
  const int row = thread / kAcross * kCodeCells, column = thread % kAcross * kCodeCells;
  std::int64_t sums[kCodeCells * kCodeCells] = {};
  const auto load = [&](const std::int16_t* codes, Index first, Index rows, Index p, std::int16_t* slice) {
    for (int e = thread; e < kCodeDepth * kCodeTile; e += kCodeTileThreads) {
      const int d = e % kCodeDepth, r = e / kCodeDepth;
      const bool there = first + r < rows && p + d < g.k;
      slice[d * kCodePitch + r] = there ? codes[(first + r) * g.k + p + d] : std::int16_t{0};
    }
  };
  for (Index p = 0; p < g.k; p += kCodeDepth) {
    load(g.x, first_row, g.m, p, x_slice);
    load(g.w, first_column, g.n, p, w_slice);
    barrier();
    for (int d = 0; d < kCodeDepth; d += kShortSum) {
      std::int32_t part[kCodeCells * kCodeCells] = {};
      SAMBA_UNROLL
      for (int q = d; q < d + kShortSum; ++q) {
        SAMBA_UNROLL
        for (int i = 0; i < kCodeCells; ++i) {
          SAMBA_UNROLL
          for (int j = 0; j < kCodeCells; ++j) {
            part[i * kCodeCells + j] += static_cast<std::int32_t>(x_slice[q * kCodePitch + row + i]) *
                                        static_cast<std::int32_t>(w_slice[q * kCodePitch + column + j]);
          }
        }
      }
      SAMBA_UNROLL
      for (int c = 0; c < kCodeCells * kCodeCells; ++c) sums[c] += part[c];
    }
    barrier();
  }
  for (int i = 0; i < kCodeCells; ++i) {
    for (int j = 0; j < kCodeCells; ++j) {
      const Index at_row = first_row + row + i, at_column = first_column + column + j;
      if (at_row < g.m && at_column < g.n) store_cell(g, at_row, at_column, sums[i * kCodeCells + j]);
    }
  }
}

inline constexpr Index kFewCodeRows = 8;
inline constexpr Index kMostCodeRows = Index{65535} * kCodeTile;  // of a launch of tiles

void launch_codes(Context& context, CodeProduct g) {
  if (g.m <= kFewCodeRows) {
    const auto blocks = static_cast<unsigned>((g.n + kCodeRows - 1) / kCodeRows);
    return launch(context, Grid{blocks}, kCodeThreads, code_rows, g);
  }
  for (Index left = g.m; left > 0; left -= kMostCodeRows) {
    g.m = left < kMostCodeRows ? left : kMostCodeRows;
    const Grid grid{static_cast<unsigned>((g.n + kCodeTile - 1) / kCodeTile),
                    static_cast<unsigned>((g.m + kCodeTile - 1) / kCodeTile)};
    launch(context, grid, kCodeTileThreads, code_tiles, g);
    g.x += g.m * g.k;
    g.x_exponents += g.m;
    g.y += g.m * g.n;
  }
}

class QuantizedWeight final : public PreparedWeight {
 public:
  QuantizedWeight(Context& context, Index n, Index k)
      : n_(n), k_(k), codes_(context.memory(), n * k), exponents_(context.memory(), n) {}
  Index rows() const override { return n_; }
  Index columns() const override { return k_; }
  WeightFormat format() const override { return WeightFormat::float32; }
  std::size_t byte_size() const override { return codes_.byte_size() + exponents_.byte_size(); }
  std::int16_t* codes() { return codes_.data(); }
  std::int32_t* exponents() { return exponents_.data(); }
  const std::int16_t* codes() const { return codes_.data(); }
  const std::int32_t* exponents() const { return exponents_.data(); }

 private:
  Index n_, k_;
  DeviceArray<std::int16_t> codes_;
  DeviceArray<std::int32_t> exponents_;
};

class Fixed15Gpu final : public Fixed15Kernels {
 public:
  explicit Fixed15Gpu(Context& context) : context_(context) {}

  void quantize(Index rows, Index k, const float* x, std::int16_t* codes, std::int32_t* exponents) override {
    launch_quantize(context_, rows, k, x, codes, exponents);
  }
  std::unique_ptr<PreparedWeight> prepare(Index n, Index k, const float* weight) override {
    auto prepared = std::make_unique<QuantizedWeight>(context_, n, k);
    refresh(*prepared, weight);
    return prepared;
  }
  void refresh(PreparedWeight& prepared, const float* weight) override {
    auto& quantized = static_cast<QuantizedWeight&>(prepared);
    launch_quantize(context_, quantized.rows(), quantized.columns(), weight, quantized.codes(), quantized.exponents());
  }
  void linear(const PreparedWeight& weight, Index m, const float* x, float* y) override {
    const auto& quantized = static_cast<const QuantizedWeight&>(weight);
    const Index n = quantized.rows(), k = quantized.columns();
    const Workspace::Scope scope(context_.workspace());
    std::int16_t* codes = context_.workspace().codes(m * k);
    std::int32_t* exponents = context_.workspace().ints(m);
    launch_quantize(context_, m, k, x, codes, exponents);
    launch_codes(context_, {m, n, k, codes, exponents, quantized.codes(), quantized.exponents(), y});
  }

 private:
  Context& context_;
};

}  // namespace

void launch_quantize(Context& context, Index rows, Index k, const float* x, std::int16_t* codes,
                     std::int32_t* exponents) {
  const auto blocks = static_cast<unsigned>((rows + kCodeRows - 1) / kCodeRows);
  launch(context, Grid{blocks}, kCodeThreads, quantize_rows, rows, k, x, codes, exponents);
}

std::unique_ptr<Fixed15Kernels> make_fixed15(Context& context) { return std::make_unique<Fixed15Gpu>(context); }

}  // namespace samba::SAMBA_GPU
