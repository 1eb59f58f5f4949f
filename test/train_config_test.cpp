// The configuration of a training run: refusals with pointer and nearest name, resolved form, overrides, the schema.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>

#include "samba/convert/initial_model.h"
#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/train/model_kind.h"
#include "samba/train/train_config.h"

namespace samba {
namespace {

using nlohmann::json;

json small_config() {
  return json::parse(R"({
    "seed": 7, "steps": 20,
    "model": {"vocab": 256, "d_model": 32, "layers": ["mamba3", "attention"], "n_heads": 2, "intermediate": 64},
    "data": {"paths": ["README.md"]},
    "batch": {"rows": 2, "length": 16}})");
}

std::string refusal(const json& config) {
  try {
    parse_train_config(config, SAMBA_SOURCE_DIR);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::value);
    return error.what();
  }
  return "accepted";
}

std::string refusal_with(const std::string& assignment) {
  json config = small_config();
  set_field(config, assignment);
  return refusal(config);
}

json schema() { return parse_json(read_file(Path(SAMBA_SOURCE_DIR) / "configs" / "schema.json"), "schema"); }

TEST_CASE("a refused field comes with its JSON pointer, what was given and what is accepted") {
  using Catch::Matchers::Contains;
  struct Row {
    const char* assignment;
    const char* message;
  };
  const Row rows[] = {
      {"model.vocab=1", "/model/vocab: must be an integer >= 2, got 1"},
      {"model.vocab=256.0", "/model/vocab: must be an integer >= 2, got 256.0"},
      {"model.d_model=-4", "/model/d_model: must be a positive integer, got -4"},
      {"model.layers=[]", "/model/layers: must be a list of at least one layer, got []"},
      {"model.layers.1=atention",
       "/model/layers/1: must be one of mamba3, attention, got \"atention\"; did you mean \"attention\"?"},
      {"model.d_model=48", "/model: d_model"},
      {"model.n_heads=null", "/model: n_heads"},
      {"model.n_heads=5", "/model: n_heads"},
      {"model.n_kv_heads=3", "/model: n_kv_heads"},
      {"model.dropout=1", "/model: dropout"},
      {"model.norm_eps=-1", "/model: norm_eps"},
      {"model.tie_embeddings=1", "/model/tie_embeddings: must be true or false, got 1"},
      {"model.vocabulary=3", "/model/vocabulary: unknown key; did you mean \"vocab\"?"},
      {"modle={}", "/modle: unknown key; did you mean \"model\"?"},
      {"optimizer.momentumm=1",
       "/optimizer/momentumm: unknown key; known: kind, lr, beta1, beta2, eps, weight_decay, max_norm"},
      {"optimizer.kind=adam", "/optimizer/kind: must be one of adamw, got \"adam\"; did you mean \"adamw\"?"},
      {"optimizer.beta2=1.0", "/optimizer/beta2: must be a number in [0, 1), got 1.0"},
      {"optimizer.eps=-1", "/optimizer/eps: must be a number >= 0, got -1"},
      {"optimizer.lr=fast", "/optimizer/lr: must be a number, got \"fast\""},
      {"optimizer.max_norm=0", "/optimizer/max_norm: must be a number > 0, or null, got 0"},
      {"schedule.kind=cosinus",
       "/schedule/kind: must be one of constant, linear, cosine, got \"cosinus\"; did you mean \"cosine\"?"},
      {"schedule={\"kind\":\"cosine\"}", "/schedule/peak_lr: is required"},
      {"schedule={\"peak_lr\":1}", "/schedule/kind: is required"},
      {"schedule={\"kind\":\"linear\",\"peak_lr\":1,\"warmup_steps\":9,\"total_steps\":8}",
       "/schedule/total_steps: 8 contradicts /schedule/warmup_steps 9"},
      {"schedule={\"kind\":\"linear\",\"peak_lr\":-1}", "/schedule/peak_lr: must be a number >= 0, got -1"},
      {"batch.rows=0", "/batch/rows: must be an integer >= 1 and <= 1048576, got 0"},
      {"batch.accumulation_steps=3", "/batch/accumulation_steps: must be a power of two, got 3"},
      {"batch.accumulation_steps=4", "/batch/accumulation_steps: 4 does not divide /batch/rows 2"},
      {"batch.accumulation_steps=2", "/batch/accumulation_steps: the split of 32 tokens"},
      {"batch.length=8193", "/batch/length: 8193 is more than the 8192 positions of an attention layer"},
      {"data.paths=[]", "/data/paths: must be a list of at least one file or folder, got []"},
      {"data.paths=[3]", "/data/paths/0: must be a path, got 3"},
      {"data.order=shuffled", "/data/order: must be one of draw.v1, permute.v1, start_positions, got \"shuffled\""},
      {"data.order=start_positions", "/data/start_positions: is required by /data/order"},
      {"data.evaluation_bytes=16",
       "/data/evaluation_bytes: 16 is too short for one sequence; at least /batch/length + 1 = 17, or 0"},
      {"evaluation.every=5", "/evaluation/every: 5 contradicts /data/evaluation_bytes 0"},
      {"checkpoint.keep_last=-1", "/checkpoint/keep_last: must be an integer >= 0, got -1"},
      {"sample.temperature=-1", "/sample/temperature: must be a number >= 0, got -1"},
      {"sample.prompt=\"\"", "/sample/prompt: must be a text that is not empty"},
      {"steps=0", "/steps: must be an integer >= 1"},
      {"seed=-1", "/seed: must be an integer from 0 to 2^64-1, got -1"},
      {"batch=7", "/batch: must be an object, got 7"},
  };
  for (const Row& row : rows) {
    INFO(row.assignment);
    CHECK_THAT(refusal_with(row.assignment), Contains(row.message));
  }
  json config = small_config();
  for (const char* missing : {"model", "data", "steps"}) {
    json without = config;
    without.erase(missing);
    CHECK_THAT(refusal(without), Contains("/" + std::string(missing) + ": is required"));
  }
  config["data"]["order"] = "permute.v1";
  config["data"]["start_positions"] = "starts.txt";
  CHECK_THAT(refusal(config), Contains("/data/order: permute.v1 contradicts /data/start_positions"));
}

