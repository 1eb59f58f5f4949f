// The checkpoint file of the small MLP (spec 50 section B5) beyond the recorded variants: bounds, damage, the file
// system, and the folder of safetensors.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "samba/backends/registry.h"
#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/formats/canonical_json.h"
#include "samba/train/mlp_folder.h"
#include "samba/train/model_kind.h"
#include "temporary_folder.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using nlohmann::json;

MlpState some_state() {
  MlpState state;
  state.weights = draw_mlp_values(3);
  state.exp_avg = draw_mlp_values(4);
  for (const float value : draw_mlp_values(5)) state.exp_avg_sq.push_back(value * value);
  state.step = 12;
  state.settings = rounded_mlp_settings({});
  state.data_schedule =
      parse_data_schedule(R"({"z":[1,1.0,-0.0,1e-05],"big":123456789012345678901234567890,"s":"\ud800\n"})");
  return state;
}

std::string refusal(std::string_view bytes, MlpReader reader = MlpReader::trainer) {
  try {
    parse_mlp_checkpoint(bytes, reader);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::corrupt);
    return error.what();
  }
  return "accepted";
}

// The file with an edited payload, its digest made right again.
template <class Edit>
std::string edited(Edit&& edit) {
  json file = parse_json(mlp_checkpoint_bytes(some_state()), {.lone_surrogates = true});
  edit(file["payload"]);
  file["payload_sha256"] = sha256_hex(canonical_json(file["payload"], ControlEscapes::short_forms));
  return canonical_json(file, ControlEscapes::short_forms) + "\n";
}

}  // namespace

TEST_CASE("the file reads back to the same bytes, the data schedule with every digit") {
  const std::string bytes = mlp_checkpoint_bytes(some_state());
  CHECK_THAT(bytes, StartsWith("{\"payload\":{\"architecture\":[8,16,3],\"config\":{\"beta1\":0.8999999761581421,"));
  CHECK_THAT(
      bytes,
      Contains(R"("data_schedule":{"big":123456789012345678901234567890,"s":"\ud800\n","z":[1,1.0,-0.0,1e-05]})"));
  CHECK(bytes.back() == '\n');
  CHECK(mlp_checkpoint_bytes(parse_mlp_checkpoint(bytes)) == bytes);
  CHECK(mlp_checkpoint_bytes(parse_mlp_checkpoint(bytes, MlpReader::inference)) == bytes);
}

TEST_CASE("the message begins with the reader") {
  CHECK_THAT(refusal("{"), StartsWith("SmallMLPTrainer checkpoint is not valid bounded JSON"));
  CHECK_THAT(refusal("{", MlpReader::inference), StartsWith("MLPInference checkpoint is not valid bounded JSON"));
}

TEST_CASE("what is no bounded strict JSON is refused") {
  const std::string bytes = mlp_checkpoint_bytes(some_state());
  const auto padded = [&](std::size_t size) { return bytes + std::string(size - bytes.size(), ' '); };
  CHECK(refusal(padded(kMlpCheckpointBytes)) == "accepted");
  CHECK_THAT(refusal(padded(kMlpCheckpointBytes + 1)), Contains("exceeds its size bound"));
  const char* const bad = "is not valid bounded JSON";
  CHECK_THAT(refusal("\xEF\xBB\xBF" + bytes), Contains(bad));
  CHECK_THAT(refusal(std::string(kMlpCheckpointBytes, '[')), Contains(bad));
  CHECK_THAT(refusal(bytes + "{}"), Contains(bad));
  CHECK_THAT(refusal("{\"payload\":1,\"payload\":2}"), Contains(bad));
  CHECK_THAT(refusal("{\"payload\":1e999}"), Contains(bad));
  CHECK_THAT(refusal("{\"payload\":NaN}"), Contains(bad));
  CHECK_THAT(refusal("{\"payload\":\"\xff\"}"), Contains(bad));
  CHECK_THAT(refusal("{\"payload\":1" + std::string(4300, '0') + "}"), Contains(bad));
  CHECK_THAT(refusal(""), Contains(bad));
}

TEST_CASE("a file cut at any byte, or with any byte flipped, is refused or means the same") {
  const std::string bytes = mlp_checkpoint_bytes(some_state());
  for (std::size_t length = 0; length + 1 < bytes.size(); ++length) {
    if (refusal(bytes.substr(0, length)) == "accepted") FAIL("cut at " << length);
  }
  CHECK(refusal(bytes.substr(0, bytes.size() - 1)) == "accepted");  // the newline alone is missing
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    try {
      if (mlp_checkpoint_bytes(parse_mlp_checkpoint(damaged)) != bytes) FAIL("byte " << at << " changed the content");
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::corrupt) FAIL("byte " << at << ": " << error.what());
    }
  }
}

