// Random blocks: the properties of random_blocks/properties.h on small cases. test/long has more and larger ones.
#include <catch2/catch.hpp>

#include "random_blocks/properties.h"

namespace samba {
namespace {

constexpr int kCases = 100;

}  // namespace

TEST_CASE("random transformer blocks of default options have every property") {
  CHECK(check_random_blocks(RandomBlocks::default_transformer, kCases, false));
}

TEST_CASE("random transformer blocks of any options have every property") {
  CHECK(check_random_blocks(RandomBlocks::any_transformer, kCases, false));
}

TEST_CASE("random Mamba-1 blocks have every property") {
  CHECK(check_random_blocks(RandomBlocks::mamba1, kCases, false));
}

TEST_CASE("random Mamba-2 blocks have every property") {
  CHECK(check_random_blocks(RandomBlocks::mamba2, kCases, false));
}

TEST_CASE("random Mamba-3 blocks have every property") {
  CHECK(check_random_blocks(RandomBlocks::mamba3, kCases, false));
}

}  // namespace samba