TEST_CASE("JSON text that is none, or holds a key twice, is refused") {
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(parse_json("{\"a\": }", "x.json"), Contains("x.json is not JSON"));
  CHECK_THROWS_WITH(parse_json("{\"a\": 1, \"b\": {\"a\": 1, \"a\": 2}}", "x.json"), Contains("\"a\" is given twice"));
  CHECK_NOTHROW(parse_json("{\"a\": 1, \"b\": {\"a\": 1}, \"c\": [{\"a\": 1}, {\"a\": 1}]}", "x.json"));
}

TEST_CASE("the resolved configuration parses to itself, with every default filled in and absolute paths") {
  const TrainConfig config = parse_train_config(small_config(), "/somewhere");
  const json resolved = resolved_json(config);
  CHECK(resolved["data"]["paths"][0] == "/somewhere/README.md");
  CHECK(resolved["model"]["n_kv_heads"] == 2);
  CHECK(resolved["model"]["head_dim"] == 16);
  CHECK(resolved["optimizer"]["beta2"] == 0.999);
  CHECK(json(resolved_json(parse_train_config(resolved, "/elsewhere"))) == resolved);
  json with_schedule = small_config();
  set_field(with_schedule, "schedule={\"kind\":\"cosine\",\"peak_lr\":0.003,\"total_steps\":20}");
  const json again = resolved_json(parse_train_config(with_schedule, "/"));
  CHECK(json(resolved_json(parse_train_config(again, "/"))) == again);
}

TEST_CASE("--set takes dotted keys and pointers, JSON values and bare words") {
  json config = small_config();
  set_field(config, "optimizer.lr=1e-4");
  set_field(config, "/batch/rows=4");
  set_field(config, "data.order=permute.v1");
  set_field(config, "model.layers=[\"mamba3\"]");
  const TrainConfig parsed = parse_train_config(config, "/");
  CHECK(parsed.optimizer.lr == 1e-4);
  CHECK(parsed.batch.rows == 4);
  CHECK(parsed.data.order == "permute.v1");
  CHECK(parsed.model.layers.size() == 1);
  CHECK_THROWS_WITH(set_field(config, "novalue"), Catch::Matchers::Contains("must be key=value"));
  CHECK_THROWS_WITH(set_field(config, "steps.deep=1"), Catch::Matchers::Contains("no place for the key /steps/deep"));
}

TEST_CASE("the first field that decides the bits and differs is named") {
  const json mine = resolved_json(parse_train_config(small_config(), "/"));
  const auto with = [&](const char* assignment) {
    json other = small_config();
    set_field(other, assignment);
    return first_difference(mine, resolved_json(parse_train_config(other, "/")));
  };
  CHECK(first_difference(mine, mine).empty());
  CHECK(with("optimizer.beta2=0.95") == "/optimizer/beta2");
  CHECK(with("model.intermediate=32") == "/model/intermediate");
  CHECK(with("seed=8") == "/seed");
  CHECK(with("data.order=permute.v1") == "/data/order");
  CHECK(with("schedule={\"kind\":\"constant\",\"peak_lr\":1}") == "/schedule");
  CHECK(with("steps=21").empty());
  CHECK(with("checkpoint.every=1").empty());
}

// ---- configs/schema.json against the code ----

void collect(const json& node, const std::string& pointer, std::vector<std::pair<std::string, json>>& leaves) {
  if (!node.contains("properties")) {
    leaves.emplace_back(pointer, node);
    return;
  }
  for (const auto& [name, child] : node["properties"].items()) collect(child, pointer + "/" + name, leaves);
}