TEST_CASE("a payload of another form is refused with the words of its rule") {
  const auto message = [](auto&& edit) { return refusal(edited(edit)); };
  CHECK(message([](json&) {}) == "accepted");
  CHECK(message([](json& p) { p["architecture"] = {8.0, 16, 3.0}; }) == "accepted");
  CHECK(message([](json& p) { p["config"]["weight_decay"] = 0; }) == "accepted");
  CHECK_THAT(message([](json& p) { p = json::array({1}); }), Contains("parameter registry mismatch"));
  CHECK_THAT(message([](json& p) { p.erase("weights"); }), Contains("parameter registry mismatch"));
  CHECK_THAT(message([](json& p) { p["weights"]["weight3"] = 1; }), Contains("parameter registry mismatch"));
  CHECK_THAT(message([](json& p) { p["weights"]["bias1"]["shape"] = {4, 4}; }), Contains("tensor descriptor mismatch"));
  CHECK_THAT(message([](json& p) { p["weights"]["bias1"]["more"] = 1; }), Contains("tensor descriptor mismatch"));
  CHECK_THAT(message([](json& p) { p["weights"]["bias1"]["hex"] = 5; }), Contains("tensor length mismatch"));
  CHECK_THAT(message([](json& p) { p["weights"]["bias1"]["hex"] = std::string(128, 'g'); }),
             Contains("tensor is not hexadecimal"));
  CHECK_THAT(message([](json& p) { p["weights"]["bias1"]["hex"] = "  " + std::string(126, '0'); }),
             Contains("tensor byte count mismatch"));
  CHECK_THAT(message([](json& p) { p["weights"]["bias1"]["hex"] = "0 " + std::string(126, '0'); }),
             Contains("tensor is not hexadecimal"));
  CHECK_THAT(message([](json& p) { p["optimizer"].erase("m"); }), Contains("state is incomplete"));
  CHECK_THAT(message([](json& p) { p.erase("optimizer"); }), Contains("state is incomplete"));
  CHECK_THAT(message([](json& p) { p["optimizer"]["more"] = 1; }), Contains("optimizer mismatch"));
  CHECK_THAT(message([](json& p) { p.erase("config"); }), Contains("has missing or unknown fields"));
  CHECK_THAT(message([](json& p) { p["config"]["lr"] = "0.1"; }), Contains("lr must be a finite float32 scalar"));
  CHECK_THAT(message([](json& p) { p["config"]["lr"] = 1e300; }), Contains("lr must be finite float32"));
  CHECK_THAT(message([](json& p) { p["optimizer"]["step"] = 2147483648; }), Contains("outside its supported range"));
  CHECK_THAT(message([](json& p) {
               p["data_schedule"] = {{"a", std::string(2041, 'x')}};
             }),
             Contains("data_schedule exceeds 2048 bytes"));
  CHECK_THAT(message([](json& p) { p["weights"]["weight2"]["hex"] = std::string(376, '0') + "0000807f"; }),
             Contains("weight2 must be finite"));
  CHECK_THAT(message([](json& p) {
               std::string hex = p["optimizer"]["m"]["hex"];
               p["optimizer"]["m"]["hex"] = hex.replace(0, 8, "0000c07f");
             }),
             Contains("m must be finite"));
}

TEST_CASE("a file is written whole with mode 0600 and found again by its content") {
  const TemporaryFolder folder;
  const Path path = folder / "model.mlp";
  const std::string digest = save_mlp_checkpoint(some_state(), path);
  CHECK(digest == sha256_hex(read_file(path)));
  CHECK((fs::status(path).permissions() & fs::perms::all) == (fs::perms::owner_read | fs::perms::owner_write));
  CHECK(folder.entries() == 1);
  CHECK(is_mlp_checkpoint(path));
  CHECK(model_kind_of_file(path) == ModelKind::mlp);
  MlpState bad = some_state();
  bad.data_schedule = json::object();
  CHECK_THROWS_AS(save_mlp_checkpoint(bad, path), Error);
  CHECK(sha256_hex(read_file(path)) == digest);

  std::ofstream(folder / "other.json") << "{\"payload\": {}}";
  CHECK_FALSE(is_mlp_checkpoint(folder / "other.json"));
  CHECK(model_kind_of_file(folder / "other.json") == ModelKind::stack);
  std::ofstream(folder / "large.mlp") << read_file(path) << std::string(40000, ' ');
  CHECK(is_mlp_checkpoint(folder / "large.mlp"));
  CHECK_THROWS_WITH(read_mlp_checkpoint(folder / "large.mlp"),
                    StartsWith("SmallMLPTrainer checkpoint exceeds its size bound") && Contains("large.mlp"));
  const auto executor = make_executor("cpu");
  CHECK(load_mlp_for_training(*executor, path)->completed_steps() == 12);
  CHECK_NOTHROW(load_mlp_for_inference(*executor, path));
}

TEST_CASE("a folder of safetensors and back is the same file; packed weights stay for inference") {
  const TemporaryFolder folder;
  const MlpState state = some_state();
  write_mlp_folder(state, WeightFormat::float32, folder / "plain");
  CHECK(is_mlp_folder(folder / "plain"));
  CHECK(model_kind_of_file(folder / "plain") == ModelKind::mlp);
  CHECK(mlp_checkpoint_bytes(read_mlp_folder(folder / "plain")) == mlp_checkpoint_bytes(state));
  CHECK_THROWS_AS(write_mlp_folder(state, WeightFormat::float32, folder / "plain"), Error);  // not empty

  const auto executor = make_executor("cpu");
  const Array x = Array::zeros({2, 8});
  for (const WeightFormat format : {WeightFormat::bfloat16, WeightFormat::int8}) {
    const Path path = folder / std::string(weight_format_name(format));
    write_mlp_folder(state, format, path);
    CHECK(open_mlp(*executor, path)->weight_format() == format);
    CHECK_NOTHROW(open_mlp(*executor, path)->predict_logits(x));
    CHECK_FALSE(fs::exists(path / "optimizer.safetensors"));
    CHECK_THROWS_WITH(read_mlp_folder(path), Contains("packed weights, which are for inference"));
  }
  fs::remove(folder / "plain/optimizer.safetensors");
  CHECK_THROWS_AS(read_mlp_folder(folder / "plain"), Error);
}

}  // namespace samba
