// What the commands hold in memory at most, beside what samba inspect --memory says of it.
#include <sys/resource.h>

#include <catch2/catch.hpp>

#include "command.h"

namespace samba {
namespace {

using Catch::Contains;
using nlohmann::json;

// The program itself, its libraries, and buffers that do not depend on the model.
constexpr double kProgram = 40.0 * 1024 * 1024;
constexpr double kMargin = 1.15;

// A run of one step of a model of some million parameters, untied so that every kind of weight takes memory.
class MiddleRun {
 public:
  MiddleRun() {
    std::string text;
    for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * i) + " of a text that is long enough\n";
    write_text(folder_ / "text.txt", text);
    const json config = {
        {"seed", 1},
        {"steps", 1},
        {"model",
         {{"vocab", 8192},
          {"d_model", 512},
          {"tie_embeddings", false},
          {"layers", json::array({{{"kind", "transformer"}, {"n_heads", 8}, {"intermediate", 1408}},
                                  {{"kind", "mamba2"}},
                                  {{"kind", "transformer"}, {"n_heads", 8}, {"intermediate", 1408}}})}}},
        {"data", {{"paths", {"text.txt"}}}},
        {"batch", {{"rows", 4}, {"length", 64}}},
        {"optimizer", {{"kind", "adamw"}, {"lr", 0.001}}}};
    write_text(folder_ / "config.json", config.dump());
    trained = samba_command({"train", "--config", path("config.json"), "--out", path("run"), "--device", "cpu"});
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  CommandResult trained;

 private:
  TemporaryFolder folder_;
};

const MiddleRun& middle_run() {
  static const MiddleRun run;
  return run;
}

json memory_of(const std::string& path, const std::string& length, const std::string& batch) {
  const CommandResult result =
      samba_command({"inspect", path, "--memory", "--json", "--length", length, "--batch", batch, "--device", "cpu"});
  INFO(result.err);
  REQUIRE(result.code == 0);
  return json::parse(result.out).at("memory");
}

void check_peak(std::uint64_t peak, const json& plan) {
  const double planned = plan.at("total").get<double>();
  INFO("planned " << plan.dump() << ", peak " << peak);
  CHECK(static_cast<double>(peak) <= kMargin * planned + kProgram);
  CHECK(static_cast<double>(peak) >= 0.9 * planned);
}

}  // namespace

TEST_CASE("a model for decoding takes the memory that was planned, its weights once") {
  REQUIRE(middle_run().trained.code == 0);
  const json plan = memory_of(middle_run().path("run"), "128", "1").at("inference");
  CHECK(plan.at("weights").get<double>() < 0.5 * plan.at("panels").get<double>());
  std::string ids = "1";
  for (int i = 0; i < 99; ++i) ids += "," + std::to_string(i);
  const CommandResult decoded = samba_command({"decode", "--model", middle_run().path("run"), "--tokens", ids,
                                               "--max-tokens", "28", "--device", "cpu", "--threads", "2"});
  INFO(decoded.err);
  REQUIRE(decoded.code == 0);
  check_peak(decoded.peak_resident, plan);
}

TEST_CASE("a training takes the memory that was planned") {
  REQUIRE(middle_run().trained.code == 0);
  check_peak(middle_run().trained.peak_resident, memory_of(middle_run().path("config.json"), "64", "4").at("training"));
}

TEST_CASE("a conversion holds one tensor and the buffer it is written from") {
  REQUIRE(middle_run().trained.code == 0);
  constexpr double kTensor = 8192.0 * 512 * sizeof(float);
  TemporaryFolder folder;
  const auto converted = [&](const std::string& in, const std::string& out, std::vector<std::string> flags) {
    std::vector<std::string> arguments = {"convert", in, (folder / out).string()};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const CommandResult result = samba_command(arguments);
    INFO(result.err);
    REQUIRE(result.code == 0);
    CAPTURE(out, result.peak_resident);
    CHECK(static_cast<double>(result.peak_resident) <= 1.2 * kTensor + kTensor + kProgram);
    return (folder / out).string();
  };
  const std::string stack = converted(middle_run().path("run"), "stack.samba", {});
  const std::string own = converted(stack, "folder", {"--to", "safetensors"});
  converted(own, "half.samba", {"--dtype", "bfloat16"});
  converted(own, "again.samba", {});
  CHECK(read_file(folder / "again.samba") == read_file(folder / "stack.samba"));
}

TEST_CASE("a model that does not fit into memory is refused with what it needs and what there is") {
  REQUIRE(middle_run().trained.code == 0);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
  rlimit limit = before;
  limit.rlim_cur = std::uint64_t{96} << 20;  // for the children
  std::string text;
  const auto limited = [&](const std::vector<std::string>& arguments) {
    REQUIRE(::setrlimit(RLIMIT_AS, &limit) == 0);
    const CommandResult result = samba_command(arguments);
    REQUIRE(::setrlimit(RLIMIT_AS, &before) == 0);
    return result;
  };
  const CommandResult decoded = limited({"decode", "--model", middle_run().path("run"), "--tokens", "1,2",
                                         "--max-tokens", "2", "--device", "cpu", "--threads", "1"});
  CHECK(decoded.code == 4);
  CHECK_THAT(decoded.err, Contains("needs ") && Contains("MiB of memory") && Contains("are available"));
  const CommandResult trained = limited({"train", "--config", middle_run().path("config.json"), "--out",
                                         middle_run().path("none"), "--device", "cpu", "--threads", "1"});
  CHECK(trained.code == 4);
  CHECK_THAT(trained.err, Contains("training a model of") && Contains("are available"));
}

TEST_CASE("inspect plans the memory of a configuration, without a model") {
  const CommandResult table = samba_command({"inspect", std::string(SAMBA_SOURCE_DIR) + "/configs/quickstart.json"});
  CHECK(table.code == 0);
  for (const char* part : {"weights", "panels", "moments", "gradients", "states", "workspace", "total"}) {
    CHECK_THAT(table.out, Contains(part));
  }
  CHECK_THAT(table.out, Contains("inference") && Contains("training") && Contains("steps of 8 rows of 128 tokens"));
}

}  // namespace samba