// Complete configurations of a SambaStack and of general stacks, so that every field of the schema can be changed by
// itself in one of them.
std::vector<json> full_configs() {
  json samba = small_config();
  set_field(samba, "schedule={\"kind\":\"constant\",\"peak_lr\":1}");
  json general = samba;
  general["model"] = json::parse(R"({"vocab": 256, "d_model": 32, "layers": [{"kind": "mamba1"}]})");
  json sgd = general;
  sgd["optimizer"]["kind"] = "sgd";
  std::vector<json> configs;
  json second_profile = general;
  second_profile["model"]["profile"] = "samba.fp32.v2";
  for (const json& config : {samba, general, sgd, second_profile})
    configs.emplace_back(resolved_json(parse_train_config(config, "/")));
  return configs;
}

// The first of them that has the field.
json config_with(const std::string& pointer) {
  for (const json& config : full_configs()) {
    if (config.contains(json::json_pointer(pointer))) return config;
  }
  FAIL("no configuration has " << pointer);
  return {};
}

TEST_CASE("schema.json knows exactly the fields of the code") {
  std::vector<std::pair<std::string, json>> leaves;
  collect(schema(), "", leaves);
  std::set<std::string> described;
  for (const auto& [pointer, leaf] : leaves) described.insert(pointer);
  std::set<std::string> known;
  for (const json& config : full_configs()) {
    const json flat = config.flatten();
    for (const auto& [pointer, value] : flat.items()) {
      // Lists are leaves of the schema.
      const std::size_t number = pointer.find_first_of("0123456789", pointer.find("s/"));
      const bool in_list = number != std::string::npos && pointer[number - 1] == '/';
      known.insert(in_list ? pointer.substr(0, number - 1) : pointer);
    }
  }
  CHECK(described == known);
}

TEST_CASE("the defaults of schema.json are those of the code") {
  std::vector<std::pair<std::string, json>> leaves;
  collect(schema(), "", leaves);
  const json defaults = resolved_json(parse_train_config(
      json::parse(
          R"({"steps": 1, "model": {"vocab": 256, "d_model": 32, "layers": ["mamba3"]}, "data": {"paths": ["t"]}})"),
      "/"));
  int compared = 0;
  for (const auto& [pointer, leaf] : leaves) {
    const json::json_pointer place(pointer);
    if (!leaf.contains("default") || !defaults.contains(place)) continue;
    INFO(pointer);
    ++compared;
    if (leaf["default"].is_number_float()) {
      CHECK(static_cast<float>(leaf["default"].get<double>()) == static_cast<float>(defaults.at(place).get<double>()));
    } else {
      CHECK(leaf["default"] == defaults.at(place));
    }
  }
  CHECK(compared > 20);
}

TEST_CASE("what schema.json refuses, the code refuses with the same pointer") {
  std::vector<std::pair<std::string, json>> leaves;
  collect(schema(), "", leaves);
  const auto refused_at = [&](const std::string& pointer, const json& value) {
    json config = config_with(pointer);
    config[json::json_pointer(pointer)] = value;
    INFO(pointer << " = " << value);
    CHECK_THAT(refusal(config), Catch::Matchers::Contains(pointer.substr(0, pointer.find('/', 1))));
  };
  for (const auto& [pointer, leaf] : leaves) {
    refused_at(pointer, json::object());  // of the wrong type, whatever the right one is
    if (leaf.contains("minimum")) refused_at(pointer, leaf["minimum"].get<double>() - 1.0);
    if (leaf.contains("minimum") && leaf["minimum"].is_number_integer()) {
      refused_at(pointer, leaf["minimum"].get<std::int64_t>() - 1);
    }
    if (leaf.contains("maximum")) refused_at(pointer, leaf["maximum"].get<std::int64_t>() + 1);
    if (leaf.contains("exclusiveMinimum")) refused_at(pointer, leaf["exclusiveMinimum"]);
    if (leaf.contains("exclusiveMaximum")) refused_at(pointer, leaf["exclusiveMaximum"]);
    if (leaf.contains("enum")) refused_at(pointer, "something else");
  }
  const json described = schema();
  for (const auto& [name, section] : described["properties"].items()) {
    if (!section.contains("required")) continue;
    for (const auto& field : section["required"]) {
      json config = full_configs().front();
      config[name].erase(field.get<std::string>());
      CHECK_THAT(refusal(config),
                 Catch::Matchers::Contains("/" + name + "/" + field.get<std::string>() + ": is required"));
    }
  }
}

TEST_CASE("every configuration that is shipped is accepted") {
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(Path(SAMBA_SOURCE_DIR) / "configs")) {
    if (entry.path().extension() != ".json" || entry.path().filename() == "schema.json") continue;
    INFO(entry.path());
    const json config = parse_json(read_file(entry.path()), entry.path().string());
    CHECK_NOTHROW(resolved_config(config, entry.path().parent_path(), model_opener()));
    ++found;
  }
  CHECK(found >= 4);
}

}  // namespace
}  // namespace samba
