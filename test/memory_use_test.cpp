// What the commands hold in memory at most, beside what samba inspect --memory says of it.
#include <sys/resource.h>

#include <catch2/catch.hpp>

#include "command.h"
#include "samba/core/sha256.h"
#include "samba/formats/canonical_json.h"
#include "samba/train/checkpoint_source.h"

namespace samba {
namespace {

using Catch::Contains;
using nlohmann::json;

// The program itself, its libraries, and buffers that do not depend on the model.
constexpr double kProgram = 40.0 * 1024 * 1024;
// The buffers alone, where the plan tells of the program.
constexpr double kBuffers = 16.0 * 1024 * 1024;
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
  CHECK(static_cast<double>(peak) <= kMargin * planned + kBuffers);
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

TEST_CASE("a large head of its own does not lie beside the whole model in two forms") {
  const TemporaryFolder folder;
  write_text(folder / "text.txt", std::string(4000, 'a'));
  const json layer = {{"kind", "transformer"}, {"n_heads", 8}, {"intermediate", 1408}};
  const json config = {{"seed", 1},
                       {"steps", 1},
                       {"model",
                        {{"vocab", 32768},  // embedding and head of 64 MiB each, layers of 13
                         {"d_model", 512},
                         {"tie_embeddings", false},
                         {"layers", json::array({layer, layer, layer, layer})}}},
                       {"data", {{"paths", {"text.txt"}}}},
                       {"batch", {{"rows", 1}, {"length", 8}}},
                       {"optimizer", {{"kind", "sgd"}, {"lr", 0.001}}}};
  write_text(folder / "config.json", config.dump());
  const std::string run = (folder / "run").string(), own = (folder / "own").string();
  REQUIRE(samba_command({"train", "--config", (folder / "config.json").string(), "--out", run}).code == 0);
  REQUIRE(samba_command({"convert", run, own, "--to", "safetensors"}).code == 0);
  for (const std::string& path : {run, own}) {
    CAPTURE(path);
    const json plan = memory_of(path, "8", "1").at("inference");
    const CommandResult decoded =
        samba_command({"decode", "--model", path, "--tokens", "1,2", "--max-tokens", "1", "--device", "cpu"});
    REQUIRE(decoded.code == 0);
    check_peak(decoded.peak_resident, plan);
  }
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

TEST_CASE("a comparison holds one tensor of each model") {
  REQUIRE(middle_run().trained.code == 0);
  constexpr double kTensor = 8192.0 * 512 * sizeof(float);
  TemporaryFolder folder;
  const std::string run = middle_run().path("run");
  const auto made = [&](const std::string& name, const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {"convert", run, (folder / name).string()};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    REQUIRE(samba_command(arguments).code == 0);
    return (folder / name).string();
  };
  const auto compared = [&](const std::string& a, const std::string& b) {
    const CommandResult result = samba_command({"verify", "--compare", a, b});
    CAPTURE(a, b, result.out, result.err, result.peak_resident);
    CHECK(static_cast<double>(result.peak_resident) <= 2 * 1.2 * kTensor + kProgram);
    return result;
  };
  const std::string stack = made("stack.samba", {});
  const std::string own = made("folder", {"--to", "safetensors"});
  const std::string half = made("half.samba", {"--dtype", "bfloat16"});
  for (const std::string& other : {stack, own}) {
    const CommandResult result = compared(run, other);
    CHECK(result.code == 0);
    CHECK_THAT(result.out, Contains("tensors are equal") && Contains("equal ("));
  }
  const CommandResult halves = compared(stack, half);
  CHECK(halves.code == 1);
  CHECK_THAT(halves.out, Contains(": only in " + stack));
}

// The older form of a streamed archive: JSON with hex digits.
void write_legacy(const Path& archive, const Path& legacy) {
  CheckpointSource source(archive, true);
  std::array<std::string, kArchiveArrays> bytes;
  std::array<PieceWriter, kArchiveArrays> destinations;
  for (std::size_t array = 0; array < kArchiveArrays; ++array) {
    destinations[array] = [&, array](std::uint64_t, const void* from, std::size_t count) {
      bytes[array].append(static_cast<const char*>(from), count);
    };
  }
  source.read_arrays(destinations, {});
  json payload = source.state();
  for (std::size_t array = 0; array < kArchiveArrays; ++array) {
    const std::string& raw = bytes[array];
    payload[std::string(archive_array_name(array))] = {
        {"dtype", archive_array_dtype(array)},
        {"shape", {raw.size() / 4}},
        {"hex", to_hex({reinterpret_cast<const std::uint8_t*>(raw.data()), raw.size()})}};
  }
  const std::string text = canonical_json(payload);
  write_text(legacy, "{\"schema\": \"mojolearn.samba-stack-json-checkpoint.v1\", \"payload_sha256\": \"" +
                         sha256_hex(text) + "\", \"payload\": " + text + "}\n");
}

TEST_CASE("a legacy JSON checkpoint is read where it lies") {
  TemporaryFolder folder;
  const auto place = [&](const std::string& name) { return (folder / name).string(); };
  write_text(place("text.txt"), std::string(3000, 'a'));
  const json config = {{"steps", 1},
                       {"model",
                        {{"vocab", 4096},
                         {"d_model", 256},
                         {"layers", {"mamba3", "attention"}},
                         {"n_heads", 8},
                         {"n_kv_heads", 8},
                         {"head_dim", 32},
                         {"intermediate", 704}}},
                       {"data", {{"paths", {"text.txt"}}}},
                       {"batch", {{"rows", 1}, {"length", 16}}},
                       {"optimizer", {{"lr", 0.001}}}};
  write_text(place("config.json"), config.dump());
  const CommandResult trained =
      samba_command({"train", "--config", place("config.json"), "--out", place("run"), "--device", "cpu"});
  INFO(trained.err);
  REQUIRE(trained.code == 0);
  const std::string archive = place("run/checkpoints/step-00000001.samba");
  write_legacy(archive, place("legacy.json"));
  const auto size = static_cast<double>(std::filesystem::file_size(place("legacy.json")));
  REQUIRE(size > 50e6);
  const std::vector<std::vector<std::string>> commands = {
      {"verify", "--compare", archive, place("legacy.json")},
      {"convert", place("legacy.json"), place("again.samba")},
      {"decode", "--model", place("legacy.json"), "--tokens", "1,2", "--max-tokens", "1", "--device", "cpu"}};
  for (const auto& arguments : commands) {
    const CommandResult result = samba_command(arguments);
    CAPTURE(arguments.front(), result.out, result.err, result.peak_resident);
    CHECK(result.code == 0);
    CHECK(static_cast<double>(result.peak_resident) < kProgram + size / 3);
  }
  CHECK(read_file(place("again.samba")) == read_file(archive));
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
  for (const char* part :
       {"weights", "panels", "moments", "gradients", "states", "workspace", "program", "tokenizer", "total"}) {
    CHECK_THAT(table.out, Contains(part));
  }
  CHECK_THAT(table.out, Contains("inference") && Contains("training") && Contains("steps of 4 rows of 128 tokens"));
}

TEST_CASE("inspect counts the steps that the configuration names, unless flags name others") {
  const TemporaryFolder folder;
  json config = tiny_config(folder.path() / "text.txt");
  config["batch"] = {{"rows", 16}, {"length", 32}, {"accumulation_steps", 2}};
  const std::string path = folder / "tiny.json";
  const auto training = [&](std::vector<std::string> flags) {
    write_text(path, config.dump());
    std::vector<std::string> arguments{"inspect", path, "--json", "--device", "cpu"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const CommandResult result = samba_command(arguments);
    INFO(result.err);
    REQUIRE(result.code == 0);
    return json::parse(result.out).at("memory").at("training");
  };
  const json own = training({});
  CHECK(own["batch"] == 16);
  CHECK(own["length"] == 32);
  const json other = training({"--batch", "8", "--length", "32"});
  CHECK(other["batch"] == 8);
  CHECK(other["length"] == 32);
  CHECK(other["workspace"] < own["workspace"]);
  config["batch"].erase("accumulation_steps");
  CHECK(training({})["gradients"] < own["gradients"]);  // one buffer instead of two
}

}  // namespace samba
