// configs/tutorial_hybrid.json is the recorded training run: `samba train` writes the reference's final archive.
#include <catch2/catch.hpp>

#include "command.h"
#include "samba/core/sha256.h"

namespace samba {
namespace {

TEST_CASE("samba train with the tutorial's config writes the recorded final checkpoint") {
  const TemporaryFolder folder;
  const std::string run = (folder.path() / "run").string();
  const CommandResult result = samba_command(
      {"train", "--config", std::string(SAMBA_SOURCE_DIR) + "/configs/tutorial_hybrid.json", "--out", run});
  INFO(result.err);
  REQUIRE(result.code == 0);
  CHECK(sha256_hex(read_file(Path(run) / "checkpoints/step-00000020.samba")) ==
        "6c82f36ce66580e95d86ee4e435f3529ffc99f8dd95da8551c499d4196516071");
}

}  // namespace
}  // namespace samba
