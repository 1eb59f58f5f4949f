// samba bench as a user runs it: every kind of row works, a quick run ends in a minute. Times are not looked at.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "command.h"
#include "temporary_folder.h"

namespace samba {
namespace {

using nlohmann::json;

void check_report(const json& report) {
  REQUIRE(report.contains("machine"));
  const json& machine = report["machine"];
  CHECK(machine["processor"].is_string());
  for (const json& limits : machine["limits"]) {
    CHECK(limits["fma_gflops"].get<double>() > 0.0);
    CHECK(limits["read_gb_per_s"].get<double>() > 0.0);
  }
  for (const json& row : report["rows"]) {
    INFO(row.dump());
    CHECK_FALSE(row["name"].get<std::string>().empty());
    CHECK_FALSE(row["unit"].get<std::string>().empty());
    for (const char* field : {"achieved", "limit", "ratio"}) {
      REQUIRE(row[field].is_number());
      CHECK(row[field].get<double>() > 0.0);
    }
  }
}

TEST_CASE("every kind of row is measured, on one thread and on two, and written as table, JSON and picture") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "shapes.json", R"({
    "models": {"tiny": {"config": {"vocab": 16, "d_model": 32, "layers": [
      {"kind": "transformer", "n_heads": 2, "intermediate": 48}, {"kind": "mamba3"}]}}},
    "rows": [
      {"kind": "gemm", "m": [1, 3], "n": [32], "k": [64]},
      {"kind": "packed", "m": [2], "n": [32], "k": [64]},
      {"kind": "fixed15", "m": [2], "n": [32], "k": [64]},
      {"kind": "prefill", "model": "tiny", "length": 8},
      {"kind": "decode", "model": "tiny", "position": 4, "tokens": 2},
      {"kind": "training", "model": "tiny", "rows": 2, "length": 8},
      {"kind": "identity", "model": "tiny", "length": 8},
      {"kind": "identity", "pass": "training", "model": "tiny", "rows": 1, "length": 8},
      {"kind": "block", "layer": {"kind": "transformer", "n_heads": 2, "intermediate": 48}, "d_model": 32, "length": 8},
      {"kind": "block", "layer": {"kind": "mamba1"}, "d_model": 32, "length": 8},
      {"kind": "block", "layer": {"kind": "mamba2"}, "d_model": 32, "length": 8},
      {"kind": "block", "layer": {"kind": "mamba3"}, "d_model": 32, "length": 8},
      {"kind": "growth", "model": "tiny", "positions": [4, 20], "tokens": 2},
      {"kind": "growth", "pass": "prefill", "model": "tiny", "positions": [4, 20]},
      {"kind": "growth", "pass": "chunk", "model": "tiny", "positions": [4], "tokens": 8},
      {"kind": "start", "model": "tiny"},
      {"kind": "memory", "model": "tiny", "tokens": 3}
    ]})");
  const std::string shapes = (folder / "shapes.json").string(), out = (folder / "out").string();
  for (const char* threads : {"1", "2"}) {
    const CommandResult result =
        samba_command({"bench", "--shapes", shapes, "--threads", threads, "--repeat", "3", "--json", "--out", out});
    INFO(result.err);
    REQUIRE(result.code == 0);
    const json report = json::parse(result.out);
    check_report(report);
    CHECK(report["skipped"].empty());
    const CommandResult listed = samba_command({"bench", "--list", "--shapes", shapes, "--threads", threads, "--json"});
    CHECK(report["rows"].size() == json::parse(listed.out)["rows"].size());
    CHECK(json::parse(read_file(Path(out) / "bench.json")) == report);
    CHECK(std::filesystem::exists(Path(out) / "roofline.svg"));
    CHECK(std::filesystem::exists(Path(out) / "bench.txt"));
  }
}

TEST_CASE("samba bench --quick measures what it can in a minute and names the rest") {
  const CommandResult result = samba_command({"bench", "--quick", "--json"});
  INFO(result.err);
  REQUIRE(result.code == 0);
  const json report = json::parse(result.out);
  check_report(report);
  CHECK_FALSE(report["rows"].empty());
  const CommandResult listed = samba_command({"bench", "--quick", "--list", "--json"});
  CHECK(report["rows"].size() + report["skipped"].size() == json::parse(listed.out)["rows"].size());
}

}  // namespace
}  // namespace samba
