// More than 10,000 random bits flipped in larger files; SAMBA_FLIPS sets the number for each form.
#include <cstdlib>

#include "flip_suite.h"

namespace samba {

TEST_CASE("10,000 random bits flipped in larger files are found, or found by the digests beside them") {
  const char* text = std::getenv("SAMBA_FLIPS");
  flip_all(text == nullptr ? 800 : std::atoi(text), 1);
}

}  // namespace samba
