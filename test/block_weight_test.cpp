// Rows of quantised blocks as GGUF files hold them (docs/formats/gguf.md): values as the package gguf expands them,
// products with the bits of the expanded matrix, on the reference, on every instruction set and on the GPU kernels.
#include "samba/numerics/block_weight.h"

#include <catch2/catch.hpp>
#include <memory>

#include "drawn_weights.h"
#include "kernel_twins.h"
#include "samba/formats/gguf_file.h"
#include "samba/formats/safetensors.h"
#include "samba/kernels/weight.h"
#include "samba/model/samba_stack.h"

namespace samba {
namespace {

constexpr WeightFormat kBlocks[] = {
    WeightFormat::float16, WeightFormat::bfloat16, WeightFormat::q8_0, WeightFormat::q4_0, WeightFormat::q4_1,
    WeightFormat::q5_0,    WeightFormat::q5_1,     WeightFormat::q4_k, WeightFormat::q5_k, WeightFormat::q6_k};

struct Size {
  Index m, n, k;
};
// One row of x and tiles of rows; vectors of rows of W that are full and partial; one leaf and a tree of them.
constexpr Size kSizes[] = {{1, 1, 256}, {1, 50, 512}, {1, 96, 1280}, {1, 33, 768},
                           {2, 7, 256}, {7, 49, 512}, {9, 70, 1536}, {65, 17, 256}};
// Of the formats whose block is short.
constexpr Size kShortSizes[] = {{1, 40, 32}, {1, 65, 160}, {1, 16, 576}, {3, 40, 96}, {20, 35, 320}};

void check_products(Draws& draws, WeightFormat format, const Size& size, Index head) {
  INFO(weight_format_name(format) << ", m " << size.m << " n " << size.n << " k " << size.k << " head " << head);
  DrawnBlocks drawn = draw_blocks(draws, format, size.n, size.k);
  drawn.view.interleaved_head = head;
  const Array expanded = expand(ConstWeight(drawn.view));
  const Values x = draws.values(size.m * size.k, Draw::mixed);
  const auto reference = make_executor("reference");
  Values want(size.m * size.n);
  reference->linear().gemm(Layout::nt, size.m, size.n, size.k, x.data(), expanded.floats().data(), want.data());
  const std::vector<std::int32_t> ids = draws.integers(9, size.n);
  Values rows(9 * size.k);
  for (Index t = 0; t < 9; ++t) {
    for (Index j = 0; j < size.k; ++j) {
      rows[t * size.k + j] =
          flush(expanded.floats()[static_cast<std::size_t>(ids[static_cast<std::size_t>(t)] * size.k + j)]);
    }
  }
  check_twins([&](Executor& executor) {
    const auto prepared = executor.linear().prepare(drawn.view);
    CHECK(prepared->format() == format);
    CHECK(prepared->byte_size() == drawn.bytes->size());
    Values y(size.m * size.n), again(size.m * size.n), values(size.n * size.k), found(9 * size.k);
    executor.linear().linear(*prepared, size.m, x.data(), y.data());
    CHECK(bits_equal(y, want));
    executor.linear().refresh(*prepared, drawn.view);
    executor.linear().linear(*prepared, size.m, x.data(), again.data());
    CHECK(bits_equal(again, want));
    executor.linear().expand(drawn.view, values.data());
    CHECK(bits_equal(values, expanded.floats()));
    executor.embedding().embedding_forward(9, size.k, ids.data(), drawn.view, found.data());
    CHECK(bits_equal(found, rows));
    return Results{y, values, found};
  });
}

}  // namespace

TEST_CASE("blocks of every type have the values the package gguf gives them") {
  const SafetensorsFile file = read_safetensors(SAMBA_SOURCE_DIR "/test/gguf/blocks.safetensors");
  for (const WeightFormat format : kBlocks) {
    const std::string name(gguf_type_name(format));
    INFO(name);
    const Array& blocks = file.tensors.at(name + ".blocks");
    const Array& values = file.tensors.at(name + ".values");
    const Index rows = values.shape()[0], columns = values.shape()[1];
    REQUIRE(blocks.byte_size() == static_cast<std::size_t>(rows) * block_row_bytes(format, columns));
    const auto view = ConstPackedWeight::of_blocks(format, rows, columns, static_cast<const std::byte*>(blocks.data()));
    CHECK(bits_equal(expand(ConstWeight(view)).floats(), values.floats()));
  }
}

TEST_CASE("a half is read exactly") {
  CHECK(half_value(0x3C00) == 1.0F);
  CHECK(half_value(0xC000) == -2.0F);
  CHECK(half_value(0x7BFF) == 65504.0F);
  CHECK(half_value(0x0001) == 0x1p-24F);
  CHECK(half_value(0x83FF) == -1023 * 0x1p-24F);
  CHECK(to_bits(half_value(0x8000)) == kSignBit);
  CHECK(half_value(0x7C00) == kInfinity);
  CHECK(is_nan(half_value(0xFE00)));
}

TEST_CASE("a product with rows of blocks has the bits of the product with their expanded values") {
  Draws draws(70);
  for (const WeightFormat format : kBlocks) {
    for (const Size& size : kSizes) check_products(draws, format, size, 0);
    if (block_layout(format).values > 32) continue;
    for (const Size& size : kShortSizes) check_products(draws, format, size, 0);
  }
}

TEST_CASE("halves may have rows of any length") {
  Draws draws(71);
  for (const WeightFormat format : {WeightFormat::float16, WeightFormat::bfloat16}) {
    for (const Size& size : {Size{1, 5, 1}, Size{1, 20, 77}, Size{4, 33, 141}, Size{11, 6, 300}}) {
      check_products(draws, format, size, 0);
    }
  }
}

TEST_CASE("heads whose halves are interleaved in the file are taken apart") {
  Draws draws(72);
  for (const WeightFormat format : {WeightFormat::q4_1, WeightFormat::q6_k, WeightFormat::bfloat16}) {
    check_products(draws, format, {1, 64, 256}, 16);
    check_products(draws, format, {5, 48, 256}, 24);
  }
  DrawnBlocks drawn = draw_blocks(draws, WeightFormat::q8_0, 12, 32);
  const Array stored = expand(ConstWeight(drawn.view));
  drawn.view.interleaved_head = 6;
  const Array taken = expand(ConstWeight(drawn.view));
  const Index from[] = {0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11};
  for (Index row = 0; row < 12; ++row) {
    CHECK(bits_equal(taken.floats().subspan(static_cast<std::size_t>(row * 32), 32),
                     stored.floats().subspan(static_cast<std::size_t>(from[row] * 32), 32)));
  }
  const Array part = expand(ConstWeight(packed_rows(drawn.view, 3, 8)));
  CHECK(bits_equal(part.floats(), taken.floats().subspan(3 * 32, 5 * 32)));
}

TEST_CASE("rows that are no multiple of a block are refused") {
  CHECK_THROWS_WITH(ConstPackedWeight::of_blocks(WeightFormat::q4_k, 2, 128, nullptr),
                    "a row of q4_k must be a multiple of 256 values, got 128");
}

TEST_CASE("blocks stay where they lie, and are kept by what uses them") {
  Draws draws(73);
  DrawnBlocks drawn = draw_blocks(draws, WeightFormat::q4_0, 8, 64);
  const std::byte* const where = drawn.view.blocks;
  const Array expanded = expand(ConstWeight(drawn.view));
  const auto executor = make_executor("cpu");
  DeviceWeight weight(executor->memory(), ConstWeight(drawn.view));
  const DeviceWeight clone = weight.clone(executor->memory());
  const std::weak_ptr<std::vector<std::byte>> watch = drawn.bytes;
  drawn = {};
  CHECK(!watch.expired());
  CHECK(weight.view().packed().blocks == where);
  CHECK(clone.view().packed().blocks == where);
  CHECK(weight.byte_size() == 8 * 2 * 18);
  CHECK(bits_equal(expand(weight.download().view()).floats(), expanded.floats()));
}

TEST_CASE("formats of blocks may be mixed, but not with the packed forms of samba's files") {
  Draws draws(74);
  const DrawnBlocks small = draw_blocks(draws, WeightFormat::q8_0, 2, 32);
  const DrawnBlocks large = draw_blocks(draws, WeightFormat::q4_1, 8, 64);
  const Array bits(DType::uint16, {2, 2});
  ConstWeightMap weights{{"a", small.view}, {"b", large.view}};
  CHECK(weight_format(weights) == WeightFormat::q4_1);
  weights.emplace("c", ConstPackedWeight::of_bits(bits));
  CHECK_THROWS_WITH(weight_format(weights), Catch::Contains("weights mix formats"));
}

}  // namespace samba
