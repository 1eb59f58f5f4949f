// Packed matrices in the kernels: products and lookups of bfloat16 and int8 weights have the bits of the expanded
// weights, on every instruction set, and what a product reads is as small as what is stored.
#include <catch2/catch.hpp>

#include "drawn_weights.h"
#include "kernel_twins.h"
#include "samba/numerics/packed_weight.h"

namespace samba {
namespace {

constexpr WeightFormat kPacked[] = {WeightFormat::bfloat16, WeightFormat::int8};

struct Size {
  Index m, n, k;
};
// One tile of rows and several; panels that are full, partial and alone; one leaf and a tree of them.
constexpr Size kSizes[] = {{1, 1, 1},    {1, 50, 128}, {2, 7, 129},   {7, 49, 300},    {8, 96, 385},  {9, 33, 40},
                           {13, 100, 5}, {65, 17, 77}, {70, 20, 640}, {17, 130, 1100}, {1, 192, 512}, {130, 48, 256}};

}  // namespace

TEST_CASE("a product with a packed weight has the bits of the product with its expanded values") {
  Draws draws(50);
  const auto reference = make_executor("reference");
  for (const WeightFormat format : kPacked) {
    for (const Size& size : kSizes) {
      for (const bool by_hand : {false, true}) {
        INFO(weight_format_name(format) << ", m " << size.m << " n " << size.n << " k " << size.k
                                        << (by_hand ? ", made by hand" : ""));
        const PackedWeight packed = draw_packed(draws, format, size.n, size.k, by_hand);
        const Array expanded = expand(packed);
        const Values x = draws.values(size.m * size.k, Draw::mixed);
        Values want(size.m * size.n);
        reference->linear().gemm(Layout::nt, size.m, size.n, size.k, x.data(), expanded.floats().data(), want.data());
        check_twins([&](Executor& executor) {
          const auto prepared = executor.linear().prepare(packed);
          CHECK(prepared->format() == format);
          Values y(size.m * size.n), again(size.m * size.n), values(size.n * size.k);
          executor.linear().linear(*prepared, size.m, x.data(), y.data());
          CHECK(bits_equal(y, want));
          executor.linear().refresh(*prepared, packed.view());
          executor.linear().linear(*prepared, size.m, x.data(), again.data());
          executor.linear().expand(packed, values.data());
          CHECK(bits_equal(values, expanded.floats()));
          return Results{y, again, values};
        });
      }
    }
  }
}

TEST_CASE("a prepared packed weight takes the bytes it is stored in") {
  const Index rows = 96, columns = 320;  // rows fill the vectors of every instruction set
  Draws draws(51);
  const Values values = draws.values(rows * columns, Draw::normal);
  check_twins([&](Executor& executor) {
    CHECK(executor.linear().prepare(rows, columns, values.data())->byte_size() ==
          stored_bytes(WeightFormat::float32, rows, columns));
    for (const WeightFormat format : kPacked) {
      const PackedWeight packed = draw_packed(draws, format, rows, columns, false);
      const auto prepared = executor.linear().prepare(packed);
      CHECK(prepared->byte_size() == packed.byte_size());
      CHECK(prepared->byte_size() == stored_bytes(format, rows, columns));
      const DeviceWeight stored(executor.memory(), packed);
      CHECK(stored.byte_size() == packed.byte_size());
    }
    return Results{};
  });
  CHECK(stored_bytes(WeightFormat::bfloat16, rows, columns) == 2 * 96 * 320);
  CHECK(stored_bytes(WeightFormat::int8, rows, columns) == 96 * 320 + 4 * 96);
}

TEST_CASE("a lookup in a packed table gives the flushed rows of the expanded one") {
  Draws draws(52);
  for (const WeightFormat format : kPacked) {
    for (const bool by_hand : {false, true}) {
      for (const Index width : {Index{1}, Index{37}, Index{64}}) {
        const PackedWeight packed = draw_packed(draws, format, 19, width, by_hand);
        const Array expanded = expand(packed);
        const std::vector<std::int32_t> ids = draws.integers(40, 19);
        check_twins([&](Executor& executor) {
          Values rows(40 * width), want(40 * width);
          executor.embedding().embedding_forward(40, width, ids.data(), packed, rows.data());
          executor.embedding().embedding_forward(40, width, ids.data(), expanded.floats().data(), want.data());
          CHECK(bits_equal(rows, want));
          return Results{rows};
        });
      }
    }
  }
}

}  // namespace samba
