#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "bits.h"
#include "samba/backends/registry.h"
#include "samba/blocks/functional.h"
#include "samba/core/error.h"
#include "samba/numerics/generator.h"
#include "samba/numerics/philox.h"
#include "samba/train/accumulate.h"

namespace samba {

using Catch::Matchers::Contains;

namespace {

Array matrix(Shape shape, std::vector<float> values) { return Array::from_floats(std::move(shape), values); }

Array ids(std::vector<std::int32_t> values) {
  Array array(DType::int32, {static_cast<Index>(values.size())});
  std::copy(values.begin(), values.end(), array.values<std::int32_t>().begin());
  return array;
}

std::vector<float> bits(std::initializer_list<std::uint32_t> patterns) {
  std::vector<float> values;
  for (const std::uint32_t pattern : patterns) values.push_back(from_bits(pattern));
  return values;
}

#define CHECK_REFUSED(expression, text) CHECK_THROWS_WITH(expression, Contains(text))

}  // namespace

TEST_CASE("a new generator draws stream 0 first, with the recorded first values of seed 7") {
  Generator generator(7);
  std::vector<float> uniform(6), normal(6);
  generator.uniform(uniform);
  CHECK(generator.counter() == 1);
  CHECK(bits_equal(uniform, bits({0x3f74607a, 0x3f4009f9, 0x3de9d5d0, 0x3daf6d60, 0x3ed05d1c, 0x3f4b97bc})));
  generator.restore({7, 0});
  generator.normal(normal);
  CHECK(bits_equal(normal, bits({0x3998ce71, 0x3fe4f600, 0x3ec0b800, 0x3fe7df5b, 0x404c2eb2, 0x3ec27536})));
}

TEST_CASE("each draw takes one stream id whatever its size, and a restored generator goes on from there") {
  Generator generator(99);
  std::vector<float> one(1), many(1000), again(1000);
  generator.normal(one);
  CHECK(generator.next_stream() == 1);
  generator.uniform(many, -2.0, 3.0);
  CHECK(generator.state().counter == 3);
  Generator other(GeneratorState{99, 2});
  other.uniform(again, -2.0, 3.0);
  CHECK(bits_equal(again, many));
}

TEST_CASE("an exhausted generator refuses to draw") {
  Generator generator(GeneratorState{1, Generator::kStreams - 1});
  CHECK(generator.next_stream() == 0xFFFFFFFFU);
  std::vector<float> values(4);
  CHECK_REFUSED(generator.uniform(values), "the stream counter is exhausted");
  CHECK_REFUSED(generator.restore({1, Generator::kStreams + 1}), "counter must be in [0, 4294967296]");
  CHECK(generator.counter() == Generator::kStreams);
}

TEST_CASE("a refused draw leaves the counter where it was") {
  Generator generator(5);
  std::vector<float> values(4);
  CHECK_REFUSED(generator.uniform({}, 0.0, 1.0), "at least one element");
  CHECK_REFUSED(generator.uniform(values, 1.0, 0.5), "high 0.5 is below low 1");
  CHECK_REFUSED(generator.normal(values, 0.0, -1.0), "std must not be negative, got -1");
  CHECK_REFUSED(generator.kaiming_uniform(values, 0), "fan_in must be at least 1, got 0");
  CHECK_REFUSED(generator.xavier_normal(values, 3, -2), "fan_out must be at least 1, got -2");
  CHECK_REFUSED(draw_size({3, 0}), "at least 1, got (3, 0)");
  CHECK(draw_size({3, 4}) == 12);
  const auto executor = make_executor("reference");
  const Array x = matrix({4}, {1, 2, 3, 4});
  CHECK_REFUSED(functional::dropout(*executor, generator, x, 1.0), "p must be in [0, 1)");
  CHECK_REFUSED(functional::dropout(*executor, generator, x, 1.0 - 1e-12), "p must be in [0, 1)");
  CHECK_REFUSED(functional::dropout(*executor, generator, x, -0.5), "p must be in [0, 1)");
  CHECK_REFUSED(functional::dropout(*executor, generator, x, 0.5, 2147483648ULL), "offset must be in [0, 2147483647]");
  const Array bad = matrix({2}, {1, kInfinity});
  CHECK_REFUSED(functional::dropout(*executor, generator, bad, 0.5), "non-finite dropout input at 1");
  CHECK(generator.counter() == 0);
}

TEST_CASE("dropout with a stream of its own leaves the generator alone and replays from its key") {
  const auto executor = make_executor("reference");
  Generator generator(3);
  const Array x = matrix({64}, std::vector<float>(64, 1.0F));
  const functional::Dropped given = functional::dropout(*executor, generator, x, 0.25, 7, 11);
  CHECK(generator.counter() == 0);
  CHECK(bits_equal(functional::dropout_backward(*executor, given.key, x).floats(), given.y.floats()));
  Index kept = 0;
  for (std::size_t i = 0; i < 64; ++i) {
    const bool keeps = stream_coin(3, 11, 7 + i) >= 0.25F;
    kept += keeps ? 1 : 0;
    CHECK(to_bits(given.y.floats()[i]) == to_bits(keeps ? 1.0F / 0.75F : 0.0F));
  }
  CHECK(kept > 0);
  CHECK(kept < 64);
  functional::dropout(*executor, generator, x, 0.25);
  CHECK(generator.counter() == 1);
}

TEST_CASE("the two dropout scales round differently for p = 1/3") {
  CHECK(to_bits(dropout_scale(1.0 / 3).scale) != to_bits(residual_dropout_scale(1.0 / 3).scale));
  CHECK(dropout_scale(0.5).scale == 2.0F);
  CHECK(residual_dropout_scale(0.5).scale == 2.0F);
}

TEST_CASE("residual dropout refuses other shapes and results that overflow") {
  const auto executor = make_executor("reference");
  const Array x = matrix({2}, {3e38F, 3e38F});
  CHECK_REFUSED(functional::residual_dropout(*executor, x, matrix({3}, {0, 0, 0}), 0.0, 1, 2),
                "must have shape (2,), got (3,)");
  CHECK_REFUSED(functional::residual_dropout(*executor, x, x, 0.0, 1, 2), "non-finite residual dropout result");
  const functional::Dropped fine = functional::residual_dropout(*executor, x, matrix({2}, {1, 2}), 0.0, 1, 2);
  CHECK(bits_equal(functional::residual_dropout_backward(*executor, fine.key, x).residual.floats(), x.floats()));
}

TEST_CASE("linear refuses empty shapes and values that are not finite, by name and flat index") {
  const auto executor = make_executor("reference");
  const Array input = matrix({2, 3}, {1, 2, 3, 4, 5, 6});
  const Array weight = matrix({2, 3}, {1, 0, 0, 0, 1, 1});
  CHECK(bits_equal(functional::linear(*executor, input, weight).floats(), std::vector<float>{1, 5, 4, 11}));
  CHECK_REFUSED(functional::linear(*executor, Array::zeros({0, 3}), weight), "linear shape must be positive");
  CHECK_REFUSED(functional::linear(*executor, input, Array::zeros({0, 3})), "linear shape must be positive");
  CHECK_REFUSED(functional::linear(*executor, input, Array::zeros({2, 4})), "must have shape (2, 3), got (2, 4)");
  CHECK_REFUSED(functional::linear(*executor, matrix({1, 3}, {1, kQuietNan, 2}), weight),
                "non-finite linear input at flat index 1");
  CHECK_REFUSED(functional::linear(*executor, input, matrix({2, 3}, {1, 0, 0, 0, 1, -kInfinity})),
                "non-finite linear weight at flat index 5");
  const Array upstream = matrix({2, 2}, {1, kInfinity, 0, 0});
  CHECK_REFUSED(functional::linear_backward(*executor, upstream, input, weight),
                "non-finite linear upstream gradient at flat index 1");
  CHECK_REFUSED(functional::linear(*executor, Array(DType::float64, {2, 3}), weight),
                "linear input must be float32, got float64");
}

TEST_CASE("an overflow inside a product gives infinity and is not refused") {
  const auto executor = make_executor("reference");
  const Array large = matrix({1, 1}, {3e38F});
  CHECK(functional::linear(*executor, large, large).floats()[0] == kInfinity);
}

TEST_CASE("norms refuse a bad eps and values that are not finite") {
  const auto executor = make_executor("reference");
  const Array x = matrix({1, 2}, {1, 2}), weight = matrix({2}, {1, 1}), bad = matrix({2}, {1, kQuietNan});
  CHECK_REFUSED(functional::rms_norm(*executor, x, weight, -1e-6), "eps must be finite and not negative");
  CHECK_REFUSED(functional::rms_norm(*executor, x, weight, std::nan("")), "eps must be finite and not negative");
  CHECK_REFUSED(functional::rms_norm(*executor, x, bad, 1e-6), "non-finite rms_norm weight at flat index 1");
  CHECK_REFUSED(functional::rms_norm_backward(*executor, matrix({1, 2}, {kInfinity, 0}), x, weight, 1e-6),
                "non-finite rms_norm upstream gradient at flat index 0");
  CHECK_REFUSED(functional::layer_norm(*executor, x, bad.view(), std::nullopt, 1e-6),
                "non-finite layer_norm weight at flat index 1");
  CHECK_REFUSED(functional::rms_norm(*executor, Array::zeros({2, 0}), weight, 1e-6), "shape must be positive");
}

TEST_CASE("embedding refuses ids outside the vocabulary and never clamps") {
  const auto executor = make_executor("reference");
  const Array weight = matrix({3, 2}, {1, 2, 3, 4, 5, 6});
  CHECK(bits_equal(functional::embedding(*executor, weight, ids({2, 0})).floats(), std::vector<float>{5, 6, 1, 2}));
  CHECK_REFUSED(functional::embedding(*executor, weight, ids({0, 3})),
                "embedding: id 3 at position 1 is outside [0, 3)");
  CHECK_REFUSED(functional::embedding(*executor, weight, ids({-1})),
                "embedding: id -1 at position 0 is outside [0, 3)");
  const Array upstream = matrix({2, 2}, {1, 2, 3, 4});
  CHECK_REFUSED(functional::embedding_backward(*executor, upstream, ids({1}), 3),
                "1 ids but an upstream gradient of 2");
}

TEST_CASE("an embedding gradient carried over two calls is the gradient of one call; padding stays +0") {
  const auto executor = make_executor("reference");
  const Array upstream = matrix({4, 1}, {1e-3F, 7.0F, 1e8F, -1e8F});
  const Array all = functional::embedding_backward(*executor, upstream, ids({1, 1, 1, 1}), 2);
  const Array half = functional::embedding_backward(*executor, matrix({2, 1}, {1e-3F, 7.0F}), ids({1, 1}), 2);
  const Array carried =
      functional::embedding_backward(*executor, matrix({2, 1}, {1e8F, -1e8F}), ids({1, 1}), 2, {{}, half.view()});
  CHECK(bits_equal(carried.floats(), all.floats()));
  const Array padded = functional::embedding_backward(*executor, upstream, ids({0, 1, 1, 0}), 2, {Index{1}, {}});
  CHECK(to_bits(padded.floats()[1]) == 0);
}

TEST_CASE("parts meet in a tree of adjacent pairs, not in a running sum") {
  for (const std::string& name : executor_names()) {
    const auto executor = make_executor(name);
    const Array parts = matrix({4, 1}, {1.0F, 1e8F, -1e8F, 1.0F});
    // (1 + 1e8) + (-1e8 + 1) = 1e8 - 1e8 rounded in pairs; a running sum would give 1.
    CHECK(accumulate(*executor, parts).floats()[0] == 0.0F);
    CHECK(to_bits(accumulate(*executor, matrix({1, 1}, {from_bits(0x80000001)})).floats()[0]) == kSignBit);
  }
}

TEST_CASE("accumulation refuses a split that is not aligned, before anything is combined") {
  const auto executor = make_executor("reference");
  const Array parts = matrix({2, 1}, {1, kQuietNan});
  CHECK_REFUSED(accumulate(*executor, parts), "non-finite accumulation part 1 at flat index 0");
  CHECK_REFUSED(accumulate(*executor, parts, 300), "the split of 300 tokens into 2 parts is misaligned");
  CHECK_REFUSED(accumulate(*executor, Array::zeros({3, 1})), "power of two, got 3");
  CHECK_NOTHROW(accumulate(*executor, Array::zeros({2, 1}), 256));
}

}  // namespace samba
