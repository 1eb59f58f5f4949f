// A few random bits flipped in larger files of every form; test/long/flip_walk_test.cpp flips thousands.
#include "flip_suite.h"

namespace samba {

TEST_CASE("a random bit flipped in a larger file is found, or found by the digests beside it, and never a crash") {
  flip_all(40, 20261130);
}

}  // namespace samba
