// What is shipped works as it is: the small checkpoint, and what its README says of it.
#include <catch2/catch.hpp>

#include "command.h"
#include "samba/core/sha256.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;

Path shipped(const std::string& name) { return Path(SAMBA_SOURCE_DIR) / "checkpoints" / name; }

TEST_CASE("the shipped checkpoint is the one of its digest, decodes at once and speaks of its subject") {
  const Path model = shipped("licences_tiny.samba");
  const std::string bytes = read_file(model);
  CHECK(bytes.size() < 2'000'000);
  CHECK_THAT(read_file(shipped("licences_tiny.sha256")), Catch::Matchers::StartsWith(sha256_hex(bytes)));
  const CommandResult result = samba_command(
      {"decode", "--model", model.string(), "--prompt", "This program is ", "--max-tokens", "80", "--json"});
  REQUIRE(result.code == 0);
  // Recorded from the reference executor.
  CHECK(nlohmann::json::parse(result.out)["text"] ==
        "a covered work in a copy of the object code in a copy of the covered work in a c");
  const auto summary = nlohmann::json::parse(samba_command({"inspect", model.string(), "--json"}).out);
  CHECK(summary["step"] == 600);
  CHECK_THAT(read_file(shipped("README.md")), Contains("141,896 parameters"));
  CHECK(summary["parameters"] == 141896);
}

}  // namespace
}  // namespace samba
