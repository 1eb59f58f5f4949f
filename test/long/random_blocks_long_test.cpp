// Random blocks: the properties of random_blocks/properties.h on many cases, across leaves and chunks.
#include <catch2/catch.hpp>

#include "random_blocks/properties.h"

namespace samba {
namespace {

constexpr int kCases = 300;

}  // namespace

TEST_CASE("many random transformer blocks of default options have every property") {
  CHECK(check_random_blocks(RandomBlocks::default_transformer, kCases, true));
}

TEST_CASE("many random transformer blocks of any options have every property") {
  CHECK(check_random_blocks(RandomBlocks::any_transformer, kCases, true));
}

TEST_CASE("many random Mamba-1 blocks have every property") {
  CHECK(check_random_blocks(RandomBlocks::mamba1, kCases, true));
}

TEST_CASE("many random Mamba-2 blocks have every property") {
  CHECK(check_random_blocks(RandomBlocks::mamba2, kCases, true));
}

TEST_CASE("many random Mamba-3 blocks have every property") {
  CHECK(check_random_blocks(RandomBlocks::mamba3, kCases, true));
}

}  // namespace samba
