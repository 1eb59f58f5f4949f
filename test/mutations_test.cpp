// scripts/mutation_check.py changes lines of the arithmetic one at a time; here, whether each of them is still there.
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "samba/core/files.h"

using namespace samba;

TEST_CASE("every deliberate change of the mutation check finds its line once, and tests to ask") {
  const Path root = SAMBA_SOURCE_DIR;
  const auto changes = nlohmann::json::parse(read_file(root / "scripts/mutations.json"));
  CHECK(changes.size() >= 30);
  for (const auto& change : changes) {
    INFO(change.dump());
    const std::string source = read_file(root / change.at("file").get<std::string>());
    const auto before = change.at("before").get<std::string>();
    const std::size_t at = source.find(before);
    CHECK(at != std::string::npos);
    CHECK(source.find(before, at + 1) == std::string::npos);
    CHECK(change.at("after") != before);
    CHECK_FALSE(change.at("tests").empty());
    for (const auto& test : change.at("tests")) {
      const std::string name = test.get<std::string>() + ".cpp";
      CHECK((std::filesystem::exists(root / "test" / name) || std::filesystem::exists(root / "test/long" / name)));
    }
  }
}
