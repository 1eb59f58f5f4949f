#include "samba/bench/shapes.h"

#include <algorithm>
#include <set>

#include "samba/core/error.h"

namespace samba::bench {

namespace {

struct Kind {
  std::string name;
  std::vector<std::string> fields;  // beside those of every row
  void (*add)(const RowSource&, std::vector<Case>&);
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"gemm", {"layouts", "m", "n", "k"}, add_gemm},
      {"packed", {"formats", "m", "n", "k"}, add_packed},
      {"fixed15", {"m", "n", "k"}, add_fixed15},
      {"prefill", {"name", "model", "length"}, add_prefill},
      {"decode", {"name", "model", "position", "tokens"}, add_decode},
      {"training", {"name", "model", "rows", "length"}, add_training},
      {"identity", {"name", "model", "pass", "length", "position", "tokens", "rows"}, add_identity},
      {"block", {"name", "layer", "d_model", "length", "passes"}, add_block},
      {"growth", {"name", "model", "pass", "positions", "tokens"}, add_growth},
      {"start", {"name", "model", "tokens"}, add_start},
      {"memory", {"name", "model", "tokens"}, add_memory},
      {"encode", {"forms", "texts", "vocab", "kilobytes"}, add_encode}};
  return all;
}

constexpr Index kMostRepeats = 4096;

struct ParsedFile {
  std::string name;
  nlohmann::json json;
};

void read_models(const ParsedFile& file, Models& models) {
  if (!file.json.contains("models")) return;
  const nlohmann::json& listed = file.json["models"];
  const std::string pointer = file.name + ": /models";
  if (!listed.is_object()) refuse_value(pointer + ": must be an object, got " + shown(listed));
  for (const auto& [name, value] : listed.items()) {
    const JsonFields fields(value, pointer + "/" + name, {"repeat", "config"});
    const auto repeat = static_cast<std::size_t>(fields.integer("repeat", 1, 1, kMostRepeats));
    StackConfig config = stack_config_from_json(fields.required("config"), fields.pointer_to("config"));
    if (repeat > 1 && config.samba) fields.refuse("repeat", "absent for a model whose layers are names");
    const std::vector<LayerConfig> period = config.layers;
    for (std::size_t i = 1; i < repeat; ++i) config.layers.insert(config.layers.end(), period.begin(), period.end());
    if (!models.emplace(name, std::move(config)).second) refuse_value(pointer + "/" + name + ": is given twice");
  }
}

void add_row(RowSource row, std::vector<Case>& cases) {
  if (!row.json.is_object()) refuse_value(row.pointer + ": must be an object, got " + shown(row.json));
  if (!row.json.contains("kind")) refuse_value(row.pointer + "/kind: is required");
  for (const Kind& kind : kinds()) {
    if (row.json["kind"] != kind.name) continue;
    row.kind = kind.name;
    row.fields().boolean("quick", false);
    return kind.add(row, cases);
  }
  refuse_choice(row.pointer + "/kind", row.json["kind"], row_kinds());
}

}  // namespace

JsonFields RowSource::fields() const { return {json, pointer, row_fields(kind)}; }

bool RowSource::quick() const { return json.value("quick", nlohmann::json(false)) == true; }

std::vector<Index> RowSource::sizes(const std::string& name) const {
  const std::string accepted = ": must be a list of positive integers, got ";
  if (!json.contains(name)) refuse_value(pointer + "/" + name + ": is required");
  const nlohmann::json& list = json[name];
  if (!list.is_array() || list.empty()) refuse_value(pointer + "/" + name + accepted + shown(list));
  std::vector<Index> sizes;
  for (const nlohmann::json& value : list) {
    constexpr std::uint64_t kMost = 1U << 20;
    const bool fits =
        value.is_number_unsigned() && value.get<std::uint64_t>() >= 1 && value.get<std::uint64_t>() <= kMost;
    if (!fits) {
      refuse_value(pointer + "/" + name + "/" + std::to_string(sizes.size()) +
                   ": must be an integer from 1 to 1048576, got " + shown(value));
    }
    sizes.push_back(value.get<Index>());
  }
  return sizes;
}

std::vector<std::string> RowSource::choices(const std::string& name, const std::vector<std::string>& accepted) const {
  if (!json.contains(name)) return accepted;
  const nlohmann::json& list = json[name];
  if (!list.is_array() || list.empty()) {
    refuse_value(pointer + "/" + name + ": must be a list of names, got " + shown(list));
  }
  std::vector<std::string> chosen;
  for (const nlohmann::json& value : list) {
    const bool known =
        value.is_string() && std::find(accepted.begin(), accepted.end(), value.get<std::string>()) != accepted.end();
    if (!known) refuse_choice(pointer + "/" + name + "/" + std::to_string(chosen.size()), value, accepted);
    chosen.push_back(value.get<std::string>());
  }
  return chosen;
}

const StackConfig& RowSource::model(const std::string& name) const {
  if (!json.contains(name)) refuse_value(pointer + "/" + name + ": is required");
  const nlohmann::json& given = json[name];
  std::vector<std::string> known;
  for (const auto& [model, config] : models) {
    if (given == model) return config;
    known.push_back(model);
  }
  if (known.empty()) refuse_value(pointer + "/" + name + ": names a model, but no file has /models");
  refuse_choice(pointer + "/" + name, given, known);
}

std::vector<ShapesFile> read_shapes(const std::vector<Path>& paths) {
  std::vector<ShapesFile> files;
  const auto add = [&](const Path& path) { files.push_back({path.string(), read_file(path)}); };
  for (const Path& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      add(path);
      continue;
    }
    std::set<Path> found;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.path().extension() == ".json" && entry.path().filename() != "schema.json") found.insert(entry.path());
    }
    if (found.empty()) refuse_value("--shapes " + path.string() + ": the folder holds no .json file");
    for (const Path& file : found) add(file);
  }
  return files;
}

std::vector<std::string> row_kinds() {
  std::vector<std::string> names;
  for (const Kind& kind : kinds()) names.push_back(kind.name);
  return names;
}

std::vector<std::string> row_fields(const std::string& kind) {
  std::vector<std::string> fields{"kind", "quick"};
  for (const Kind& known : kinds()) {
    if (known.name == kind) fields.insert(fields.end(), known.fields.begin(), known.fields.end());
  }
  return fields;
}

std::vector<Case> cases_of(const std::vector<ShapesFile>& files, const std::vector<int>& threads) {
  std::vector<ParsedFile> parsed;
  Models models;
  for (const ShapesFile& file : files) {
    parsed.push_back({file.name, parse_json(file.text, file.name)});
    const JsonFields fields(parsed.back().json, file.name + ": ", {"models", "rows"});
    read_models(parsed.back(), models);
  }
  std::vector<Case> cases;
  for (const ParsedFile& file : parsed) {
    if (!file.json.contains("rows")) continue;
    const nlohmann::json& rows = file.json["rows"];
    const std::string pointer = file.name + ": /rows";
    if (!rows.is_array()) refuse_value(pointer + ": must be a list, got " + shown(rows));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      add_row({"", rows[i], pointer + "/" + std::to_string(i), models, threads}, cases);
    }
  }
  std::set<std::string> names;
  for (const Case& c : cases) {
    for (const std::string& name : c.rows) {
      if (!names.insert(name).second) refuse_value("two rows have the name " + name + "; give one of them a `name`");
    }
  }
  return cases;
}

}  // namespace samba::bench
