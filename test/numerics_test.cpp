#include <catch2/catch.hpp>

#include "samba/numerics/fold.h"
#include "samba/numerics/philox.h"

namespace samba {

TEST_CASE("philox gives its published known answers") {
  CHECK(philox4x32({0, 0, 0, 0}, 0, 0) == PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffff, 0xffffffff) ==
        PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0) ==
        PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("flush keeps the sign of what it flushes, and the product that rounds up to the smallest normal") {
  CHECK(to_bits(flush(from_bits(0x80000001))) == kSignBit);
  CHECK(to_bits(flush(from_bits(0x007FFFFF))) == 0);
  CHECK(to_bits(mul(from_bits(0x3F7FFFFF), from_bits(0x00800000))) == 0x00800000);
}

TEST_CASE("the binary counter of partials equals the level by level tree for every number of leaves") {
  for (std::size_t leaves = 1; leaves <= 1024; ++leaves) {
    std::vector<float> level;
    TreeFold tree;
    for (std::size_t i = 0; i < leaves; ++i) {
      const float partial = stream_normal(3, static_cast<std::uint32_t>(leaves), i, 0.0F, 1.0F);
      level.push_back(partial);
      tree.push(partial);
    }
    while (level.size() > 1) {
      std::vector<float> next;
      for (std::size_t i = 0; i + 1 < level.size(); i += 2) next.push_back(add(level[i], level[i + 1]));
      if (level.size() % 2 == 1) next.push_back(level.back());
      level = next;
    }
    REQUIRE(to_bits(tree.finish()) == to_bits(level[0]));
  }
}

}  // namespace samba
