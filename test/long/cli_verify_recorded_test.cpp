// The command of the README that holds a machine against everything that is recorded.
#include <catch2/catch.hpp>

#include "command.h"

namespace samba {

TEST_CASE("samba verify --cases test/golden runs all recorded cases, hash suites and columns, and ends with 0") {
  const CommandResult result = samba_command({"verify", "--cases", SAMBA_GOLDEN_DIR, "--device", "cpu"});
  INFO(result.err);
  CHECK(result.code == 0);
  CHECK(result.out.ends_with("cases: 1884 equal, 0 different, 8 not applicable\n"));
}

}  // namespace samba
