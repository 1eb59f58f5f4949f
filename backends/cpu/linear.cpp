#include "samba/backends/cpu/linear.h"

#include <algorithm>
#include <array>

#include "samba/backends/cpu/block_rows.h"
#include "samba/backends/cpu/weight_panels.h"
#include "samba/numerics/float32.h"

namespace samba::cpu {

namespace {

constexpr Index kSmallGather = 8 * 1024;       // elements of rows below which one thread gathers them
constexpr Index kFarColumns = Index{1} << 20;  // elements of A beyond which its columns are packed
constexpr Index kNearPanels = 384 * 1024;      // elements of B that every block of rows may read again
constexpr Index kAliasedColumns = 512;         // columns of this multiple share few sets of the first-level cache

Product weight_product(const Context& context, const LinearTerm& term, Index m, const float* x) {
  const PreparedWeight& weight = *term.weight;
  Product product;
  product.m = m;
  product.n = weight.rows();
  product.k = weight.columns();
  product.a = x;
  product.a_stride = product.k;
  product.format = weight.format();
  product.c = term.y;
  product.epilogue.bias = term.bias;
  product.epilogue.residual = term.residual;
  if (weight.reads_blocks()) {
    product.source = PanelSource::blocks;
    product.b = &static_cast<const BlockRows&>(weight).weight();
    product.block_kernels = block_kernels(context, product.k);
  } else {
    const auto& panels = static_cast<const WeightPanels&>(weight);
    product.b = panels.cells();
    product.scales = panels.scales();
  }
  return product;
}

}  // namespace

void LinearCpu::gemm(Layout layout, Index m, Index n, Index k, const float* a, const float* b, float* c) {
  Product product;
  product.m = m;
  product.n = n;
  product.k = k;
  product.order = layout == Layout::tn ? RowOrder::columns : RowOrder::rows;
  product.a = a;
  product.a_stride = layout == Layout::tn ? m : k;
  product.source = layout == Layout::nt ? PanelSource::rows : PanelSource::columns;
  product.b = b;
  product.c = c;
  if (layout == Layout::tn && (m * k > kFarColumns || m % kAliasedColumns == 0)) {
    const PanelLayout panels(n, tile_shape(context_));
    if (n * k <= kNearPanels) {
      float* packed = kept(packed_b_, panels.padded_columns() * k);
      pack_panels(context_, panels, k, product.source, b, packed);
      product.source = PanelSource::prepared;
      product.b = packed;
      product.packs_blocks = true;
    } else {
      float* packed = kept(packed_a_, m * k);
      pack_tiles(context_, product, packed);
      product.packed_a = packed;
    }
  }
  multiply(context_, {&product, 1});
}

float* LinearCpu::kept(DeviceArray<float>& array, Index count) {
  if (array.size() < count) array = DeviceArray<float>(memory_, count);
  return array.data();
}

std::unique_ptr<PreparedWeight> LinearCpu::prepare(Index n, Index k, const float* weight) {
  auto panels = std::make_unique<WeightPanels>(memory_, tile_shape(context_), WeightFormat::float32, n, k);
  panels->fill(context_, weight);
  return panels;
}

std::unique_ptr<PreparedWeight> LinearCpu::prepare(const ConstPackedWeight& weight) {
  if (weight.blocks != nullptr) return std::make_unique<BlockRows>(weight);
  auto panels =
      std::make_unique<WeightPanels>(memory_, tile_shape(context_), weight.format, weight.rows, weight.columns);
  panels->fill(context_, weight);
  return panels;
}

void LinearCpu::refresh(PreparedWeight& prepared, const WeightView& weight) {
  if (prepared.reads_blocks()) return static_cast<BlockRows&>(prepared).refresh(weight.packed());
  static_cast<WeightPanels&>(prepared).fill(context_, weight);
}

std::size_t LinearCpu::prepared_bytes(WeightFormat format, Index n, Index k) const {
  const bool laid_out =
      format == WeightFormat::float32 || format == WeightFormat::bfloat16 || format == WeightFormat::int8;
  // Rows of blocks are read where they lie.
  return laid_out ? WeightPanels::bytes(tile_shape(context_), format, n, k) : stored_bytes(format, n, k);
}

void LinearCpu::gather_rows(const PreparedWeight& weight, Index count, const std::int32_t* rows, float* values) {
  const Index k = weight.columns();
  if (weight.reads_blocks()) {
    const ConstPackedWeight& blocks = static_cast<const BlockRows&>(weight).weight();
    for (Index i = 0; i < count; ++i) {
      float* row = values + i * k;
      expand(packed_rows(blocks, rows[i], rows[i] + 1), row);
      std::transform(row, row + k, row, [](float value) { return flush(value); });
    }
    return;
  }
  const auto& panels = static_cast<const WeightPanels&>(weight);
  context_.parallel(count, std::max<Index>(1, kSmallGather / k), [&](Index first, Index end, int) {
    for (Index i = first; i < end; ++i) panels.expand_row(rows[i], values + i * k);
  });
}

Weight LinearCpu::stored(const PreparedWeight& weight) {
  if (weight.reads_blocks()) return PackedWeight(static_cast<const BlockRows&>(weight).weight());
  return static_cast<const WeightPanels&>(weight).stored();
}

void LinearCpu::linear(const PreparedWeight& weight, Index m, const float* x, float* y) {
  const Product product = weight_product(context_, {&weight, y, nullptr, nullptr}, m, x);
  multiply(context_, {&product, 1});
}

void LinearCpu::linear_group(Index m, const float* x, std::span<const LinearTerm> terms) {
  std::array<Product, kMostTerms> products;
  for (std::size_t i = 0; i < terms.size(); ++i) products[i] = weight_product(context_, terms[i], m, x);
  multiply(context_, std::span(products).first(terms.size()));
}

void LinearCpu::linear_swiglu(Index m, const float* x, const LinearTerm& gate, const LinearTerm& up, float* act,
                              float* gated) {
  Product ups = weight_product(context_, up, m, x);
  ups.epilogue.gate = gate.y;
  ups.epilogue.act = act;
  ups.epilogue.gated = gated;
  Product gates = weight_product(context_, gate, m, x);
  gates.then = &ups;
  multiply(context_, {&gates, 1});
}

}  // namespace samba::cpu
